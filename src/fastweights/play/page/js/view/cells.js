// Numbers as coloured cells on a canvas: one pixel for each, which the browser enlarges.

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
  return { ground: rgb(element, "--panel"), colour: rgb(element, `--${model}`), other: rgb(element, "--quiet") }
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
