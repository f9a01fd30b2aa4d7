// Part 2: patterns in a matrix of outer products; how many come back.
import {
  BACK,
  FLIPPED,
  comeBack,
  disturbed,
  generator,
  overlap,
  randomPattern,
  recall,
  store,
} from "../tasks/patterns.js"
import { paint, palette } from "../view/cells.js"
import { Chart } from "../view/chart.js"
import { button, calm, choice, el, onLook, percent, slider, whenSeen } from "../view/dom.js"

const SIDES = [5, 7, 10, 12]
const HOPFIELD = 0.15
const USUAL = 0.9 // λ of the second curve while there is no decay above
const RUNS = 10 // with other patterns, for a point of a curve
const OVER_N = [16, 25, 36, 49, 64, 81, 100, 121, 144]

export function capacity(stage, equation) {
  const random = generator(2)
  let side = 7
  let decay = 1
  let patterns = []
  let A
  let drawn // the pattern on the easel
  let asked = null // the pattern that is being got back, and the states on the way
  let inView = false
  let measuring = 0 // how often it was begun
  let drawCharts = () => {}
  let painting = null // the value that the pointer leaves

  const easel = el("canvas", {
    class: "cells easel",
    tabindex: 0,
    role: "img",
    "aria-label": "Your pattern: arrows move, space turns a pixel over",
  })
  const probe = el("canvas", { class: "cells easel", role: "img" })
  const matrix = el("canvas", { class: "cells memory", role: "img" })
  const shelf = el("div", { class: "shelf" })
  const key = el("span", { class: "key", "data-model": "fast-weights" }, "")
  const told = el("p", { class: "caption", "aria-live": "polite" })
  const sizes = choice(
    "Units",
    SIDES.map((each) => [each, `${each} × ${each}`]),
    side,
    (chosen) => begin(chosen),
  )
  const fading = slider({
    name: "λ",
    label: "how much of A stays when a pattern is added",
    min: 0.5,
    max: 1,
    step: 0.01,
    value: 1,
    format: (value) => (value === 1 ? "1: no decay" : value.toFixed(2)),
    on: (value) => {
      decay = value
      rewrite()
      measure()
    },
  })
  const stored = new Chart({
    label: "How many patterns come back, against how many were stored",
    read: (curve, [x, y]) => `${curve.name}: of ${x} patterns stored, ${y.toFixed(1)} come back`,
  })
  const sizesChart = new Chart({
    label: "How many patterns come back at best, against the number of units",
    read: (curve, [x, y]) => `${curve.name}: ${x} units hold ${y.toFixed(1)} patterns`,
  })

  stage.replaceChildren(
    el("div", { class: "row" }, sizes.element, el("div", { class: "wide" }, fading.element)),
    el(
      "div",
      { class: "bench" },
      el(
        "article",
        { class: "card" },
        el("h3", {}, "Your pattern"),
        easel,
        el(
          "div",
          { class: "row" },
          button("Store it", () => add(drawn), { class: "main" }),
          button("Random", () => draw(randomPattern(side ** 2, random))),
        ),
        el(
          "div",
          { class: "row" },
          button("Store 5 random", () =>
            add(...Array.from({ length: 5 }, () => randomPattern(side ** 2, random))),
          ),
          button("Forget all", () => begin(side, false)),
        ),
      ),
      el(
        "article",
        { class: "card", "data-model": "fast-weights" },
        el("h3", {}, "A, the sum of their outer products"),
        matrix,
        el("p", { class: "quiet" }, "Colour: units that go together. Grey: units that exclude each other."),
      ),
      el("article", { class: "card" }, el("h3", {}, "Got back"), probe, told),
    ),
    el("h3", {}, "Stored, oldest first: press one, and it is damaged and asked for"),
    shelf,
    el(
      "p",
      { class: "keys" },
      el("span", { class: "key", "data-model": "you" }, "No decay"),
      key,
      el("span", { class: "quiet" }, "dashed: all of them (left), and Hopfield’s 0.15 N (both)"),
    ),
    el(
      "div",
      { class: "pair" },
      el(
        "article",
        { class: "card" },
        el("h3", {}, "How many come back, of how many stored"),
        stored.element,
      ),
      el(
        "article",
        { class: "card" },
        el("h3", {}, "How many at best, by the number of units"),
        sizesChart.element,
      ),
    ),
    el(
      "p",
      { class: "quiet" },
      `Measured here, now: random patterns, of which ${percent(FLIPPED)} of the pixels are turned over before they are asked for; a pattern is back if ${percent(BACK)} of its pixels are right. Mean of ${RUNS} runs.`,
    ),
  )
  listen()
  begin(side)
  whenSeen(stage, () => {
    inView = true
    measure()
  })
  onLook(() => {
    redraw()
    drawCharts()
  })

  function begin(chosen, filled = true) {
    side = chosen
    patterns = []
    draw(letter(side))
    measure()
    if (filled) add(drawn, ...Array.from({ length: 3 }, () => randomPattern(side ** 2, random)))
    else rewrite()
  }

  function draw(pattern) {
    drawn = pattern.slice()
    redraw()
  }

  function add(...more) {
    patterns = [...patterns, ...more.map((pattern) => pattern.slice())].slice(-60)
    rewrite()
    highlight("decay", "write")
    ask(patterns.length - more.length)
  }

  function rewrite() {
    A = new Float64Array(side ** 4)
    for (const pattern of patterns) store(A, pattern, decay)
    asked = null
    told.textContent = patterns.length
      ? "Press a stored pattern."
      : "Nothing is stored yet: store the pattern on the left, then others."
    redraw()
  }

  function ask(n) {
    const target = patterns[n]
    const states = recall(A, disturbed(target, Math.round(FLIPPED * target.length), random))
    asked = { n, states, at: 0 }
    highlight("recall")
    const mine = asked
    const next = () => {
      if (asked !== mine) return
      redraw()
      const right = overlap(states[mine.at], target)
      const words =
        mine.at === 0 ? "Damaged" : `After ${mine.at} step${mine.at > 1 ? "s" : ""} of x ← sign(A x)`
      const end = mine.at === states.length - 1
      told.textContent = `${words}: ${percent(right)} of the pixels are right.${end ? (right >= BACK ? " It is back." : " It is lost.") : ""}`
      if (end) return
      mine.at += 1
      setTimeout(next, calm.matches ? 0 : 450)
    }
    next()
  }

  function redraw() {
    const colours = palette(stage, "fast-weights")
    const ink = { ...colours, colour: palette(stage, "ink").colour, other: colours.ground }
    paint(easel, drawn, side, side, 1, ink)
    paint(matrix, A ?? [], side ** 2, side ** 2, Math.max(2, patterns.length / 3), colours)
    matrix.setAttribute("aria-label", `A, ${side ** 2} by ${side ** 2}, with ${patterns.length} patterns`)
    paint(probe, asked ? asked.states[asked.at] : [], side, side, 1, ink)
    probe.setAttribute("aria-label", asked ? `Pattern ${asked.n + 1}, step ${asked.at}` : "Nothing asked yet")
    if (shelf.children.length !== patterns.length)
      shelf.replaceChildren(
        ...patterns.map((_, n) =>
          el(
            "button",
            { type: "button", "aria-label": `Stored pattern ${n + 1}`, onclick: () => ask(n) },
            el("canvas", { class: "cells" }),
          ),
        ),
      )
    patterns.forEach((pattern, n) => {
      shelf.children[n].setAttribute("aria-pressed", String(asked?.n === n))
      paint(shelf.children[n].firstChild, pattern, side, side, 1, ink)
    })
  }

  function listen() {
    let cursor = 0
    const place = (event) => {
      const box = easel.getBoundingClientRect()
      const [row, column] = [
        (event.clientY - box.top) / box.height,
        (event.clientX - box.left) / box.width,
      ].map((share) => Math.min(side - 1, Math.max(0, Math.floor(share * side))))
      return row * side + column
    }
    easel.addEventListener("pointerdown", (event) => {
      easel.setPointerCapture(event.pointerId)
      cursor = place(event)
      painting = -drawn[cursor]
      drawn[cursor] = painting
      redraw()
    })
    easel.addEventListener("pointermove", (event) => {
      if (painting === null) return
      drawn[place(event)] = painting
      redraw()
    })
    for (const end of ["pointerup", "pointercancel"]) easel.addEventListener(end, () => (painting = null))
    easel.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -side, ArrowDown: side }
      if (event.key in moves) cursor = (cursor + moves[event.key] + side ** 2) % side ** 2
      else if (event.key === " ") drawn[cursor] = -drawn[cursor]
      else return
      event.preventDefault()
      easel.setAttribute(
        "aria-label",
        `Row ${Math.floor(cursor / side) + 1}, column ${(cursor % side) + 1}: ${drawn[cursor] > 0 ? "on" : "off"}; space turns it over`,
      )
      redraw()
    })
  }

  function highlight(...terms) {
    for (const term of equation.querySelectorAll("[data-term]"))
      term.classList.toggle("on", terms.includes(term.dataset.term))
  }

  /** Both curves, a few points at a time, so that the page goes on answering. */
  function measure() {
    if (!inView) return
    const mine = ++measuring
    const N = side ** 2
    const most = Math.max(6, Math.ceil(0.4 * N))
    const counts = Array.from({ length: most }, (_, n) => n + 1).filter(
      (n) => n % Math.ceil(most / 24) === 0 || n === 1,
    )
    const fading = decay < 1 ? decay : USUAL
    const kinds = [
      { decay: 1, model: "you", name: "No decay" },
      { decay: fading, model: "fast-weights", name: `λ = ${fading.toFixed(2)}` },
    ]
    key.textContent = kinds[1].name
    const curves = kinds.map((kind) => ({ ...kind, points: [] }))
    const best = kinds.map((kind) => ({ ...kind, points: [], kind: "dots" }))
    const jobs = [
      ...counts.flatMap((count) =>
        curves.map((curve) => () => curve.points.push([count, mean(N, count, curve.decay)])),
      ),
      ...OVER_N.flatMap((units) =>
        best.map((dots) => () => dots.points.push([units, bestOf(units, dots.decay)])),
      ),
    ]
    const top = Math.ceil(0.24 * N)
    const show = () => {
      const rule = (points, name) => ({ points, model: "you", kind: "rule", name })
      stored.show(
        [
          rule([
            [HOPFIELD * N, 0],
            [HOPFIELD * N, most],
          ]),
          rule([
            [0, 0],
            [top, top],
          ]),
          ...curves,
        ],
        {
          x: { name: "stored", from: 0, to: most },
          y: { name: "come back", from: 0, to: top },
        },
      )
      sizesChart.show(
        [
          rule([
            [0, 0],
            [150, HOPFIELD * 150],
          ]),
          ...best,
        ],
        {
          x: { name: "units N (dashed: 0.15 N)", from: 0, to: 150 },
          y: { name: "patterns", from: 0, to: 30 },
        },
      )
    }
    drawCharts = show
    const slice = () => {
      if (mine !== measuring) return
      const until = performance.now() + 12
      while (jobs.length && performance.now() < until) jobs.shift()()
      show()
      if (jobs.length) setTimeout(slice, 4)
    }
    setTimeout(slice, 30)
  }
}

/** How many come back, on average over some runs. */
function mean(N, count, decay) {
  const random = generator(1000 * N + count)
  let sum = 0
  for (let run = 0; run < RUNS; run++) sum += comeBack(N, count, decay, random)
  return sum / RUNS
}

/** The most that come back, however many are stored. */
function bestOf(N, decay) {
  const shares = decay < 1 ? [0.1, 0.15, 0.25, 0.4] : [0.08, 0.1, 0.12, 0.14, 0.17]
  return Math.max(...shares.map((share) => mean(N, Math.max(1, Math.round(share * N)), decay)))
}

/** A letter F, as a first pattern. */
function letter(side) {
  const [left, right, middle] = [Math.floor(side / 4), side - 1 - Math.floor(side / 5), Math.floor(side / 2)]
  return Int8Array.from({ length: side ** 2 }, (_, at) => {
    const [row, column] = [Math.floor(at / side), at % side]
    const bars = row === 1 || (row === middle && column < right)
    const on = row > 0 && row < side - 1 && column >= left && column <= right && (column === left || bars)
    return on ? 1 : -1
  })
}
