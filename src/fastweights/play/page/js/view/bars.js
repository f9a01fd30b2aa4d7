// Probabilities of the ten digits, as bars.
import { el, percent } from "./dom.js"

export class Bars {
  constructor(model, label) {
    this.label = label
    this.bars = Array.from({ length: 10 }, (_, digit) =>
      el(
        "div",
        { class: "bar" },
        el("span", { class: "fill" }),
        el("span", { class: "digit" }, String(digit)),
      ),
    )
    this.element = el("div", { class: "bars", "data-model": model, role: "img" }, this.bars)
  }

  /** Show them; `right`: the digit that is. */
  show(probabilities, right = null) {
    let best = 0
    probabilities.forEach((each, digit) => {
      if (each > probabilities[best]) best = digit
      this.bars[digit].firstChild.style.height = `calc(${Math.max(0.012, each)} * (100% - 1.6rem))`
      this.bars[digit].classList.toggle("right", digit === right)
    })
    this.bars.forEach((bar, digit) => bar.classList.toggle("best", digit === best))
    this.element.setAttribute("aria-label", `${this.label}: ${best}, ${percent(probabilities[best])}`)
  }
}
