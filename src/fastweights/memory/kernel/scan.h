// What Python hands to the kernel: kernel/__init__.py packs the same, and FW_ABI tells when they disagree.
#pragma once
#include <stdint.h>

#define FW_ABI 3

typedef struct {
    int64_t K, B, H, S;                               // steps, sequences, units, inner steps
    int64_t identity, use_tanh, normalize_start;      // dynamics
    int64_t w_stride, p_stride;                       // between sequences; 0: the same for all
    int64_t threads;
    const void *u, *W, *gain, *shift, *h0, *A0;       // (K, B, H), (H, H), (H) or null, (H) or null, (B, H) or null, (B, H, H) or null
    const void *w, *p, *keep;                         // (…, K, K), (…, K), (K, B) or null
    const int64_t *steps;                             // (B) or null: how many steps of each sequence count
    void *hs, *saved, *queries;                       // (K, B, H), see saved_per_block, (S, K, B, H) or null
    const void *grad_hs;                              // (K, B, H)
    void *grad_u, *grad_h0, *grad_gain, *grad_shift;  // (K, B, H), (B, H) or null, (H) or null, (H) or null
    void *grad_w, *grad_sums;                         // (B, K, K) zeroed or null, (S, K, B, H) or null
} fw_chunk;

// One step of one sequence, input product and write included.
typedef struct {
    int64_t I, H, S;                                  // features, units, inner steps
    int64_t identity, use_tanh, normalize_start;      // dynamics
    double decay, rate;
    const void *x, *C, *b, *W, *gain, *shift;         // (I), (H, I), (H) or null, (H, H), (H) or null, (H) or null
    const void *h, *A;                                // (H) and (H, H), both null for zero
    void *new_h, *new_A;                              // (H), (H, H)
} fw_step;
