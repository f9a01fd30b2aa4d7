// What the library offers: the recurrence, forward and backward, fused, and what goes with it. The fast twin of
// chunked.py, where the equations are.
//
// Plain C ABI, GCC/Clang vector extensions, no intrinsics.

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "problem.h"
#include "products.h"

namespace fastweights {
namespace {

// 0, or 1 when memory ran out.
template <class T> int run(const fw_scan *scan, bool forward) {
    const fw_scan &c = *scan;
    if (c.lanes == 1 ? run_by_units<T>(c, forward) : run_by_lanes<T>(c, forward)) return 1;
    if (forward || !c.grad_C) return 0;
    const auto product = [&](int64_t skipped, int64_t N, const void *b, void *out) {
        const int64_t rows = (c.T - skipped) * c.B, threads = rows * c.H * N >= WORTH_THREADS ? c.threads : 1;
        const T *a = static_cast<const T *>(c.grad_u) + skipped * c.B * c.H;
        const fw_outer outer{rows, c.H, N, threads, a, b, out};
        return multiply<T>(&outer);
    };
    return product(0, c.I, c.x, c.grad_C) | product(1, c.H, c.hs, c.grad_W);
}

// A number that another content would not have, but by chance: sums, and sums of the sums, so that order counts.
uint64_t digest(const char *data, uint64_t bytes) {
    using V = typename Lanes<uint32_t>::V;
    constexpr int N = 4;
    V sum[N] = {}, sums[N] = {};
    const auto add = [&](const char *from) {
        for (int n = 0; n < N; ++n) {
            sum[n] += Lanes<uint32_t>::load(reinterpret_cast<const uint32_t *>(from) + n * Lanes<uint32_t>::count);
            sums[n] += sum[n];
        }
    };
    uint64_t place = 0;
    for (; place + N * VECTOR <= bytes; place += N * VECTOR) add(data + place);
    char rest[N * VECTOR] = {};
    if (place < bytes) std::memcpy(rest, data + place, bytes - place);  // data may be null where there is nothing
    add(rest);
    uint64_t total = bytes;
    for (int n = 0; n < N; ++n)
        for (int64_t l = 0; l < Lanes<uint32_t>::count; ++l)
            for (const uint32_t part : {sum[n][l], sums[n][l]}) total = (total ^ part) * 0x9E3779B97F4A7C15 + (total >> 29);
    return total;
}

// work(place in (T, B), whether it counts) for the steps from `first` on.
template <class F> void each_step(const fw_rows &c, F work) {
    for (int64_t t = c.first; t < c.T; ++t)
        for (int64_t b = 0; b < c.B; ++b) work(t * c.B + b, t < c.steps[b]);
}

}  // namespace
}  // namespace fastweights

using namespace fastweights;

#pragma GCC visibility push(default)
extern "C" {
int64_t fw_abi(void) { return FW_ABI; }
int64_t fw_vector_bytes(void) { return VECTOR; }
int64_t fw_has_threads(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}
uint64_t fw_digest(uint64_t data, uint64_t bytes) { return digest(reinterpret_cast<const char *>(data), bytes); }
// Have a new array come in large pages, where the system does that: to touch it for the first time is then cheap.
void fw_in_large_pages(uint64_t array, uint64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uint64_t page = 1 << 21;
    const uint64_t first = (array + page - 1) / page * page, last = (array + bytes) / page * page;
    if (last > first) madvise(reinterpret_cast<void *>(first), last - first, MADV_HUGEPAGE);
#else
    (void)array, (void)bytes;
#endif
}
int64_t fw_count(const fw_rows *rows) {
    int64_t count = 0;
    for (int64_t b = 0; b < rows->B; ++b) count += std::max<int64_t>(0, std::min(rows->steps[b], rows->T) - rows->first);
    return count;
}
void fw_pack(const fw_rows *rows) {
    const char *all = static_cast<const char *>(rows->from);
    char *some = static_cast<char *>(rows->to);
    each_step(*rows, [&](int64_t place, bool counts) {
        if (!counts) return;
        std::memcpy(some, all + (place - rows->first * rows->B) * rows->bytes, rows->bytes);
        some += rows->bytes;
    });
}
void fw_unpack(const fw_rows *rows) {
    const char *some = static_cast<const char *>(rows->from);
    char *all = static_cast<char *>(rows->to);
    each_step(*rows, [&](int64_t place, bool counts) {
        if (counts) std::memcpy(all + place * rows->bytes, some, rows->bytes), some += rows->bytes;
        else std::memset(all + place * rows->bytes, 0, rows->bytes);
    });
}
int fw_outer_f32(const fw_outer *outer) { return multiply<float>(outer); }
int fw_outer_f64(const fw_outer *outer) { return multiply<double>(outer); }
int fw_forward_f32(const fw_scan *scan) { return run<float>(scan, true); }
int fw_forward_f64(const fw_scan *scan) { return run<double>(scan, true); }
int fw_backward_f32(const fw_scan *scan) { return run<float>(scan, false); }
int fw_backward_f64(const fw_scan *scan) { return run<double>(scan, false); }
}
#pragma GCC visibility pop
