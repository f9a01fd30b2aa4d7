// Part 3: a drawing is read glimpse by glimpse; what the second looks retrieve, and the class.
import { argmax, loadNet, softmax } from "../nets.js"
import { SCHEDULE, SIZE, centred, look } from "../tasks/glimpses.js"
import { STROKES } from "../tasks/strokes.js"
import { Bars } from "../view/bars.js"
import { largest, paint, palette } from "../view/cells.js"
import { Clock } from "../view/clock.js"
import { button, calm, choice, el, onLook, percent, soon } from "../view/dom.js"
import { Easel, SIDE } from "../view/easel.js"

const QUADRANTS = ["top left", "top right", "bottom left", "bottom right"]
const STORED = SCHEDULE.flatMap(({ store }, n) => (store ? [n] : []))

export async function draw(stage, equation) {
  let net
  let image = new Float64Array(SIZE * SIZE)
  let glimpses
  let steps
  const without = new Set() // quadrants

  const easel = new Easel(
    "Draw a digit here: with a mouse or a finger, or with arrows, and space to lower and lift the pen",
    soon(read),
  )
  const seen = el("canvas", {
    class: "cells whole",
    role: "img",
    "aria-label": "The drawing as the net gets it, 28 by 28 pixels",
  })
  const frame = el("div", { class: "frame" })
  const bars = new Bars("fast-weights", "The net sees")
  const matrix = el("canvas", { class: "cells memory", role: "img", "aria-label": "The matrix A" })
  const label = el("figcaption", { class: "quiet" })
  const caption = el("p", { class: "caption" })
  const verdict = el("p", { class: "verdict", "aria-live": "polite" })
  const clock = new Clock({ label: "Glimpse", rate: 5, onMove: show })
  const units = choice(
    "Units",
    [
      [50, "50 units"],
      [200, "200 units"],
    ],
    50,
    load,
  )
  const tiles = SCHEDULE.map(() => el("canvas", { class: "cells" }))
  const paid = QUADRANTS.map(() =>
    el(
      "div",
      { class: "paid" },
      QUADRANTS.map(() => el("span")),
    ),
  )
  const table = el(
    "div",
    { class: "glimpses" },
    ["first look", "details", "", "", "", "second look", "retrieves"].map((text) =>
      el("span", { class: "quiet" }, text),
    ),
    QUADRANTS.map((_, q) => [tiles.slice(6 * q, 6 * q + 6), paid[q]]),
  )
  const holes = QUADRANTS.map((name, q) =>
    button(
      name,
      () => {
        if (!without.delete(q)) without.add(q)
        holes[q].setAttribute("aria-pressed", String(without.has(q)))
        read()
      },
      { "aria-pressed": "false" },
    ),
  )

  stage.replaceChildren(
    el(
      "div",
      { class: "drawing" },
      el(
        "article",
        { class: "card" },
        el("h3", {}, "Draw a digit"),
        easel.canvas,
        el(
          "div",
          { class: "row" },
          button("Clear", () => easel.clear()),
          el("span", { class: "quiet" }, "or take one:"),
        ),
        el(
          "div",
          { class: "row digits" },
          STROKES.map((strokes, digit) => button(String(digit), () => example(strokes))),
        ),
        el("p", { class: "quiet holes-title" }, "Take a quadrant away:"),
        el("div", { class: "holes" }, holes),
      ),
      el(
        "article",
        { class: "card", "data-model": "fast-weights" },
        el("h3", {}, "What the net sees"),
        el("div", { class: "sight" }, el("div", { class: "whole-frame" }, seen, frame), table),
        el("div", { class: "row" }, clock.element),
        caption,
      ),
      el(
        "article",
        { class: "card", "data-model": "fast-weights" },
        el("h3", {}, "What it makes of it"),
        units.element,
        bars.element,
        verdict,
        el("figure", {}, matrix, label),
      ),
    ),
  )
  easel.strokes(STROKES[3])
  await load(50)
  onLook(() => {
    // The ink has the colour that the theme had.
    const { context } = easel
    context.globalCompositeOperation = "source-in"
    context.fillStyle = getComputedStyle(easel.canvas).color
    context.fillRect(0, 0, SIDE, SIDE)
    context.globalCompositeOperation = "source-over"
    read()
  })

  async function load(count) {
    net = await loadNet(`glimpses-${count}`)
    read()
  }

  function example(strokes) {
    easel.strokes(strokes)
    read()
    if (!calm.matches) {
      clock.position = 0
      clock.play()
    }
  }

  function read() {
    if (!net) return
    image = centred(easel.ink, SIDE).map((value, at) => (without.has(quadrantOf(at)) ? 0 : value))
    glimpses = look(image)
    steps = net.run(glimpses)
    clock.of(SCHEDULE.length)
  }

  function show(position) {
    const colours = palette(stage, "fast-weights")
    const ink = { ...colours, colour: palette(stage, "ink").colour }
    const squared = (values) => values.map((value) => value * value) // cells show the root of what they are given
    paint(seen, squared(image), SIZE, SIZE, 1, ink)
    const { top, left, size, store, integrate } = SCHEDULE[position]
    const share = (pixels) => `${(100 * pixels) / SIZE}%`
    Object.assign(frame.style, {
      top: share(top),
      left: share(left),
      width: share(size),
      height: share(size),
    })
    tiles.forEach((tile, n) => {
      tile.className = `cells${n === position ? " now" : n > position ? " later" : ""}${SCHEDULE[n].store ? " stored" : SCHEDULE[n].integrate ? " reads" : ""}`
      paint(tile, squared(glimpses[n]), 7, 7, 1, ink)
    })
    paid.forEach((row, q) => {
      const n = 6 * q + 5
      const attention = n <= position ? STORED.map((stored) => steps[n].attention.at(-1)[stored] ?? 0) : []
      const total = attention.reduce((sum, each) => sum + each, 0)
      QUADRANTS.forEach((_, other) => {
        row.children[other].style.height = total > 0 ? `${(100 * attention[other]) / total}%` : "0"
      })
      row.title =
        total > 0
          ? STORED.slice(0, q + 1)
              .map((_, other) => `${QUADRANTS[other]} ${percent(attention[other] / total)}`)
              .join(", ")
          : ""
    })
    const { logits, after } = steps[position]
    const probabilities = softmax(logits)
    bars.show(probabilities)
    const H = net.units
    paint(matrix, after, H, H, largest(steps.at(-1).after), colours)
    label.textContent = `A: ${H} × ${H}, with ${STORED.filter((n) => n <= position).length} of 4 quadrants in it`
    highlight(store ? ["input", "write"] : integrate ? ["recall"] : ["input"])
    caption.textContent = describe(position)
    const empty = image.every((value) => value === 0)
    const [first, second] = Array.from(probabilities.keys()).sort(
      (a, b) => probabilities[b] - probabilities[a],
    )
    verdict.textContent = empty
      ? "Nothing is drawn yet."
      : position < SCHEDULE.length - 1
        ? `So far: ${first}`
        : `It reads ${first} (${percent(probabilities[first])}), then ${second} (${percent(probabilities[second])}).`
    verdict.dataset.digit = position === SCHEDULE.length - 1 && !empty ? argmax(probabilities) : ""
  }

  function describe(position) {
    const { store, integrate } = SCHEDULE[position]
    const quadrant = Math.floor(position / 6)
    if (store)
      return `Glimpse ${position + 1}: the ${QUADRANTS[quadrant]} quadrant, blurred. Its state is stored in A, then h is emptied.`
    if (!integrate) return `Glimpse ${position + 1}: a detail of the ${QUADRANTS[quadrant]} quadrant, sharp.`
    const attention = STORED.slice(0, quadrant + 1).map((stored) => steps[position].attention.at(-1)[stored])
    const total = attention.reduce((sum, each) => sum + each, 0)
    if (!(total > 0))
      return `Glimpse ${position + 1}: the quadrant again. It reads A, which has nothing for it.`
    const best = argmax(attention)
    return `Glimpse ${position + 1}: the ${QUADRANTS[quadrant]} quadrant again. It reads A: the largest part (${percent(attention[best] / total)}) comes from the ${QUADRANTS[best]} quadrant.`
  }

  function highlight(terms) {
    for (const term of equation.querySelectorAll("[data-term]"))
      term.classList.toggle("on", terms.includes(term.dataset.term))
  }
}

const quadrantOf = (at) => 2 * (Math.floor(at / SIZE) >= SIZE / 2) + (at % SIZE >= SIZE / 2)
