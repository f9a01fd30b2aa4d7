// Part 1: a string is read, and the letter at its end is answered.
import { times } from "../equations.js"
import { argmax, loadNet, softmax } from "../nets.js"
import { ALPHABET, LONGEST, parse, sample } from "../tasks/retrieval.js"
import { generator } from "../tasks/patterns.js"
import { conclude, describe } from "./ask-words.js"
import { Bars } from "../view/bars.js"
import { largest, paint, palette, rows } from "../view/cells.js"
import { Clock } from "../view/clock.js"
import { button, calm, choice, el, onLook, slider } from "../view/dom.js"
import { Hundred } from "../view/hundred.js"
import { Strip } from "../view/strip.js"

const FIRST = "c9k8j3f1??c"
const NAMES = { "fast-weights": "Fast weights", lstm: "LSTM" }
const SLICE = 10 // questions of the hundred that are answered before the page draws again

export async function ask(stage, equation) {
  let nets
  let changes = {}
  let hundred = questions(generator(7), 100)
  let string = FIRST
  let question = parse(string)
  let counting = 0 // how often it was begun
  let loudest // what is drawn in full colour
  let drawnAt // the position that is on the page
  let runs // of both nets: what happened at each character

  const input = el("input", {
    type: "text",
    class: "string",
    value: FIRST,
    maxlength: LONGEST + 6,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    "aria-label": "The string that is read",
    "aria-describedby": "ask-message",
    oninput: () => typed(input.value.trim().toLowerCase()),
  })
  const message = el("p", { id: "ask-message", class: "message", "aria-live": "polite" })
  const strip = new Strip((place) => clock.scrub((place + 1) * phases() - 1))
  const caption = el("p", { class: "caption" })
  const clock = new Clock({ label: "Position in the string", rate: 4, onMove: show })
  const pace = choice(
    "Speed",
    [
      [2, "slow"],
      [4, "medium"],
      [9, "fast"],
    ],
    4,
    (rate) => {
      clock.rate = rate
      if (clock.playing) clock.play()
    },
  )
  const units = choice(
    "Units of both nets",
    [
      [20, "20 units"],
      [50, "50 units"],
    ],
    20,
    load,
  )
  const sliders = {
    decay: slider({
      name: "λ",
      label: "how much of A stays",
      min: 0,
      max: 1,
      step: 0.01,
      value: 0.9,
      format: two,
      on: changed("decay"),
    }),
    rate: slider({
      name: "η",
      label: "how strongly it is written",
      min: 0,
      max: 2,
      step: 0.01,
      value: 0.5,
      format: two,
      on: changed("rate"),
    }),
    inner_steps: slider({
      name: "S",
      label: "inner steps",
      min: 0,
      max: 5,
      step: 1,
      value: 1,
      on: changed("inner_steps"),
    }),
  }
  const trained = button("As trained", () => {
    changes = {}
    reset()
    run()
    count()
  })
  const cards = { "fast-weights": card("fast-weights"), lstm: card("lstm") }

  stage.replaceChildren(
    el(
      "div",
      { class: "row ask-row" },
      input,
      button("Random", () => choose(sample())),
      button("A hard one", hard),
      units.element,
    ),
    message,
    strip.element,
    el("div", { class: "row" }, clock.element, pace.element),
    caption,
    el(
      "div",
      { class: "pair" },
      el(
        "article",
        { class: "card", "data-model": "fast-weights" },
        cards["fast-weights"].heading,
        el(
          "div",
          { class: "inside" },
          cards["fast-weights"].memory,
          el(
            "div",
            {},
            cards["fast-weights"].states,
            el(
              "div",
              { class: "sliders" },
              Object.values(sliders).map(({ element }) => element),
              trained,
            ),
          ),
        ),
        cards["fast-weights"].bars.element,
        cards["fast-weights"].hundred.element,
      ),
      el(
        "article",
        { class: "card", "data-model": "lstm" },
        cards.lstm.heading,
        el(
          "div",
          { class: "inside" },
          cards.lstm.memory,
          el(
            "div",
            {},
            cards.lstm.states,
            el(
              "p",
              { class: "quiet no-sliders" },
              "The usual recurrent net, trained on the same strings. It has no A: all that it keeps of a string is in the numbers c, and every step rewrites them.",
            ),
          ),
        ),
        cards.lstm.bars.element,
        cards.lstm.hundred.element,
      ),
    ),
    el(
      "p",
      { class: "quiet" },
      "Each square is one of a hundred questions, filled where the net was wrong; press it to see why. ",
      button("Another hundred", () => {
        hundred = questions(Math.random, 100)
        count()
      }),
    ),
  )
  await load(20)
  if (!calm.matches) showOnce()
  onLook(() => {
    drawnAt = -1
    clock.move(clock.position)
  })

  /** The string read once from its beginning, unless the visitor does something first. */
  function showOnce() {
    const cancel = () => clearTimeout(waiting)
    const waiting = setTimeout(() => {
      if (!clock.playing) {
        clock.position = 0
        clock.play()
      }
    }, 1800)
    for (const event of ["pointerdown", "keydown"])
      addEventListener(event, cancel, { once: true, capture: true })
  }

  function card(model) {
    const canvas = el("canvas", { class: "cells memory", role: "img" })
    const heading = el("h3", {}, el("span", { class: "swatch" }), el("span"))
    const label = el("figcaption", { class: "quiet" })
    return {
      canvas,
      heading,
      label,
      memory: el("figure", {}, canvas, label),
      states: el("div", { class: "states" }),
      bars: new Bars(model, `What ${NAMES[model]} would answer`),
      hundred: new Hundred(model, (n) => choose(hundred[n])),
    }
  }

  async function load(count_) {
    const found = await Promise.all([loadNet(`retrieval-${count_}`), loadNet(`retrieval-${count_}-lstm`)])
    nets = { "fast-weights": found[0], lstm: found[1] }
    for (const model of Object.keys(nets))
      cards[model].heading.lastChild.textContent = `${NAMES[model]}, ${count_} units`
    reset()
    run()
    count()
  }

  function reset() {
    const options = { ...nets["fast-weights"].options, ...changes }
    for (const name of Object.keys(sliders)) sliders[name].set(options[name])
    trained.disabled = Object.keys(changes).length === 0
  }

  function changed(name) {
    return (value) => {
      changes = { ...changes, [name]: value }
      trained.disabled = false
      run(clock.position === clock.length - 1 ? undefined : Math.floor(clock.position / phasesOf(runs)))
      count()
    }
  }

  function choose(chosen) {
    input.value = chosen
    typed(chosen)
    hundred = [...hundred.slice(1), chosen]
    count()
    if (!calm.matches) {
      clock.position = 0
      clock.play()
    }
  }

  function typed(text) {
    question = parse(text)
    input.classList.toggle("wrong", Boolean(question.wrong))
    input.setAttribute("aria-invalid", String(Boolean(question.wrong)))
    // What can be read of it is read; the rest is waited for.
    const readable = [...text].slice(0, LONGEST)
    const end = readable.findIndex((each) => !ALPHABET.includes(each))
    string = readable.slice(0, end < 0 ? undefined : end).join("")
    run()
  }

  function hard() {
    for (let tries = 0; tries < 3000; tries++) {
      const candidate = sample()
      const wrong = (model) =>
        argmax(nets[model].logits(candidate, model === "lstm" ? {} : changes)) !== parse(candidate).answer
      if (wrong(tries < 1500 ? "fast-weights" : "lstm")) return choose(candidate)
    }
    message.textContent = "None of 3,000 random strings is too hard for these nets."
    return undefined
  }

  function run(place) {
    runs = { "fast-weights": nets["fast-weights"].run(string, changes), lstm: nets.lstm.run(string) }
    const fast = runs["fast-weights"]
    loudest = {
      A: largest(fast.at(-1)?.after ?? []),
      hidden: largest(...fast.flatMap((step) => step.hidden)),
      c: largest(...runs.lstm.map((step) => step.c)),
    }
    drawnAt = -1
    strip.of(string, Object.keys(NAMES))
    clock.of(
      Math.max(1, string.length * phases()),
      place === undefined ? undefined : (place + 1) * phases() - 1,
    )
  }

  function phases() {
    return phasesOf(runs)
  }

  function show(position, progress) {
    const t = Math.floor(position / phases())
    const phase = position % phases()
    const S = phases() - 2
    const fast = runs["fast-weights"][t]
    const slow = runs.lstm[t]
    if (!fast) return say(question.wrong)
    const written = phase === phases() - 1 ? progress : 0
    if (position === drawnAt && progress < 1) {
      // Between two frames of the same moment, only this moves.
      if (written) paintMemory(fast, written)
      else strip.fade(progress)
      return
    }
    drawnAt = position
    const reading = phase > 0 && S > 0
    const inner = Math.min(Math.max(phase - 1, 0), S - 1)
    const last = position === clock.length - 1
    strip.at(
      t,
      reading ? fast.attention[inner] : [],
      phase === inner + 1 ? progress : 1,
      last && !question.wrong ? [2 * question.place, 2 * question.place + 1] : null,
    )
    const probabilities = [softmax(fast.logits), softmax(slow.logits)]
    const answered = last && written === 1 && !question.wrong
    strip.say(
      probabilities.map(
        (each) => answered && { digit: argmax(each), right: argmax(each) === question.answer },
      ),
    )
    cards["fast-weights"].bars.show(probabilities[0], question.answer)
    cards.lstm.bars.show(probabilities[1], question.answer)
    drawFast(fast, phase, written, S)
    drawSlow(slow, t)
    highlight(phase === 0 ? ["input"] : phase <= S ? ["recall", "norm"] : ["decay", "write"])
    caption.replaceChildren(...(answered ? conclude(string, fast, probabilities[0]) : describe(string, fast, t, phase, S)))
    say(question.wrong)
  }

  function say(wrong) {
    message.classList.toggle("wrong", Boolean(wrong))
    message.textContent = wrong ?? `The digit behind ${string.at(-1)} is ${question.answer}.`
  }

  function drawFast(step, phase, written, S) {
    const { canvas, states, label } = cards["fast-weights"]
    const { hidden } = step
    const H = hidden[0].length
    paintMemory(step, written)
    canvas.setAttribute(
      "aria-label",
      `The matrix A, ${H} by ${H}, ${written ? "after" : "before"} this step is written`,
    )
    label.textContent = `A: ${H} × ${H} numbers`
    const shown = S === 0 ? 1 : phase === 0 ? 1 : Math.min(phase, S) + 1
    const found = hidden.map((h, s) => [`h${subscript(s)}`, s < shown ? h : null])
    const asking = Math.min(Math.max(phase - 1, 0), S - 1)
    if (S > 0)
      found.splice(asking + 1, 0, [
        `A h${subscript(asking)}`,
        phase > 0 ? times(step.before, hidden[asking]) : null,
      ])
    rows(states, found, loudest.hidden, palette(stage, "fast-weights"))
  }

  function paintMemory({ before, after, h }, written) {
    const A = after.map((value, i) => written * value + (1 - written) * before[i])
    paint(cards["fast-weights"].canvas, A, h.length, h.length, loudest.A, palette(stage, "fast-weights"))
  }

  function drawSlow({ h, c }, t) {
    const { canvas, states, label } = cards.lstm
    const colours = palette(stage, "lstm")
    const all = runs.lstm
    const values = new Float64Array(c.length * all.length)
    for (let time = 0; time <= t; time++)
      all[time].c.forEach((each, unit) => (values[unit * all.length + time] = each))
    paint(canvas, values, c.length, all.length, loudest.c, colours)
    canvas.setAttribute("aria-label", `The LSTM's cell c after each of ${t + 1} characters`)
    label.textContent = "c after each character"
    rows(
      states,
      [
        ["c", c],
        ["h", h],
      ],
      loudest.c,
      colours,
    )
  }

  function highlight(terms) {
    for (const term of equation.querySelectorAll("[data-term]"))
      term.classList.toggle("on", terms.includes(term.dataset.term))
  }

  function count() {
    const mine = ++counting
    const wrong = { "fast-weights": Array(100), lstm: Array(100) }
    for (const model of Object.keys(wrong)) cards[model].hundred.show(wrong[model])
    let n = 0
    const slice = () => {
      if (mine !== counting) return
      for (const stop = Math.min(100, n + SLICE); n < stop; n++) {
        const { answer } = parse(hundred[n])
        wrong["fast-weights"][n] = argmax(nets["fast-weights"].logits(hundred[n], changes)) !== answer
        wrong.lstm[n] = argmax(nets.lstm.logits(hundred[n])) !== answer
      }
      for (const model of Object.keys(wrong)) cards[model].hundred.show(wrong[model])
      if (n < 100) setTimeout(slice)
    }
    setTimeout(slice)
  }
}

const two = (value) => value.toFixed(2)
const questions = (random, count) => Array.from({ length: count }, () => sample(random))
const phasesOf = (runs) => (runs["fast-weights"][0]?.attention.length ?? 0) + 2 // input, inner steps, writing
const subscript = (digit) => String.fromCharCode(0x2080 + digit)
