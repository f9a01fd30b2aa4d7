// The last hundred questions as a square of dots; those answered wrongly are filled.
import { el, svg } from "./dom.js"

const STEP = 11

export class Hundred {
  /** @param onPick  called with the number of a dot that was pressed */
  constructor(model, onPick) {
    this.count = el("p", { class: "count", role: "status" })
    this.dots = Array.from({ length: 100 }, (_, n) =>
      svg("rect", {
        x: (n % 20) * STEP,
        y: Math.floor(n / 20) * STEP,
        width: STEP - 2.5,
        height: STEP - 2.5,
        rx: 2,
        onclick: () => onPick(n),
      }),
    )
    const drawing = svg(
      "svg",
      { viewBox: `0 0 ${20 * STEP - 2} ${5 * STEP - 2}`, "aria-hidden": "true" },
      this.dots,
    )
    this.element = el("div", { class: "hundred", "data-model": model }, this.count, drawing)
  }

  /** @param wrong  a list of booleans; undefined where it is not known yet */
  show(wrong) {
    const known = wrong.filter((each) => each !== undefined).length
    const count = wrong.filter(Boolean).length
    this.dots.forEach((dot, n) =>
      dot.setAttribute("class", wrong[n] === undefined ? "" : wrong[n] ? "wrong" : "right"),
    )
    this.count.textContent = known ? `${count} of the last ${known} wrong` : "counting"
  }
}
