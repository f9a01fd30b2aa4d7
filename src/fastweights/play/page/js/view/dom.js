// Elements, and the controls that every part has.

const SVG = "http://www.w3.org/2000/svg"

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value === true ? "" : value)
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined))
  return element
}

export const el = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children)
export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children)

let count = 0
export const newId = () => `n${++count}`

export const button = (text, onclick, attributes = {}) =>
  el("button", { type: "button", onclick, ...attributes }, text)

/** A range with its name and value; `set(value)` moves it without calling back. */
export function slider({ name, label, min, max, step, value, format = String, on }) {
  const id = newId()
  const input = el("input", { type: "range", id, min, max, step, value, "aria-label": label })
  const output = el("output", { for: id }, format(value))
  const symbol = el("label", { for: id }, el("i", {}, name), ` ${label}`)
  const show = () => {
    output.value = format(Number(input.value))
    input.setAttribute("aria-valuetext", output.value)
  }
  input.addEventListener("input", () => {
    show()
    on(Number(input.value))
  })
  const element = el("div", { class: "slider" }, symbol, output, input)
  return {
    element,
    input,
    set(now) {
      input.value = now
      show()
    },
  }
}

/** Some buttons of which one is pressed. */
export function choice(label, options, chosen, on) {
  const buttons = options.map(([value, text]) =>
    button(text, () => select(value), { "aria-pressed": String(value === chosen) }),
  )
  function select(value) {
    options.forEach(([each], i) => buttons[i].setAttribute("aria-pressed", String(each === value)))
    on(value)
  }
  return { element: el("div", { class: "choice", role: "group", "aria-label": label }, buttons), select }
}

export const calm = matchMedia("(prefers-reduced-motion: reduce)")

/** A share in words; what is nearly all or nearly nothing is not rounded to it. */
export function percent(share) {
  if (share > 0.9995 && share < 1) return "over 99.9 %"
  if (share < 0.0005 && share > 0) return "under 0.1 %"
  return `${(100 * share).toFixed(share > 0.0995 ? 0 : 1)} %`
}

/** Start something when an element first comes into view. */
export function whenSeen(element, action) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return
    observer.disconnect()
    action()
  })
  observer.observe(element)
}

/** A function that is called once, at the next frame, however often it was asked for. */
export function soon(action) {
  let waiting = false
  return () => {
    if (waiting) return
    waiting = true
    requestAnimationFrame(() => {
      waiting = false
      action()
    })
  }
}

/** Says to the parts that they should draw anew: the theme or the width of the window changed. */
export const onLook = (action) => addEventListener("look", action)
