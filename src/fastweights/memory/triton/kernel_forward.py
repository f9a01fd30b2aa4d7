"""The forward kernel: one launch for all steps. Beside it: `fastweights.memory.equations`, whose letters these are."""

import triton
import triton.language as tl

from .parts import every, f, features_of, keep_features, normalize, product, recall, rows_of

NUMBERS = ("T", "B", "K", "n", "S", "w_chunk", "w_sequence", "p_chunk", "p_sequence")
NUMBERS += ("left_chunk", "left_sequence", "p_left_chunk", "p_left_sequence")


@triton.jit(do_not_specialize=NUMBERS)  # or every number of steps would have a kernel of its own
def forward_kernel(
    u,  # (T, B, H): C x + b
    W,  # (H, H), transposed, as is W_int
    W_int,
    gain,
    shift,
    h0,
    A0,
    w,
    p,
    left,
    p_left,
    keep,
    since,  # (T, B): the last step up to this one before which A was zeroed, or -1
    integrate,
    lengths,
    hs,  # (T, B, H): from here on, what it makes
    states,  # (T, B, H)
    A,  # (B, H, H); None: there is one chunk
    matrices,  # (n-2, B, H, H)
    queries,  # (S, T, B, H)
    normals,  # (N, T, B, H)
    scales,  # (N, T, B)
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
    EPS: tl.constexpr,
    IDENTITY: tl.constexpr,
    TANH: tl.constexpr,
    NORMALIZED_START: tl.constexpr,
    ASYMMETRIC: tl.constexpr,  # A may be, if A0 is
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
    h = tl.zeros((WIDTH,), u.dtype.element_ty)
    if h0 is not None:
        h = features_of(h0 + b * H, H, WIDTH)
    if gain is not None:
        g = features_of(gain, H, WIDTH)
        c = features_of(shift, H, WIDTH)
    if A0 is not None:
        memory = A0 + b * H * H
    elif A is not None:
        memory = A + b * H * H
    chunks = tl.maximum((steps + K - 1) // K, 1)
    for chunk in range(0, chunks):
        begin = chunk * K
        end = tl.minimum(begin + K, steps)
        M = hs + begin * pitch + b * H
        first = 0  # of the chunk's states that a step sees
        remembers = True  # whether A of before the chunk is seen
        if A0 is None:
            remembers = chunk > 0
        for t in range(begin, end):
            row = t * many + b
            if since is not None:
                reset = tl.load(since + row)
                first = tl.maximum(reset - begin, 0)
                remembers = reset < begin
                if A0 is None:
                    remembers = remembers & (chunk > 0)
            if keep is not None:
                h = tl.where(tl.load(keep + row) > 0, h, 0.0)
            transition = W
            if W_int is not None:
                if tl.load(integrate + row) > 0:
                    transition = W_int
            z = features_of(u + row * H, H, WIDTH) + product(h, transition, False, H, WIDTH, ROWS)
            h = z
            if gain is not None:
                if NORMALIZED_START:
                    h, scale = normalize(z, EPS, H, WIDTH)
                    if normals is not None:
                        keep_features(normals + row * H, h, H, WIDTH)
                        tl.store(scales + row, scale)
                    h = h * g + c
            h = f(h, TANH)
            seen = w + chunk * w_chunk.to(tl.int64) + b * w_sequence + (t - begin) * K.to(tl.int64)
            for s in range(0, S):
                if queries is not None:
                    keep_features(queries + (s * T + t) * pitch + b * H, h, H, WIDTH)
                v = recall(h, M, seen, first, t - begin, pitch, H, WIDTH, ROWS)
                if IDENTITY:
                    v += h
                else:
                    v += z
                if A0 is not None or A is not None:
                    if remembers:
                        strength = tl.load(p + chunk * p_chunk.to(tl.int64) + b * p_sequence + t - begin)
                        v += strength * product(h, memory, ASYMMETRIC, H, WIDTH, ROWS)
                if gain is not None:
                    v, scale = normalize(v, EPS, H, WIDTH)
                    if normals is not None:
                        place = (s + NORMALIZED_START) * T + t
                        keep_features(normals + place * pitch + b * H, v, H, WIDTH)
                        tl.store(scales + place * many + b, scale)
                    v = v * g + c
                h = f(v, TANH)
            keep_features(hs + row * H, h, H, WIDTH)
            if states is not None:
                keep_features(states + row * H, h, H, WIDTH)
            tl.debug_barrier()  # other threads read it at the next step
        if A is not None:
            if chunk < n - 1:
                after = A + b * H * H
                if matrices is not None:
                    if (chunk < n - 2) & (chunk < chunks - 1):
                        after = matrices + (chunk * many + b) * H * H
                if since is not None:
                    if end > begin:
                        reset = tl.load(since + (end - 1) * many + b)
                        first = tl.maximum(reset - begin, 0)
                        remembers = reset < begin
                        if A0 is None:
                            remembers = remembers & (chunk > 0)
                strength = tl.load(p_left + chunk * p_left_chunk.to(tl.int64) + b * p_left_sequence)
                weights = left + chunk * left_chunk.to(tl.int64) + b * left_sequence
                _fold(memory, remembers, strength, M, weights, first, end - begin, after, pitch, H, WIDTH, ROWS)
                memory = after
                tl.debug_barrier()
    if lengths is not None:
        for t in range(steps, T):
            nothing = tl.zeros((WIDTH,), u.dtype.element_ty)
            keep_features(hs + (t * many + b) * H, nothing, H, WIDTH)
            if states is not None:
                keep_features(states + (t * many + b) * H, nothing, H, WIDTH)


@triton.jit
def _fold(
    A,
    remembers,
    p_left,
    M,
    left,
    first,
    last,
    after,
    pitch,
    H: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """p_left A + Σ_τ left[τ] M[τ] M[τ]ᵀ, to where `after` is."""
    columns = tl.arange(0, WIDTH)
    for start in range(0, every(H), ROWS):
        rows = start + tl.arange(0, ROWS)
        total = p_left * rows_of(A, rows, (rows < H) & remembers, H, H, WIDTH)
        for k in range(first, last):
            m = tl.load(M + k * pitch + rows, mask=rows < H, other=0.0)
            total += (tl.load(left + k) * m)[:, None] * features_of(M + k * pitch, H, WIDTH)[None, :]
        inside = (rows < H)[:, None] & (columns < H)[None, :]
        tl.store(after + rows[:, None] * H + columns[None, :], total, mask=inside)
