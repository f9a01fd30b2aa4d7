// The recurrence for few sequences: each by itself, with vectors along its units. lanes.cpp is the same for many.
//
// Rows are as long as whole vectors, `width`, with zeros at the end. A sequence is computed by one thread, alone: its
// numbers depend neither on its batch-mates nor on the number of threads.

#include "problem.h"

namespace fastweights {
namespace {

template <class T> struct Units : Problem<T> {
    using P = Problem<T>;
    using P::c, P::steps, P::B, P::H, P::S, P::K, P::N, P::chunks, P::norm, P::norm_start, P::identity, P::use_tanh;
    using P::symmetric, P::u, P::bias, P::W, P::W_int, P::gain, P::shift, P::h0, P::A0, P::w, P::p, P::left, P::p_left;
    using P::keep, P::reset, P::integrate, P::order, P::packed, P::trails, P::normalized, P::all_pairs, P::pairs;

    using V = typename Lanes<T>::V;
    using Mask = decltype(V{} < V{});
    static constexpr int64_t L = Lanes<T>::count;

    const int64_t vectors = (H + L - 1) / L, width = vectors * L;
    Mask inside;                              // which lanes of a row's last vector are units
    std::vector<T> gains, shifts, biases;     // (width)
    std::vector<T> W_padded, W_int_padded;    // (H, width), where W has not that shape already
    const T *W_rows, *W_int_rows;
    std::vector<T> sums;                      // backward: gradients of gain, shift and b per sequence

    explicit Units(const fw_scan &scan) : P(scan) {
        V lane{};
        for (int64_t l = 0; l < L; ++l) lane[l] = T(l);
        inside = lane < T(H - (vectors - 1) * L);
        gains = padded(gain, 1), shifts = padded(shift, 1), biases = padded(bias, 1);
        W_rows = rows_of(W, W_padded), W_int_rows = integrate ? rows_of(W_int, W_int_padded) : nullptr;
    }

    std::vector<T> padded(const T *from, int64_t rows) const {
        std::vector<T> to(rows * width, T(0));
        for (int64_t i = 0; i < rows && from; ++i) std::copy_n(from + i * H, H, to.data() + i * width);
        return to;
    }
    const T *rows_of(const T *matrix, std::vector<T> &room) const {
        if (width == H) return matrix;
        room = padded(matrix, H);
        return room.data();
    }

    // What forward saves of a sequence for backward: the trails (s, T, width), the A that each chunk but the first starts
    // from (H, width), the scales (N, T) of the layer norms, and the scores (S, K (K-1) / 2 per chunk).
    int64_t saved_per_sequence() const {
        const int64_t numbers = (trails() * steps + (chunks - 1) * H) * width + N * steps + S * all_pairs();
        return (numbers + L - 1) / L * L;
    }

    struct Sequence {
        int64_t b, length;
        T *states;  // of the chunk at hand, (K, width)
        T *trail, *matrices, *scales, *scores;  // null where nothing is saved
        int64_t t, k, chunk, first;  // the step, its place in the chunk, and the first state of it that is seen
        bool sees_A;                 // whether no reset hides what was before the chunk
        const T *weights;            // how the step sees the states of the chunk
        T strength;                  // and the A before it
    };

    Sequence sequence(int64_t b) const {
        Sequence q{};
        q.b = b, q.length = this->length(b);
        if (!c.saved) return q;
        q.trail = static_cast<T *>(c.saved) + b * saved_per_sequence();
        q.matrices = q.trail + trails() * steps * width;
        q.scales = q.matrices + (chunks - 1) * H * width;
        q.scores = q.scales + N * steps;
        return q;
    }

    T *trail(const Sequence &q, int64_t s) const { return q.trail + (s * steps + q.t) * width; }
    T *scale(const Sequence &q, int64_t s) const { return q.scales + (s - !norm_start) * steps + q.t; }
    T *score(const Sequence &q, int64_t s) const {
        return q.scores + s * all_pairs() + q.chunk * pairs(K) + pairs(q.k);
    }
    int64_t last_chunk(const Sequence &q) const { return std::min(chunks - 1, (q.length + K - 1) / K); }
    int64_t count_of(const Sequence &q, int64_t chunk) const { return std::min(K, q.length - chunk * K); }
    // A step's last reset in its chunk; -1: none.
    int64_t last_reset(const Sequence &q, int64_t chunk, int64_t k) const {
        for (; reset && k >= 0; --k)
            if (reset[(chunk * K + k) * B + q.b] != T(0)) return k;
        return -1;
    }

    void turn_to(Sequence &q, int64_t t) const {
        q.t = t, q.chunk = t / K, q.k = t % K;
        const int64_t last = last_reset(q, q.chunk, q.k);
        q.first = std::max<int64_t>(last, 0), q.sees_A = last < 0;
        q.weights = w + q.chunk * c.w_chunk_stride + q.b * c.w_stride + q.k * K;
        q.strength = p[q.chunk * c.p_chunk_stride + q.b * c.p_stride + q.k];
    }
    T what_is_left(const Sequence &q, int64_t chunk, int64_t tau) const {
        return left[chunk * c.left_chunk_stride + q.b * c.left_stride + tau];
    }
    T what_is_left_of_A(const Sequence &q, int64_t chunk) const {
        return p_left[chunk * c.p_left_chunk_stride + q.b * c.p_left_stride];
    }

    static V load(const T *row, int64_t v) { return Lanes<T>::load(row + v * L); }
    static void store(const V &numbers, T *row, int64_t v) { Lanes<T>::store(numbers, row + v * L); }
    void clear_end(T *row) const { std::fill(row + H, row + width, T(0)); }
    void read_row(const T *from, T *row) const { std::copy_n(from, H, row), clear_end(row); }
    // (T, B, H) and, without the steps past an end, (…, H).
    int64_t place(const Sequence &q) const { return (q.t * B + q.b) * H; }
    int64_t packed_place(const Sequence &q) const { return c.steps ? packed[q.t * B + q.b] * H : place(q); }

    template <int D> static V halves(V a, V b) {
        exchange<D>(a, b, std::make_index_sequence<L>());
        return a + b;
    }
    // The sums across each of R vectors, R being 1, 2, … L: that of v[i] in lane i L/R.
    template <int D, int R> static V across(const V (&v)[R]) {
        V next[R > 1 ? R / 2 : 1];
        if constexpr (R > 1)
            for (int i = 0; i < R / 2; ++i) next[i] = halves<D>(v[i], v[i + R / 2]);
        else
            next[0] = halves<D>(v[0], v[0]);
        if constexpr (D > 1) return across<D / 2>(next);
        else return next[0];
    }
    static T total(const V &numbers) {
        const V one[1] = {numbers};
        return across<L / 2>(one)[0];
    }
    T dot(const T *a, const T *b) const {
        V sum{};
        for (int64_t v = 0; v < vectors; ++v) sum += load(a, v) * load(b, v);
        return total(sum);
    }

    template <int R> void dots_of(const T *rows, const T *q, T *out) const {
        V sum[R] = {};
        for (int64_t v = 0; v < vectors; ++v) {
            const V x = load(q, v);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sum[r] += load(rows + r * width, v) * x;
        }
        const V sums = across<L / 2>(sum);
        if constexpr (R == L) return Lanes<T>::store(sums, out);
        for (int r = 0; r < R; ++r) out[r] = sums[r * (L / R)];
    }
    template <int R> void dots_of_rest(const T *rows, int64_t count, const T *q, T *out) const {
        if (count >= R) {
            dots_of<R>(rows, q, out);
            rows += R * width, out += R, count -= R;
        }
        if constexpr (R > 1) dots_of_rest<R / 2>(rows, count, q, out);
    }
    // out[r] = rows[r]ᵀ q.
    void dots(const T *rows, int64_t count, const T *q, T *out) const {
        int64_t r = 0;
        for (; r + L <= count; r += L) dots_of<L>(rows + r * width, q, out + r);
        dots_of_rest<L / 2>(rows + r * width, count - r, q, out + r);
    }

    // work(v, N) for the vectors v … v + N - 1 of a row, N being at most 8, or 4.
    template <int MOST, class F> void by_vectors(F work) const {
        int64_t v = 0;
        if constexpr (MOST >= 8)
            for (; v + 8 <= vectors; v += 8) work(v, std::integral_constant<int, 8>());
        for (; v + 4 <= vectors; v += 4) work(v, std::integral_constant<int, 4>());
        if (v + 2 <= vectors) work(v, std::integral_constant<int, 2>()), v += 2;
        if (v < vectors) work(v, std::integral_constant<int, 1>());
    }

    // out = in + Σ_r by[r] rows[r]; null: zero.
    void add_rows(const T *rows, const T *by, int64_t count, const T *in, T *out) const {
        by_vectors<8>([&](int64_t first, auto N) {
            constexpr int n = N(), chains = n >= 8 ? 1 : n >= 4 ? 2 : 4;  // that overlap
            V sum[chains][n] = {};
            const T *row = rows + first * L;
            int64_t r = 0;
            for (; r + chains <= count; r += chains, row += chains * width)
#pragma GCC unroll 4
                for (int chain = 0; chain < chains; ++chain)
#pragma GCC unroll 8
                    for (int v = 0; v < n; ++v) sum[chain][v] += by[r + chain] * load(row + chain * width, v);
            for (; r < count; ++r, row += width)
#pragma GCC unroll 8
                for (int v = 0; v < n; ++v) sum[0][v] += by[r] * load(row, v);
            for (int v = 0; v < n; ++v) {
                V all = in ? load(in, first + v) : V{};
                for (int chain = 0; chain < chains; ++chain) all += sum[chain][v];
                store(all, out, first + v);
            }
        });
    }

    // out[i] = by in[i] + Σ_r left[r·across + i·down] right[r] for `rows` rows; null: zero.
    template <int R, int N>
    void tile(const T *left, int64_t across, int64_t down, const T *right, int64_t count, const T *in, T by,
              T *out) const {
        V sum[R][N];
        for (int i = 0; i < R; ++i)
            for (int v = 0; v < N; ++v) sum[i][v] = in ? by * load(in + i * width, v) : V{};
        for (int64_t r = 0; r < count; ++r, left += across, right += width) {
            V x[N];
            for (int v = 0; v < N; ++v) x[v] = load(right, v);
#pragma GCC unroll 6
            for (int i = 0; i < R; ++i)
                for (int v = 0; v < N; ++v) sum[i][v] += left[i * down] * x[v];
        }
        for (int i = 0; i < R; ++i)
            for (int v = 0; v < N; ++v) store(sum[i][v], out + i * width, v);
    }
    void product(const T *left, int64_t across, int64_t down, const T *right, int64_t count, const T *in, T by,
                 int64_t rows, T *out) const {
        const auto columns = [&](int64_t v, auto N) {
            int64_t i = 0;
            const auto at = [&](const T *matrix) { return matrix ? matrix + i * width + v * L : nullptr; };
            for (; i + 6 <= rows; i += 6)
                tile<6, N()>(left + i * down, across, down, right + v * L, count, at(in), by, out + i * width + v * L);
            for (; i < rows; ++i)
                tile<1, N()>(left + i * down, across, down, right + v * L, count, at(in), by, out + i * width + v * L);
        };
        constexpr int most = VECTOR == 64 ? 4 : 2;  // as many as there are registers for
        int64_t v = 0;
        for (; v + most <= vectors; v += most) columns(v, std::integral_constant<int, most>());
        for (; v < vectors; ++v) columns(v, std::integral_constant<int, 1>());
    }

    void activate(const T *in, T *out) const {
        const V zero{};
        if (use_tanh)
            for (int64_t i = 0; i < H; ++i) out[i] = std::tanh(in[i]);
        else
            for (int64_t v = 0; v < vectors; ++v) {
                const V x = load(in, v);
                store(x < zero ? zero : x, out, v);  // NaN stays NaN
            }
        clear_end(out);
    }

    V units_of(int64_t v, const V &numbers) const { return v + 1 < vectors ? numbers : inside ? numbers : V{}; }

    // out = f(LN[in]); leaves the normalised sums behind, and their scale.
    T normalize(const T *in, T *normals, T *out) const {
        V sum{}, squares{};
        for (int64_t v = 0; v < vectors; ++v) sum += load(in, v);
        const T mean = total(sum) / T(H);
        for (int64_t v = 0; v < vectors; ++v) {
            const V centred = units_of(v, load(in, v) - mean);
            squares += centred * centred;
        }
        const T scale = T(1) / std::sqrt(total(squares) / T(H) + T(1e-5));
        for (int64_t v = 0; v < vectors; ++v) store(units_of(v, (load(in, v) - mean) * scale), normals, v);
        denormalize(normals, out);
        return scale;
    }

    // f of a normalised sum, with gain and shift.
    void denormalize(const T *normals, T *out) const {
        const V zero{};
        for (int64_t v = 0; v < vectors; ++v) {
            const V x = load(normals, v) * load(gains.data(), v) + load(shifts.data(), v);
            store(use_tanh ? x : (x < zero ? zero : x), out, v);
        }
        if (use_tanh) activate(out, out);
    }

    // What a call works with: rows of `width`, and the lists that follow them.
    struct Room {
        T *at;
        T *take(int64_t numbers) {
            T *taken = at;
            at += numbers;
            return taken;
        }
    };
    int64_t whole(int64_t numbers) const { return (numbers + L - 1) / L * L; }

    // A0 of a sequence as rows; null: zero.
    const T *first_matrix(const Sequence &q, T *room) const {
        if (!A0) return nullptr;
        const T *from = A0 + q.b * H * H;
        if (width == H) return from;
        for (int64_t i = 0; i < H; ++i) read_row(from + i * H, room + i * width);
        return room;
    }

    // out = base + A(t) q, for the A that the chunk started from and the states of the chunk before t.
    void recall(const Sequence &q, const T *asked, const T *A, const T *base, T *scores, T *by, T *read, T *out) const {
        const T *M = q.states + q.first * width;
        const int64_t count = q.k - q.first;
        dots(M, count, asked, scores + q.first);
        for (int64_t tau = q.first; tau < q.k; ++tau) by[tau] = scores[tau] * q.weights[tau];
        add_rows(M, by + q.first, count, base, out);
        if (!A || !q.sees_A) return;
        if (symmetric) {
            for (int64_t v = 0; v < vectors; ++v) store(q.strength * load(asked, v), read, v);
            return add_rows(A, read, H, out, out);
        }
        clear_end(read);
        dots(A, H, asked, read);
        for (int64_t v = 0; v < vectors; ++v) store(load(out, v) + q.strength * load(read, v), out, v);
    }

    // The A that the next chunk starts from: what is left of this one's, and of its states.
    void fold(const Sequence &q, int64_t chunk, const T *A, T *scaled, T *next) const {
        const int64_t count = count_of(q, chunk), last = last_reset(q, chunk, count - 1);
        const int64_t first = std::max<int64_t>(last, 0);
        for (int64_t tau = first; tau < count; ++tau) {
            const T by = what_is_left(q, chunk, tau);
            for (int64_t v = 0; v < vectors; ++v)
                store(by * load(q.states + tau * width, v), scaled + tau * width, v);
        }
        product(scaled + first * width, width, 1, q.states + first * width, count - first, last < 0 ? A : nullptr,
                what_is_left_of_A(q, chunk), H, next);
    }

    void forward(int64_t index) {
        Sequence q = sequence(order[index]);
        const int64_t length = std::min(K, q.length), lists = whole(K);
        const int64_t own = c.saved ? 0 : std::min<int64_t>(2, chunks - 1);  // matrices that are kept nowhere else
        const int64_t rows = 6 + (1 + (chunks > 1)) * length + own * H + (A0 && width != H ? H : 0);
        Room room{scratch.take<T>(rows * width + 2 * lists)};
        T *z = room.take(width), *sums = room.take(width), *read = room.take(width), *asked = room.take(2 * width);
        T *normals = room.take(width);
        q.states = room.take(length * width);
        T *scaled = room.take((chunks > 1) * length * width), *matrices = room.take(own * H * width);
        T *scores = room.take(lists), *by = room.take(lists);
        const auto matrix = [&](int64_t chunk) {
            return c.saved ? q.matrices + (chunk - 1) * H * width : matrices + (chunk & 1) * (own > 1) * H * width;
        };
        const T *first = first_matrix(q, room.at), *A = first;
        const T *from_h0 = h0 ? h0 + q.b * H : nullptr;
        T *hs = static_cast<T *>(c.hs);
        for (int64_t t = 0; t < q.length; ++t) {
            turn_to(q, t);
            if (t && q.k == 0) {
                T *next = matrix(q.chunk);
                fold(q, q.chunk - 1, A, scaled, next);
                A = next;
            }
            const T *input = u + packed_place(q);
            for (int64_t i = 0; i < H; ++i) z[i] = input[i];
            clear_end(z);
            const T *previous = t ? q.states + (q.k ? q.k - 1 : K - 1) * width : nullptr;
            if (!t && from_h0) read_row(from_h0, asked), previous = asked;
            if (previous && !(keep && keep[t * B + q.b] == T(0))) {
                clear_end(read);
                dots(integrate && integrate[t * B + q.b] != T(0) ? W_int_rows : W_rows, H, previous, read);
                for (int64_t v = 0; v < vectors; ++v) store(load(z, v) + load(read, v), z, v);
            }
            if (bias)
                for (int64_t v = 0; v < vectors; ++v) store(load(z, v) + load(biases.data(), v), z, v);
            for (int64_t s = 0; s <= S; ++s) {
                T *h = s == S ? q.states + q.k * width : asked + (s & 1) * width;
                const T *before = asked + (~s & 1) * width, *from = z;
                if (s) {
                    recall(q, before, A, identity ? before : z, scores, by, read, sums), from = sums;
                    if (c.saved) std::copy_n(scores + q.first, q.k - q.first, score(q, s - 1) + q.first);
                }
                if (normalized(s)) {
                    const T factor = normalize(from, c.saved ? trail(q, s) : normals, h);
                    if (c.saved) *scale(q, s) = factor;
                } else {
                    activate(from, h);
                    if (c.saved && s < S) std::copy_n(h, width, trail(q, s));
                }
            }
            std::copy_n(q.states + q.k * width, H, hs + place(q));
        }
        for (int64_t t = q.length; t < steps; ++t) std::fill_n(hs + (t * B + q.b) * H, H, T(0));
        if (chunks == 1) return;
        const int64_t last = last_chunk(q);
        if (last && last * K >= q.length) {  // the last chunk has none of this sequence's steps
            T *next = matrix(last);
            fold(q, last - 1, A, scaled, next);
            A = next;
        }
        T *A_last = static_cast<T *>(c.A_last) + q.b * H * H;
        for (int64_t i = 0; i < H; ++i) {
            if (A) std::copy_n(A + i * width, H, A_last + i * H);
            else std::fill_n(A_last + i * H, H, T(0));
        }
    }

    // From the gradient of h_s = f(LN[v]) to that of v.
    void through(const Sequence &q, int64_t s, const T *h, const T *grad, T *grad_gain, T *grad_shift, T *out) const {
        const V zero{};
        const auto slope = [&](int64_t v) -> V {
            const V g = load(grad, v), x = load(h, v);
            return use_tanh ? g * (T(1) - x * x) : (x <= zero ? zero : g);
        };
        if (!normalized(s)) {
            for (int64_t v = 0; v < vectors; ++v) store(units_of(v, slope(v)), out, v);
            return;
        }
        const T *normals = trail(q, s), factor = *scale(q, s);
        V mean{}, along{};
        for (int64_t v = 0; v < vectors; ++v) {
            V g = units_of(v, slope(v));
            const V normal = load(normals, v);
            store(load(grad_gain, v) + g * normal, grad_gain, v);
            store(load(grad_shift, v) + g, grad_shift, v);
            g *= load(gains.data(), v);
            store(g, out, v);
            mean += g, along += g * normal;
        }
        const V pair[2] = {mean, along}, both = across<L / 2>(pair);
        const T shared = both[0] / T(H), parallel = both[L / 2] / T(H);
        for (int64_t v = 0; v < vectors; ++v)
            store(units_of(v, factor * (load(out, v) - shared - load(normals, v) * parallel)), out, v);
    }

    // out = base + Σ_τ pull[τ] M[τ] over the states that the step sees, and grad_M[τ] += push[τ] grad + pull[τ] asked.
    void pull_states(const Sequence &q, const T *push, const T *pull, const T *grad, const T *asked, const T *base,
                     T *grad_M, T *out) const {
        by_vectors<4>([&](int64_t first, auto N) {
            constexpr int n = N();
            V total[n], from[n], query[n];
            for (int v = 0; v < n; ++v) {
                total[v] = base ? load(base, first + v) : V{};
                from[v] = load(grad, first + v), query[v] = load(asked, first + v);
            }
            const T *M = q.states + first * L;
            T *target = grad_M + first * L;
            for (int64_t tau = q.first; tau < q.k; ++tau)
#pragma GCC unroll 4
                for (int v = 0; v < n; ++v) {
                    total[v] += pull[tau] * load(M + tau * width, v);
                    V to = load(target + tau * width, v);
                    to += push[tau] * from[v];
                    to += pull[tau] * query[v];
                    store(to, target + tau * width, v);
                }
            for (int v = 0; v < n; ++v) store(total[v], out, first + v);
        });
    }

    // From the gradient of the A after a chunk to that of its states and, in place, to that of the A before it.
    void fold_backward(const Sequence &q, int64_t chunk, const T *A, T *G, T *D, T *pulled, T *grad_M) const {
        const int64_t count = count_of(q, chunk), last = last_reset(q, chunk, count - 1);
        const int64_t first = std::max<int64_t>(last, 0);
        for (int64_t i = 0; i < width; i += L)  // D = G + Gᵀ
            for (int64_t j = 0; j <= i; j += L) {
                V square[L], other[L];
                for (int64_t l = 0; l < L; ++l) {
                    square[l] = Lanes<T>::load(G + (i + l) * width + j), other[l] = Lanes<T>::load(G + (j + l) * width + i);
                }
                transpose(other);
                for (int64_t l = 0; l < L; ++l) square[l] += other[l];
                for (int64_t l = 0; l < L; ++l) Lanes<T>::store(square[l], D + (i + l) * width + j);
                transpose(square);
                for (int64_t l = 0; l < L; ++l) Lanes<T>::store(square[l], D + (j + l) * width + i);
            }
        product(q.states + first * width, 1, width, D, H, nullptr, T(0), count - first, pulled + first * width);
        for (int64_t tau = first; tau < count; ++tau) {
            const T by = what_is_left(q, chunk, tau);
            if (c.grad_left)
                static_cast<T *>(c.grad_left)[(chunk * B + q.b) * K + tau] +=
                    dot(pulled + tau * width, q.states + tau * width) * T(0.5);
            for (int64_t v = 0; v < vectors; ++v)
                store(by * load(pulled + tau * width, v), grad_M + tau * width, v);
        }
        if (!A) return;
        if (last >= 0) return std::fill_n(G, width * width, T(0)), void();
        T along = 0;
        const T by = what_is_left_of_A(q, chunk);
        for (int64_t i = 0; i < H; ++i) {
            if (c.grad_p_left) along += dot(G + i * width, A + i * width);
            for (int64_t v = 0; v < vectors; ++v) store(by * load(G + i * width, v), G + i * width, v);
        }
        if (c.grad_p_left) static_cast<T *>(c.grad_p_left)[chunk * B + q.b] += along;
    }

    void backward(int64_t index) {
        Sequence q = sequence(order[index]);
        const bool remembers = A0 || chunks > 1;
        const int64_t length = std::min(K, q.length), lists = whole(K);
        const int64_t rows = 7 + S + 2 * length + remembers * (2 * S * length + length + 2 * width) +
                             (A0 && width != H ? H : 0);
        Room room{scratch.take<T>(rows * width + 2 * lists)};
        T *grad = room.take(width), *grad_z = room.take(width), *from_next = room.take(width);
        T *grad_gain = room.take(width), *grad_shift = room.take(width), *grad_b = room.take(width);
        T *read = room.take(width), *queries = room.take(S * width);
        q.states = room.take(length * width);
        T *grad_M = room.take(length * width);
        T *ring_left = room.take(remembers * S * length * width), *ring_right = room.take(remembers * S * length * width);
        T *pulled = room.take(remembers * length * width);
        T *G = room.take(remembers * width * width), *D = room.take(remembers * width * width);
        T *push = room.take(lists), *pull = room.take(lists);
        const T *first = first_matrix(q, room.at);
        const auto matrix = [&](int64_t chunk) { return chunk ? q.matrices + (chunk - 1) * H * width : first; };
        std::fill_n(from_next, 4 * width, T(0));
        if (remembers) std::fill_n(G, width * width, T(0));
        const T *hs = static_cast<const T *>(c.hs), *grad_hs = static_cast<const T *>(c.grad_hs);
        const T *grad_A_last = static_cast<const T *>(c.grad_A_last);
        for (int64_t i = 0; i < H && grad_A_last; ++i) read_row(grad_A_last + (q.b * H + i) * H, G + i * width);
        T *grad_u = static_cast<T *>(c.grad_u);
        for (int64_t chunk = last_chunk(q); chunk >= 0; --chunk) {
            const T *A = matrix(chunk);
            const int64_t start = chunk * K, stop = std::min(start + K, q.length);
            for (int64_t t = start; t < stop; ++t) read_row(hs + (t * B + q.b) * H, q.states + (t - start) * width);
            std::fill_n(grad_M, std::max<int64_t>(0, stop - start) * width, T(0));
            if (chunk < last_chunk(q)) fold_backward(q, chunk, A, G, D, pulled, grad_M);
            int64_t waiting = 0;
            for (int64_t t = stop - 1; t >= start; --t) {
                turn_to(q, t);
                read_row(grad_hs + place(q), grad);
                for (int64_t v = 0; v < vectors; ++v)
                    store(load(grad, v) + load(grad_M + q.k * width, v) + load(from_next, v), grad, v);
                for (int64_t s = 0; s < S; ++s)
                    if (normalized(s)) denormalize(trail(q, s), queries + s * width);
                const auto query = [&](int64_t s) { return normalized(s) ? queries + s * width : trail(q, s); };
                const T *h = q.states + q.k * width;
                for (int64_t s = S - 1; s >= 0; --s) {
                    const T *asked = query(s), *scores = score(q, s);
                    // `read` has the gradient of what went into this inner step.
                    through(q, s + 1, s + 1 < S ? query(s + 1) : h, grad, grad_gain, grad_shift, read);
                    for (int64_t v = 0; v < vectors; ++v)
                        store(s == S - 1 ? load(read, v) : load(grad_z, v) + load(read, v), grad_z, v);
                    dots(q.states + q.first * width, q.k - q.first, read, pull + q.first);
                    for (int64_t tau = q.first; tau < q.k; ++tau) {
                        if (c.grad_w)
                            static_cast<T *>(c.grad_w)[((q.chunk * B + q.b) * K + q.k) * K + tau] +=
                                scores[tau] * pull[tau];
                        push[tau] = scores[tau] * q.weights[tau], pull[tau] *= q.weights[tau];
                    }
                    pull_states(q, push, pull, read, asked, identity ? read : nullptr, grad_M, grad);
                    if (!A || !q.sees_A) continue;
                    T *pushed = ring_left + waiting * width;
                    for (int64_t v = 0; v < vectors; ++v) store(q.strength * load(read, v), pushed, v);
                    std::copy_n(asked, width, ring_right + waiting * width);
                    ++waiting;
                    if (c.grad_p) {  // of Aᵀ grad before p scales it
                        add_rows(A, read, H, nullptr, pulled);
                        static_cast<T *>(c.grad_p)[(q.chunk * B + q.b) * K + q.k] += dot(pulled, asked);
                    }
                    add_rows(A, pushed, H, grad, grad);
                }
                const bool sustained = S && !identity;
                through(q, 0, S ? query(0) : h, grad, grad_gain, grad_shift, read);
                for (int64_t v = 0; v < vectors; ++v) {
                    const V g = sustained ? load(grad_z, v) + load(read, v) : load(read, v);
                    store(g, grad_z, v);
                    store(load(grad_b, v) + g, grad_b, v);
                }
                std::copy_n(grad_z, H, grad_u + packed_place(q));
                if (keep && keep[t * B + q.b] == T(0)) std::fill_n(from_next, width, T(0));
                else
                    add_rows(integrate && integrate[t * B + q.b] != T(0) ? W_int_rows : W_rows, grad_z, H, nullptr,
                             from_next);
            }
            if (waiting) product(ring_left, width, 1, ring_right, waiting, G, T(1), H, G);
        }
        if (c.grad_h0) std::copy_n(from_next, H, static_cast<T *>(c.grad_h0) + q.b * H);
        for (int64_t i = 0; i < H && c.grad_A0; ++i)
            std::copy_n(G + i * width, H, static_cast<T *>(c.grad_A0) + (q.b * H + i) * H);
        // Sums per sequence: their total, taken in the order of the sequences, does not depend on who computed them.
        T *totals = sums.data() + q.b * 3 * H;
        for (int64_t k = 0; k < 3; ++k) std::copy_n(grad_gain + k * width, H, totals + k * H);
    }

};

// 0, or 1 when memory ran out.
template <class T> int run(const fw_scan &scan, bool forward) {
    try {
        Units<T> units(scan);
        if (forward) return in_parallel(units.B, scan.threads, [&](int64_t index) { units.forward(index); });
        units.sums.resize(units.B * 3 * units.H);
        const int failed = in_parallel(units.B, scan.threads, [&](int64_t index) { units.backward(index); });
        units.add_up(units.sums, units.B);
        return failed;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

}  // namespace

template <> int run_by_units<float>(const fw_scan &scan, bool forward) { return run<float>(scan, forward); }
template <> int run_by_units<double>(const fw_scan &scan, bool forward) { return run<double>(scan, forward); }

}  // namespace fastweights
