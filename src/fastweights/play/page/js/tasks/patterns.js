// Patterns of ±1 in a matrix of outer products, and what can be got back from it: section 3 of the paper.

/** A generator of random numbers from 0 to 1 (mulberry32): the same for the same seed. */
export function generator(seed) {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

export const randomPattern = (N, random) => Int8Array.from({ length: N }, () => (random() < 0.5 ? -1 : 1))

/** A ← λ A + x xᵀ, with nothing on the diagonal: a unit does not support itself. */
export function store(A, x, decay) {
  const N = x.length
  for (let i = 0, at = 0; i < N; i++)
    for (let j = 0; j < N; j++, at++) A[at] = i === j ? 0 : decay * A[at] + x[i] * x[j]
}

/** The pattern with so many of its pixels turned over. */
export function disturbed(x, flips, random) {
  const probe = x.slice()
  const places = Array.from(x, (_, i) => i)
  for (let n = 0; n < flips; n++) {
    const [place] = places.splice(Math.floor(random() * places.length), 1)
    probe[place] = -probe[place]
  }
  return probe
}

/** x ← sign(A x), until nothing changes: all the states on the way, the first one included. */
export function recall(A, x, most = 10) {
  const N = x.length
  const states = [x]
  for (let n = 0; n < most; n++) {
    const now = states.at(-1)
    const next = now.slice()
    for (let i = 0; i < N; i++) {
      let sum = 0
      for (let j = 0, at = i * N; j < N; j++, at++) sum += A[at] * now[j]
      if (sum) next[i] = sum > 0 ? 1 : -1
    }
    states.push(next)
    if (next.every((value, i) => value === now[i])) break
  }
  return states
}

/** The share of pixels that two patterns have in common. */
export const overlap = (x, y) => x.reduce((sum, value, i) => sum + (value === y[i]), 0) / x.length

export const BACK = 0.95 // a pattern is got back if so many of its pixels are right
export const FLIPPED = 0.1 // of the pixels of a probe

/** How many of `count` random patterns come back from a matrix that stored them one after the other. */
export function comeBack(N, count, decay, random) {
  const A = new Float64Array(N * N)
  const patterns = Array.from({ length: count }, () => randomPattern(N, random))
  for (const pattern of patterns) store(A, pattern, decay)
  const flips = Math.round(FLIPPED * N)
  return patterns.filter((x) => overlap(recall(A, disturbed(x, flips, random)).at(-1), x) >= BACK).length
}
