// The trained nets, as models/*.py has them: an encoder, a recurrent core, a readout.
import { makeCore } from "./cores.js"
import { plus, f, times } from "./equations.js"
import { BadFile, readTensors } from "./tensors.js"
import { ALPHABET } from "./tasks/retrieval.js"

export const linear = (weights, name, x) => plus(times(weights[`${name}.weight`], x), weights[`${name}.bias`])
const relu = (v) => f(v, "relu")

export function softmax(logits) {
  const most = Math.max(...logits)
  const powers = Array.from(logits, (each) => Math.exp(each - most))
  const sum = powers.reduce((total, each) => total + each, 0)
  return powers.map((each) => each / sum)
}

export const argmax = (values) => values.reduce((best, each, i) => (each > values[best] ? i : best), 0)

/** The weights of a part of a net, by their names in it. */
function within(weights, part) {
  const found = Object.entries(weights).filter(([name]) => name.startsWith(`${part}.`))
  return Object.fromEntries(found.map(([name, values]) => [name.slice(part.length + 1), values]))
}

const readout = (weights, h) => linear(weights, "readout.2", relu(linear(weights, "readout.0", h)))

/** Character → 50 → 100 → recurrent core → 100 ReLUs → logits of the digits, read at the last step. */
export class RetrievalNet {
  constructor(weights, { core, units, options }) {
    this.weights = weights
    this.kind = core
    this.units = units
    this.options = options ?? {}
    this.inputs = Array.from(ALPHABET, (_, i) =>
      linear(weights, "expand", weights.embedding.subarray(50 * i, 50 * (i + 1))),
    )
  }

  /** Read a string; what happened at each character, with the digits' logits after it. `changes` of λ, η, S. */
  run(string, changes = {}) {
    const core = makeCore(this.kind, within(this.weights, "core"), { ...this.options, ...changes })
    const steps = Array.from(string, (character) => {
      const before = core.memory && core.memory.A.slice()
      const step = core.step(this.inputs[ALPHABET.indexOf(character)])
      return { character, ...step, before, after: core.memory && core.memory.A.slice() }
    })
    for (const step of steps) step.logits = readout(this.weights, step.h)
    return steps
  }

  /** The digits' logits at the end of a string. */
  logits(string, changes = {}) {
    const core = makeCore(this.kind, within(this.weights, "core"), { ...this.options, ...changes })
    for (const character of string) core.step(this.inputs[ALPHABET.indexOf(character)])
    return readout(this.weights, core.h)
  }
}

/** Glimpse and signals → fast weights → 100 ReLUs → logits of the classes, at the last glimpse. */
export class GlimpseNet {
  constructor(weights, { units, decay, rate, inner_steps, settling }, signals) {
    this.weights = within(weights, "net")
    this.units = units
    this.options = { decay, rate, inner_steps, settling }
    this.signals = signals
  }

  /** What happened at each of the glimpses (T lists of pixels). */
  run(glimpses, changes = {}) {
    const core = makeCore("fast-weights", within(this.weights, "core"), { ...this.options, ...changes })
    const { store, wipe, integrate, inputs } = this.signals
    return glimpses.map((pixels, t) => {
      const signals = { store: +store[t], wipe: wipe[t], read: +integrate[t], integrate: integrate[t] }
      const step = core.step(Float64Array.from([...pixels, ...inputs[t]]), signals)
      return { ...step, after: core.memory.A.slice(), logits: readout(this.weights, step.h) }
    })
  }
}

/** Screen → 128 ReLUs → recurrent core → logits of the actions. */
export class Agent {
  constructor(weights, { core, options }) {
    this.weights = weights
    this.core = makeCore(core, within(weights, "core"), options ?? {})
  }

  start() {
    this.core.start()
  }

  /** What happened at the next screen (pixels), with the actions' logits. */
  step(screen) {
    const step = this.core.step(relu(linear(this.weights, "look", screen)))
    return { ...step, logits: linear(this.weights, "policy", step.h) }
  }
}

const loaded = new Map()

/** A trained net by its name; asked for twice, it is loaded once. */
export function loadNet(name) {
  if (!loaded.has(name)) loaded.set(name, load(name))
  return loaded.get(name)
}

async function load(name) {
  const file = `nets/${name}.safetensors`
  let answer
  try {
    answer = await fetch(file)
  } catch {
    throw new BadFile(`${file} could not be loaded: the server does not answer`)
  }
  if (!answer.ok) throw new BadFile(`${file} could not be loaded: the server says ${answer.status}`)
  const { tensors, facts } = await readTensors(await answer.arrayBuffer(), file)
  if (facts.task === "retrieval") return new RetrievalNet(tensors, facts.net)
  if (facts.task === "glimpses") return new GlimpseNet(tensors, facts.net, facts.signals)
  if (facts.task === "catch") return new Agent(tensors, facts.net)
  throw new BadFile(`${file} is a net of ${facts.task}, which this page has no part for`)
}
