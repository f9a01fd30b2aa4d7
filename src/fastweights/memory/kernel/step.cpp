// Single steps, without gradients: streams and agents.

#include "scan.h"
#include "vectors.h"

namespace fastweights {
namespace {

// out[i] += Σ_j matrix[i, j] x[j], along vectors: L rows at a time, whose sums across lanes are one transposition.
// Where rows or columns are not a multiple of L, the last L overlap those before, and what was had before is left out.
template <class T> void add_product(const T *matrix, int64_t rows, int64_t columns, const T *x, T *out) {
    using V = typename Lanes<T>::V;
    constexpr int64_t L = Lanes<T>::count;
    if (rows < L || columns < L) {
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j) out[i] += matrix[i * columns + j] * x[j];
        return;
    }
    V lane{};
    for (int64_t l = 0; l < L; ++l) lane[l] = T(l);
    const int64_t whole = columns / L * L, last = columns - L;
    const auto rest = lane >= T(whole - last);
    for (int64_t done = 0; done < rows; done += L) {
        const int64_t i = std::min(done, rows - L);
        const T *first = matrix + i * columns;
        V sum[L];
#pragma GCC unroll 16
        for (int64_t r = 0; r < L; ++r) sum[r] = V{};
        for (int64_t j = 0; j < whole; j += L) {
            const V some = Lanes<T>::load(x + j);
#pragma GCC unroll 16
            for (int64_t r = 0; r < L; ++r) sum[r] += Lanes<T>::load(first + r * columns + j) * some;
        }
        if (whole < columns) {
            const V some = Lanes<T>::load(x + last);
#pragma GCC unroll 16
            for (int64_t r = 0; r < L; ++r) sum[r] += rest ? Lanes<T>::load(first + r * columns + last) * some : V{};
        }
        transpose(sum);
        V total = Lanes<T>::load(out + i);
        const V before = total;
#pragma GCC unroll 16
        for (int64_t r = 0; r < L; ++r) total += sum[r];
        Lanes<T>::store(lane >= T(done - i) ? total : before, out + i);
    }
}

// One step of sequence b: vectors run along the units.
template <class T> void step(const fw_step &c, int64_t b) {
    const int64_t H = c.H;
    const T *x = static_cast<const T *>(c.x) + b * c.I, *C = static_cast<const T *>(c.C);
    const T *bias = static_cast<const T *>(c.b), *W = static_cast<const T *>(c.W);
    const T *gain = static_cast<const T *>(c.gain), *shift = static_cast<const T *>(c.shift);
    const T *h = c.h ? static_cast<const T *>(c.h) + b * H : nullptr;
    const T *A = c.A ? static_cast<const T *>(c.A) + b * H * H : nullptr;
    T *z = scratch.take<T>(3 * H), *v = z + H, *q = v + H;
    const T *past = static_cast<const T *>(c.past), *seen = static_cast<const T *>(c.seen);
    T *new_past = static_cast<T *>(c.new_past);
    T *new_h = new_past ? new_past + (c.T * c.B + b) * H : static_cast<T *>(c.new_h) + b * H;
    T *new_A = static_cast<T *>(c.new_A) + b * H * H;
    const bool use_tanh = c.use_tanh;
    const auto settle = [=](const T *from, bool normalized, T *__restrict to) {
        T mean = 0, variance = 0;
        if (normalized) {
#pragma omp simd reduction(+ : mean)
            for (int64_t i = 0; i < H; ++i) mean += from[i];
            mean /= T(H);
#pragma omp simd reduction(+ : variance)
            for (int64_t i = 0; i < H; ++i) variance += (from[i] - mean) * (from[i] - mean);
        }
        const T scale = T(1) / std::sqrt(variance / T(H) + T(1e-5));
        for (int64_t i = 0; i < H; ++i) {
            const T a = normalized ? (from[i] - mean) * scale * gain[i] + shift[i] : from[i];
            to[i] = use_tanh ? std::tanh(a) : a < 0 ? T(0) : a;
        }
    };
    for (int64_t i = 0; i < H; ++i) z[i] = bias ? bias[i] : T(0);
    add_product(C, H, c.I, x, z);
    if (h) add_product(W, H, H, h, z);
    settle(z, gain && c.normalize_start, c.S ? q : new_h);
    for (int64_t s = 0; s < c.S; ++s) {
        const T *base = c.identity ? q : z;
        std::copy(base, base + H, v);
        if (A) add_product(A, H, H, q, v);
        for (int64_t t = 0; new_past && t < c.T; ++t) {
            const T *state = past + (t * c.B + b) * H;
            T score = 0;
#pragma omp simd reduction(+ : score)
            for (int64_t i = 0; i < H; ++i) score += state[i] * q[i];
            score *= seen[t];
            T *__restrict to = v;
            for (int64_t i = 0; i < H; ++i) to[i] += score * state[i];
        }
        settle(v, gain, s + 1 < c.S ? q : new_h);
    }
    for (int64_t t = 0; new_past && t < c.T; ++t)
        std::copy_n(past + (t * c.B + b) * H, H, new_past + (t * c.B + b) * H);
    if (new_past) return;
    const T decay = T(c.decay), rate = T(c.rate);
    for (int64_t i = 0; i < H; ++i) {
        const T own = rate * new_h[i];
        T *__restrict row = new_A + i * H;
        if (A)
            for (int64_t j = 0; j < H; ++j) row[j] = decay * A[i * H + j] + own * new_h[j];
        else
            for (int64_t j = 0; j < H; ++j) row[j] = own * new_h[j];
    }
}

template <class T> int all_steps(const fw_step *c) {
    return in_parallel(c->B, c->threads, [&](int64_t b) { step<T>(*c, b); });
}

}  // namespace
}  // namespace fastweights

using namespace fastweights;

#pragma GCC visibility push(default)
extern "C" {
int fw_step_f32(const fw_step *step) { return all_steps<float>(step); }
int fw_step_f64(const fw_step *step) { return all_steps<double>(step); }
}
#pragma GCC visibility pop
