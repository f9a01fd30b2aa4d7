// Glimpses, as in tasks/glimpses.py: quadrants and their details, in this order; and how a drawing becomes an image.

export const SIZE = 28
export const PATCH = 7

/** The 24 glimpses: a quadrant (stored), its four details, and the quadrant again (which reads the memory). */
export const SCHEDULE = corners(0, 0, SIZE).flatMap(([top, left]) => [
  { top, left, size: 14, store: true, integrate: false },
  ...corners(top, left, 14).map(([t, l]) => ({ top: t, left: l, size: 7, store: false, integrate: false })),
  { top, left, size: 14, store: false, integrate: true },
])

function corners(top, left, size) {
  const half = size / 2
  return [0, half].flatMap((down) => [0, half].map((right) => [top + down, left + right]))
}

/** What each glimpse sees of an image (784 numbers from 0 to 1): 49 pixels, averaged where it is coarse. */
export function look(image) {
  return SCHEDULE.map(({ top, left, size }) => {
    const scale = size / PATCH
    const seen = new Float64Array(PATCH * PATCH)
    for (let row = 0; row < size; row++)
      for (let column = 0; column < size; column++)
        seen[Math.floor(row / scale) * PATCH + Math.floor(column / scale)] +=
          image[(top + row) * SIZE + left + column] / scale ** 2
    return seen
  })
}

/** A drawing as MNIST has its digits: 20 pixels high or wide, in bytes, its centre of mass in the middle. */
export function centred(ink, side) {
  let [top, left, bottom, right] = [side, side, -1, -1]
  for (let at = 0; at < ink.length; at++) {
    if (ink[at] < 0.05) continue
    const [row, column] = [Math.floor(at / side), at % side]
    top = Math.min(top, row)
    bottom = Math.max(bottom, row)
    left = Math.min(left, column)
    right = Math.max(right, column)
  }
  if (bottom < 0) return new Float64Array(SIZE * SIZE)
  const scale = Math.max(bottom - top + 1, right - left + 1) / 20 // drawn pixels for one of the image
  const [height, width] = [(bottom - top + 1) / scale, (right - left + 1) / scale]
  // Placed in the middle first, then moved by its centre of mass.
  const boxed = shrink(
    ink,
    side,
    scale,
    top - (scale * (SIZE - height)) / 2,
    left - (scale * (SIZE - width)) / 2,
  )
  let [sum, down, over] = [0, 0, 0]
  boxed.forEach((value, at) => {
    sum += value
    down += value * Math.floor(at / SIZE)
    over += value * (at % SIZE)
  })
  const [rows, columns] = [Math.round(down / sum - 13.5), Math.round(over / sum - 13.5)]
  return Float64Array.from({ length: SIZE * SIZE }, (_, at) => {
    const [row, column] = [Math.floor(at / SIZE) + rows, (at % SIZE) + columns]
    const inside = row >= 0 && row < SIZE && column >= 0 && column < SIZE
    return inside ? Math.round(255 * boxed[row * SIZE + column]) / 255 : 0
  })
}

/** An image of means over squares of `scale` drawn pixels, the first at (top, left). */
function shrink(ink, side, scale, top, left) {
  const samples = Math.max(2, Math.ceil(scale))
  return Float64Array.from({ length: SIZE * SIZE }, (_, at) => {
    const [y, x] = [top + scale * Math.floor(at / SIZE), left + scale * (at % SIZE)]
    let sum = 0
    for (let i = 0; i < samples; i++)
      for (let j = 0; j < samples; j++) {
        const row = Math.floor(y + (scale * (i + 0.5)) / samples)
        const column = Math.floor(x + (scale * (j + 0.5)) / samples)
        if (row >= 0 && row < side && column >= 0 && column < side) sum += ink[row * side + column]
      }
    return Math.min(1, sum / samples ** 2)
  })
}
