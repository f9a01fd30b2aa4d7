// What Python hands to the kernel: kernel/__init__.py packs the same, and FW_ABI tells when they disagree.
#pragma once
#include <stdint.h>

#define FW_ABI 14

// "B or 1" and "chunks or 1" are strides of 0. Steps past a sequence's end are not in u and grad_u, if `steps` is given.
typedef struct {
    int64_t T, B, I, H, S, K;                         // steps, sequences, features, units, inner steps, steps in a chunk
    int64_t identity, use_tanh, normalize_start;      // dynamics
    int64_t w_chunk_stride, w_stride;                 // between chunks, between sequences
    int64_t p_chunk_stride, p_stride;
    int64_t left_chunk_stride, left_stride;
    int64_t p_left_chunk_stride, p_left_stride;
    int64_t threads;
    int64_t lanes;                                    // sequences to a vector, or 1: vectors along the units
    const void *x, *C;                                // (T, B, I) or null where it is not needed; (H, I)
    const void *b, *W, *W_int;                        // (H) or null, (H, H), (H, H) or null
    const void *gain, *shift;                         // (H) or null
    const void *h0, *A0;                              // (B, H) or null, (B, H, H) or null
    const void *w, *p;                                // (…, K, K), (…, K): how a step sees the chunk and A
    const void *left, *p_left;                        // (…, K), (…): what the next chunk's A has of them, but for the last
    const void *keep, *reset, *integrate;             // (T, B) or null each; no `integrate` without W_int
    const int64_t *steps;                             // (B) or null: how many steps of each sequence count
    const void *u;                                    // (T, B, H): C x; null: from x, if there are lanes
    void *hs, *A_last, *saved;                        // (T, B, H), (B, H, H) if there are many chunks, for a backward or null
    const void *grad_hs, *grad_A_last;                // (T, B, H), (B, H, H) or null
    void *grad_x;                                     // (T, B, I) or null; null if there are no lanes
    void *grad_u, *grad_b, *grad_gain, *grad_shift;   // (T, B, H), (H) or null, …
    void *grad_h0, *grad_A0;                          // (B, H) or null, (B, H, H) or null
    void *grad_w, *grad_p, *grad_left, *grad_p_left;  // zeroed, with all chunks and all B, or null
    void *grad_C, *grad_W;                            // (H, I), (H, H), both, if x is given and nothing masks it, or null
} fw_scan;

// Rows of steps that count, those of `first` and later, with and without the others between them.
typedef struct {
    int64_t T, B, first, bytes;  // steps, sequences, the first step, bytes in a row
    const int64_t *steps;        // (B): how many steps of each sequence count
    const void *from;            // fw_pack: (T - first, B, bytes); fw_unpack: those that count, (…, bytes)
    void *to;                    // the other; what does not count is zero
} fw_rows;

// One step of some sequences, input product and write included.
typedef struct {
    int64_t B, I, H, S, threads;                      // sequences, features, units, inner steps
    int64_t identity, use_tanh, normalize_start;      // dynamics
    double decay, rate;
    const void *C, *b, *W, *gain, *shift;             // (H, I), (H) or null, (H, H), (H) or null, (H) or null
    const void *x, *h, *A;                            // (B, I), (B, H) and (B, H, H), the last two null for zero
    void *new_h, *new_A;                              // (B, H), (B, H, H)
    int64_t T;                                        // if there is a `past`: all states since A was zero, in place of A
    const void *past, *seen;                          // (T, B, H) or null; (T): how the step sees them
    void *new_past;                                   // (T + 1, B, H): the same and h, in place of new_h and new_A
} fw_step;

// out = aᵀ b: M is at least 6, N at least as many as fit into a vector.
typedef struct {
    int64_t rows, M, N, threads;
    const void *a, *b;  // (rows, M), (rows, N)
    void *out;          // (M, N)
} fw_outer;
