// The recurrence for many sequences, side by side. units.cpp is the same for few.
//
// Sequences are taken in blocks of L, one to each lane of a vector, and a block stays in cache for all its steps.
// Inside a block an array is (…, H, L), so everything but the products with C and W is lane by lane, and no sum runs
// across lanes: a sequence's numbers depend neither on its batch-mates nor on the number of threads.

#include "problem.h"

namespace fastweights {
namespace {

template <class T, int64_t BYTES> struct Sequences : Problem<T> {
    using Vectors = Lanes<T, BYTES>;
    using V = typename Vectors::V;
    using Mask = decltype(V{} < V{});
    static constexpr int64_t L = Vectors::count;
    static constexpr int64_t RING = 16;  // outer products that are added to a matrix in one go

    using P = Problem<T>;
    using P::c, P::steps, P::B, P::I, P::H, P::S, P::K, P::N, P::chunks, P::norm, P::norm_start, P::identity;
    using P::use_tanh, P::symmetric, P::x, P::C, P::u, P::bias, P::W, P::W_int, P::gain, P::shift, P::h0, P::A0, P::w;
    using P::p, P::left, P::p_left, P::keep, P::reset, P::integrate, P::order, P::packed, P::trails, P::normalized;
    using P::all_pairs, P::pairs;
    const std::vector<T> zeros;
    std::vector<T> W_packed;             // forward: W; backward: its transpose
    std::vector<T> W_int_packed;
    std::vector<T> C_packed;             // likewise
    std::vector<T> sums;                 // backward: gradients of gain, shift and b per lane

    explicit Sequences(const fw_scan &scan) : P(scan), zeros(std::max(scan.I, scan.H)) {}

    int64_t blocks() const { return (B + L - 1) / L; }

    // What forward saves for backward, in vectors per block. A trail (s, T, H) for s = 0 … S: h_s, or where it came out
    // of a layer norm, the normalised sums that it can be had from; none for an h_S, which is in hs. Then the scales
    // (N, T) of the layer norms, the scores (S, K (K-1) / 2 per chunk), and the A that each chunk but the first starts
    // from.
    int64_t saved_per_block() const {
        return trails() * steps * H + N * steps + S * all_pairs() + (chunks - 1) * matrix_size();
    }

    // Where row i of a matrix starts, and how many of its numbers are there: of a symmetric one its lower half, in bands
    // of 4 rows as long as the last of them.
    int64_t row(int64_t i) const { return symmetric ? i / 4 * (i / 4 + 1) * 8 + i % 4 * (i / 4 * 4 + 4) : i * H; }
    int64_t columns(int64_t i) const { return symmetric ? std::min(H, i / 4 * 4 + 4) : H; }
    int64_t matrix_size() const { return row(symmetric ? (H + 3) / 4 * 4 : H); }

    struct Block {
        int64_t lane[L];   // which sequence; -1: none
        int64_t steps[L];  // how many of its steps count
        int64_t longest, shortest;
        bool plain;  // neighbours, all of them there and of full length
        V *states;  // of the chunk at hand, (K, H)
        int64_t t, k;      // the step at hand, and its place in the chunk
        const T *weights;  // how it sees the states before it
        V strength;        // and the A before the chunk
        V *episodes;       // for each step of the chunk: where in it the lane's last reset was; -1: nowhere
        V *trail, *scales, *scores, *matrices;
    };

    Block block(int64_t index) const {
        Block b;
        b.longest = 0;
        b.shortest = steps;
        for (int64_t l = 0; l < L; ++l) {
            int64_t place = index * L + l;
            b.lane[l] = place < B ? order[place] : -1;
            b.steps[l] = place < B ? steps : 0;
            // Nobody has looked at lengths that come out of a compiled graph.
            if (place < B && c.steps) b.steps[l] = std::clamp<int64_t>(c.steps[b.lane[l]], 0, steps);
            b.longest = std::max(b.longest, b.steps[l]);
            if (place < B) b.shortest = std::min(b.shortest, b.steps[l]);
        }
        b.plain = !c.steps && index * L + L <= B;
        b.states = b.episodes = nullptr;
        if (c.saved) place_saved(b, static_cast<V *>(c.saved) + index * saved_per_block(), steps, all_pairs());
        return b;
    }
    // Where nothing is saved, there is room for a step, and for the A of this chunk and of the next.
    int64_t unsaved_per_block() const { return trails() * H + N + K + (chunks > 1) * 2 * matrix_size(); }
    void place_saved(Block &b, V *room, int64_t kept, int64_t pairs) const {
        b.trail = room;
        b.scales = b.trail + trails() * kept * H;
        b.scores = b.scales + N * kept;
        b.matrices = b.scores + (c.saved ? S : 1) * pairs;
    }

    V *trail(const Block &b, int64_t s) const { return c.saved ? b.trail + (s * steps + b.t) * H : b.trail + s * H; }
    V *scale(const Block &b, int64_t s) const { return b.scales + (c.saved ? (s - !norm_start) * steps + b.t : 0); }
    V *score(const Block &b, int64_t s) const {
        if (!c.saved) return b.scores;
        return b.scores + s * all_pairs() + b.t / K * pairs(K) + pairs(b.k);
    }
    // The last chunk of a block that has an A of its own: past the end of all its sequences A stays as it is.
    int64_t last_chunk(const Block &b) const { return std::min(chunks - 1, (b.longest + K - 1) / K); }
    // The A that a chunk starts from; null: zero.
    V *matrix(const Block &b, int64_t chunk, V *first) const {
        return chunk ? b.matrices + (c.saved ? chunk - 1 : chunk & 1) * matrix_size() : first;
    }

    enum class Rows { all, of_steps, of_packed };  // (B, H); (T, B, H); the same without the steps past an end

    // Where the lanes' rows are; null where there is none.
    template <class P>
    void places(const Block &b, P array, Rows rows, int64_t t, int64_t width, P (&place)[L]) const {
        if (b.plain) {
            P first = array + ((rows == Rows::all ? 0 : t * B) + b.lane[0]) * width;
            for (int64_t l = 0; l < L; ++l) place[l] = first + l * width;
            return;
        }
        for (int64_t l = 0; l < L; ++l) {
            const int64_t sequence = b.lane[l], step = t * B + sequence;
            if (sequence < 0 || (rows != Rows::all && t >= b.steps[l])) place[l] = nullptr;
            else if (rows == Rows::all) place[l] = array + sequence * width;
            else place[l] = array + (rows == Rows::of_packed && c.steps ? packed[step] : step) * width;
        }
    }

    // Rows of `source`, one per lane, into lanes; zero where there is none. Squares of L×L at a time; where `width` is
    // not a multiple of L the last one overlaps the one before.
    void gather(const Block &b, const T *source, Rows rows, int64_t t, int64_t width, V *lanes) const {
        const T *from[L];
        places(b, source, rows, t, width, from);
        for (int64_t l = 0; l < L && !b.plain; ++l)
            if (!from[l]) from[l] = zeros.data();
        gather(from, width, lanes);
    }
    void gather(const T *const (&from)[L], int64_t width, V *lanes) const {
        for (int64_t h = 0; h < width && width >= L; h = h + 2 * L > width && h + L < width ? width - L : h + L) {
            V square[L];
#pragma GCC unroll 16
            for (int64_t l = 0; l < L; ++l) square[l] = Vectors::load(from[l] + h);
            transpose(square);
#pragma GCC unroll 16
            for (int64_t k = 0; k < L; ++k) lanes[h + k] = square[k];
        }
        T *out = reinterpret_cast<T *>(lanes);
        for (int64_t h = 0; h < width && width < L; ++h)
            for (int64_t l = 0; l < L; ++l) out[h * L + l] = from[l][h];
    }

    // Have what step t needs come from memory while another step is computed: its trails, and rows of `source`.
    void fetch(const Block &b, const T *source, int64_t t) const {
        constexpr int64_t line = 64;
        if (t < 0) return;
        for (int64_t s = 0; s < trails(); ++s)
            for (int64_t h = 0; h < H; h += line / sizeof(V)) __builtin_prefetch(b.trail + (s * steps + t) * H + h);
        const T *from[L];
        places(b, source, Rows::of_steps, t, H, from);
        for (int64_t l = 0; l < L; ++l)
            for (int64_t h = 0; h < H && from[l]; h += line / sizeof(T)) __builtin_prefetch(from[l] + h);
    }

    // The way back.
    void scatter(const Block &b, const V *lanes, Rows rows, int64_t t, int64_t width, T *target) const {
        T *to[L];
        places(b, target, rows, t, width, to);
        for (int64_t h = 0; h < width && width >= L; h = h + 2 * L > width && h + L < width ? width - L : h + L) {
            V square[L];
#pragma GCC unroll 16
            for (int64_t k = 0; k < L; ++k) square[k] = lanes[h + k];
            transpose(square);
#pragma GCC unroll 16
            for (int64_t l = 0; l < L; ++l)
                if (b.plain || to[l]) Vectors::store(square[l], to[l] + h);
        }
        const T *in = reinterpret_cast<const T *>(lanes);
        for (int64_t h = 0; h < width && width < L; ++h)
            for (int64_t l = 0; l < L; ++l)
                if (to[l]) to[l][h] = in[h * L + l];
    }

    void clear_past_ends(const Block &b, int64_t width, T *target) const {
        for (int64_t l = 0; l < L && b.shortest < steps; ++l)
            for (int64_t t = b.steps[l]; t < steps && b.lane[l] >= 0; ++t)
                std::fill_n(target + (t * B + b.lane[l]) * width, width, T(0));
    }

    // (B, H, H) into lanes and back.
    void gather_matrix(const Block &b, const T *source, V *lanes) const {
        for (int64_t i = 0; i < H; ++i) {
            const T *from[L];
            for (int64_t l = 0; l < L; ++l) from[l] = b.lane[l] < 0 ? zeros.data() : source + (b.lane[l] * H + i) * H;
            gather(from, H, lanes + i * H);
        }
    }

    void scatter_matrix(const Block &b, const V *lanes, T *target) const {
        const T *in = reinterpret_cast<const T *>(lanes);
        for (int64_t l = 0; l < L; ++l)
            for (int64_t i = 0; i < H && b.lane[l] >= 0; ++i)
                for (int64_t j = 0; j < H; ++j) {
                    const int64_t place = symmetric && j > i ? row(j) + i : row(i) + j;
                    target[(b.lane[l] * H + i) * H + j] = lanes ? in[place * L + l] : T(0);
                }
    }

    // One number per lane, from an array with `stride` between sequences (0: the same for all).
    V numbers(const Block &b, const T *source, int64_t stride) const {
        if (stride == 0) return V{} + source[0];
        V out{};
        for (int64_t l = 0; l < L; ++l) out[l] = b.lane[l] < 0 ? T(0) : source[b.lane[l] * stride];
        return out;
    }
    // Turn to step k of a chunk.
    void turn_to(Block &b, int64_t chunk, int64_t k) const {
        b.t = chunk * K + k, b.k = k;
        b.weights = w + chunk * c.w_chunk_stride + k * K;
        b.strength = numbers(b, p + chunk * c.p_chunk_stride + k, c.p_stride);
    }
    // What a reset hides has weight 0, but it may be NaN, and 0 times NaN is NaN: it is not to be read at all. So there
    // are `episodes`, if there are resets; `at` is the place in the chunk from which one looks back.
    void find_episodes(const Block &b, int64_t chunk) const {
        V last = V{} - T(1);
        for (int64_t k = 0, t = chunk * K; reset && k < K && t < b.longest; ++k, ++t) {
            for (int64_t l = 0; l < L; ++l)
                if (t < b.steps[l] && reset[t * B + b.lane[l]] != T(0)) last[l] = T(k);
            b.episodes[k] = last;
        }
    }
    Mask hidden(const Block &b, int64_t at, int64_t tau) const {
        return reset ? b.episodes[at] > V{} + T(tau) : Mask{};
    }
    Mask A_hidden(const Block &b, int64_t at) const { return reset ? b.episodes[at] >= V{} : Mask{}; }
    // Nothing of the chunk before step k's reset, where it has one, is seen ever after.
    void forget(const Block &b) const {
        const Mask now = b.episodes[b.k] == V{} + T(b.k);
        for (int64_t i = 0; i < b.k * H; ++i) b.states[i] = now ? V{} : b.states[i];
    }
    int64_t last_of(const Block &b, int64_t chunk) const { return std::min(K, b.longest - chunk * K) - 1; }

    V weight(const Block &b, int64_t tau) const { return numbers(b, b.weights + tau, c.w_stride); }
    V what_is_left(const Block &b, int64_t chunk, int64_t tau) const {
        return numbers(b, left + chunk * c.left_chunk_stride + tau, c.left_stride);
    }
    V what_is_left_of_A(const Block &b, int64_t chunk) const {
        return numbers(b, p_left + chunk * c.p_left_chunk_stride, c.p_left_stride);
    }

    // Add a number per lane to `target`, with `stride` between sequences.
    void give(const Block &b, const V &lanes, T *target, int64_t stride) const {
        for (int64_t l = 0; l < L; ++l)
            if (b.lane[l] >= 0) target[b.lane[l] * stride] += lanes[l];
    }

    // What each lane keeps of its hidden state before step t: nothing past its end, where it then stays at zero.
    V kept(const Block &b, int64_t t) const {
        V out{};
        for (int64_t l = 0; l < L; ++l) out[l] = t >= b.steps[l] ? T(0) : keep ? keep[t * B + b.lane[l]] : T(1);
        return out;
    }

    // out[i] = start[i] + Σ_k matrix[i, k] in[k], start being zero if null. There is one matrix for all lanes, `packed` in
    // panels of PANEL rows, the last perhaps of fewer, where the numbers stand in the order in which they are used.
    static constexpr int64_t PANEL = 10;

    void pack(bool transposed) {
        pack(W, H, H, transposed, W_packed);
        if (integrate) pack(W_int, H, H, transposed, W_int_packed);
        if (transposed ? c.grad_x != nullptr : !u) pack(C, H, I, transposed, C_packed);
    }

    void pack(const T *matrix, int64_t rows, int64_t columns, bool transposed, std::vector<T> &packed) const {
        packed.resize(rows * columns);
        const int64_t row_stride = transposed ? 1 : columns, column_stride = transposed ? columns : 1;
        if (transposed) std::swap(rows, columns);
        T *out = packed.data();
        for (int64_t i = 0, R; i < rows; i += R) {
            R = std::min(PANEL, rows - i);
            for (int64_t k = 0; k < columns; ++k)
                for (int64_t r = 0; r < R; ++r) *out++ = matrix[(i + r) * row_stride + k * column_stride];
        }
    }

    template <int R> void panel(const T *packed, int64_t columns, const V *in, const V *start, V *out) const {
        V sum[R];
#pragma GCC unroll 10
        for (int r = 0; r < R; ++r) sum[r] = start ? start[r] : V{};
        for (int64_t k = 0; k < columns; ++k, packed += R) {
            const V x = in[k];
#pragma GCC unroll 10
            for (int r = 0; r < R; ++r) sum[r] += packed[r] * x;
        }
#pragma GCC unroll 10
        for (int r = 0; r < R; ++r) out[r] = sum[r];
    }

    // The panel of `rows` rows, R at most.
    template <int R, class... Rest> void panel_of(int64_t rows, Rest... rest) const {
        if (rows == R) return panel<R>(rest...);
        if constexpr (R > 1) panel_of<R - 1>(rows, rest...);
    }

    void multiply(const std::vector<T> &packed, int64_t rows, int64_t columns, const V *in, const V *start,
                  V *out) const {
        for (int64_t i = 0; i < rows; i += PANEL)
            panel_of<PANEL>(std::min(PANEL, rows - i), packed.data() + i * columns, columns, in,
                            start ? start + i : start, out + i);
    }

    // The same with W, or W_int in the lanes that integrate at step t. `part` has room for a vector of the lanes.
    void transit(const Block &b, int64_t t, const V *in, const V *start, V *part, V *out) const {
        int64_t there = 0, integrating = 0;
        V mask{};
        for (int64_t l = 0; l < L && integrate; ++l)
            if (b.lane[l] >= 0 && t < b.steps[l]) {
                mask[l] = integrate[t * B + b.lane[l]];
                ++there, integrating += mask[l] != 0;
            }
        if (integrating < there || !integrating) {
            if (integrating) only(in, mask == V{}, part);
            multiply(W_packed, H, H, integrating ? part : in, start, out);
            start = out;
        }
        if (!integrating) return;
        if (integrating < there) only(in, mask != V{}, part);
        multiply(W_int_packed, H, H, integrating < there ? part : in, start, out);
    }

    template <class M> void only(const V *in, M where, V *out) const {
        for (int64_t i = 0; i < H; ++i) out[i] = where ? in[i] : V{};
    }

    void activate(const V *in, V *out) const {
        if (use_tanh) {
            const T *x = reinterpret_cast<const T *>(in);
            T *y = reinterpret_cast<T *>(out);
            for (int64_t i = 0; i < H * L; ++i) y[i] = std::tanh(x[i]);
        } else {
            const V zero{};
            for (int64_t i = 0; i < H; ++i) out[i] = in[i] < zero ? zero : in[i];  // NaN stays NaN
        }
    }

    // Σ_h f(h), in chains that overlap.
    template <class F> V sum(F f) const {
        V total[4] = {};
        int64_t i = 0;
        for (; i + 4 <= H; i += 4)
            for (int k = 0; k < 4; ++k) total[k] += f(i + k);
        for (; i < H; ++i) total[0] += f(i);
        return (total[0] + total[1]) + (total[2] + total[3]);
    }

    // out = f(LN[in]); leaves the normalised sums and their scale behind.
    void normalize(const V *in, V *normals, V *scales, V *out) const {
        const V mean = sum([=](int64_t i) { return in[i]; }) / T(H);
        const V variance = sum([=](int64_t i) { return (in[i] - mean) * (in[i] - mean); }) / T(H) + T(1e-5);
        V scale{};
        for (int64_t l = 0; l < L; ++l) scale[l] = T(1) / std::sqrt(variance[l]);
        *scales = scale;
        const V zero{};
        for (int64_t h = 0; h < H; ++h) {
            const V normal = (in[h] - mean) * scale, v = normal * gain[h] + shift[h];
            normals[h] = normal;
            out[h] = use_tanh ? v : (v < zero ? zero : v);
        }
        if (use_tanh) activate(out, out);
    }

    // h_s, once the normalised ones are in `queries`.
    const V *query(const Block &b, int64_t s, const V *queries) const {
        return normalized(s) ? queries + s * H : trail(b, s);
    }

    // f of a normalised sum, with gain and shift.
    void denormalize(const V *normals, V *out) const {
        const V zero{};
        for (int64_t h = 0; h < H; ++h) {
            const V v = normals[h] * gain[h] + shift[h];
            out[h] = use_tanh ? v : (v < zero ? zero : v);
        }
        if (use_tanh) activate(out, out);
    }

    // work(τ, G) for groups of G states from τ on, `count` in all. It goes through a group twice: the second time it
    // should still be in the nearest cache.
    template <class F> void by_groups(int64_t count, F work) const {
        const bool narrow = 8 * H * sizeof(V) <= 1 << 14;
        int64_t tau = 0;
        for (; tau + 8 <= count && narrow; tau += 8) work(tau, std::integral_constant<int, 8>());
        for (; tau + 4 <= count; tau += 4) work(tau, std::integral_constant<int, 4>());
        switch (count - tau) {
        case 3: work(tau, std::integral_constant<int, 3>()); break;
        case 2: work(tau, std::integral_constant<int, 2>()); break;
        case 1: work(tau, std::integral_constant<int, 1>()); break;
        }
    }

    // out = in + Σ_g scale[g] M[g] over G states in a row; null: zero.
    template <int G> void add_states(const V *M, const V *scale, const V *in, V *out) const {
        V by[G];  // a copy, which `out` cannot be part of
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) by[g] = scale[g];
        for (int64_t h = 0; h < H; ++h) {
            V total = in ? in[h] : V{};
#pragma GCC unroll 8
            for (int g = 0; g < G; ++g) total += by[g] * M[g * H + h];
            out[h] = total;
        }
    }

    // M[g]ᵀ q over G states in a row.
    template <int G> void dot_states(const V *M, const V *q, V *out) const {
        V total[G] = {};
        for (int64_t h = 0; h < H; ++h)
            for (int g = 0; g < G; ++g) total[g] += M[g * H + h] * q[h];
        for (int g = 0; g < G; ++g) out[g] = total[g];
    }

    // out = in + Σ_τ w[t, τ] M[τ] (M[τ]ᵀ q) over G states from τ on; leaves the scores M[τ]ᵀ q behind.
    template <int G>
    void recall_states(const Block &b, int64_t tau, const V *q, V *scores, const V *in, V *out) const {
        const V *M = b.states + tau * H;
        V weighted[G];
        dot_states<G>(M, q, scores + tau);
        for (int g = 0; g < G; ++g) weighted[g] = scores[tau + g] * weight(b, tau + g);
        add_states<G>(M, weighted, in, out);
    }

    // out = A q, or Aᵀ q.
    void read_matrix(const V *A, bool transposed, const V *q, V *out) const {
        int64_t i = 0;
        if (symmetric) {
            for (; i + 4 <= H; i += 4) read_rows<4>(A, i, q, out);
            for (; i < H; ++i) read_rows<1>(A, i, q, out);
        } else if (transposed) {
            for (; i + 4 <= H; i += 4) add_states<4>(A + i * H, q + i, i ? out : nullptr, out);
            for (; i < H; ++i) add_states<1>(A + i * H, q + i, i ? out : nullptr, out);
        } else {
            for (; i + 4 <= H; i += 4) dot_states<4>(A + i * H, q, out + i);
            for (; i < H; ++i) dot_states<1>(A + i * H, q, out + i);
        }
    }

    // What R rows of a symmetric A have to do with A q, given all rows before them. To read A is what takes time: each
    // number is read once, for both halves.
    template <int R> void read_rows(const V *A, int64_t i, const V *q, V *out) const {
        const V *rows = A + row(i);
        const int64_t stride = i / 4 * 4 + 4;
        V own[R], sum[R] = {};
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) own[r] = q[i + r];
        for (int64_t j = 0; j < i; ++j) {
            const V x = q[j];
            V total = out[j];
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                const V a = rows[r * stride + j];
                sum[r] += a * x;
                total += a * own[r];
            }
            out[j] = total;
        }
        for (int r = 0; r < R; ++r)
            for (int k = 0; k <= r; ++k) {
                const V a = rows[r * stride + i + k];
                sum[r] += a * own[k];
                if (k < r) sum[k] += a * own[r];
            }
        for (int r = 0; r < R; ++r) out[i + r] = sum[r];
    }

    // `base` + A(t) q, for the A that the chunk started from and the states of the chunk before t: in `out`, or where
    // there is nothing to add, still in `base`. `read` has room for a vector of the lanes.
    const V *recall(const Block &b, const V *q, const V *A, V *scores, const V *base, V *read, V *out) const {
        by_groups(b.k, [&](int64_t tau, auto G) {
            recall_states<G()>(b, tau, q, scores, base, out);
            base = out;
        });
        if (!A) return base;
        read_matrix(A, false, q, read);
        const Mask hidden = A_hidden(b, b.k);
        for (int64_t h = 0; h < H; ++h) out[h] = base[h] + (hidden ? V{} : b.strength * read[h]);
        return out;
    }

    // target[i, j] += Σ_r a[r, i] b[r, j] over `count` rows.
    template <int R, int C>
    void outer_tile(int64_t i, int64_t j, const V *a, const V *b, int64_t count, V *target) const {
        V sum[R][C];
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < C; ++k) sum[r][k] = target[row(i + r) + j + k];
        for (int64_t n = 0; n < count; ++n)
            for (int r = 0; r < R; ++r) {
                const V x = a[n * H + i + r];
                for (int k = 0; k < C; ++k) sum[r][k] += x * b[n * H + j + k];
            }
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < C; ++k) target[row(i + r) + j + k] = sum[r][k];
    }

    template <int R> void outer_rows(int64_t i, const V *a, const V *b, int64_t count, V *target) const {
        int64_t j = 0;
        for (; j + 3 <= columns(i); j += 3) outer_tile<R, 3>(i, j, a, b, count, target);
        for (; j < columns(i); ++j) outer_tile<R, 1>(i, j, a, b, count, target);
    }

    void add_outer(const V *a, const V *b, int64_t count, V *target) const {
        int64_t i = 0;
        for (; i + 4 <= H; i += 4) outer_rows<4>(i, a, b, count, target);
        for (; i < H; ++i) outer_rows<1>(i, a, b, count, target);
    }

    // The A that the next chunk starts from: what is left of this one's, and of its states.
    void fold(const Block &b, int64_t chunk, const V *A, V *ring, V *next) const {
        const V by = what_is_left_of_A(b, chunk);
        const int64_t last = last_of(b, chunk), count = last + 1;
        const Mask hidden = A_hidden(b, last);
        for (int64_t i = 0; i < matrix_size(); ++i) next[i] = A ? (hidden ? V{} : by * A[i]) : V{};
        for (int64_t tau = 0; tau < count; tau += RING) {
            const int64_t some = std::min(RING, count - tau);
            const V *M = b.states + tau * H;
            for (int64_t r = 0; r < some; ++r) {
                const V scale = what_is_left(b, chunk, tau + r);
                for (int64_t h = 0; h < H; ++h) ring[r * H + h] = scale * M[r * H + h];
            }
            add_outer(ring, M, some, next);
        }
    }

    void forward(int64_t index) {
        Block b = block(index);
        T *hs = static_cast<T *>(c.hs);
        V *z = scratch.take<V>(H * (6 + RING + std::min(K, b.longest)) + (A0 ? H * H : 0) + I + (reset ? K : 0) +
                               (c.saved ? 0 : unsaved_per_block()));
        V *before = z + H, *part = before + H, *sums = part + H, *q = sums + H, *ring = q + 2 * H;
        b.states = ring + RING * H;
        V *inputs = b.states + std::min(K, b.longest) * H, *first = A0 ? inputs + I : nullptr;
        b.episodes = inputs + I + (A0 ? H * H : 0);
        if (!c.saved) place_saved(b, b.episodes + (reset ? K : 0), 1, K);
        if (A0) gather_matrix(b, A0, first);
        if (h0) gather(b, h0, Rows::all, 0, H, before);
        else std::memset(before, 0, H * sizeof(V));
        for (int64_t t = 0; t < b.longest; ++t) {
            const int64_t k = t % K, chunk = t / K;
            turn_to(b, chunk, k);
            if (t && k == 0) fold(b, chunk - 1, matrix(b, chunk - 1, first), ring, matrix(b, chunk, first));
            if (k == 0) find_episodes(b, chunk);
            const V *A = matrix(b, chunk, first), *previous = t ? b.states + (k ? k - 1 : K - 1) * H : before;
            if (u) gather(b, u, Rows::of_packed, t, H, z);
            else {
                gather(b, x, Rows::of_steps, t, I, inputs);
                multiply(C_packed, H, I, inputs, nullptr, z);
            }
            if (keep || t >= b.shortest) {
                const V mask = kept(b, t), zero{};
                for (int64_t i = 0; i < H; ++i) before[i] = mask == zero ? zero : previous[i];
                previous = before;
            }
            if (bias)
                for (int64_t i = 0; i < H; ++i) z[i] += bias[i];
            transit(b, t, previous, z, part, z);
            if (reset) forget(b);
            const V *from = z;
            for (int64_t s = 0; s <= S; ++s) {
                // h_s goes where it is needed next: the states, or, if it is not a normalised trail, the trail itself.
                V *h = s == S ? b.states + k * H : normalized(s) ? q + (s & 1) * H : trail(b, s);
                const V *asked = s == 0 ? nullptr : normalized(s - 1) ? q + ((s - 1) & 1) * H : trail(b, s - 1);
                if (s) from = recall(b, asked, A, score(b, s - 1), identity ? asked : z, part, sums);
                if (normalized(s)) normalize(from, trail(b, s), scale(b, s), h);
                else activate(from, h);
            }
            scatter(b, b.states + k * H, Rows::of_steps, t, H, hs);
        }
        clear_past_ends(b, H, hs);
        if (chunks == 1) return;
        const int64_t last = last_chunk(b);
        if (last && last * K >= b.longest)  // the last chunk has none of this block's steps
            fold(b, last - 1, matrix(b, last - 1, first), ring, matrix(b, last, first));
        scatter_matrix(b, matrix(b, last, first), static_cast<T *>(c.A_last));
    }

    // From the gradient of h_s = f(LN[v]) to that of v, and what is to be done with each of its rows.
    template <class Each>
    void through(const Block &b, int64_t s, const V *h, const V *grad, V *grad_gain, V *grad_shift, V *out,
                 Each each) const {
        const V zero{};
        const auto slope = [=](int64_t i) -> V {
            return use_tanh ? grad[i] * (T(1) - h[i] * h[i]) : (h[i] <= zero ? zero : grad[i]);
        };
        if (!normalized(s)) {
            for (int64_t i = 0; i < H; ++i) each(i, out[i] = slope(i));
            return;
        }
        const V *normals = trail(b, s), scale = *this->scale(b, s);
        V mean{}, along{};
        for (int64_t i = 0; i < H; ++i) {
            V g = slope(i);
            const V normal = normals[i];
            grad_gain[i] += g * normal;
            grad_shift[i] += g;
            g *= gain[i];
            out[i] = g;
            mean += g;
            along += g * normal;
        }
        mean /= T(H), along /= T(H);
        for (int64_t i = 0; i < H; ++i) each(i, out[i] = scale * (out[i] - mean - normals[i] * along));
    }

    // What recall_states did, backwards: out = in + Σ_τ w M[τ] (M[τ]ᵀ grad). Leaves w·score and w·(M[τ]ᵀ grad) in
    // `pulls` (…, 2), with which the states themselves are pulled later.
    template <int G>
    void recall_states_backward(const Block &b, int64_t tau, const V *scores, const V *grad, V *pulls,
                                const V *in, V *out) const {
        const V *M = b.states + tau * H;
        V pull[G];
        dot_states<G>(M, grad, pull);
        for (int g = 0; g < G; ++g) {
            const V score = scores[tau + g], by = weight(b, tau + g);
            if (c.grad_w) {
                T *grad_w = static_cast<T *>(c.grad_w) + (b.t / K * B * K + b.k) * K + tau + g;
                give(b, score * pull[g], grad_w, K * K);
            }
            pulls[(tau + g) * 2] = score * by;
            pulls[(tau + g) * 2 + 1] = pull[g] = pull[g] * by;
        }
        add_states<G>(M, pull, in, out);
    }

    // The same for one state where there are resets: what came after one may be NaN. Apart from the other, and so is
    // pull_seen, as they would keep what is in registers from staying there.
    [[gnu::noinline]] void recall_seen_backward(const Block &b, int64_t tau, const V *scores, const V *grad, V *pulls,
                                                const V *in, V *out) const {
        const V *M = b.states + tau * H, by = weight(b, tau);
        const Mask hides = hidden(b, b.k, tau);
        V pull;
        dot_states<1>(M, grad, &pull);
        const V score = hides ? V{} : scores[tau];
        pull = hides ? V{} : pull;
        if (c.grad_w) give(b, score * pull, static_cast<T *>(c.grad_w) + (b.t / K * B * K + b.k) * K + tau, K * K);
        pulls[tau * 2] = score * by;
        pulls[tau * 2 + 1] = pull = pull * by;
        for (int64_t h = 0; h < H; ++h) out[h] = (in ? in[h] : V{}) + pull * (hides ? V{} : M[h]);
    }

    // The gradient of q in `grad_q`: `base`, null being zero, and what comes through A(t) q from its gradient.
    void recall_backward(const Block &b, const V *q, const V *A, const V *scores, const V *grad, const V *base, V *pulls,
                         V *read, V *grad_q) const {
        for (int64_t tau = 0; reset && tau < b.k; ++tau, base = grad_q)
            recall_seen_backward(b, tau, scores, grad, pulls, base, grad_q);
        by_groups(reset ? 0 : b.k, [&](int64_t tau, auto G) {
            recall_states_backward<G()>(b, tau, scores, grad, pulls, base, grad_q);
            base = grad_q;
        });
        if (!A) {
            for (int64_t h = 0; h < H && base != grad_q; ++h) grad_q[h] = base ? base[h] : V{};
            return;
        }
        read_matrix(A, true, grad, read);
        const Mask hidden = A_hidden(b, b.k);
        if (c.grad_p) {
            T *grad_p = static_cast<T *>(c.grad_p) + b.t / K * B * K + b.k;
            const V along = this->sum([=](int64_t h) { return read[h] * q[h]; });
            give(b, hidden ? V{} : along, grad_p, K);
        }
        for (int64_t h = 0; h < H; ++h) grad_q[h] = (base ? base[h] : V{}) + (hidden ? V{} : b.strength * read[h]);
    }

    // grad_M[τ] += Σ_s w·score·grad_s + w·(M[τ]ᵀ grad_s)·q_s over G states from τ on.
    template <int G>
    void pull_states(const Block &b, int64_t tau, const V *queries, const V *grads, const V *pulls, V *grad_M) const {
        V *target = grad_M + tau * H;
        for (int64_t s = 0; s < S; ++s) {
            const V *q = query(b, s, queries), *grad = grads + s * H, *pull = pulls + (s * K + tau) * 2;
            V by[G][2];
            for (int g = 0; g < G; ++g) by[g][0] = pull[2 * g], by[g][1] = pull[2 * g + 1];
            for (int64_t h = 0; h < H; ++h) {
                const V from = grad[h], asked = q[h];
                for (int g = 0; g < G; ++g) {
                    V total = target[g * H + h];
                    total += by[g][0] * from;
                    total += by[g][1] * asked;
                    target[g * H + h] = total;
                }
            }
        }
    }

    // The same for one state where there are resets.
    [[gnu::noinline]] void pull_seen(const Block &b, int64_t tau, const V *queries, const V *grads, const V *pulls, V *grad_M) const {
        const Mask hides = hidden(b, b.k, tau);
        for (int64_t s = 0; s < S; ++s) {
            const V *q = query(b, s, queries), *grad = grads + s * H, *pull = pulls + (s * K + tau) * 2;
            for (int64_t h = 0; h < H; ++h) {
                V &to = grad_M[tau * H + h];
                to = hides ? to : to + pull[0] * grad[h] + pull[1] * q[h];
            }
        }
    }

    // Rows of D = G + Gᵀ times the states: what `fold` did, backwards.
    template <int G>
    void fold_states_backward(const Block &b, int64_t chunk, int64_t tau, const V *D, V *grad_M) const {
        const V *M = b.states + tau * H;
        const int64_t last = last_of(b, chunk);
        V scale[G], along[G] = {};
        for (int g = 0; g < G; ++g) scale[g] = what_is_left(b, chunk, tau + g);
        const auto rows = [&](int64_t i, auto R) {
            V total[R()][G] = {};
            for (int64_t j = 0; j < H; ++j)
                for (int r = 0; r < R(); ++r)
                    for (int g = 0; g < G; ++g) total[r][g] += D[(i + r) * H + j] * M[g * H + j];
            for (int r = 0; r < R(); ++r)
                for (int g = 0; g < G; ++g) {
                    if (reset) total[r][g] = hidden(b, last, tau + g) ? V{} : total[r][g];
                    along[g] += total[r][g] * M[g * H + i + r];
                    grad_M[(tau + g) * H + i + r] += scale[g] * total[r][g];
                }
        };
        int64_t i = 0;
        for (; i + 3 <= H; i += 3) rows(i, std::integral_constant<int, 3>());
        for (; i < H; ++i) rows(i, std::integral_constant<int, 1>());
        if (!c.grad_left) return;
        T *grad_left = static_cast<T *>(c.grad_left) + chunk * B * K + tau;
        for (int g = 0; g < G; ++g) give(b, hidden(b, last, tau + g) ? V{} : along[g] * T(0.5), grad_left + g, K);
    }

    // From the gradient of the A after a chunk to that of its states and, in place, to that of the A before it. Of a
    // symmetric A the gradient G is kept as D.
    void fold_backward(const Block &b, int64_t chunk, const V *A, V *G, V *D, V *grad_M) const {
        for (int64_t i = 0; i < H; ++i)
            for (int64_t j = 0; j <= i; ++j)
                D[i * H + j] = D[j * H + i] = symmetric ? G[row(i) + j] : G[i * H + j] + G[j * H + i];
        const int64_t last = last_of(b, chunk), count = last + 1;
        int64_t tau = 0;
        for (; tau + 4 <= count; tau += 4) fold_states_backward<4>(b, chunk, tau, D, grad_M);
        for (; tau < count; ++tau) fold_states_backward<1>(b, chunk, tau, D, grad_M);
        if (!A) return;
        const Mask hidden = A_hidden(b, last);
        if (c.grad_p_left) {
            V along{};
            for (int64_t i = 0; i < H; ++i) {
                for (int64_t j = 0; j < (symmetric ? i : H); ++j) along += G[row(i) + j] * A[row(i) + j];
                if (symmetric) along += T(0.5) * G[row(i) + i] * A[row(i) + i];
            }
            give(b, hidden ? V{} : along, static_cast<T *>(c.grad_p_left) + chunk * B, 1);
        }
        const V by = what_is_left_of_A(b, chunk);
        for (int64_t i = 0; i < matrix_size(); ++i) G[i] = hidden ? V{} : G[i] * by;
    }

    void backward(int64_t index) {
        Block b = block(index);
        const bool remembers = c.grad_A0 || chunks > 1;
        const int64_t length = std::min(K, b.longest);
        V *grad = scratch.take<V>(H * (9 + 2 * S + 2 * RING + 2 * length) + 2 * S * K +
                                  remembers * (H * H + matrix_size()) + (A0 ? H * H : 0) + I + (reset ? K : 0));
        V *grad_z = grad + H, *from_next = grad_z + H, *grad_gain = from_next + H, *grad_shift = grad_gain + H;
        V *grad_b = grad_shift + H, *read = grad_b + H, *grads = read + H, *queries = grads + S * H;
        V *ring_left = queries + S * H, *ring_right = ring_left + (RING + 1) * H;
        V *grad_M = ring_right + (RING + 1) * H, *pulls = grad_M + length * H;
        V *grad_inputs = pulls + 2 * S * K;
        b.states = grad_inputs + I;
        V *G = remembers ? b.states + length * H : nullptr, *D = remembers ? G + matrix_size() : nullptr;
        V *first = b.states + length * H + remembers * (H * H + matrix_size());
        b.episodes = first + (A0 ? H * H : 0);
        if (!A0) first = nullptr;
        std::memset(from_next, 0, 4 * H * sizeof(V));
        if (A0) gather_matrix(b, A0, first);
        if (G) std::memset(G, 0, matrix_size() * sizeof(V));
        if (c.grad_A_last) gather_matrix(b, static_cast<const T *>(c.grad_A_last), D);
        for (int64_t i = 0; i < H && c.grad_A_last; ++i)
            for (int64_t j = 0; j < columns(i); ++j) G[row(i) + j] = D[i * H + j] + (symmetric ? D[j * H + i] : V{});
        const T *grad_hs = static_cast<const T *>(c.grad_hs);
        T *grad_u = static_cast<T *>(c.grad_u), *grad_x = static_cast<T *>(c.grad_x);
        if (grad_x) clear_past_ends(b, I, grad_x);
        for (int64_t chunk = last_chunk(b); chunk >= 0; --chunk) {
            const V *A = matrix(b, chunk, first);
            const int64_t start = chunk * K, stop = std::min(start + K, b.longest);
            find_episodes(b, chunk);
            for (int64_t t = start; t < stop; ++t) {
                V *h = b.states + (t - start) * H;
                if (normalized(S) && !use_tanh && t < b.shortest) {  // from its trail, which is needed soon anyway
                    b.t = t;
                    denormalize(trail(b, S), h);
                } else
                    gather(b, static_cast<const T *>(c.hs), Rows::of_steps, t, H, h);
            }
            std::memset(grad_M, 0, std::max<int64_t>(0, stop - start) * H * sizeof(V));
            if (chunk < last_chunk(b)) fold_backward(b, chunk, A, G, D, grad_M);
            int64_t waiting = 0;
            for (int64_t t = stop - 1; t >= start; --t) {
                const int64_t k = t - start;
                turn_to(b, chunk, k);
                fetch(b, grad_hs, t - 1);
                gather(b, grad_hs, Rows::of_steps, t, H, grad);
                for (int64_t i = 0; i < H; ++i) grad[i] += grad_M[k * H + i] + from_next[i];
                for (int64_t s = 0; s < S; ++s)
                    if (normalized(s)) denormalize(trail(b, s), queries + s * H);
                for (int64_t s = S - 1; s >= 0; --s) {
                    const V *h = s + 1 < S ? query(b, s + 1, queries) : b.states + k * H, *q = query(b, s, queries);
                    V *from = grads + s * H;
                    const bool last = s == S - 1;
                    through(b, s + 1, h, grad, grad_gain, grad_shift, from,
                            [=](int64_t i, const V &g) { grad_z[i] = last ? g : grad_z[i] + g; });
                    recall_backward(b, q, A, score(b, s), from, identity ? from : nullptr, pulls + 2 * s * K, read, grad);
                    if (!A || !G || (!chunk && !c.grad_A0)) continue;  // nobody asks for that of A
                    V *left = ring_left + waiting * H, *right = ring_right + waiting * H;
                    const Mask hidden = A_hidden(b, k);
                    for (int64_t i = 0; i < H; ++i) {
                        left[i] = right[H + i] = hidden ? V{} : b.strength * from[i];
                        left[H + i] = right[i] = hidden ? V{} : q[i];
                    }
                    waiting += 1 + symmetric;  // of g qᵀ and q gᵀ, which D is made of, G takes the first alone
                    if (waiting == RING) {
                        add_outer(ring_left, ring_right, waiting, G);
                        waiting = 0;
                    }
                }
                int64_t tau = 0;
                for (; reset && tau < k; ++tau) pull_seen(b, tau, queries, grads, pulls, grad_M);
                for (; tau + 4 <= k; tau += 4) pull_states<4>(b, tau, queries, grads, pulls, grad_M);
                for (; tau + 2 <= k; tau += 2) pull_states<2>(b, tau, queries, grads, pulls, grad_M);
                if (tau < k) pull_states<1>(b, tau, queries, grads, pulls, grad_M);
                const bool sustained = S && !identity;
                through(b, 0, S ? query(b, 0, queries) : b.states + k * H, grad, grad_gain, grad_shift, grad,
                        [=](int64_t i, const V &g) {
                            grad_z[i] = sustained ? grad_z[i] + g : g;
                            grad_b[i] += grad_z[i];
                        });
                scatter(b, grad_z, Rows::of_packed, t, H, grad_u);
                if (grad_x) {
                    multiply(C_packed, I, H, grad_z, nullptr, grad_inputs);
                    scatter(b, grad_inputs, Rows::of_steps, t, I, grad_x);
                }
                transit(b, t, grad_z, nullptr, read, from_next);
                if (keep || t >= b.shortest) {
                    const V mask = kept(b, t), zero{};
                    for (int64_t i = 0; i < H; ++i) from_next[i] = mask == zero ? zero : from_next[i];
                }
            }
            if (waiting) add_outer(ring_left, ring_right, waiting, G);
        }
        if (c.grad_h0) scatter(b, from_next, Rows::all, 0, H, static_cast<T *>(c.grad_h0));
        if (c.grad_A0) scatter_matrix(b, G, static_cast<T *>(c.grad_A0));
        // Sums per sequence: their total, taken in the order of the sequences, depends neither on who computed them nor
        // on how many there are to a vector.
        for (int64_t l = 0; l < L && index * L + l < B; ++l) {
            T *totals = sums.data() + (index * L + l) * 3 * H;
            for (int64_t k = 0; k < 3 * H; ++k) totals[k] = grad_gain[k][l];  // grad_shift and grad_b follow grad_gain
        }
    }

    int run(void (Sequences::*work)(int64_t)) {
        return in_parallel(blocks(), c.threads, [&](int64_t index) { (this->*work)(index); });
    }
};

template <class T, int64_t BYTES> int run(const fw_scan &scan, bool forward) {
    using Lanes = Sequences<T, BYTES>;
    try {
        Lanes kernel(scan);
        kernel.pack(!forward);
        if (forward) return kernel.run(&Lanes::forward);
        kernel.sums.resize(kernel.B * 3 * kernel.H);
        const int failed = kernel.run(&Lanes::backward);
        kernel.add_up(kernel.sums, kernel.B);
        return failed;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

template <class T> int with_so_many(const fw_scan &scan, bool forward) {
    return scan.lanes == Lanes<T>::count ? run<T, VECTOR>(scan, forward) : run<T, VECTOR / 2>(scan, forward);
}

}  // namespace

template <> int run_by_lanes<float>(const fw_scan &scan, bool forward) { return with_so_many<float>(scan, forward); }
template <> int run_by_lanes<double>(const fw_scan &scan, bool forward) { return with_so_many<double>(scan, forward); }

}  // namespace fastweights
