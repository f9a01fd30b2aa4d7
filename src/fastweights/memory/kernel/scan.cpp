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

// Memory that a thread keeps for the next block, 64-byte aligned.
struct Scratch {
    void *data = nullptr;
    size_t size = 0;
    ~Scratch() { std::free(data); }
    template <class V> V *take(size_t count) {
        const size_t bytes = (count * sizeof(V) + 63) / 64 * 64;
        if (bytes > size) {
            std::free(data);
            size = 0;
            data = std::aligned_alloc(64, bytes);
            if (!data) throw std::bad_alloc();
            size = bytes;
        }
        return static_cast<V *>(data);
    }
};

thread_local Scratch scratch;

template <class T> struct Kernel {
    using V = typename Lanes<T>::V;
    static constexpr int64_t VL = Lanes<T>::in_vector, L = Lanes<T>::count;

    const fw_chunk &c;
    const int64_t K, B, H, S, N;
    const bool norm, norm_start, identity, use_tanh;
    const T *u, *W, *gain, *shift, *h0, *A0, *w, *p, *keep;
    const std::vector<T> zeros;
    std::vector<T> sums, W_transposed;  // for backward: gradients of gain and shift per block

    explicit Kernel(const fw_chunk &chunk)
        : c(chunk), K(c.K), B(c.B), H(c.H), S(c.S), N(c.gain ? c.S + (c.normalize_start != 0) : 0),
          norm(c.gain != nullptr), norm_start(norm && c.normalize_start), identity(c.identity), use_tanh(c.use_tanh),
          u(static_cast<const T *>(c.u)), W(static_cast<const T *>(c.W)), gain(static_cast<const T *>(c.gain)),
          shift(static_cast<const T *>(c.shift)), h0(static_cast<const T *>(c.h0)),
          A0(static_cast<const T *>(c.A0)), w(static_cast<const T *>(c.w)), p(static_cast<const T *>(c.p)),
          keep(static_cast<const T *>(c.keep)), zeros(c.H) {}

    int64_t blocks() const { return (B + L - 1) / L; }

    // What forward saves for backward, in pairs of vectors per block. A trail (s, K, H) for s = 0 … S: h_s, or where it
    // came out of a layer norm, the normalised sums that it can be had from; none for an h_S, which is in hs. Then the
    // scales (N, K) of the layer norms, and the scores (S, K (K-1) / 2).
    int64_t trails() const { return S + (S ? norm : norm_start); }
    int64_t saved_per_block() const { return 2 * (trails() * K * H + N * K + S * (K * (K - 1) / 2)); }

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
        int64_t K;         // how many steps to run: those of the longest
        int64_t shortest;  // the fewest steps of any
        V *states, *trail, *scales, *scores;
    };

    Block block(int64_t index, const std::vector<int64_t> &order) const {
        Block b;
        b.K = 0;
        b.shortest = K;
        for (int64_t l = 0; l < L; ++l) {
            int64_t place = index * L + l;
            b.lane[l] = place < B ? order[place] : -1;
            b.steps[l] = place < B ? (c.steps ? c.steps[b.lane[l]] : K) : 0;
            b.K = std::max(b.K, b.steps[l]);
            if (place < B) b.shortest = std::min(b.shortest, b.steps[l]);
        }
        b.states = nullptr;
        b.trail = static_cast<V *>(c.saved) + index * saved_per_block();
        b.scales = b.trail + trails() * K * H * 2;
        b.scores = b.scales + N * K * 2;
        return b;
    }

    V *state(const Block &b, int64_t t) const { return b.states + t * H * 2; }
    V *trail(const Block &b, int64_t s, int64_t t) const { return b.trail + (s * K + t) * H * 2; }
    V *scale(const Block &b, int64_t n, int64_t t) const { return b.scales + (n * K + t) * 2; }
    V *score(const Block &b, int64_t s, int64_t t) const { return b.scores + (s * (K * (K - 1) / 2) + t * (t - 1) / 2) * 2; }
    bool normalized(int64_t s) const { return s ? norm : norm_start; }
    // Which of the step's layer norms h_s came out of.
    int64_t which_norm(int64_t s) const { return s - !norm_start; }

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

    // What each lane keeps of its hidden state before step t: nothing past its end, where it then stays at zero.
    void kept(const Block &b, int64_t t, V *out) const {
        T *flat = reinterpret_cast<T *>(out);
        for (int64_t l = 0; l < L; ++l)
            flat[l] = t >= b.steps[l] ? T(0) : keep ? keep[t * B + b.lane[l]] : T(1);
    }

    // out[i] += Σ_k matrix[i, k] in[k] for R rows from i on.
    template <int R> void rows(int64_t i, const T *matrix, const V *in, V *out) const {
        const T *first = matrix + i * H;
        V sum[R][2];
        for (int r = 0; r < R; ++r) sum[r][0] = out[2 * (i + r)], sum[r][1] = out[2 * (i + r) + 1];
        for (int64_t k = 0; k < H; ++k) {
            const V x0 = in[2 * k], x1 = in[2 * k + 1];
            for (int r = 0; r < R; ++r) {
                const T weight = first[r * H + k];
                sum[r][0] += weight * x0;
                sum[r][1] += weight * x1;
            }
        }
        for (int r = 0; r < R; ++r) out[2 * (i + r)] = sum[r][0], out[2 * (i + r) + 1] = sum[r][1];
    }

    void multiply(const T *matrix, const V *in, V *out) const {
        int64_t i = 0;
        for (; i + 5 <= H; i += 5) rows<5>(i, matrix, in, out);
        switch (H - i) {
        case 4: rows<4>(i, matrix, in, out); break;
        case 3: rows<3>(i, matrix, in, out); break;
        case 2: rows<2>(i, matrix, in, out); break;
        case 1: rows<1>(i, matrix, in, out); break;
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

    // Σ_h f(h) for both vectors of a row, in two chains each so that additions overlap.
    template <class F> void sum(F f, V *total) const {
        V even[2] = {}, odd[2] = {};
        int64_t i = 0;
        for (; i + 4 <= 2 * H; i += 4) {
            even[0] += f(i), even[1] += f(i + 1);
            odd[0] += f(i + 2), odd[1] += f(i + 3);
        }
        if (i < 2 * H) even[0] += f(i), even[1] += f(i + 1);
        total[0] = even[0] + odd[0], total[1] = even[1] + odd[1];
    }

    // out = f(LN[in]); leaves the normalised sums and their scale behind.
    void normalize(const V *in, V *normals, V *scales, V *out) const {
        V mean[2], variance[2];
        sum([=](int64_t i) { return in[i]; }, mean);
        mean[0] /= T(H), mean[1] /= T(H);
        sum([=, &mean](int64_t i) { return (in[i] - mean[i & 1]) * (in[i] - mean[i & 1]); }, variance);
        for (int half = 0; half < 2; ++half)
            for (int64_t l = 0; l < VL; ++l) scales[half][l] = T(1) / std::sqrt(variance[half][l] / T(H) + T(1e-5));
        const V scale[2] = {scales[0], scales[1]}, zero{};
        for (int64_t h = 0; h < H; ++h) {
            const T g = gain[h], b = shift[h];
            for (int half = 0; half < 2; ++half) {
                const V normal = (in[2 * h + half] - mean[half]) * scale[half], v = normal * g + b;
                normals[2 * h + half] = normal;
                out[2 * h + half] = use_tanh ? v : (v < zero ? zero : v);
            }
        }
        if (use_tanh) activate(out, out);
    }

    // f of a normalised sum, with gain and shift.
    void denormalize(const V *normals, V *out) const {
        for (int64_t h = 0; h < H; ++h)
            for (int64_t i = 2 * h; i < 2 * h + 2; ++i) out[i] = normals[i] * gain[h] + shift[h];
        activate(out, out);
    }

    // sum += Σ_τ w[t, τ] M[τ] (M[τ]ᵀ q) over G states from τ on; leaves the scores M[τ]ᵀ q behind.
    template <int G>
    void recall_states(const Block &b, int64_t t, int64_t tau, const V *q, V *scores, V *sum) const {
        V score[G][2] = {};
        const V *M = state(b, tau);
        for (int64_t h = 0; h < H; ++h)
            for (int g = 0; g < G; ++g)
                for (int half = 0; half < 2; ++half) score[g][half] += M[(g * H + h) * 2 + half] * q[2 * h + half];
        for (int g = 0; g < G; ++g) {
            V weight[2];
            numbers(b, w + t * K + tau + g, c.w_stride, weight);
            for (int half = 0; half < 2; ++half) {
                scores[(tau + g) * 2 + half] = score[g][half];
                score[g][half] *= weight[half];
            }
        }
        for (int64_t h = 0; h < H; ++h)
            for (int half = 0; half < 2; ++half) {
                V total = sum[2 * h + half];
                for (int g = 0; g < G; ++g) total += score[g][half] * M[(g * H + h) * 2 + half];
                sum[2 * h + half] = total;
            }
    }

    void recall(const Block &b, int64_t t, const V *q, const V *A, V *scores, V *sum) const {
        int64_t tau = 0;
        for (; tau + 4 <= t; tau += 4) recall_states<4>(b, t, tau, q, scores, sum);
        switch (t - tau) {
        case 3: recall_states<3>(b, t, tau, q, scores, sum); break;
        case 2: recall_states<2>(b, t, tau, q, scores, sum); break;
        case 1: recall_states<1>(b, t, tau, q, scores, sum); break;
        }
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
        Block b = block(index, order);
        T *hs = static_cast<T *>(c.hs), *queries = static_cast<T *>(c.queries);
        V *z = scratch.take<V>(H * 2 * (5 + b.K) + (A0 ? H * H * 2 : 0));
        V *before = z + 2 * H, *sums = before + 2 * H, *q = sums + 2 * H;
        b.states = q + 2 * H * 2;
        V *A = A0 ? b.states + b.K * 2 * H : nullptr;
        if (A) gather_A(b, A);
        for (int64_t t = 0; t < b.K; ++t) {
            gather(b, u, t, z, false);
            const V *previous = t ? state(b, t - 1) : before;
            if (t == 0 && h0) gather(b, h0, 0, before, true);
            else if (t == 0) std::memset(before, 0, H * 2 * sizeof(V));
            if (keep || t >= b.shortest) {
                V mask[2];
                kept(b, t, mask);
                const V zero{};
                for (int64_t i = 0; i < 2 * H; ++i) before[i] = mask[i & 1] == zero ? zero : previous[i] * mask[i & 1];
                previous = before;
            }
            multiply(W, previous, z);
            const V *from = z;
            for (int64_t s = 0; s <= S; ++s) {
                // h_s goes where it is needed next: the states, or, if it is not a normalised trail, the trail itself.
                V *h = s == S ? state(b, t) : normalized(s) ? q + (s & 1) * 2 * H : trail(b, s, t);
                const V *asked = s == 0 ? nullptr : normalized(s - 1) ? q + ((s - 1) & 1) * 2 * H : trail(b, s - 1, t);
                if (s) {
                    std::memcpy(sums, identity ? asked : z, H * 2 * sizeof(V));
                    recall(b, t, asked, A, score(b, s - 1, t), sums);
                    from = sums;
                }
                if (normalized(s)) normalize(from, trail(b, s, t), scale(b, which_norm(s), t), h);
                else activate(from, h);
                if (queries && s < S) scatter(b, h, t, queries + s * K * B * H);
            }
            scatter(b, state(b, t), t, hs);
        }
        for (int64_t t = b.K; t < K; ++t) {  // past every end: zero
            scatter(b, z, t, hs);
            for (int64_t s = 0; s < S && queries; ++s) scatter(b, z, t, queries + s * K * B * H);
        }
    }

    // From the gradient of h_s = f(LN[v]) to that of v, in place.
    void through(const Block &b, int64_t t, int64_t s, const V *h, V *grad, V *grad_gain, V *grad_shift) const {
        if (use_tanh)
            for (int64_t i = 0; i < 2 * H; ++i) grad[i] *= T(1) - h[i] * h[i];
        else {
            const V zero{};
            for (int64_t i = 0; i < 2 * H; ++i) grad[i] = h[i] > zero ? grad[i] : zero;
        }
        if (!normalized(s)) return;
        const V *normals = trail(b, s, t), *scales = scale(b, which_norm(s), t);
        for (int64_t h = 0; h < H; ++h)
            for (int64_t i = 2 * h; i < 2 * h + 2; ++i) {
                grad_gain[i] += grad[i] * normals[i];
                grad_shift[i] += grad[i];
                grad[i] *= gain[h];
            }
        V mean[2], along[2];
        sum([=](int64_t i) { return grad[i]; }, mean);
        sum([=](int64_t i) { return grad[i] * normals[i]; }, along);
        for (int half = 0; half < 2; ++half) mean[half] /= T(H), along[half] /= T(H);
        const V scale[2] = {scales[0], scales[1]};
        for (int64_t h = 0; h < H; ++h)
            for (int half = 0; half < 2; ++half) {
                V &g = grad[2 * h + half];
                g = scale[half] * (g - mean[half] - normals[2 * h + half] * along[half]);
            }
    }

    // What recall_states did, backwards: grad_q += Σ_τ w M[τ] (M[τ]ᵀ grad). Leaves w·score and w·(M[τ]ᵀ grad) in
    // `pulls` (…, 2), with which the states themselves are pulled later.
    template <int G>
    void recall_states_backward(const Block &b, int64_t t, int64_t tau, const V *scores, const V *grad, V *pulls,
                                V *grad_q) const {
        V pull[G][2] = {};
        const V *M = state(b, tau);
        for (int64_t h = 0; h < H; ++h)
            for (int g = 0; g < G; ++g)
                for (int half = 0; half < 2; ++half) pull[g][half] += M[(g * H + h) * 2 + half] * grad[2 * h + half];
        for (int g = 0; g < G; ++g) {
            const V *score = scores + (tau + g) * 2;
            if (c.grad_w) {
                T *grad_w = static_cast<T *>(c.grad_w);
                for (int64_t l = 0; l < L; ++l)
                    if (b.lane[l] >= 0)
                        grad_w[(b.lane[l] * K + t) * K + tau + g] += score[l / VL][l % VL] * pull[g][l / VL][l % VL];
            }
            V weight[2];
            numbers(b, w + t * K + tau + g, c.w_stride, weight);
            for (int half = 0; half < 2; ++half) {
                pulls[(tau + g) * 4 + half] = score[half] * weight[half];
                pulls[(tau + g) * 4 + 2 + half] = pull[g][half] *= weight[half];
            }
        }
        for (int64_t h = 0; h < H; ++h)
            for (int half = 0; half < 2; ++half) {
                V total = grad_q[2 * h + half];
                for (int g = 0; g < G; ++g) total += pull[g][half] * M[(g * H + h) * 2 + half];
                grad_q[2 * h + half] = total;
            }
    }

    // grad_M[τ] += Σ_s w·score·grad_s + w·(M[τ]ᵀ grad_s)·q_s over G states from τ on.
    template <int G>
    void pull_states(int64_t tau, const V *queries, const V *grads, const V *pulls, V *grad_M) const {
        V *target = grad_M + tau * H * 2;
        for (int64_t s = 0; s < S; ++s) {
            const V *q = queries + s * H * 2, *grad = grads + s * H * 2, *pull = pulls + (s * K + tau) * 4;
            V by[G][4];
            for (int g = 0; g < G; ++g)
                for (int k = 0; k < 4; ++k) by[g][k] = pull[g * 4 + k];
            for (int64_t h = 0; h < H; ++h)
                for (int half = 0; half < 2; ++half) {
                    const V from = grad[2 * h + half], asked = q[2 * h + half];
                    for (int g = 0; g < G; ++g)
                        target[(g * H + h) * 2 + half] += by[g][half] * from + by[g][2 + half] * asked;
                }
        }
    }

    void backward(int64_t index, const std::vector<int64_t> &order) {
        Block b = block(index, order);
        V *grad = scratch.take<V>(H * 2 * (5 + 2 * S + 2 * b.K) + S * K * 4 + (A0 ? H * H * 2 : 0));
        V *grad_z = grad + 2 * H, *from_next = grad_z + 2 * H, *grad_gain = from_next + 2 * H;
        V *grad_shift = grad_gain + 2 * H, *grad_M = grad_shift + 2 * H, *grads = grad_M + b.K * 2 * H;
        V *queries = grads + S * 2 * H, *pulls = queries + S * 2 * H;
        b.states = pulls + S * K * 4;
        V *A = A0 ? b.states + b.K * 2 * H : nullptr;
        std::memset(from_next, 0, (3 + b.K) * H * 2 * sizeof(V));
        for (int64_t t = 0; t < b.K; ++t) gather(b, static_cast<const T *>(c.hs), t, state(b, t), false);
        if (A) gather_A(b, A);
        const T *grad_hs = static_cast<const T *>(c.grad_hs);
        T *grad_u = static_cast<T *>(c.grad_u), *grad_sums = static_cast<T *>(c.grad_sums);
        for (int64_t t = b.K - 1; t >= 0; --t) {
            gather(b, grad_hs, t, grad, false);
            const V *later = grad_M + t * H * 2;
            for (int64_t i = 0; i < 2 * H; ++i) grad[i] += later[i] + from_next[i];
            std::memset(grad_z, 0, H * 2 * sizeof(V));
            for (int64_t s = 0; s < S; ++s) {
                V *q = queries + s * H * 2;
                if (normalized(s)) denormalize(trail(b, s, t), q);
                else std::memcpy(q, trail(b, s, t), H * 2 * sizeof(V));
            }
            for (int64_t s = S; s > 0; --s) {
                const V *h = s < S ? queries + s * H * 2 : state(b, t), *scores = score(b, s - 1, t);
                through(b, t, s, h, grad, grad_gain, grad_shift);
                if (grad_sums) scatter(b, grad, t, grad_sums + (s - 1) * K * B * H);
                V *from = grads + (s - 1) * H * 2, *pull = pulls + (s - 1) * K * 4;
                std::memcpy(from, grad, H * 2 * sizeof(V));
                if (!identity) {
                    for (int64_t i = 0; i < 2 * H; ++i) grad_z[i] += from[i];
                    std::memset(grad, 0, H * 2 * sizeof(V));
                }
                int64_t tau = 0;
                for (; tau + 4 <= t; tau += 4) recall_states_backward<4>(b, t, tau, scores, from, pull, grad);
                switch (t - tau) {
                case 3: recall_states_backward<3>(b, t, tau, scores, from, pull, grad); break;
                case 2: recall_states_backward<2>(b, t, tau, scores, from, pull, grad); break;
                case 1: recall_states_backward<1>(b, t, tau, scores, from, pull, grad); break;
                }
                if (!A) continue;
                V strength[2];
                numbers(b, p + t, c.p_stride, strength);
                for (int64_t i = 0; i < H; ++i) {
                    const V g0 = strength[0] * from[2 * i], g1 = strength[1] * from[2 * i + 1];
                    const V *row = A + i * H * 2;
                    for (int64_t j = 0; j < H; ++j) grad[2 * j] += row[2 * j] * g0, grad[2 * j + 1] += row[2 * j + 1] * g1;
                }
            }
            int64_t tau = 0;
            for (; tau + 2 <= t; tau += 2) pull_states<2>(tau, queries, grads, pulls, grad_M);
            if (tau < t) pull_states<1>(tau, queries, grads, pulls, grad_M);
            through(b, t, 0, S ? queries : state(b, t), grad, grad_gain, grad_shift);
            for (int64_t i = 0; i < 2 * H; ++i) grad_z[i] += grad[i];
            scatter(b, grad_z, t, grad_u);
            std::memset(from_next, 0, H * 2 * sizeof(V));
            multiply(W_transposed.data(), grad_z, from_next);
            if (keep || t >= b.shortest) {
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

    void prepare_backward() {
        sums.resize(norm ? blocks() * 2 * H : 0);
        W_transposed.resize(H * H);
        for (int64_t i = 0; i < H; ++i)
            for (int64_t j = 0; j < H; ++j) W_transposed[j * H + i] = W[i * H + j];
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

// Σ a[i] b[i], along vectors.
template <class T> T dot(const T *a, const T *b, int64_t count) {
    using V = typename Lanes<T>::V;
    constexpr int64_t VL = Lanes<T>::in_vector;
    V sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * VL <= count; i += 4 * VL)
        for (int k = 0; k < 4; ++k) {
            V x, y;
            std::memcpy(&x, a + i + k * VL, sizeof(V));
            std::memcpy(&y, b + i + k * VL, sizeof(V));
            sum[k] += x * y;
        }
    for (; i + VL <= count; i += VL) {
        V x, y;
        std::memcpy(&x, a + i, sizeof(V));
        std::memcpy(&y, b + i, sizeof(V));
        sum[0] += x * y;
    }
    const V all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    T total = 0;
    for (int64_t l = 0; l < VL; ++l) total += all[l];
    for (; i < count; ++i) total += a[i] * b[i];
    return total;
}

// One step of one sequence: vectors run along the units.
template <class T> void step(const fw_step &c) {
    const int64_t H = c.H;
    const T *x = static_cast<const T *>(c.x), *C = static_cast<const T *>(c.C), *bias = static_cast<const T *>(c.b);
    const T *W = static_cast<const T *>(c.W), *gain = static_cast<const T *>(c.gain);
    const T *shift = static_cast<const T *>(c.shift), *h = static_cast<const T *>(c.h), *A = static_cast<const T *>(c.A);
    T *z = scratch.take<T>(3 * H), *v = z + H, *q = v + H, *new_h = static_cast<T *>(c.new_h);
    const auto settle = [&](const T *from, bool normalized, T *to) {
        T mean = 0, variance = 0;
        if (normalized) {
            for (int64_t i = 0; i < H; ++i) mean += from[i];
            mean /= T(H);
            for (int64_t i = 0; i < H; ++i) variance += (from[i] - mean) * (from[i] - mean);
        }
        const T scale = T(1) / std::sqrt(variance / T(H) + T(1e-5));
        for (int64_t i = 0; i < H; ++i) {
            const T a = normalized ? (from[i] - mean) * scale * gain[i] + shift[i] : from[i];
            to[i] = c.use_tanh ? std::tanh(a) : a < 0 ? T(0) : a;
        }
    };
    for (int64_t i = 0; i < H; ++i)
        z[i] = (bias ? bias[i] : T(0)) + dot(C + i * c.I, x, c.I) + (h ? dot(W + i * H, h, H) : T(0));
    settle(z, gain && c.normalize_start, c.S ? q : new_h);
    for (int64_t s = 0; s < c.S; ++s) {
        const T *base = c.identity ? q : z;
        for (int64_t i = 0; i < H; ++i) v[i] = base[i] + (A ? dot(A + i * H, q, H) : T(0));
        settle(v, gain, s + 1 < c.S ? q : new_h);
    }
    const T decay = T(c.decay), rate = T(c.rate);
    T *new_A = static_cast<T *>(c.new_A);
    for (int64_t i = 0; i < H; ++i) {
        const T own = rate * new_h[i];
        T *__restrict row = new_A + i * H;
        if (A)
            for (int64_t j = 0; j < H; ++j) row[j] = decay * A[i * H + j] + own * new_h[j];
        else
            for (int64_t j = 0; j < H; ++j) row[j] = own * new_h[j];
    }
}

// 0, or 1 when memory ran out.
template <class T> int try_step(const fw_step *one) {
    try {
        step<T>(*one);
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// 0, or 1 when memory ran out.
template <class T> int run(const fw_chunk *chunk, bool forward) {
    try {
        Kernel<T> kernel(*chunk);
        if (forward) return kernel.run(&Kernel<T>::forward);
        kernel.prepare_backward();
        const int failed = kernel.run(&Kernel<T>::backward);
        if (chunk->gain) kernel.add_up();
        return failed;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
int fw_step_f32(const fw_step *one) { return try_step<float>(one); }
int fw_step_f64(const fw_step *one) { return try_step<double>(one); }
int64_t fw_abi(void) { return FW_ABI; }
int fw_forward_f32(const fw_chunk *chunk) { return run<float>(chunk, true); }
int fw_forward_f64(const fw_chunk *chunk) { return run<double>(chunk, true); }
int fw_backward_f32(const fw_chunk *chunk) { return run<float>(chunk, false); }
int fw_backward_f64(const fw_chunk *chunk) { return run<double>(chunk, false); }
}
#pragma GCC visibility pop
