// Vectors, memory for a thread's work, and work on several threads: what all of the kernel is made of.
//
// GCC/Clang vector extensions, no intrinsics.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace fastweights {


#ifdef __AVX512F__
constexpr int64_t VECTOR = 64;  // bytes
#else
constexpr int64_t VECTOR = 32;
#endif

// Vectors of so many bytes.
template <class T, int64_t BYTES = VECTOR> struct Lanes {
    typedef T V __attribute__((vector_size(BYTES)));
    typedef T Unaligned __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    static constexpr int64_t count = BYTES / sizeof(T);
    // Not by memcpy, which GCC does in halves, and then waits for them to come together.
    static V load(const T *from) { return *reinterpret_cast<const Unaligned *>(from); }
    static void store(const V &lanes, T *to) { *reinterpret_cast<Unaligned *>(to) = lanes; }
};

// Of two rows D apart in a square, those in which the D×D corners off the diagonal have changed places.
template <int D, class V, size_t... K> inline void exchange(V &upper, V &lower, std::index_sequence<K...>) {
    constexpr int L = sizeof...(K);
    const V a = upper, b = lower;
#if defined(__clang__) || __GNUC__ >= 12
    upper = __builtin_shufflevector(a, b, (K & D ? L + K - D : K)...);
    lower = __builtin_shufflevector(a, b, (K & D ? L + K : K + D)...);
#else
    using Mask = decltype(a < b);
    upper = __builtin_shuffle(a, b, Mask{(K & D ? L + K - D : K)...});
    lower = __builtin_shuffle(a, b, Mask{(K & D ? L + K : K + D)...});
#endif
}

// L vectors of L numbers, rows to columns: halves change places, then halves of halves.
template <int D, class V, size_t L> inline void transpose_by(V (&v)[L]) {
#pragma GCC unroll 16
    for (size_t i = 0; i < L; ++i)
        if (!(i & D)) exchange<D>(v[i], v[i + D], std::make_index_sequence<L>());
    if constexpr (D > 1) transpose_by<D / 2>(v);
}

template <class V, size_t L> inline void transpose(V (&v)[L]) { transpose_by<L / 2>(v); }

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
    // What is large is given back: a thread may live on for long, and never need it again.
    void trim() {
        if (size <= MOST) return;
        std::free(data);
        data = nullptr, size = 0;
    }
    static constexpr size_t MOST = size_t(1) << 24;
};

inline thread_local Scratch scratch;

// work(0) … work(count - 1), on several threads if there are: 0, or 1 when memory ran out.
template <class F> int in_parallel(int64_t count, int64_t most, F work) {
    const int threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(most, count)));
    int failed = 0;
    const auto attempt = [&](int64_t index) {
        try {
            work(index);
        } catch (const std::bad_alloc &) {
#pragma omp atomic write
            failed = 1;
        }
    };
    if (threads == 1) {
        for (int64_t index = 0; index < count; ++index) attempt(index);
        scratch.trim();
        return failed;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic) nowait
        for (int64_t index = 0; index < count; ++index) attempt(index);
        scratch.trim();
    }
    return failed;
}

}  // namespace fastweights
