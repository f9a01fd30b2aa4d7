// The paper's equations, as in memory/equations.py: one sequence, one step at a time, in double precision.
//
//     z        = W h(t) + C x(t) + b                    the boundary condition
//     h_0      = f(z)                                   the preliminary state, not normalised
//     h_{s+1}  = f(LN[z + A(t) h_s])                    S times; method 2: f(LN[(I + A(t)) h_s])
//     h(t+1)   = h_S
//     A(t+1)   = λ A(t) + η h(t+1) h(t+1)ᵀ

export const EPS = 1e-5

/** M v, for a matrix by rows. */
export function times(M, v) {
  const columns = v.length
  const product = new Float64Array(M.length / columns)
  for (let row = 0, at = 0; row < product.length; row++) {
    let sum = 0
    for (let column = 0; column < columns; column++) sum += M[at++] * v[column]
    product[row] = sum
  }
  return product
}

export const plus = (v, w) => v.map((each, i) => each + w[i])
export const dot = (v, w) => v.reduce((sum, each, i) => sum + each * w[i], 0)

export const f = (v, nonlinearity) =>
  v.map(nonlinearity === "relu" ? (each) => (each > 0 ? each : 0) : Math.tanh)

/** Layer normalisation over the units; nothing where there is no gain. */
export function LN(v, gain, shift) {
  if (!gain) return v
  const mean = v.reduce((sum, each) => sum + each, 0) / v.length
  const variance = v.reduce((sum, each) => sum + (each - mean) ** 2, 0) / v.length
  return v.map((each, i) => ((each - mean) / Math.sqrt(variance + EPS)) * gain[i] + shift[i])
}

/** The fast weights A, and the states that they were written from. */
export class Memory {
  constructor(units, { decay, rate }) {
    this.A = new Float64Array(units * units)
    this.decay = decay
    this.rate = rate
    this.states = [] // h(τ)
    this.strengths = [] // η store λ^{t-τ}
  }

  recall(h) {
    return times(this.A, h)
  }

  /** How strongly each stored state is recalled: A h = Σ_τ attention(h)_τ h(τ). */
  attention(h) {
    return this.states.map((state, tau) => this.strengths[tau] * dot(state, h))
  }

  write(h, store = 1) {
    const { A, decay, rate } = this
    for (let i = 0, at = 0; i < h.length; i++)
      for (let j = 0; j < h.length; j++, at++) A[at] = decay * A[at] + rate * store * h[i] * h[j]
    this.strengths = [...this.strengths.map((strength) => decay * strength), rate * store]
    this.states.push(h)
  }
}

/** h_0 … h_S, and the attention of each inner step. */
export function settle(z, memory, slow, dynamics, read) {
  const { inner_steps, settling, nonlinearity, normalize_start } = dynamics
  const hidden = [f(normalize_start ? LN(z, slow.gain, slow.shift) : z, nonlinearity)]
  const attention = []
  for (let s = 0; s < inner_steps; s++) {
    const sustained = settling === "sustained" ? z : hidden[s]
    const recalled = memory.recall(hidden[s]).map((each) => read * each)
    hidden.push(f(LN(plus(sustained, recalled), slow.gain, slow.shift), nonlinearity))
    attention.push(memory.attention(hidden[s]).map((each) => read * each))
  }
  return { hidden, attention }
}

/** From h(t) to h(t+1); the memory is written in place. */
export function step(
  x,
  h,
  memory,
  slow,
  dynamics,
  { store = 1, read = 1, wipe = false, integrate = false } = {},
) {
  if (wipe) h = h.map(() => 0)
  const z = plus(times(integrate && slow.W_int ? slow.W_int : slow.W, h), times(slow.C, x))
  const settled = settle(slow.b ? plus(z, slow.b) : z, memory, slow, dynamics, read)
  memory.write(settled.hidden.at(-1), store)
  return settled
}
