// Part 5: the published curves, to point at.
import { Chart } from "../view/chart.js"
import { choice, el, onLook } from "../view/dom.js"

const NAMES = { "fast-weights": "fast weights", lstm: "LSTM", "a-lstm": "A-LSTM", irnn: "IRNN" }
const LEAST = 0.001 // that a logarithmic axis has: an error of 0 is drawn there

export async function speed(stage) {
  const answer = await fetch("curves.json")
  if (!answer.ok) throw new Error(`curves.json could not be loaded: the server says ${answer.status}`)
  const figures = await answer.json()
  let figure
  const shown = { models: new Set(), seed: "mean", x: "linear", y: "linear" }

  const chart = new Chart({
    label: "Curves of learning; arrows go along a curve and from one to the next",
    read,
  })
  const about = el("p", { class: "quiet" })
  const models = el("div", { class: "row" })
  const seeds = el("select", { "aria-label": "Seed", onchange: () => set({ seed: seeds.value }) })
  const xScale = choice(
    "Horizontal axis",
    [
      ["linear", "x linear"],
      ["log", "x log"],
    ],
    "linear",
    (x) => set({ x }),
  )
  const yScale = choice(
    "Vertical axis",
    [
      ["linear", "y linear"],
      ["log", "y log"],
    ],
    "linear",
    (y) => set({ y }),
  )
  const which = choice(
    "Figure",
    figures.map(({ name }, n) => [n, name]),
    0,
    open,
  )

  stage.replaceChildren(
    el("div", { class: "row" }, which.element, xScale.element, yScale.element, seeds),
    models,
    el("article", { class: "card wide-chart" }, chart.element),
    about,
  )
  open(0)
  onLook(show)

  function open(n) {
    figure = figures[n]
    const names = [...new Set(figure.lines.map(({ model }) => model))]
    shown.models = new Set(names)
    models.replaceChildren(
      ...names.map((name) => {
        const box = el("input", {
          type: "checkbox",
          checked: true,
          onchange: () => {
            if (!shown.models.delete(name)) shown.models.add(name)
            show()
          },
        })
        return el("label", { class: "key", "data-model": name }, box, ` ${NAMES[name] ?? name}`)
      }),
    )
    const numbers = [...new Set(figure.lines.map(({ seed }) => seed))].sort((a, b) => a - b)
    seeds.replaceChildren(
      el("option", { value: "mean" }, "all seeds and their mean"),
      ...numbers.map((seed) => el("option", { value: seed }, `seed ${seed}`)),
    )
    shown.seed = "mean"
    // Returns may be negative, which no logarithm takes.
    const positive = figure.lines.every(({ points }) => points.every(([, y]) => y >= 0))
    for (const button of yScale.element.children) button.disabled = !positive
    xScale.select(figure.x.log ? "log" : "linear")
    yScale.select(figure.y.log ? "log" : "linear")
    about.textContent = `${figure.about} In the mean, a run that stopped early stays at its last value.`
    show()
  }

  function set(changes) {
    Object.assign(shown, changes)
    if (figure) show()
  }

  function show() {
    const lines = figure.lines.filter(
      ({ model, seed }) => shown.models.has(model) && (shown.seed === "mean" || String(seed) === shown.seed),
    )
    const thin = lines.map(({ model, seed, points }) => ({
      model,
      name: `${NAMES[model] ?? model}, seed ${seed}`,
      points,
      kind: shown.seed === "mean" ? "thin" : "line",
    }))
    const thick =
      shown.seed !== "mean"
        ? []
        : [...shown.models].map((model) => ({
            model,
            name: `${NAMES[model] ?? model}, mean`,
            points: mean(lines.filter((line) => line.model === model)),
            kind: "line",
          }))
    const all = figure.lines.flatMap(({ points }) => points)
    const x = all.map(([value]) => value)
    const y = all.map(([, value]) => value)
    const log = shown.y === "log"
    const from = log ? Math.max(LEAST, Math.min(...y.filter((value) => value > 0))) : Math.min(0, ...y)
    chart.show([...thin, ...thick], {
      x: {
        name: figure.x.name,
        scale: shown.x,
        from: shown.x === "log" ? Math.min(...x) : 0,
        to: Math.max(...x),
        format: short,
      },
      y: {
        name: figure.y.name,
        scale: shown.y,
        from,
        to: log ? 100 : Math.max(...y),
        format: (value) => String(value).replace("-", "−"),
      },
    })
  }

  function read({ name }, [x, y]) {
    return `${name}: ${figure.y.name} ${y} after ${x.toLocaleString("en")} ${figure.x.name}`.replace("-", "−")
  }
}

/** The mean of some lines; one that has stopped stays where it was. */
function mean(lines) {
  const longest = lines.reduce((most, { points }) => (points.length > most.length ? points : most), [])
  return longest.map(([x], i) => {
    const sum = lines.reduce((total, { points }) => total + points[Math.min(i, points.length - 1)][1], 0)
    return [x, Number((sum / lines.length).toPrecision(4))]
  })
}

const short = (value) =>
  value >= 1e6 ? `${value / 1e6} M` : value >= 1000 ? `${value / 1000} k` : String(value)
