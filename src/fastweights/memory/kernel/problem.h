// A run with its types: what both arrangements of the work, lanes and units, are given.
#pragma once

#include <numeric>
#include <vector>

#include "scan.h"
#include "vectors.h"

namespace fastweights {

template <class T> struct Problem {
    const fw_scan &c;
    const int64_t steps, B, I, H, S, K, N, chunks;
    const bool norm, norm_start, identity, use_tanh;
    const bool symmetric;  // A is a sum of h hᵀ, unless there is an A0, which may be anything
    const T *x, *C, *u, *bias, *W, *W_int, *gain, *shift, *h0, *A0, *w, *p, *left, *p_left, *keep, *reset, *integrate;
    std::vector<int64_t> order;   // sequences by their length, the longest first
    std::vector<int64_t> packed;  // (T, B): where a step is in u and grad_u; empty: where it is in hs

    explicit Problem(const fw_scan &scan)
        : c(scan), steps(c.T), B(c.B), I(c.I), H(c.H), S(c.S), K(c.K), N(c.gain ? c.S + (c.normalize_start != 0) : 0),
          chunks((c.T + c.K - 1) / c.K), norm(c.gain != nullptr), norm_start(norm && c.normalize_start),
          identity(c.identity), use_tanh(c.use_tanh), symmetric(!c.A0), x(static_cast<const T *>(c.x)),
          C(static_cast<const T *>(c.C)), u(static_cast<const T *>(c.u)),
          bias(static_cast<const T *>(c.b)), W(static_cast<const T *>(c.W)), W_int(static_cast<const T *>(c.W_int)),
          gain(static_cast<const T *>(c.gain)), shift(static_cast<const T *>(c.shift)),
          h0(static_cast<const T *>(c.h0)), A0(static_cast<const T *>(c.A0)), w(static_cast<const T *>(c.w)),
          p(static_cast<const T *>(c.p)), left(static_cast<const T *>(c.left)),
          p_left(static_cast<const T *>(c.p_left)), keep(static_cast<const T *>(c.keep)),
          reset(static_cast<const T *>(c.reset)),
          integrate(c.W_int ? static_cast<const T *>(c.integrate) : nullptr), order(c.B) {
        std::iota(order.begin(), order.end(), 0);
        if (!c.steps) return;
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return c.steps[a] > c.steps[b]; });
        packed.resize(steps * B);
        int64_t rows = 0;
        for (int64_t t = 0; t < steps; ++t)
            for (int64_t b = 0; b < B; ++b) packed[t * B + b] = t < c.steps[b] ? rows++ : -1;
    }

    // How many steps of a sequence count. Nobody has looked at lengths that come out of a compiled graph.
    int64_t length(int64_t b) const { return c.steps ? std::clamp<int64_t>(c.steps[b], 0, steps) : steps; }
    // Whether h_s comes out of a layer norm.
    bool normalized(int64_t s) const { return s ? norm : norm_start; }
    // How many trails a backward needs: h_s for s = 0 … S, or where it came out of a layer norm, the normalised sums that
    // it can be had from; none for an h_S without, which is in hs.
    int64_t trails() const { return S + (S ? norm : norm_start); }
    // The gradients of gain, shift and b, from `count` parts of them.
    void add_up(const std::vector<T> &parts, int64_t count) const {
        T *total[3] = {static_cast<T *>(c.grad_gain), static_cast<T *>(c.grad_shift), static_cast<T *>(c.grad_b)};
        for (int which = 0; which < 3; ++which)
            for (int64_t h = 0; h < H && total[which]; ++h) {
                T sum = 0;
                for (int64_t part = 0; part < count; ++part) sum += parts[(part * 3 + which) * H + h];
                total[which][h] = sum;
            }
    }
    static int64_t pairs(int64_t count) { return count * (count - 1) / 2; }
    int64_t all_pairs() const { return (chunks - 1) * pairs(K) + pairs(steps - (chunks - 1) * K); }
};

// A run, forward or backward, in the one or the other: 0, or 1 when memory ran out.
template <class T> int run_by_lanes(const fw_scan &scan, bool forward);
template <class T> int run_by_units(const fw_scan &scan, bool forward);

}  // namespace fastweights
