// A step of a built kernel beside the equations, in a program without Python or torch: step LIBRARY
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "scan.h"

static double next() {
    static unsigned long long state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<double>(state >> 11) / static_cast<double>(1ull << 53) - 0.5;
}

template <typename T>
static bool step(void *library, const char *name, double near) {
    const int64_t B = 37, I = 19, H = 23, S = 2;
    auto numbers = [](int64_t count) {
        std::vector<T> made(count);
        for (T &number : made) number = static_cast<T>(next());
        return made;
    };
    auto C = numbers(H * I), b = numbers(H), W = numbers(H * H), gain = numbers(H), shift = numbers(H);
    auto x = numbers(B * I), h = numbers(B * H), A = numbers(B * H * H);
    std::vector<T> new_h(B * H), new_A(B * H * H);
    fw_step call = {};
    call.B = B, call.I = I, call.H = H, call.S = S, call.threads = 1, call.decay = 0.95, call.rate = 0.5;
    call.C = C.data(), call.b = b.data(), call.W = W.data(), call.gain = gain.data(), call.shift = shift.data();
    call.x = x.data(), call.h = h.data(), call.A = A.data(), call.new_h = new_h.data(), call.new_A = new_A.data();
    auto function = reinterpret_cast<int (*)(const fw_step *)>(dlsym(library, name));
    if (!function || function(&call) != 0) return false;

    double worst = 0;
    auto compare = [&](double expected, double found) { worst = std::fmax(worst, std::fabs(expected - found)); };
    for (int64_t n = 0; n < B; n++) {
        const T *memory = A.data() + n * H * H;
        std::vector<double> z(H), q(H), y(H);
        for (int64_t i = 0; i < H; i++) {
            z[i] = b[i];
            for (int64_t j = 0; j < I; j++) z[i] += static_cast<double>(C[i * I + j]) * x[n * I + j];
            for (int64_t j = 0; j < H; j++) z[i] += static_cast<double>(W[i * H + j]) * h[n * H + j];
            q[i] = std::fmax(z[i], 0.0);
        }
        for (int64_t s = 0; s < S; s++) {
            double mean = 0, variance = 0;
            for (int64_t i = 0; i < H; i++) {
                y[i] = z[i];
                for (int64_t j = 0; j < H; j++) y[i] += memory[i * H + j] * q[j];
                mean += y[i] / H;
            }
            for (double each : y) variance += (each - mean) * (each - mean) / H;
            for (int64_t i = 0; i < H; i++) q[i] = std::fmax((y[i] - mean) / std::sqrt(variance + 1e-5) * gain[i] + shift[i], 0.0);
        }
        for (int64_t i = 0; i < H; i++) {
            compare(q[i], new_h[n * H + i]);
            for (int64_t j = 0; j < H; j++) compare(0.95 * memory[i * H + j] + 0.5 * q[i] * q[j], new_A[(n * H + i) * H + j]);
        }
    }
    std::printf("%s differs by at most %.1e\n", name, worst);
    return worst < near;
}

int main(int, char **words) {
    dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);  // as torch does
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) return std::puts(dlerror()), 1;
    bool right = step<double>(library, "fw_step_f64", 1e-12) && step<float>(library, "fw_step_f32", 1e-4);
    return right ? 0 : 1;
}
