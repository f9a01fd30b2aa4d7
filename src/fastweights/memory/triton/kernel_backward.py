"""The backward kernel: one launch for all steps, the last one first.

What a step pays to a state of its chunk is a product of that state with the step's query. So a state's gradient is
gathered when its own step is reached, from the queries of all later steps, and from the gradients of what they read:
no number is written twice.
"""

import triton
import triton.language as tl

from .kernel_forward import NUMBERS
from .parts import every, features_of, keep_features, normalize_backward, product, recall, rows_of, slope


@triton.jit(do_not_specialize=NUMBERS)  # or every number of steps would have a kernel of its own
def backward_kernel(
    grad_hs,  # (T, B, H)
    W,  # (H, H), as are W_int and A0
    W_int,
    gain,
    A0,
    w,
    p,
    left,
    p_left,
    keep,
    since,
    integrate,
    lengths,
    hs,  # (T, B, H): from here on, what the forward made
    A,  # (B, H, H)
    matrices,
    queries,
    normals,
    scales,
    grad_u,  # (T, B, H): from here on, what it makes
    grad_sums,  # (S, T, B, H): of what went into each inner step
    grad_vectors,  # (3, B, H): of b, gain and shift, by each sequence
    grad_h0,
    grad_A,  # (B, H, H): of the fast weights after the chunk, on entry of those that the last chunk starts from
    twice,  # (B, H, H): it and its transpose
    from_after,  # (K, B, H): what A after the chunk asks of its states
    grad_w,
    grad_p,
    grad_left,
    grad_p_left,
    T,
    B,
    K,
    n,
    S,
    w_chunk,
    w_sequence,
    p_chunk,
    p_sequence,
    left_chunk,
    left_sequence,
    p_left_chunk,
    p_left_sequence,
    IDENTITY: tl.constexpr,
    TANH: tl.constexpr,
    NORMALIZED_START: tl.constexpr,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    many = B.to(tl.int64)
    pitch = many * H  # between a step and the next
    steps = T
    if lengths is not None:
        steps = tl.minimum(tl.maximum(tl.load(lengths + b), 0), T).to(tl.int32)
    from_next = tl.zeros((WIDTH,), hs.dtype.element_ty)
    grad_b = tl.zeros((WIDTH,), hs.dtype.element_ty)
    if gain is not None:
        g = features_of(gain, H, WIDTH)
        grad_gain = tl.zeros((WIDTH,), hs.dtype.element_ty)
        grad_shift = tl.zeros((WIDTH,), hs.dtype.element_ty)
    chunks = (steps + K - 1) // K
    for i in range(0, chunks):
        chunk = chunks - 1 - i
        begin = chunk * K
        end = tl.minimum(begin + K, steps)
        M = hs + begin * pitch + b * H
        if A0 is not None or A is not None:
            if A0 is None:
                memory = A + b * H * H
            else:
                memory = A0 + b * H * H
            if A is not None:
                if chunk > 0:
                    memory = A + b * H * H
                    if chunk < n - 1:
                        memory = matrices + ((chunk - 1) * many + b) * H * H
        if twice is not None:
            if chunk < n - 1:
                first = 0
                remembers = True
                if since is not None:
                    reset = tl.load(since + (end - 1) * many + b)
                    first = tl.maximum(reset - begin, 0)
                    remembers = reset < begin
                if A0 is None:
                    remembers = (chunk > 0) & remembers
                weights, grad_weights = left + chunk * left_chunk.to(tl.int64) + b * left_sequence, grad_left
                if grad_left is not None:
                    grad_weights = grad_left + (chunk * many + b) * K
                    along = _along(grad_A, twice, memory, remembers, b, H, WIDTH, ROWS)
                    tl.store(grad_p_left + chunk * many + b, along)
                both = twice + b * H * H
                _ask(both, M, weights, first, end - begin, from_after + b * H, grad_weights, pitch, H, WIDTH, ROWS)
                tl.debug_barrier()
        until = end  # the steps from t to before this one see state t
        for j in range(0, end - begin):
            t = end - 1 - j
            row = t * many + b
            k = t - begin
            h = features_of(hs + row * H, H, WIDTH)
            grad = from_next + features_of(grad_hs + row * H, H, WIDTH)
            if twice is not None:
                if chunk < n - 1:
                    grad += features_of(from_after + k * pitch + b * H, H, WIDTH)
            column = w + chunk * w_chunk.to(tl.int64) + b * w_sequence + k
            total = tl.zeros((ROWS, WIDTH), h.dtype)
            for start in range(t + 1, until, ROWS):
                rows = (start + tl.arange(0, ROWS)).to(tl.int64)
                strength = tl.load(column + (rows - begin) * K, mask=rows < until, other=0.0)
                along = tl.zeros((ROWS,), h.dtype)
                for s in range(0, S):
                    place = s * T * pitch + b * H
                    asked = rows_of(queries + place, rows, rows < until, pitch, H, WIDTH)
                    grads = rows_of(grad_sums + place, rows, rows < until, pitch, H, WIDTH)
                    scores = tl.sum(asked * h[None, :], 1)
                    grad_scores = tl.sum(grads * h[None, :], 1)
                    along += scores * grad_scores
                    total += (strength * scores)[:, None] * grads + (strength * grad_scores)[:, None] * asked
                if grad_w is not None:
                    place = grad_w + (chunk * many + b) * K * K + k
                    tl.store(place + (rows - begin) * K, along, mask=rows < until)
            grad += tl.sum(total, 0)
            first = 0
            remembers = True
            if A0 is None:
                remembers = chunk > 0
            reset = -1
            if since is not None:
                reset = tl.load(since + row)
                first = tl.maximum(reset - begin, 0)
                remembers = remembers & (reset < begin)
            grad_z = tl.zeros((WIDTH,), h.dtype)
            grad_strength = tl.zeros((), h.dtype)
            for j in range(0, S):
                s = S - 1 - j
                grad *= slope(h, TANH)
                if gain is not None:
                    place = (s + NORMALIZED_START) * T + t
                    normal = features_of(normals + place * pitch + b * H, H, WIDTH)
                    grad_gain += grad * normal
                    grad_shift += grad
                    scale = tl.load(scales + place * many + b)
                    grad = normalize_backward(grad * g, normal, scale, H, WIDTH)
                grad_v = grad
                place = (s * T + t) * pitch + b * H
                keep_features(grad_sums + place, grad_v, H, WIDTH)
                h = features_of(queries + place, H, WIDTH)
                seen = w + chunk * w_chunk.to(tl.int64) + b * w_sequence + k * K.to(tl.int64)
                grad = recall(grad_v, M, seen, first, k, pitch, H, WIDTH, ROWS)
                if A0 is not None or A is not None:
                    if remembers:
                        read = product(grad_v, memory, False, H, WIDTH, ROWS)
                        grad += tl.load(p + chunk * p_chunk.to(tl.int64) + b * p_sequence + k) * read
                        grad_strength += tl.sum(read * h, 0)
                if IDENTITY:
                    grad += grad_v
                else:
                    grad_z += grad_v
            grad *= slope(h, TANH)
            if gain is not None:
                if NORMALIZED_START:
                    normal = features_of(normals + row * H, H, WIDTH)
                    grad_gain += grad * normal
                    grad_shift += grad
                    grad = normalize_backward(grad * g, normal, tl.load(scales + row), H, WIDTH)
            grad_z += grad
            grad_b += grad_z
            keep_features(grad_u + row * H, grad_z, H, WIDTH)
            if grad_p is not None:
                tl.store(grad_p + (chunk * many + b) * K + k, grad_strength)
            transition = W
            if W_int is not None:
                if tl.load(integrate + row) > 0:
                    transition = W_int
            from_next = product(grad_z, transition, False, H, WIDTH, ROWS)
            if keep is not None:
                from_next = tl.where(tl.load(keep + row) > 0, from_next, 0.0)
            if since is not None:
                if reset == t:
                    until = t
            tl.debug_barrier()  # other threads read what it kept at the next step
        if grad_A is not None or twice is not None:
            if (chunk > 0) | (A0 is not None):
                strength = tl.full((), 1.0, hs.dtype.element_ty)
                remembers = True
                if twice is not None:
                    if chunk < n - 1:
                        strength = tl.load(p_left + chunk * p_left_chunk.to(tl.int64) + b * p_left_sequence)
                        remembers = until == end
                weights, place = p + chunk * p_chunk.to(tl.int64) + b * p_sequence, begin * pitch + b * H
                asked, grads = queries + place, grad_sums + place
                between, last = T * pitch, until - begin
                given = (weights, asked, grads, S, between, last, pitch)
                _collect(grad_A, twice, b, strength, remembers, *given, H, WIDTH, ROWS)
                tl.debug_barrier()
    if grad_h0 is not None:
        keep_features(grad_h0 + b * H, from_next, H, WIDTH)
    keep_features(grad_vectors + b * H, grad_b, H, WIDTH)
    if gain is not None:
        keep_features(grad_vectors + (many + b) * H, grad_gain, H, WIDTH)
        keep_features(grad_vectors + (2 * many + b) * H, grad_shift, H, WIDTH)
    if lengths is not None:
        for t in range(steps, T):
            keep_features(grad_u + (t * many + b) * H, tl.zeros((WIDTH,), hs.dtype.element_ty), H, WIDTH)


@triton.jit
def _along(grad_A, twice, A, remembers, b, H: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Σ grad_A A. Without A0 every A is symmetric: half of what `twice` has does as well."""
    total = tl.zeros((ROWS, WIDTH), twice.dtype.element_ty)
    for start in range(0, every(H), ROWS):
        rows = start + tl.arange(0, ROWS)
        if grad_A is not None:
            grad = rows_of(grad_A + b * H * H, rows, rows < H, H, H, WIDTH)
        else:
            grad = rows_of(twice + b * H * H, rows, rows < H, H, H, WIDTH) / 2
        total += grad * rows_of(A, rows, (rows < H) & remembers, H, H, WIDTH)
    return tl.sum(tl.sum(total, 0), 0)


@triton.jit
def _ask(
    both,
    M,
    left,
    first,
    last,
    from_after,
    grad_left,
    pitch,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What A after a chunk asks of its states, left[τ] (grad_A + grad_Aᵀ) M[τ], and the gradient of `left`."""
    columns = tl.arange(0, WIDTH)
    for start in range(0, last, ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)
        seen = (rows >= first) & (rows < last)
        total = tl.zeros((ROWS, WIDTH), both.dtype.element_ty)
        for i in range(0, every(H)):
            m = tl.load(M + rows * pitch + i, mask=seen, other=0.0)
            total += m[:, None] * features_of(both + i * H, H, WIDTH)[None, :]
        asked = tl.where(seen[:, None], total, 0.0)
        strength = tl.load(left + rows, mask=seen, other=0.0)
        inside = (rows < last)[:, None] & (columns < H)[None, :]
        tl.store(from_after + rows[:, None] * pitch + columns[None, :], strength[:, None] * asked, mask=inside)
        if grad_left is not None:
            grad = tl.sum(asked * rows_of(M, rows, seen, pitch, H, WIDTH), 1) / 2
            tl.store(grad_left + rows, grad, mask=rows < last)


@triton.jit
def _collect(
    grad_A,
    twice,
    b,
    strength,
    remembers,
    p,
    queries,
    grad_sums,
    S,
    between,  # inner steps
    last,
    pitch,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """From the gradient of A after a chunk to that of A before it: p_left grad_A + Σ p[t] grad_v(t) q(t)ᵀ."""
    columns = tl.arange(0, WIDTH)
    for start in range(0, every(H), ROWS):
        rows = start + tl.arange(0, ROWS)
        place = b * H * H + rows[:, None] * H + columns[None, :]
        inside = (rows < H)[:, None] & (columns < H)[None, :]
        if grad_A is not None:
            total = strength * tl.load(grad_A + place, mask=inside & remembers, other=0.0)
        if twice is not None:
            both = strength * tl.load(twice + place, mask=inside & remembers, other=0.0)
        for s in range(0, S):
            for k in range(0, last):
                at = s * between + k * pitch
                q, grad = features_of(queries + at, H, WIDTH), features_of(grad_sums + at, H, WIDTH)
                read = tl.load(p + k)
                grads = (read * tl.load(grad_sums + at + rows, mask=rows < H, other=0.0))[:, None] * q[None, :]
                if grad_A is not None:
                    total += grads
                if twice is not None:
                    asked = read * tl.load(queries + at + rows, mask=rows < H, other=0.0)
                    both += grads + asked[:, None] * grad[None, :]
        if grad_A is not None:
            tl.store(grad_A + place, total, mask=inside)
        if twice is not None:
            tl.store(twice + place, both, mask=inside)
