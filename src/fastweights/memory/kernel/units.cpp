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

    // Of G sequences at once, so that a row is read once for them all. The sums are the same for any G, to the bit.
    template <int G> using Rows = const T *const (&)[G];
    template <int G> using Outs = T *const (&)[G];

    template <int R, int G> void dots_of(const T *rows, Rows<G> q, Outs<G> out, int64_t first) const {
        V sum[G][R] = {};
        rows += first * width;
        for (int64_t v = 0; v < vectors; ++v) {
            V x[G];
            for (int g = 0; g < G; ++g) x[g] = load(q[g], v);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const V row = load(rows + r * width, v);
#pragma GCC unroll 4
                for (int g = 0; g < G; ++g) sum[g][r] += row * x[g];
            }
        }
        for (int g = 0; g < G; ++g) {
            const V sums = across<L / 2>(sum[g]);
            if constexpr (R == L) Lanes<T>::store(sums, out[g] + first);
            else
                for (int r = 0; r < R; ++r) out[g][first + r] = sums[r * (L / R)];
        }
    }
    template <int R, int G>
    void dots_of_rest(const T *rows, int64_t count, Rows<G> q, Outs<G> out, int64_t first) const {
        if (count >= R) {
            dots_of<R, G>(rows, q, out, first);
            first += R, count -= R;
        }
        if constexpr (R > 1) dots_of_rest<R / 2, G>(rows, count, q, out, first);
    }
    // out[r] = rows[r]ᵀ q.
    template <int G> void dots_together(const T *rows, int64_t count, Rows<G> q, Outs<G> out) const {
        constexpr int R = L / G > 0 ? L / G : 1;
        int64_t r = 0;
        for (; r + R <= count; r += R) dots_of<R, G>(rows, q, out, r);
        if constexpr (R > 1) dots_of_rest<R / 2, G>(rows, count - r, q, out, r);
    }
    void dots(const T *rows, int64_t count, const T *q, T *out) const {
        dots_together<1>(rows, count, {q}, {out});
    }

    // out = A q for a symmetric A, of which only the squares on the diagonal and those left of it are read.
    void read_symmetric(const T *A, const T *q, T *out) const {
        constexpr int R = VECTOR == 64 ? 8 : 4;  // as many rows as there are registers for
        const int64_t rows = H;
        for (int64_t v = 0; v < vectors; ++v) {
            T sums_of[L] = {};
            for (int64_t i = 0; i < L && v * L + i < rows; i += R) {
                const T *row = A + (v * L + i) * width;
                if (v * L + i + R > rows) {  // some are left
                    for (int64_t r = 0; v * L + i + r < rows; ++r, row += width) {
                        const V own = V{} + q[v * L + i + r];
                        V sum{};
                        for (int64_t j = 0; j < v; ++j) {
                            const V a = load(row, j);
                            sum += a * load(q, j);
                            store(load(out, j) + a * own, out, j);
                        }
                        sums_of[i + r] = total(sum + load(row, v) * load(q, v));
                    }
                    break;
                }
                V sum[R] = {}, own[R];
                for (int r = 0; r < R; ++r) own[r] = V{} + q[v * L + i + r];
                for (int64_t j = 0; j < v; ++j) {
                    const V x = load(q, j);
                    V column = load(out, j), other{};
#pragma GCC unroll 8
                    for (int r = 0; r < R; r += 2) {
                        const V a = load(row + r * width, j), b = load(row + (r + 1) * width, j);
                        sum[r] += a * x, sum[r + 1] += b * x;
                        column += a * own[r], other += b * own[r + 1];
                    }
                    store(column + other, out, j);
                }
                const V x = load(q, v);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) sum[r] += load(row + r * width, v) * x;
                const V found = across<L / 2>(sum);
                for (int r = 0; r < R; ++r) sums_of[i + r] = found[r * (L / R)];
            }
            store(Lanes<T>::load(sums_of), out, v);
        }
    }

    // work(v, N) for the vectors v … v + N - 1 of a row, N being at most MOST.
    template <int MOST, class F> void by_vectors(F work) const {
        int64_t v = 0;
        for (; v + MOST <= vectors; v += MOST) work(v, std::integral_constant<int, MOST>());
        if constexpr (MOST >= 4)
            if (v + 2 <= vectors) work(v, std::integral_constant<int, 2>()), v += 2;
        if constexpr (MOST >= 2)
            if (v < vectors) work(v, std::integral_constant<int, 1>());
    }

    // out = Σ_r by[r] rows[r], plus `in` where there is one.
    template <int G>
    void add_together(const T *rows, Rows<G> by, int64_t count, const T *in, Outs<G> out) const {
        constexpr int most = (VECTOR == 64 ? 4 : 2) / G, chains = 4;  // that overlap
        by_vectors<(most > 0 ? most : 1)>([&](int64_t first, auto N) {
            constexpr int n = N();
            V sum[G][chains][n] = {};
            const T *row = rows + first * L;
            int64_t r = 0;
            for (; r + chains <= count; r += chains, row += chains * width)
#pragma GCC unroll 4
                for (int chain = 0; chain < chains; ++chain)
#pragma GCC unroll 4
                    for (int v = 0; v < n; ++v) {
                        const V numbers = load(row + chain * width, v);
#pragma GCC unroll 4
                        for (int g = 0; g < G; ++g) sum[g][chain][v] += by[g][r + chain] * numbers;
                    }
            for (; r < count; ++r, row += width)
                for (int v = 0; v < n; ++v)
                    for (int g = 0; g < G; ++g) sum[g][0][v] += by[g][r] * load(row, v);
            for (int g = 0; g < G; ++g)
                for (int v = 0; v < n; ++v) {
                    const V all = (sum[g][0][v] + sum[g][1][v]) + (sum[g][2][v] + sum[g][3][v]);
                    store(in ? load(in, first + v) + all : all, out[g], first + v);
                }
        });
    }
    void add_rows(const T *rows, const T *by, int64_t count, const T *in, T *out) const {
        add_together<1>(rows, {by}, count, in, {out});
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
    // Of a symmetric one (`half`), what is right of the squares on the diagonal may be left out.
    void product(const T *left, int64_t across, int64_t down, const T *right, int64_t count, const T *in, T by,
                 int64_t rows, T *out, bool half = false) const {
        const auto columns = [&](int64_t v, auto N) {
            int64_t i = half ? v * L / 6 * 6 : 0;
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
        clear_end(read);
        if (symmetric) read_symmetric(A, asked, read);
        else dots(A, H, asked, read);
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
                what_is_left_of_A(q, chunk), H, next, symmetric);
    }

    static constexpr int64_t TOGETHER = 4;  // sequences that take their steps at the same time, to share W

    // Sequences are taken in groups, of neighbours by length; enough groups that all threads have some.
    int64_t together() const {
        return std::max<int64_t>(1, std::min(TOGETHER, (B + c.threads - 1) / std::max<int64_t>(1, c.threads)));
    }
    int64_t groups() const { return (B + together() - 1) / together(); }

    // What becomes of one row per sequence by W, or where it integrates, by W_int. Null: nothing.
    template <bool FORWARD> struct Transit {
        const T *in[TOGETHER], *matrix[TOGETHER];
        T *out[TOGETHER];
        int64_t count = 0;
        void add(const T *matrix_rows, const T *from, T *to) {
            matrix[count] = matrix_rows, in[count] = from, out[count++] = to;
        }
        void run(const Units &units) const {
            for (int64_t first = 0, some; first < count; first += some) {
                some = 1;
                while (first + some < count && matrix[first + some] == matrix[first]) ++some;
                const T *rows = matrix[first], *const *from = in + first;
                T *const *to = out + first;
                if (some >= 4) some = 4, units.transit<FORWARD, 4>(rows, {from[0], from[1], from[2], from[3]},
                                                                  {to[0], to[1], to[2], to[3]});
                else if (some >= 2) some = 2, units.transit<FORWARD, 2>(rows, {from[0], from[1]}, {to[0], to[1]});
                else units.transit<FORWARD, 1>(rows, {from[0]}, {to[0]});
            }
        }
    };
    template <bool FORWARD, int G> void transit(const T *rows, Rows<G> in, Outs<G> out) const {
        if constexpr (FORWARD) dots_together<G>(rows, H, in, out);
        else add_together<G>(rows, in, H, nullptr, out);
    }
    const T *transition(const Sequence &q) const {
        return integrate && integrate[q.t * B + q.b] != T(0) ? W_int_rows : W_rows;
    }
    bool wiped(const Sequence &q) const { return keep && keep[q.t * B + q.b] == T(0); }

    // A sequence on its way forward.
    struct Forward {
        Sequence q;
        T *z, *sums, *read, *asked, *normals, *scaled, *matrices, *scores, *by;
        const T *A;
        bool two;  // matrices
        T *matrix(const Units &units, int64_t chunk) const {
            const int64_t size = units.H * units.width;
            return units.c.saved ? q.matrices + (chunk - 1) * size : matrices + (chunk & 1) * two * size;
        }
    };

    int64_t room_forward(int64_t length) const {
        const int64_t own = c.saved ? 0 : std::min<int64_t>(2, chunks - 1);  // matrices that are kept nowhere else
        const int64_t rows = 6 + (1 + (chunks > 1)) * length + own * H + (A0 && width != H ? H : 0);
        return rows * width + 2 * whole(K);
    }

    Forward begin(int64_t b, int64_t length, T *memory) const {
        Forward f{};
        f.q = sequence(b);
        const int64_t own = c.saved ? 0 : std::min<int64_t>(2, chunks - 1);
        Room room{memory};
        f.two = own > 1;
        f.z = room.take(width), f.sums = room.take(width), f.read = room.take(width), f.asked = room.take(2 * width);
        f.normals = room.take(width);
        f.q.states = room.take(length * width);
        f.scaled = room.take((chunks > 1) * length * width), f.matrices = room.take(own * H * width);
        f.scores = room.take(whole(K)), f.by = room.take(whole(K));
        f.A = first_matrix(f.q, room.at);
        return f;
    }

    void forward(int64_t group) const {
        const int64_t first = group * together(), count = std::min(together(), B - first);
        const int64_t longest = this->length(order[first]), length = std::min(K, longest);
        T *memory = scratch.take<T>(count * room_forward(length));
        Forward all[TOGETHER];
        for (int64_t n = 0; n < count; ++n) all[n] = begin(order[first + n], length, memory + n * room_forward(length));
        for (int64_t t = 0; t < longest; ++t) {
            Transit<true> transit;
            for (int64_t n = 0; n < count && t < all[n].q.length; ++n) arrive(all[n], t, transit);
            transit.run(*this);
            for (int64_t n = 0; n < count && t < all[n].q.length; ++n) settle(all[n]);
        }
        for (int64_t n = 0; n < count; ++n) end(all[n]);
    }

    // Up to what W makes of the state before.
    void arrive(Forward &f, int64_t t, Transit<true> &transit) const {
        Sequence &q = f.q;
        turn_to(q, t);
        if (t && q.k == 0) {
            T *next = f.matrix(*this, q.chunk);
            fold(q, q.chunk - 1, f.A, f.scaled, next);
            f.A = next;
        }
        read_row(u + packed_place(q), f.z);
        const T *previous = t ? q.states + (q.k ? q.k - 1 : K - 1) * width : nullptr;
        if (!t && h0) read_row(h0 + q.b * H, f.asked), previous = f.asked;
        std::fill_n(f.read, width, T(0));
        if (previous && !wiped(q)) transit.add(transition(q), previous, f.read);
    }

    void settle(Forward &f) const {
        Sequence &q = f.q;
        T *z = f.z;
        for (int64_t v = 0; v < vectors; ++v)
            store(load(z, v) + load(biases.data(), v) + load(f.read, v), z, v);
        for (int64_t s = 0; s <= S; ++s) {
            T *h = s == S ? q.states + q.k * width : f.asked + (s & 1) * width;
            const T *before = f.asked + (~s & 1) * width, *from = z;
            if (s) {
                recall(q, before, f.A, identity ? before : z, f.scores, f.by, f.read, f.sums), from = f.sums;
                if (c.saved) std::copy_n(f.scores + q.first, q.k - q.first, score(q, s - 1) + q.first);
            }
            if (normalized(s)) {
                const T factor = normalize(from, c.saved ? trail(q, s) : f.normals, h);
                if (c.saved) *scale(q, s) = factor;
            } else {
                activate(from, h);
                if (c.saved && s < S) std::copy_n(h, width, trail(q, s));
            }
        }
        std::copy_n(q.states + q.k * width, H, static_cast<T *>(c.hs) + place(q));
    }

    void end(Forward &f) const {
        const Sequence &q = f.q;
        T *hs = static_cast<T *>(c.hs);
        for (int64_t t = q.length; t < steps; ++t) std::fill_n(hs + (t * B + q.b) * H, H, T(0));
        if (chunks == 1) return;
        const int64_t last = last_chunk(q);
        if (last && last * K >= q.length) {  // the last chunk has none of this sequence's steps
            T *next = f.matrix(*this, last);
            fold(q, last - 1, f.A, f.scaled, next);
            f.A = next;
        }
        T *A_last = static_cast<T *>(c.A_last) + q.b * H * H;
        for (int64_t i = 0; i < H; ++i) {
            if (f.A) std::copy_n(f.A + i * width, H, A_last + i * H);
            else std::fill_n(A_last + i * H, H, T(0));
        }
        for (int64_t i = 0; i < H && f.A && symmetric; ++i)
            for (int64_t j = (i / L + 1) * L; j < H; ++j) A_last[i * H + j] = f.A[j * width + i];
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
            if (c.grad_p_left && symmetric) {  // what is left of the diagonal squares is there twice
                const T *row = D + i * width;
                V sum{};
                for (int64_t v = 0; v < i / L; ++v) sum += load(row, v) * load(A + i * width, v);
                along += total(sum + T(0.5) * load(row, i / L) * load(A + i * width, i / L));
            } else if (c.grad_p_left)
                along += dot(G + i * width, A + i * width);
            for (int64_t v = 0; v < vectors; ++v) store(by * load(G + i * width, v), G + i * width, v);
        }
        if (c.grad_p_left) static_cast<T *>(c.grad_p_left)[chunk * B + q.b] += along;
    }

    // A sequence on its way back.
    struct Backward {
        Sequence q;
        T *grad, *grad_z, *from_next, *grad_gain, *grad_shift, *grad_b, *read, *back, *queries, *grad_M;
        T *ring_left, *ring_right, *pulled, *G, *D, *push, *pull;
        const T *first, *A;
        int64_t waiting;  // rows that are to be added to G
    };

    bool remembers() const { return c.grad_A0 || chunks > 1; }  // the gradient of A
    int64_t room_backward(int64_t length) const {
        const int64_t rows = 8 + S + 2 * length + remembers() * (2 * S * length + length + 2 * width) +
                             (A0 && width != H ? H : 0);
        return rows * width + 2 * whole(K);
    }

    Backward begin_backward(int64_t b, int64_t length, T *memory) const {
        Backward f{};
        f.q = sequence(b);
        Room room{memory};
        f.grad = room.take(width), f.grad_z = room.take(width), f.from_next = room.take(width);
        f.grad_gain = room.take(width), f.grad_shift = room.take(width), f.grad_b = room.take(width);
        f.read = room.take(width), f.back = room.take(width), f.queries = room.take(S * width);
        f.q.states = room.take(length * width), f.grad_M = room.take(length * width);
        f.ring_left = room.take(remembers() * S * length * width);
        f.ring_right = room.take(remembers() * S * length * width);
        f.pulled = room.take(remembers() * length * width);
        f.G = room.take(remembers() * width * width), f.D = room.take(remembers() * width * width);
        f.push = room.take(whole(K)), f.pull = room.take(whole(K));
        f.first = first_matrix(f.q, room.at);
        std::fill_n(f.from_next, 4 * width, T(0));
        if (remembers()) std::fill_n(f.G, width * width, T(0));
        const T *grad_A_last = static_cast<const T *>(c.grad_A_last);
        for (int64_t i = 0; i < H && grad_A_last; ++i) read_row(grad_A_last + (b * H + i) * H, f.G + i * width);
        return f;
    }

    void backward(int64_t group) {
        const int64_t first = group * together(), count = std::min(together(), B - first);
        const int64_t longest = this->length(order[first]), length = std::min(K, longest);
        T *memory = scratch.take<T>(count * room_backward(length));
        Backward all[TOGETHER];
        for (int64_t n = 0; n < count; ++n)
            all[n] = begin_backward(order[first + n], length, memory + n * room_backward(length));
        for (int64_t t = longest - 1; t >= 0; --t) {
            Transit<false> transit;
            for (int64_t n = 0; n < count && t < all[n].q.length; ++n) {
                if (t == all[n].q.length - 1 || (t + 1) % K == 0) enter(all[n], t / K);
                step_back(all[n], t, transit);
                if (t % K == 0) leave(all[n]);
            }
            transit.run(*this);
        }
        for (int64_t n = 0; n < count; ++n) end_backward(all[n]);
    }

    // The end of a chunk, which is where its backward begins.
    void enter(Backward &f, int64_t chunk) const {
        Sequence &q = f.q;
        f.A = chunk ? q.matrices + (chunk - 1) * H * width : f.first;
        const T *hs = static_cast<const T *>(c.hs);
        for (int64_t k = 0; k < count_of(q, chunk); ++k)
            read_row(hs + ((chunk * K + k) * B + q.b) * H, q.states + k * width);
        std::fill_n(f.grad_M, count_of(q, chunk) * width, T(0));
        if (chunk < last_chunk(q)) fold_backward(q, chunk, f.A, f.G, f.D, f.pulled, f.grad_M);
        f.waiting = 0;
    }
    void leave(Backward &f) const {
        if (f.waiting) product(f.ring_left, width, 1, f.ring_right, f.waiting, f.G, T(1), H, f.G);
    }

    void step_back(Backward &f, int64_t t, Transit<false> &transit) const {
        Sequence &q = f.q;
        T *grad = f.grad, *grad_z = f.grad_z, *read = f.read;
        turn_to(q, t);
        read_row(static_cast<const T *>(c.grad_hs) + place(q), grad);
        for (int64_t v = 0; v < vectors; ++v)
            store(load(grad, v) + load(f.grad_M + q.k * width, v) + load(f.from_next, v), grad, v);
        for (int64_t s = 0; s < S; ++s)
            if (normalized(s)) denormalize(trail(q, s), f.queries + s * width);
        const auto query = [&](int64_t s) { return normalized(s) ? f.queries + s * width : trail(q, s); };
        const T *h = q.states + q.k * width;
        for (int64_t s = S - 1; s >= 0; --s) {
            const T *asked = query(s), *scores = score(q, s);
            // `read` has the gradient of what went into this inner step.
            through(q, s + 1, s + 1 < S ? query(s + 1) : h, grad, f.grad_gain, f.grad_shift, read);
            for (int64_t v = 0; v < vectors; ++v)
                store(s == S - 1 ? load(read, v) : load(grad_z, v) + load(read, v), grad_z, v);
            dots(q.states + q.first * width, q.k - q.first, read, f.pull + q.first);
            for (int64_t tau = q.first; tau < q.k; ++tau) {
                if (c.grad_w)
                    static_cast<T *>(c.grad_w)[((q.chunk * B + q.b) * K + q.k) * K + tau] += scores[tau] * f.pull[tau];
                f.push[tau] = scores[tau] * q.weights[tau], f.pull[tau] *= q.weights[tau];
            }
            pull_states(q, f.push, f.pull, read, asked, identity ? read : nullptr, f.grad_M, grad);
            if (!f.A || !q.sees_A) continue;
            T *back = f.back;  // Aᵀ read
            if (remembers() && (q.chunk || c.grad_A0)) {
                T *pushed = f.ring_left + f.waiting * width;
                for (int64_t v = 0; v < vectors; ++v) store(q.strength * load(read, v), pushed, v);
                std::copy_n(asked, width, f.ring_right + f.waiting++ * width);
            }
            if (symmetric) read_symmetric(f.A, read, back);
            else add_rows(f.A, read, H, nullptr, back);
            if (c.grad_p) static_cast<T *>(c.grad_p)[(q.chunk * B + q.b) * K + q.k] += dot(back, asked);
            for (int64_t v = 0; v < vectors; ++v) store(load(grad, v) + q.strength * load(back, v), grad, v);
        }
        const bool sustained = S && !identity;
        through(q, 0, S ? query(0) : h, grad, f.grad_gain, f.grad_shift, read);
        for (int64_t v = 0; v < vectors; ++v) {
            const V g = sustained ? load(grad_z, v) + load(read, v) : load(read, v);
            store(g, grad_z, v);
            store(load(f.grad_b, v) + g, f.grad_b, v);
        }
        std::copy_n(grad_z, H, static_cast<T *>(c.grad_u) + packed_place(q));
        if (wiped(q)) std::fill_n(f.from_next, width, T(0));
        else transit.add(transition(q), grad_z, f.from_next);
    }

    void end_backward(const Backward &f) {
        const int64_t b = f.q.b;
        if (c.grad_h0) std::copy_n(f.from_next, H, static_cast<T *>(c.grad_h0) + b * H);
        for (int64_t i = 0; i < H && c.grad_A0; ++i)
            std::copy_n(f.G + i * width, H, static_cast<T *>(c.grad_A0) + (b * H + i) * H);
        // Sums per sequence: their total, taken in the order of the sequences, does not depend on who computed them.
        T *totals = sums.data() + b * 3 * H;
        for (int64_t k = 0; k < 3; ++k) std::copy_n(f.grad_gain + k * width, H, totals + k * H);
    }
};

// 0, or 1 when memory ran out.
template <class T> int run(const fw_scan &scan, bool forward) {
    try {
        Units<T> units(scan);
        if (forward) return in_parallel(units.groups(), scan.threads, [&](int64_t group) { units.forward(group); });
        units.sums.resize(units.B * 3 * units.H);
        const int failed = in_parallel(units.groups(), scan.threads, [&](int64_t group) { units.backward(group); });
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
