// Compares the kernel, built for any CPU, with the numbers that vectors.py wrote: `vectors FILE`.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../src/fastweights/memory/kernel/scan.h"

extern "C" {
int fw_forward_f32(const fw_scan *);
int fw_forward_f64(const fw_scan *);
int fw_backward_f32(const fw_scan *);
int fw_backward_f64(const fw_scan *);
int64_t fw_vector_bytes(void);
}

static FILE *file;

static int64_t number() {
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, file) != 1) fprintf(stderr, "the file ends early\n"), exit(2);
    return value;
}

template <class T> static std::vector<T> tensor() {
    std::vector<T> numbers(number());
    if (fread(numbers.data(), sizeof(T), numbers.size(), file) != numbers.size()) exit(2);
    return numbers;
}

template <class T> static T *at(std::vector<T> &tensor) { return tensor.empty() ? nullptr : tensor.data(); }

template <class T> static double error(const std::vector<T> &found, const std::vector<T> &expected) {
    double worst = 0, scale = 1;
    for (const T wanted : expected) scale = std::fmax(scale, std::fabs(wanted));
    for (size_t i = 0; i < expected.size(); ++i) {
        const double apart = std::fabs(double(found[i]) - double(expected[i])) / scale;
        if (!(apart <= worst)) worst = apart;  // NaN is the worst
    }
    return worst;
}

template <class T> static int compare(int (*forward)(const fw_scan *), int (*backward)(const fw_scan *), int64_t index) {
    fw_scan c;
    memset(&c, 0, sizeof c);
    c.T = number(), c.B = number(), c.I = number(), c.H = number(), c.S = number(), c.K = number();
    c.identity = number(), c.use_tanh = number(), c.normalize_start = number();
    c.w_chunk_stride = number(), c.w_stride = number(), c.p_chunk_stride = number(), c.p_stride = number();
    c.left_chunk_stride = number(), c.left_stride = number();
    c.p_left_chunk_stride = number(), c.p_left_stride = number();
    std::vector<T> in[16], expected[9];
    for (auto &each : in) each = tensor<T>();
    auto &[x, C, b, W, gain, shift, h0, A0, w, p, left, p_left, keep, reset, u, grad_hs] = in;
    for (auto &each : expected) each = tensor<T>();
    const int64_t most = fw_vector_bytes() / int64_t(sizeof(T)), chunks = (c.T + c.K - 1) / c.K;
    const int64_t steps = c.T * c.B;
    int failed = 0;
    for (const int64_t lanes : {int64_t(1), most / 2, most}) {
        std::vector<T> hs(steps * c.H), A_last(chunks > 1 ? c.B * c.H * c.H : 0), grad_u(steps * c.H);
        // More than any arrangement saves: the trails, the matrices, the scales and the scores of whole blocks of lanes.
        const int64_t width = c.H + 16, rows = (c.S + 2) * c.T + chunks * (width + 8) + c.T + c.S * c.T;
        std::vector<T> saved((c.B + most) * rows * (width + c.T) + 64);
        T *aligned = reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(saved.data()) + 63) / 64 * 64);
        std::vector<T> grads[8] = {std::vector<T>(b.size()),  std::vector<T>(gain.size()), std::vector<T>(shift.size()),
                                   std::vector<T>(h0.size()), std::vector<T>(A0.size()),   std::vector<T>(C.size()),
                                   std::vector<T>(W.size()),  std::vector<T>(x.size())};
        auto &[grad_b, grad_gain, grad_shift, grad_h0, grad_A0, grad_C, grad_W, grad_x] = grads;
        c.threads = 1, c.lanes = lanes;
        c.x = nullptr, c.C = at(C), c.b = at(b), c.W = at(W), c.gain = at(gain), c.shift = at(shift);
        c.h0 = at(h0), c.A0 = at(A0), c.w = at(w), c.p = at(p), c.left = at(left), c.p_left = at(p_left);
        c.keep = at(keep), c.reset = at(reset), c.u = at(u), c.hs = hs.data(), c.A_last = at(A_last), c.saved = aligned;
        failed |= forward(&c);
        c.u = nullptr, c.grad_hs = at(grad_hs), c.grad_u = grad_u.data(), c.grad_b = at(grad_b);
        c.grad_gain = at(grad_gain), c.grad_shift = at(grad_shift), c.grad_h0 = at(grad_h0), c.grad_A0 = at(grad_A0);
        c.grad_x = lanes == 1 ? nullptr : grad_x.data();
        failed |= backward(&c);
        for (int64_t row = 0; row < steps; ++row)  // of C, and of x where the kernel leaves that to others
            for (int64_t h = 0; h < c.H; ++h)
                for (int64_t i = 0; i < c.I; ++i) {
                    grad_C[h * c.I + i] += grad_u[row * c.H + h] * x[row * c.I + i];
                    if (lanes == 1) grad_x[row * c.I + i] += grad_u[row * c.H + h] * C[h * c.I + i];
                }
        for (int64_t row = 0; row < steps; ++row) {
            if (!keep.empty() && keep[row] == 0) continue;
            const T *before = row >= c.B ? &hs[(row - c.B) * c.H] : h0.empty() ? nullptr : &h0[row * c.H];
            for (int64_t i = 0; i < c.H && before; ++i)
                for (int64_t j = 0; j < c.H; ++j) grad_W[i * c.H + j] += grad_u[row * c.H + i] * before[j];
        }
        const char *names[9] = {"hs", "b", "gain", "shift", "h0", "A0", "C", "W", "x"};
        for (int which = 0; which < 9; ++which) {
            const double apart = error(which ? grads[which - 1] : hs, expected[which]);
            if (apart <= (sizeof(T) == 8 ? 1e-9 : which ? 1e9 : 1e-3)) continue;
            printf("run %lld, %lld lanes, T=%lld B=%lld H=%lld K=%lld S=%lld: %s is %g away\n", (long long)index,
                   (long long)lanes, (long long)c.T, (long long)c.B, (long long)c.H, (long long)c.K, (long long)c.S,
                   names[which], apart);
            failed = 1;
        }
    }
    return failed;
}

int main(int count, char **arguments) {
    if (count != 2 || !(file = fopen(arguments[1], "rb"))) return fprintf(stderr, "vectors FILE\n"), 2;
    const int64_t runs = number();
    int failed = 0;
    for (int64_t index = 0; index < runs; ++index)
        failed += number() ? compare<float>(fw_forward_f32, fw_backward_f32, index)
                           : compare<double>(fw_forward_f64, fw_backward_f64, index);
    printf("%lld runs in three arrangements, %d with an error\n", (long long)runs, failed);
    return failed != 0;
}
