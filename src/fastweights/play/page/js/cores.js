// Recurrent cores, called alike: `start()` empties them, `step(x, signals)` gives what happened, its `h` the output.
import { Memory, f, plus, step, times } from "./equations.js"

const DYNAMICS = { inner_steps: 1, settling: "sustained", nonlinearity: "relu", normalize_start: false }
const sigmoid = (value) => 1 / (1 + Math.exp(-value))

export class FastWeights {
  /** @param weights  of the layer, by their names in PyTorch; @param options  decay, rate, inner_steps, … */
  constructor(weights, options) {
    this.slow = {
      W: weights.weight_hh_l0,
      C: weights.weight_ih_l0,
      b: weights.bias_l0,
      gain: weights.norm_weight_l0,
      shift: weights.norm_bias_l0,
      W_int: weights.weight_integration_l0,
    }
    this.units = Math.sqrt(this.slow.W.length)
    this.options = { ...DYNAMICS, ...options }
    this.start()
  }

  start() {
    this.h = new Float64Array(this.units)
    this.memory = new Memory(this.units, this.options)
  }

  step(x, signals) {
    const settled = step(x, this.h, this.memory, this.slow, this.options, signals)
    this.h = settled.hidden.at(-1)
    return { h: this.h, ...settled }
  }
}

export class LSTM {
  constructor(weights) {
    this.weights = weights
    this.units = Math.sqrt(weights.weight_hh_l0.length / 4)
    this.start()
  }

  start() {
    this.h = new Float64Array(this.units)
    this.c = new Float64Array(this.units)
  }

  step(x) {
    const { weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0 } = this.weights
    const H = this.units
    const sums = plus(plus(times(weight_ih_l0, x), bias_ih_l0), plus(times(weight_hh_l0, this.h), bias_hh_l0))
    const [i, forget, g, o] = [0, H, 2 * H, 3 * H].map((at) => sums.slice(at, at + H))
    this.c = this.c.map((each, n) => sigmoid(forget[n]) * each + sigmoid(i[n]) * Math.tanh(g[n]))
    this.h = this.c.map((each, n) => sigmoid(o[n]) * Math.tanh(each))
    return { h: this.h, c: this.c }
  }
}

export class ReLURNN {
  constructor(weights) {
    this.weights = weights
    this.units = Math.sqrt(weights.weight_hh_l0.length)
    this.start()
  }

  start() {
    this.h = new Float64Array(this.units)
  }

  step(x) {
    const { weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0 } = this.weights
    const sums = plus(plus(times(weight_ih_l0, x), bias_ih_l0), plus(times(weight_hh_l0, this.h), bias_hh_l0))
    this.h = f(sums, "relu")
    return { h: this.h }
  }
}

/** A core by the name that it has in Python. */
export function makeCore(name, weights, options) {
  const kinds = { "fast-weights": FastWeights, lstm: LSTM, irnn: ReLURNN }
  if (!(name in kinds)) throw new Error(`there is no core ${name}`)
  return new kinds[name](weights, options)
}
