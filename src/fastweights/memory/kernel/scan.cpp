// A chunk of the recurrence, forward and backward, fused: the fast twin of chunk.py. The equations are there.
//
// Sequences are taken in blocks of L, one to each lane of a pair of vectors, and a block stays in cache for all its
// steps. Inside a block an array is (…, H, L), so everything but the product with W is lane by lane, and no sum runs
// across lanes: a sequence's numbers depend neither on its batch-mates nor on the number of threads.
//
// Plain C ABI, GCC/Clang vector extensions, no intrinsics.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "scan.h"

namespace {

template <class T> struct Lanes {
    typedef T V __attribute__((vector_size(32)));
    static constexpr int64_t in_vector = 32 / sizeof(T);
    static constexpr int64_t count = 2 * in_vector;
};

// VL vectors of VL numbers, rows to columns.
inline void transpose(Lanes<float>::V (&v)[8]) {
    Lanes<float>::V a[8], c[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; ++k) {
            c[i + 2 * k] = __builtin_shufflevector(a[i + k], a[i + 2 + k], 0, 1, 8, 9, 4, 5, 12, 13);
            c[i + 2 * k + 1] = __builtin_shufflevector(a[i + k], a[i + 2 + k], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; ++i) {
        v[i] = __builtin_shufflevector(c[i], c[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        v[i + 4] = __builtin_shufflevector(c[i], c[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

inline void transpose(Lanes<double>::V (&v)[4]) {
    Lanes<double>::V a[4];
    for (int i = 0; i < 4; i += 2) {
        a[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 4, 2, 6);
        a[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 1, 5, 3, 7);
    }
    for (int i = 0; i < 2; ++i) {
        v[i] = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 4, 5);
        v[i + 2] = __builtin_shufflevector(a[i], a[i + 2], 2, 3, 6, 7);
    }
}

// 64-byte aligned scratch memory that frees itself.
template <class T> struct Scratch {
    T *data;
    explicit Scratch(size_t count) {
        size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        data = static_cast<T *>(std::aligned_alloc(64, bytes ? bytes : 64));
        if (!data) throw std::bad_alloc();
    }
    ~Scratch() { std::free(data); }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
};

template <class T> struct Kernel {
    using V = typename Lanes<T>::V;
    static constexpr int64_t VL = Lanes<T>::in_vector, L = Lanes<T>::count;

    const fw_chunk &c;
    const int64_t K, B, H, S, N;
    const bool norm, norm_start, identity, use_tanh;
    const T *u, *W, *gain, *shift, *h0, *A0, *w, *p, *keep;
    const std::vector<T> zeros;
    std::vector<T> sums;  // of the gradients of gain and shift, per block

    explicit Kernel(const fw_chunk &chunk)
        : c(chunk), K(c.K), B(c.B), H(c.H), S(c.S), N(c.gain ? c.S + (c.normalize_start != 0) : 0),
          norm(c.gain != nullptr), norm_start(norm && c.normalize_start), identity(c.identity), use_tanh(c.use_tanh),
          u(static_cast<const T *>(c.u)), W(static_cast<const T *>(c.W)), gain(static_cast<const T *>(c.gain)),
          shift(static_cast<const T *>(c.shift)), h0(static_cast<const T *>(c.h0)),
          A0(static_cast<const T *>(c.A0)), w(static_cast<const T *>(c.w)), p(static_cast<const T *>(c.p)),
          keep(static_cast<const T *>(c.keep)), zeros(c.H) {}

    int64_t blocks() const { return (B + L - 1) / L; }
    // Saved by forward for backward, in V, per block: states (K, H), queries (S, K, H), normals (N, K, H),
    // scales (N, K), each pair of vectors.
    int64_t saved_per_block() const { return K * 2 * (H * (1 + S + N) + N); }

    // Sequences in order of their length, so that those of a block end together.
    std::vector<int64_t> order() const {
        std::vector<int64_t> order(B);
        std::iota(order.begin(), order.end(), 0);
        if (c.steps)
            std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return c.steps[a] > c.steps[b]; });
        return order;
    }

    struct Block {
        int64_t lane[L];   // which sequence; -1: none
        int64_t steps[L];  // how many of its steps count
        int64_t K;         // how many steps to run
        V *states, *queries, *normals, *scales;
    };

    Block block(int64_t index, const std::vector<int64_t> &order, V *saved) const {
        Block b;
        b.K = 0;
        for (int64_t l = 0; l < L; ++l) {
            int64_t place = index * L + l;
            b.lane[l] = place < B ? order[place] : -1;
            b.steps[l] = place < B ? (c.steps ? c.steps[b.lane[l]] : K) : 0;
            b.K = std::max(b.K, b.steps[l]);
        }
        b.states = saved + index * saved_per_block();
        b.queries = b.states + K * H * 2;
        b.normals = b.queries + S * K * H * 2;
        b.scales = b.normals + N * K * H * 2;
        return b;
    }

    V *state(const Block &b, int64_t t) const { return b.states + t * H * 2; }
    V *query(const Block &b, int64_t s, int64_t t) const { return b.queries + (s * K + t) * H * 2; }
    V *normal(const Block &b, int64_t n, int64_t t) const { return b.normals + (n * K + t) * H * 2; }
    V *scale(const Block &b, int64_t n, int64_t t) const { return b.scales + (n * K + t) * 2; }

    // Rows of `source` (…, B, H), one per lane, into lanes; zero where there is no sequence, or past its end.
    void gather(const Block &b, const T *source, int64_t t, V *lanes, bool all_steps) const {
        for (int64_t half = 0; half < 2; ++half) {
            const T *row[VL];
            for (int64_t l = 0; l < VL; ++l) {
                const int64_t lane = half * VL + l, sequence = b.lane[lane];
                const bool there = sequence >= 0 && (all_steps || t < b.steps[lane]);
                row[l] = there ? source + (t * B + sequence) * H : zeros.data();
            }
            int64_t h = 0;
            for (; h + VL <= H; h += VL) {
                V square[VL];
                for (int64_t l = 0; l < VL; ++l) std::memcpy(&square[l], row[l] + h, sizeof(V));
                transpose(square);
                for (int64_t k = 0; k < VL; ++k) lanes[2 * (h + k) + half] = square[k];
            }
            T *out = reinterpret_cast<T *>(lanes) + half * VL;
            for (; h < H; ++h)
                for (int64_t l = 0; l < VL; ++l) out[h * L + l] = row[l][h];
        }
    }

    // The way back: zero past a sequence's end.
    void scatter(const Block &b, const V *lanes, int64_t t, T *target) const {
        for (int64_t half = 0; half < 2; ++half) {
            T *row[VL];
            for (int64_t l = 0; l < VL; ++l) {
                const int64_t lane = half * VL + l, sequence = b.lane[lane];
                row[l] = sequence < 0 ? nullptr : target + (t * B + sequence) * H;
                if (row[l] && t >= b.steps[lane]) {
                    std::fill(row[l], row[l] + H, T(0));
                    row[l] = nullptr;
                }
            }
            int64_t h = 0;
            for (; h + VL <= H; h += VL) {
                V square[VL];
                for (int64_t k = 0; k < VL; ++k) square[k] = lanes[2 * (h + k) + half];
                transpose(square);
                for (int64_t l = 0; l < VL; ++l)
                    if (row[l]) std::memcpy(row[l] + h, &square[l], sizeof(V));
            }
            const T *in = reinterpret_cast<const T *>(lanes) + half * VL;
            for (; h < H; ++h)
                for (int64_t l = 0; l < VL; ++l)
                    if (row[l]) row[l][h] = in[h * L + l];
        }
    }

    // One number per lane, from a (B or 1, …) array with `stride` between sequences (0: the same for all).
    void numbers(const Block &b, const T *source, int64_t stride, V *out) const {
        if (stride == 0) {
            out[0] = out[1] = V{} + source[0];
            return;
        }
        T *flat = reinterpret_cast<T *>(out);
        for (int64_t l = 0; l < L; ++l) flat[l] = b.lane[l] < 0 ? T(0) : source[b.lane[l] * stride];
    }

    void kept(const Block &b, int64_t t, V *out) const {
        T *flat = reinterpret_cast<T *>(out);
        for (int64_t l = 0; l < L; ++l) flat[l] = b.lane[l] < 0 ? T(0) : keep[t * B + b.lane[l]];
    }

    // out[i] += Σ_k W[i, k] in[k] (or W[k, i], transposed) for R rows from i on.
    template <int R> void rows(int64_t i, bool transposed, const V *in, V *out) const {
        const int64_t step = transposed ? 1 : H, along = transposed ? H : 1;
        const T *first = W + i * step;
        V sum[R][2];
        for (int r = 0; r < R; ++r) sum[r][0] = out[2 * (i + r)], sum[r][1] = out[2 * (i + r) + 1];
        for (int64_t k = 0; k < H; ++k) {
            const V x0 = in[2 * k], x1 = in[2 * k + 1];
            const T *column = first + k * along;
            for (int r = 0; r < R; ++r) {
                const T weight = column[r * step];
                sum[r][0] += weight * x0;
                sum[r][1] += weight * x1;
            }
        }
        for (int r = 0; r < R; ++r) out[2 * (i + r)] = sum[r][0], out[2 * (i + r) + 1] = sum[r][1];
    }

    void multiply(bool transposed, const V *in, V *out) const {
        int64_t i = 0;
        for (; i + 5 <= H; i += 5) rows<5>(i, transposed, in, out);
        switch (H - i) {
        case 4: rows<4>(i, transposed, in, out); break;
        case 3: rows<3>(i, transposed, in, out); break;
        case 2: rows<2>(i, transposed, in, out); break;
        case 1: rows<1>(i, transposed, in, out); break;
        }
    }

    void activate(const V *in, V *out) const {
        if (use_tanh) {
            const T *x = reinterpret_cast<const T *>(in);
            T *y = reinterpret_cast<T *>(out);
            for (int64_t i = 0; i < H * L; ++i) y[i] = std::tanh(x[i]);
        } else {
            const V zero{};
            for (int64_t i = 0; i < 2 * H; ++i) out[i] = in[i] < zero ? zero : in[i];  // NaN stays NaN
        }
    }

    // out = f(LN[in]); leaves the normalised sums and their scale behind.
    void normalize(V *in, V *normals, V *scales, V *out) const {
        for (int half = 0; half < 2; ++half) {
            V sum{}, squares{};
            for (int64_t h = 0; h < H; ++h) sum += in[2 * h + half];
            const V mean = sum / T(H);
            for (int64_t h = 0; h < H; ++h) {
                const V centred = in[2 * h + half] - mean;
                squares += centred * centred;
            }
            V scale = squares / T(H) + T(1e-5);
            T *flat = reinterpret_cast<T *>(&scale);
            for (int64_t l = 0; l < VL; ++l) flat[l] = T(1) / std::sqrt(flat[l]);
            scales[half] = scale;
            for (int64_t h = 0; h < H; ++h) {
                const V normal = (in[2 * h + half] - mean) * scale;
                normals[2 * h + half] = normal;
                out[2 * h + half] = normal * gain[h] + shift[h];
            }
        }
        activate(out, out);
    }

    // sum += Σ_τ w[t, τ] M[τ] (M[τ]ᵀ q) over G states from τ on.
    template <int G> void recall_states(const Block &b, int64_t t, int64_t tau, const V *q, V *sum) const {
        V score[G][2] = {};
        const V *M = state(b, tau);
        for (int64_t h = 0; h < H; ++h)
            for (int g = 0; g < G; ++g)
                for (int half = 0; half < 2; ++half) score[g][half] += M[(g * H + h) * 2 + half] * q[2 * h + half];
        for (int g = 0; g < G; ++g) {
            V weight[2];
            numbers(b, w + t * K + tau + g, c.w_stride, weight);
            score[g][0] *= weight[0];
            score[g][1] *= weight[1];
        }
        for (int64_t h = 0; h < H; ++h)
            for (int half = 0; half < 2; ++half) {
                V total = sum[2 * h + half];
                for (int g = 0; g < G; ++g) total += score[g][half] * M[(g * H + h) * 2 + half];
                sum[2 * h + half] = total;
            }
    }

    void recall(const Block &b, int64_t t, const V *q, const V *A, V *sum) const {
        int64_t tau = 0;
        for (; tau + 4 <= t; tau += 4) recall_states<4>(b, t, tau, q, sum);
        for (; tau < t; ++tau) recall_states<1>(b, t, tau, q, sum);
        if (!A) return;
        V strength[2];
        numbers(b, p + t, c.p_stride, strength);
        for (int64_t i = 0; i < H; ++i) {
            V total0{}, total1{}, more0{}, more1{};
            const V *row = A + i * H * 2;
            int64_t j = 0;
            for (; j + 2 <= H; j += 2) {
                total0 += row[2 * j] * q[2 * j], total1 += row[2 * j + 1] * q[2 * j + 1];
                more0 += row[2 * j + 2] * q[2 * j + 2], more1 += row[2 * j + 3] * q[2 * j + 3];
            }
            for (; j < H; ++j) total0 += row[2 * j] * q[2 * j], total1 += row[2 * j + 1] * q[2 * j + 1];
            sum[2 * i] += strength[0] * (total0 + more0);
            sum[2 * i + 1] += strength[1] * (total1 + more1);
        }
    }

    // A0 of a block's sequences in lanes, (H, H, L).
    void gather_A(const Block &b, V *A) const {
        T *out = reinterpret_cast<T *>(A);
        for (int64_t l = 0; l < L; ++l)
            for (int64_t i = 0; i < H * H; ++i) out[i * L + l] = b.lane[l] < 0 ? T(0) : A0[b.lane[l] * H * H + i];
    }

    void forward(int64_t index, const std::vector<int64_t> &order) {
        const Block b = block(index, order, static_cast<V *>(c.saved));
        T *hs = static_cast<T *>(c.hs);
        Scratch<V> scratch(H * 2 * 3 + (A0 ? H * H * 2 : 0));
        V *z = scratch.data, *before = z + 2 * H, *sums = before + 2 * H, *A = A0 ? sums + 2 * H : nullptr;
        if (A) gather_A(b, A);
        for (int64_t t = 0; t < b.K; ++t) {
            gather(b, u, t, z, false);
            const V *previous = t ? state(b, t - 1) : before;
            if (t == 0 && h0) gather(b, h0, 0, before, true);
            else if (t == 0) std::memset(before, 0, H * 2 * sizeof(V));
            if (keep) {
                V mask[2];
                kept(b, t, mask);
                for (int64_t i = 0; i < 2 * H; ++i) before[i] = previous[i] * mask[i & 1];
                previous = before;
            }
            multiply(false, previous, z);
            V *h = S ? query(b, 0, t) : state(b, t);
            if (norm_start) normalize(z, normal(b, 0, t), scale(b, 0, t), h);
            else activate(z, h);
            for (int64_t s = 0; s < S; ++s) {
                std::memcpy(sums, identity ? h : z, H * 2 * sizeof(V));
                recall(b, t, h, A, sums);
                h = s + 1 < S ? query(b, s + 1, t) : state(b, t);
                const int64_t n = s + norm_start;
                if (norm) normalize(sums, normal(b, n, t), scale(b, n, t), h);
                else activate(sums, h);
            }
            scatter(b, state(b, t), t, hs);
        }
        for (int64_t t = b.K; t < K; ++t) scatter(b, z, t, hs);  // past every end: zero
        if (c.queries)
            for (int64_t s = 0; s < S; ++s)
                for (int64_t t = 0; t < K; ++t) scatter(b, query(b, s, t), t, static_cast<T *>(c.queries) + s * K * B * H);
    }

    // From the gradient of h = f(LN[v]) to that of v, in place; n is which layer norm of the step, -1 for none.
    void through(const Block &b, int64_t t, const V *h, int64_t n, V *grad, V *grad_gain, V *grad_shift) const {
        if (use_tanh)
            for (int64_t i = 0; i < 2 * H; ++i) grad[i] *= T(1) - h[i] * h[i];
        else {
            const V zero{};
            for (int64_t i = 0; i < 2 * H; ++i) grad[i] = h[i] > zero ? grad[i] : zero;
        }
        if (n < 0) return;
        const V *normals = normal(b, n, t), *scales = scale(b, n, t);
        for (int half = 0; half < 2; ++half) {
            V mean{}, along{};
            for (int64_t h = half, k = 0; k < H; h += 2, ++k) {
                const V through_gain = grad[h] * gain[k];
                grad_gain[h] += grad[h] * normals[h];
                grad_shift[h] += grad[h];
                grad[h] = through_gain;
                mean += through_gain;
                along += through_gain * normals[h];
            }
            mean /= T(H), along /= T(H);
            for (int64_t h = half; h < 2 * H; h += 2) grad[h] = scales[half] * (grad[h] - mean - normals[h] * along);
        }
    }

    template <int G>
    void recall_states_backward(const Block &b, int64_t t, int64_t tau, const V *q, const V *grad, V *grad_M,
                                V *grad_q) const {
        V score[G][2] = {}, grad_score[G][2] = {};
        const V *M = state(b, tau);
        for (int64_t h = 0; h < H; ++h)
            for (int half = 0; half < 2; ++half)
                for (int g = 0; g < G; ++g) {
                    const V m = M[(g * H + h) * 2 + half];
                    score[g][half] += m * q[2 * h + half];
                    grad_score[g][half] += m * grad[2 * h + half];
                }
        for (int g = 0; g < G; ++g) {
            if (c.grad_w) {
                T *grad_w = static_cast<T *>(c.grad_w);
                for (int64_t l = 0; l < L; ++l)
                    if (b.lane[l] >= 0)
                        grad_w[(b.lane[l] * K + t) * K + tau + g] +=
                            score[g][l / VL][l % VL] * grad_score[g][l / VL][l % VL];
            }
            V weight[2];
            numbers(b, w + t * K + tau + g, c.w_stride, weight);
            for (int half = 0; half < 2; ++half) score[g][half] *= weight[half], grad_score[g][half] *= weight[half];
        }
        V *grads = grad_M + tau * H * 2;
        for (int64_t h = 0; h < H; ++h)
            for (int half = 0; half < 2; ++half) {
                const V from = grad[2 * h + half], asked = q[2 * h + half];
                V total = grad_q[2 * h + half];
                for (int g = 0; g < G; ++g) {
                    const int64_t at = (g * H + h) * 2 + half;
                    grads[at] += score[g][half] * from + grad_score[g][half] * asked;
                    total += grad_score[g][half] * M[at];
                }
                grad_q[2 * h + half] = total;
            }
    }

    void backward(int64_t index, const std::vector<int64_t> &order) {
        const Block b = block(index, order, static_cast<V *>(c.saved));
        Scratch<V> scratch(H * 2 * (6 + b.K) + (A0 ? H * H * 2 : 0));
        V *grad = scratch.data, *grad_z = grad + 2 * H, *grad_q = grad_z + 2 * H, *from_next = grad_q + 2 * H;
        V *grad_gain = from_next + 2 * H, *grad_shift = grad_gain + 2 * H, *grad_M = grad_shift + 2 * H;
        V *A = A0 ? grad_M + b.K * 2 * H : nullptr;
        std::memset(from_next, 0, (3 + b.K) * H * 2 * sizeof(V));
        if (A) gather_A(b, A);
        const T *grad_hs = static_cast<const T *>(c.grad_hs);
        T *grad_u = static_cast<T *>(c.grad_u), *grad_sums = static_cast<T *>(c.grad_sums);
        for (int64_t t = b.K - 1; t >= 0; --t) {
            gather(b, grad_hs, t, grad, false);
            const V *later = grad_M + t * H * 2;
            for (int64_t i = 0; i < 2 * H; ++i) grad[i] += later[i] + from_next[i];
            std::memset(grad_z, 0, H * 2 * sizeof(V));
            for (int64_t s = S - 1; s >= 0; --s) {
                const V *q = query(b, s, t), *h = s + 1 < S ? query(b, s + 1, t) : state(b, t);
                through(b, t, h, norm ? s + norm_start : -1, grad, grad_gain, grad_shift);
                if (grad_sums) scatter(b, grad, t, grad_sums + s * K * B * H);
                if (identity) std::memcpy(grad_q, grad, H * 2 * sizeof(V));
                else {
                    std::memset(grad_q, 0, H * 2 * sizeof(V));
                    for (int64_t i = 0; i < 2 * H; ++i) grad_z[i] += grad[i];
                }
                int64_t tau = 0;
                for (; tau + 2 <= t; tau += 2) recall_states_backward<2>(b, t, tau, q, grad, grad_M, grad_q);
                for (; tau < t; ++tau) recall_states_backward<1>(b, t, tau, q, grad, grad_M, grad_q);
                if (A) {
                    V strength[2];
                    numbers(b, p + t, c.p_stride, strength);
                    for (int64_t i = 0; i < H; ++i) {
                        const V g0 = strength[0] * grad[2 * i], g1 = strength[1] * grad[2 * i + 1];
                        const V *row = A + i * H * 2;
                        for (int64_t j = 0; j < H; ++j) grad_q[2 * j] += row[2 * j] * g0, grad_q[2 * j + 1] += row[2 * j + 1] * g1;
                    }
                }
                std::swap(grad, grad_q);
            }
            through(b, t, S ? query(b, 0, t) : state(b, t), norm_start ? 0 : -1, grad, grad_gain, grad_shift);
            for (int64_t i = 0; i < 2 * H; ++i) grad_z[i] += grad[i];
            scatter(b, grad_z, t, grad_u);
            std::memset(from_next, 0, H * 2 * sizeof(V));
            multiply(true, grad_z, from_next);
            if (keep) {
                V mask[2];
                kept(b, t, mask);
                for (int64_t i = 0; i < 2 * H; ++i) from_next[i] *= mask[i & 1];
            }
        }
        for (int64_t t = b.K; t < K; ++t) {
            scatter(b, from_next, t, grad_u);
            if (grad_sums)
                for (int64_t s = 0; s < S; ++s) scatter(b, from_next, t, grad_sums + s * K * B * H);
        }
        T *grad_h0 = static_cast<T *>(c.grad_h0);
        const T *flat = reinterpret_cast<const T *>(from_next);
        for (int64_t l = 0; l < L && grad_h0; ++l)
            if (b.lane[l] >= 0)
                for (int64_t h = 0; h < H; ++h) grad_h0[b.lane[l] * H + h] = flat[h * L + l];
        if (norm) {
            // A sum per block: their total, taken in the order of the blocks, does not depend on who computed them.
            T *totals = sums.data() + index * 2 * H;
            for (int64_t k = 0; k < 2 * H; ++k) {
                const T *lanes = reinterpret_cast<const T *>(grad_gain + 2 * k);  // grad_shift follows grad_gain
                T total = 0;
                for (int64_t l = 0; l < L; ++l) total += lanes[l];
                totals[k] = total;
            }
        }
    }

    void add_up() const {
        T *total[2] = {static_cast<T *>(c.grad_gain), static_cast<T *>(c.grad_shift)};
        for (int which = 0; which < 2; ++which)
            for (int64_t h = 0; h < H; ++h) {
                total[which][h] = 0;
                for (int64_t index = 0; index < blocks(); ++index)
                    total[which][h] += sums[(index * 2 + which) * H + h];
            }
    }

    int run(void (Kernel::*work)(int64_t, const std::vector<int64_t> &)) {
        const std::vector<int64_t> places = order();
        const int64_t count = blocks();
        const int threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(c.threads, count)));
        int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
        for (int64_t index = 0; index < count; ++index) {
            try {
                (this->*work)(index, places);
            } catch (const std::bad_alloc &) {
#pragma omp atomic write
                failed = 1;
            }
        }
        return failed;
    }
};

// 0, or 1 when memory ran out.
template <class T> int run(const fw_chunk *chunk, bool forward) {
    try {
        Kernel<T> kernel(*chunk);
        if (forward) return kernel.run(&Kernel<T>::forward);
        kernel.sums.resize(chunk->gain ? kernel.blocks() * 2 * chunk->H : 0);
        const int failed = kernel.run(&Kernel<T>::backward);
        if (chunk->gain) kernel.add_up();
        return failed;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

}  // namespace

extern "C" {
int64_t fw_abi(void) { return FW_ABI; }
int64_t fw_lanes_f32(void) { return Lanes<float>::count; }
int64_t fw_lanes_f64(void) { return Lanes<double>::count; }
int fw_forward_f32(const fw_chunk *chunk) { return run<float>(chunk, true); }
int fw_forward_f64(const fw_chunk *chunk) { return run<double>(chunk, true); }
int fw_backward_f32(const fw_chunk *chunk) { return run<float>(chunk, false); }
int fw_backward_f64(const fw_chunk *chunk) { return run<double>(chunk, false); }
}
