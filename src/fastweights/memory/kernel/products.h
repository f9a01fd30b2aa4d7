// Products over all steps at once, for the gradients of weights.
#pragma once

#include "scan.h"
#include "vectors.h"

namespace fastweights {

// out = aᵀ b, in tiles of R rows and up to C vectors; where they do not fit, the last ones overlap those before. Both
// matrices are read along their rows as they lie there, and a block of rows stays in cache for all tiles.
template <class T> struct Outer {
    using V = typename Lanes<T>::V;
    static constexpr int64_t L = Lanes<T>::count, R = 6, C = VECTOR == 64 ? 4 : 2, ROWS = 256;

    const fw_outer &c;
    const int64_t panels, vectors, parts;

    explicit Outer(const fw_outer &outer)
        : c(outer), panels((c.M + R - 1) / R), vectors((c.N + L - 1) / L), parts(std::min(c.threads, panels)) {}

    int64_t row(int64_t panel) const { return std::min(panel * R, c.M - R); }
    int64_t column(int64_t vector) const { return std::min(vector * L, c.N - L); }

    // sums (R, …) of some vectors from `first` on += aᵀ b over rows that begin at a and b.
    template <int W> void tile(const T *a, const T *b, int64_t rows, int64_t first, V *sums) const {
        V sum[R][W];
        int64_t at[W];
        for (int w = 0; w < W; ++w) at[w] = column(first + w);
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) sum[r][w] = sums[r * vectors + first + w];
        for (int64_t k = 0; k < rows; ++k, a += c.M, b += c.N) {
            V right[W];
            for (int w = 0; w < W; ++w) right[w] = Lanes<T>::load(b + at[w]);
            for (int r = 0; r < R; ++r)
                for (int w = 0; w < W; ++w) sum[r][w] += a[r] * right[w];
        }
        for (int r = 0; r < R; ++r)
            for (int w = 0; w < W; ++w) sums[r * vectors + first + w] = sum[r][w];
    }

    // Every `parts`th panel from `part` on.
    void work(int64_t part) const {
        const T *a = static_cast<const T *>(c.a), *b = static_cast<const T *>(c.b);
        T *out = static_cast<T *>(c.out);
        const int64_t mine = (panels - part + parts - 1) / parts, size = R * vectors;
        V *sums = scratch.take<V>(mine * size);
        std::memset(sums, 0, mine * size * sizeof(V));
        for (int64_t k = 0; k < c.rows; k += ROWS)
            for (int64_t i = 0; i < mine; ++i) {
                const T *left = a + k * c.M + row(part + i * parts), *right = b + k * c.N;
                const int64_t rows = std::min(ROWS, c.rows - k);
                int64_t v = 0;
                for (; v + C <= vectors; v += C) tile<C>(left, right, rows, v, sums + i * size);
                switch (vectors - v) {
                case 3: tile<3>(left, right, rows, v, sums + i * size); break;
                case 2: tile<2>(left, right, rows, v, sums + i * size); break;
                case 1: tile<1>(left, right, rows, v, sums + i * size); break;
                }
            }
        for (int64_t i = 0; i < mine; ++i)
            for (int64_t r = 0; r < R; ++r)
                for (int64_t v = 0; v < vectors; ++v)
                    Lanes<T>::store(sums[i * size + r * vectors + v], out + (row(part + i * parts) + r) * c.N + column(v));
    }
};

constexpr int64_t WORTH_THREADS = 1 << 21;  // multiplications

// 1 if memory ran out.
template <class T> int multiply(const fw_outer *outer) {
    const Outer<T> product(*outer);
    return in_parallel(product.parts, product.parts, [&](int64_t part) { product.work(part); });
}

}  // namespace fastweights
