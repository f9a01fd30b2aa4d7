// A position in a run, moved by time, by buttons, by scrubbing or by keys.
import { button, calm, el } from "./dom.js"

export class Clock {
  /**
   * @param onMove  called with the position and how far it is to the next one (0 to 1)
   * @param rate  positions per second
   */
  constructor({ label, rate, onMove }) {
    Object.assign(this, { rate, onMove, length: 1, position: 0, playing: false })
    this.range = el("input", { type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": label })
    this.range.addEventListener("input", () => this.scrub(Number(this.range.value)))
    this.toggle = button("Play", () => (this.playing ? this.pause() : this.play()), { class: "main" })
    this.element = el(
      "div",
      { class: "clock" },
      this.toggle,
      button("‹", () => this.scrub(this.position - 1), { "aria-label": "One step back" }),
      button("›", () => this.scrub(this.position + 1), { "aria-label": "One step on" }),
      this.range,
    )
  }

  /** A run of another length; to its end, or to where it was. */
  of(length, position = length - 1) {
    this.length = length
    this.range.max = length - 1
    this.pause()
    this.move(position)
  }

  scrub(position) {
    this.pause()
    this.move(position)
  }

  move(position, progress = 1) {
    this.position = Math.max(0, Math.min(this.length - 1, position))
    if (progress === 1 || Number(this.range.value) !== this.position) this.range.value = this.position
    this.onMove(this.position, progress)
  }

  play() {
    if (this.position >= this.length - 1) this.position = 0
    this.playing = true
    this.toggle.textContent = "Pause"
    let start
    const from = this.position
    const frame = (now) => {
      if (!this.playing) return
      start ??= now
      const passed = ((now - start) / 1000) * this.rate
      const position = Math.min(this.length - 1, from + Math.floor(passed))
      const last = from + passed >= this.length
      this.move(position, last || calm.matches ? 1 : Math.min(1, from + passed - position))
      if (last) this.pause()
      else requestAnimationFrame(frame)
    }
    requestAnimationFrame(frame)
  }

  pause() {
    this.playing = false
    this.toggle.textContent = "Play"
  }
}
