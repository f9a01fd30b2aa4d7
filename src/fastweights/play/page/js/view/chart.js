// Curves in a frame with axes, to point at: the nearest one is read out.
import { el, svg } from "./dom.js"

const FRAME = { left: 62, right: 14, top: 14, bottom: 46 }

const scales = {
  linear: { to: (value) => value, ticks: linearTicks },
  log: { to: (value) => Math.log10(value), ticks: logTicks },
}

export class Chart {
  /** @param read  the words for a point: (curve, [x, y]) => text */
  constructor({ label, read }) {
    this.read = read
    this.drawing = svg("svg", { class: "chart", role: "img", "aria-label": label, tabindex: 0 })
    this.note = el("p", { class: "note", "aria-live": "polite" })
    this.element = el("figure", { class: "chart-frame" }, this.drawing, this.note)
    this.drawing.addEventListener("pointermove", (event) => this.point(this.place(event)))
    this.drawing.addEventListener("pointerleave", () => this.mark(null))
    this.drawing.addEventListener("keydown", (event) => this.key(event))
    this.chosen = null
  }

  /**
   * Draw curves: { points: [[x, y]…], model, name, kind: "line" | "thin" | "dots" | "rule" }.
   * axes: { x: { name, scale, from, to, format }, y: … }
   */
  show(curves, axes) {
    this.curves = curves
    const width = Math.max(300, Math.min(1100, this.element.clientWidth || 600)) // so that letters have the page's size
    const height = Math.max(250, Math.min(420, 0.55 * width))
    Object.assign(this, { width, height })
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`)
    const fit = (axis, from, to) => {
      const { to: scaled, ticks } = scales[axis.scale ?? "linear"]
      const [low, high] = [scaled(axis.from), scaled(axis.to)]
      return {
        at: (value) => from + ((scaled(value) - low) / (high - low)) * (to - from),
        ticks: ticks(axis.from, axis.to),
      }
    }
    this.x = fit(axes.x, FRAME.left, width - FRAME.right)
    this.y = fit(axes.y, height - FRAME.bottom, FRAME.top)
    const format = (axis, value) => (axis.format ?? String)(value)
    const grid = [
      ...this.y.ticks.map((value) => {
        const at = this.y.at(value)
        return svg(
          "g",
          {},
          svg("line", { x1: FRAME.left, x2: width - FRAME.right, y1: at, y2: at }),
          svg("text", { x: FRAME.left - 8, y: at + 4, "text-anchor": "end" }, format(axes.y, value)),
        )
      }),
      ...this.x.ticks.map((value) =>
        svg(
          "text",
          { x: this.x.at(value), y: height - FRAME.bottom + 19, "text-anchor": "middle" },
          format(axes.x, value),
        ),
      ),
      svg(
        "text",
        { class: "axis", x: width - FRAME.right, y: height - 6, "text-anchor": "end" },
        axes.x.name,
      ),
      svg(
        "text",
        { class: "axis", x: -FRAME.top, y: 14, "text-anchor": "end", transform: "rotate(-90)" },
        axes.y.name,
      ),
    ]
    const inside = (value, { from, to }) => Math.min(Math.max(value, Math.min(from, to)), Math.max(from, to))
    const at = ([x, y]) =>
      `${this.x.at(inside(x, axes.x)).toFixed(1)} ${this.y.at(inside(y, axes.y)).toFixed(1)}`
    const lines = curves.map(({ points, model, kind = "line" }) =>
      kind === "dots"
        ? svg(
            "g",
            { class: "dots", "data-model": model },
            points.map((point) => {
              const [cx, cy] = at(point).split(" ")
              return svg("circle", { cx, cy, r: 4 })
            }),
          )
        : svg("path", {
            class: kind,
            "data-model": model,
            d: points.map((point, i) => `${i ? "L" : "M"}${at(point)}`).join(""),
          }),
    )
    this.at = at
    this.cursor = svg("circle", { class: "cursor", r: 6, visibility: "hidden" })
    this.drawing.replaceChildren(svg("g", { class: "grid" }, grid), ...lines, this.cursor)
    this.chosen = null
    this.note.textContent = ""
  }

  place(event) {
    const box = this.drawing.getBoundingClientRect()
    return [
      ((event.clientX - box.left) / box.width) * this.width,
      ((event.clientY - box.top) / box.height) * this.height,
    ]
  }

  /** Find the nearest of all points. */
  point([x, y]) {
    let best = { distance: 60 ** 2 }
    this.curves.forEach((curve, n) => {
      if (curve.kind === "rule") return
      curve.points.forEach((point, i) => {
        const [px, py] = this.at(point).split(" ").map(Number)
        const distance = (px - x) ** 2 + (py - y) ** 2
        if (distance < best.distance) best = { distance, n, i }
      })
    })
    this.mark(best.n === undefined ? null : best)
  }

  /** Arrows: along a curve, and from curve to curve. */
  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }
    if (!(event.key in moves)) return
    event.preventDefault()
    const real = this.curves.map((_, n) => n).filter((n) => this.curves[n].kind !== "rule")
    if (!real.length) return
    const [other, along] = moves[event.key]
    const now = this.chosen ?? { n: real[0], i: 0 }
    const n = real[(real.indexOf(now.n) + other + real.length) % real.length]
    const last = this.curves[n].points.length - 1
    this.mark({ n, i: Math.max(0, Math.min(last, now.i + (this.chosen ? along : 0))) })
  }

  mark(chosen) {
    this.chosen = chosen
    const paths = this.drawing.querySelectorAll("[data-model]")
    paths.forEach((path, n) =>
      path.classList.toggle("faint", chosen !== null && n !== chosen.n && this.curves.length > 3),
    )
    if (!chosen) {
      this.cursor.setAttribute("visibility", "hidden")
      this.note.textContent = ""
      return
    }
    const curve = this.curves[chosen.n]
    const [cx, cy] = this.at(curve.points[chosen.i]).split(" ")
    for (const [name, value] of Object.entries({ cx, cy, visibility: "visible", "data-model": curve.model }))
      this.cursor.setAttribute(name, value)
    this.note.textContent = this.read(curve, curve.points[chosen.i])
  }
}

function linearTicks(from, to) {
  const rough = (to - from) / 5
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough)
  const first = Math.ceil(from / step - 1e-9)
  const count = Math.floor(to / step + 1e-9) - first
  return Array.from({ length: count + 1 }, (_, n) => Number(((first + n) * step).toPrecision(12)))
}

function logTicks(from, to) {
  const powers = Array.from({ length: 12 }, (_, n) => 10 ** (n - 4))
  const some = powers.flatMap((power) =>
    (to / from < 300 ? [1, 2, 5] : [1]).map((each) => Number((each * power).toPrecision(12))),
  )
  return some.filter((value) => value >= from * 0.999 && value <= to * 1.001)
}
