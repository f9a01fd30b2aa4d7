// Numbers as coloured cells on a canvas: one pixel for each, which the browser enlarges.
import { el } from "./dom.js"

function rgb(element, variable) {
  const value = getComputedStyle(element).getPropertyValue(variable).trim()
  return [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16))
}

const known = new Map() // to ask for them takes time
addEventListener("look", () => known.clear())

/** What the colours are now; they change with the theme. */
export function palette(element, model) {
  if (!known.has(model)) known.set(model, lookUp(element, model))
  return known.get(model)
}

function lookUp(element, model) {
  return {
    ground: rgb(element, "--panel"),
    colour: rgb(element, `--${model}`),
    other: rgb(element, "--quiet"),
  }
}

/**
 * Paint `rows` × `columns` values: from the ground (0) to the model's colour (`most`), and to grey for negative ones.
 */
export function paint(canvas, values, rows, columns, most, { ground, colour, other }) {
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns
    canvas.height = rows
  }
  const context = canvas.getContext("2d")
  const image = context.createImageData(columns, rows)
  for (let at = 0; at < rows * columns; at++) {
    const value = values[at] ?? 0
    const share = Math.min(1, Math.sqrt(Math.abs(value) / (most || 1)))
    const towards = value < 0 ? other : colour
    for (let part = 0; part < 3; part++)
      image.data[4 * at + part] = ground[part] + share * (towards[part] - ground[part])
    image.data[4 * at + 3] = 255
  }
  context.putImageData(image, 0, 0)
}

/** What is drawn in full colour: nearly the largest, so that one loud unit does not leave all others pale. */
export function largest(...lists) {
  const sorted = lists.flatMap((list) => Array.from(list, Math.abs)).sort((a, b) => a - b)
  return sorted[Math.floor(0.985 * (sorted.length - 1))] || 1e-9
}

/** States as rows of cells, each with its name; null: not yet. */
export function rows(element, states, most, colours) {
  if (element.children.length !== states.length)
    element.replaceChildren(
      ...states.map(([name]) =>
        el("div", {}, el("i", {}, name), el("canvas", { class: "cells", "aria-hidden": "true" })),
      ),
    )
  states.forEach(([name, values], i) => {
    const [label, canvas] = element.children[i].children
    label.textContent = name
    paint(canvas, values ?? [], 1, values?.length ?? 20, most, colours)
  })
}
