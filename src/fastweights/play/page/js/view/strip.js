// A string as tiles, with arcs from the one being read to those that the memory attends to.
import { el, svg } from "./dom.js"

const TILE = 56
const ABOVE = 150

export class Strip {
  /** @param onPick  called with the place of a tile that was pressed */
  constructor(onPick) {
    this.onPick = onPick
    this.element = el("div", { class: "strip" })
  }

  /** Show a string, with as many answers behind it as there are models; `wrong` tiles from, to. */
  of(string, models) {
    const n = string.length
    const width = TILE * (n + 0.6 + 1.15 * models.length)
    this.arcs = svg("g", { class: "arcs" })
    this.tiles = Array.from(string, (character, place) =>
      svg(
        "g",
        {
          class: "tile",
          transform: `translate(${place * TILE} ${ABOVE})`,
          onclick: () => this.onPick(place),
        },
        svg("rect", { x: 3, y: 0, width: TILE - 6, height: TILE, rx: 9 }),
        svg("text", { x: TILE / 2, y: 38, "text-anchor": "middle" }, character),
      ),
    )
    this.answers = models.map((model, i) => {
      const text = svg("text", { x: 25, y: 36, "text-anchor": "middle" })
      const x = TILE * (n + 0.55 + 1.15 * i)
      return svg(
        "g",
        { class: "answer", "data-model": model, transform: `translate(${x} ${ABOVE + 1})` },
        svg("circle", { cx: 25, cy: 27, r: 26 }),
        text,
        svg("text", { class: "sign", x: 25, y: -10, "text-anchor": "middle" }),
      )
    })
    const drawing = svg(
      "svg",
      { viewBox: `0 0 ${width} ${ABOVE + TILE + 4}`, "aria-hidden": "true" },
      this.arcs,
      this.tiles,
      this.answers,
    )
    drawing.style.maxWidth = `${width * 1.22}px`
    this.element.replaceChildren(drawing)
  }

  /** The place being read, its attention to those before it (a list), and how visible the arcs are. */
  at(place, attention, visible, pair) {
    this.tiles.forEach((tile, i) => {
      tile.setAttribute(
        "class",
        `tile${i === place ? " now" : i > place ? " later" : ""}${pair?.includes(i) ? " asked" : ""}`,
      )
    })
    const most = Math.max(...attention, 1e-9)
    const paths = attention.flatMap((value, tau) => {
      const share = Math.max(0, value) / most
      if (share < 0.04) return []
      const [from, to] = [(place + 0.5) * TILE, (tau + 0.5) * TILE]
      const rise = ABOVE - 6 - Math.min(ABOVE - 8, 34 + 30 * Math.sqrt(place - tau))
      const path = `M${from} ${ABOVE - 3} C${from} ${rise} ${to} ${rise} ${to} ${ABOVE - 3}`
      return [svg("path", { d: path, "stroke-width": 1 + 8 * share, opacity: 0.15 + 0.85 * share })]
    })
    this.arcs.replaceChildren(...paths)
    this.fade(visible)
  }

  /** How visible the arcs are, from 0 to 1. */
  fade(visible) {
    this.arcs.setAttribute("opacity", visible)
  }

  /** What each model answers, once it does: { digit, right } or null. */
  say(answers) {
    this.answers.forEach((group, i) => {
      const [circle, digit, sign] = group.children
      const answer = answers[i]
      group.classList.toggle("silent", !answer)
      circle.setAttribute("r", 26)
      digit.textContent = answer ? answer.digit : ""
      sign.textContent = answer ? (answer.right ? "✓" : "✗") : ""
    })
  }
}
