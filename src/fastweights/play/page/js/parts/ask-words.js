// What happens in part 1, in words.
import { argmax } from "../nets.js"
import { el, percent } from "../view/dom.js"

/** What the string came to. */
export function conclude(string, { attention }, probabilities) {
  const answer = argmax(probabilities)
  const sure = `Fast weights answer, with a probability of ${percent(probabilities[answer])}, `
  const paid = attention.at(-1) ?? []
  if (!paid.length || Math.max(...paid) < 1e-9)
    return [sure, el("b", {}, String(answer)), ". A was not asked, or had nothing to give back."]
  const two = Array.from(paid.keys())
    .sort((a, b) => paid[b] - paid[a])
    .slice(0, 2)
    .sort((a, b) => a - b)
  const names = two.flatMap((place, i) => [i ? " and " : "", el("b", {}, string[place])])
  return [
    sure,
    el("b", {}, String(answer)),
    ": what A gave back was, above all, the state after ",
    ...names,
    ".",
  ]
}

/** What happens at a moment: phase 0 reads, 1 … S ask A, S + 1 writes. */
export function describe(string, { character, attention }, t, phase, S) {
  const strong = (text) => el("b", {}, text)
  if (phase === 0)
    return ["Reads ", strong(character), ": from it and the state before comes h₀, with A not asked yet."]
  if (phase > S) return ["Writes: A fades by λ, and the new state is added as an outer product, η h hᵀ."]
  const paid = attention[phase - 1]
  const total = paid.reduce((sum, each) => sum + each, 0)
  if (!paid.length || total < 1e-9) return [`Inner step ${phase} of ${S}: asks A, which is still empty.`]
  const place = argmax(paid)
  const share = ((100 * paid[place]) / total).toFixed(0)
  return [
    `Inner step ${phase} of ${S}: asks A. The largest part of what comes back (${share} %) is the state after `,
    strong(place ? `${string[place - 1]}${string[place]}` : string[place]),
    `, ${t - place} step${t - place > 1 ? "s" : ""} ago.`,
  ]
}
