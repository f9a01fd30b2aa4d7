"""What the kernels are made of: products with a matrix and with the states so far, layer normalisation, f.

A program runs one sequence. A vector of its H features lies across its threads, in registers; matrices pass by in
blocks of rows, and products are multiplied and summed in the dtype that they are in, on no tensor cores. A width is H
rounded up to a power of two: what is past H is zero, and stays zero.
"""

import triton
import triton.language as tl


@triton.jit
def every(H: tl.constexpr):
    """H, but the compiler does not know: unrolled, a loop to there would need more registers than there are."""
    return H * tl.num_programs(1)  # along the second axis of the grid, where there is one


@triton.jit
def features_of(pointer, H: tl.constexpr, WIDTH: tl.constexpr):
    """The H numbers at a pointer."""
    columns = tl.arange(0, WIDTH)
    return tl.load(pointer + columns, mask=columns < H, other=0.0)


@triton.jit
def keep_features(pointer, v, H: tl.constexpr, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    tl.store(pointer + columns, v, mask=columns < H)


@triton.jit
def rows_of(pointer, rows, wanted, pitch, H: tl.constexpr, WIDTH: tl.constexpr):
    """The rows (ROWS,) that are wanted of a matrix at a pointer, `pitch` numbers apart; zero in place of the others."""
    columns = tl.arange(0, WIDTH)
    places = pointer + rows[:, None] * pitch + columns[None, :]
    return tl.load(places, mask=wanted[:, None] & (columns < H)[None, :], other=0.0)


@triton.jit
def product(v, matrix, ACROSS: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """matrixᵀ v, for a matrix (H, H) as it lies in memory; matrix v, if it is to be read `ACROSS`."""
    columns = tl.arange(0, WIDTH)
    total = tl.zeros((ROWS, WIDTH), v.dtype)
    for start in range(0, every(H), ROWS):
        rows = start + tl.arange(0, ROWS)
        if ACROSS:
            inside = (rows < H)[:, None] & (columns < H)[None, :]
            block = tl.load(matrix + rows[:, None] + columns[None, :] * H, mask=inside, other=0.0)
        else:
            block = rows_of(matrix, rows, rows < H, H, H, WIDTH)
        total += tl.gather(v, rows, 0)[:, None] * block
    return tl.sum(total, 0)


@triton.jit
def recall(q, M, w, first, last, pitch, H: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Σ_τ w[τ] M[τ] (M[τ]ᵀ q), over the states from `first` to before `last`."""
    total = tl.zeros((ROWS, WIDTH), q.dtype)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        states = rows_of(M, rows.to(tl.int64), rows < last, pitch, H, WIDTH)
        scores = tl.sum(states * q[None, :], 1) * tl.load(w + rows, mask=rows < last, other=0.0)
        total += scores[:, None] * states
    return tl.sum(total, 0)


@triton.jit
def normalize(v, EPS: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr):
    """Give v mean 0 and variance 1 over the features; also, what it was multiplied by."""
    centred = tl.where(tl.arange(0, WIDTH) < H, v - tl.sum(v, 0) / H, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / H + EPS)
    return centred * scale, scale


@triton.jit
def normalize_backward(grad, normal, scale, H: tl.constexpr, WIDTH: tl.constexpr):
    along = tl.sum(grad * normal, 0) / H
    back = scale * (grad - tl.sum(grad, 0) / H - normal * along)
    return tl.where(tl.arange(0, WIDTH) < H, back, 0.0)


@triton.jit
def f(v, TANH: tl.constexpr):
    if TANH:
        small = tl.exp(-2.0 * tl.abs(v))
        size = 1.0 - 2.0 * small / (1.0 + small)
        # Next to 0 the difference above has no digits left: tanh v = v - v³/3 + 2v⁵/15 - 17v⁷/315 …
        square = v * v
        near = v * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
        h = tl.where(tl.abs(v) < 0.02, near, tl.where(v < 0, -size, size))
    else:
        h = tl.where(v <= 0, 0.0, v)  # what is not a number stays so
    return h


@triton.jit
def slope(h, TANH: tl.constexpr):
    """f'(v), from h = f(v)."""
    if TANH:
        found = 1.0 - h * h
    else:
        found = tl.where(h <= 0, 0.0, 1.0)
    return found
