// A square to draw on, by mouse, finger or keys.
import { el } from "./dom.js"

export const SIDE = 224 // pixels
const PEN = 19

export class Easel {
  /** @param onDraw  called when something was drawn */
  constructor(label, onDraw) {
    this.onDraw = onDraw
    this.canvas = el("canvas", {
      class: "ink",
      width: SIDE,
      height: SIDE,
      tabindex: 0,
      role: "img",
      "aria-label": label,
    })
    this.context = this.canvas.getContext("2d", { willReadFrequently: true })
    Object.assign(this.context, { lineWidth: PEN, lineCap: "round", lineJoin: "round" })
    this.pen = { x: SIDE / 2, y: SIDE / 4, down: false }
    this.listen()
  }

  clear() {
    this.context.clearRect(0, 0, SIDE, SIDE)
    this.onDraw()
  }

  /** Draw strokes, of points in a square of side 1. */
  strokes(strokes) {
    this.context.clearRect(0, 0, SIDE, SIDE)
    for (const [first, ...rest] of strokes) {
      let from = first
      for (const to of rest) {
        this.line(from[0] * SIDE, from[1] * SIDE, to[0] * SIDE, to[1] * SIDE)
        from = to
      }
    }
    this.onDraw()
  }

  line(x0, y0, x1, y1) {
    this.context.strokeStyle = getComputedStyle(this.canvas).color
    this.context.beginPath()
    this.context.moveTo(x0, y0)
    this.context.lineTo(x1, y1 + 0.01)
    this.context.stroke()
  }

  /** How much ink is at each pixel, from 0 to 1. */
  get ink() {
    const { data } = this.context.getImageData(0, 0, SIDE, SIDE)
    return Float64Array.from({ length: SIDE * SIDE }, (_, at) => data[4 * at + 3] / 255)
  }

  listen() {
    const { canvas, pen } = this
    const to = (x, y) => {
      if (pen.down) this.line(pen.x, pen.y, x, y)
      Object.assign(pen, { x, y })
      if (pen.down) this.onDraw()
    }
    const place = (event) => {
      const box = canvas.getBoundingClientRect()
      return [
        ((event.clientX - box.left) / box.width) * SIDE,
        ((event.clientY - box.top) / box.height) * SIDE,
      ]
    }
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId)
      const [x, y] = place(event)
      Object.assign(pen, { x, y, down: true })
      to(x, y)
    })
    canvas.addEventListener("pointermove", (event) => pen.down && to(...place(event)))
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (pen.down = false))
    canvas.addEventListener("keydown", (event) => {
      const step = SIDE / 16
      const moves = {
        ArrowLeft: [-step, 0],
        ArrowRight: [step, 0],
        ArrowUp: [0, -step],
        ArrowDown: [0, step],
      }
      if (event.key in moves) {
        const inside = (value) => Math.max(PEN, Math.min(SIDE - PEN, value))
        const [over, down] = moves[event.key]
        to(inside(pen.x + over), inside(pen.y + down))
      } else if (event.key === " ") {
        pen.down = !pen.down
        to(pen.x, pen.y)
      } else return
      event.preventDefault()
      canvas.setAttribute(
        "aria-label",
        `The pen is ${pen.down ? "down" : "up"}, ${Math.round((100 * pen.x) / SIDE)} % from the left, ${Math.round((100 * pen.y) / SIDE)} % from the top; arrows move it, space lowers and lifts it`,
      )
    })
    canvas.addEventListener("blur", () => (pen.down = false))
  }
}
