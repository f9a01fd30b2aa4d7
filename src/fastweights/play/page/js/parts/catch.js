// Part 4: the blind game, for you and for three agents; which frames the memory attends to.
import { argmax, loadNet, softmax } from "../nets.js"
import { Game, SIZE, VISIBLE } from "../tasks/catch.js"
import { Clock } from "../view/clock.js"
import { button, el, onLook, percent } from "../view/dom.js"

const AGENTS = [
  ["fast-weights", "Fast weights", "catch-16-3"],
  ["lstm", "LSTM", "catch-16-3-lstm"],
  ["irnn", "ReLU RNN", "catch-16-3-irnn"],
]
const MOVES = ["left", "stay", "right"]
const DOES = ["goes left", "stays", "goes right"]
const KEYS = { ArrowLeft: 0, ArrowDown: 1, " ": 1, ArrowRight: 2 }

export async function catchGame(stage, equation) {
  const nets = await Promise.all(AGENTS.map(([, , name]) => loadNet(name)))
  const score = Object.fromEntries(
    ["you", ...AGENTS.map(([model]) => model)].map((player) => [player, { caught: 0, games: 0 }]),
  )
  let game // yours
  let start // where ball and paddle of this game began
  let played // what each agent did in it: a list of frames
  let counted

  const yours = board("you", "You")
  yours.canvas.tabIndex = 0
  yours.canvas.setAttribute(
    "aria-label",
    "Your screen: left and right arrows move the paddle, down or space waits",
  )
  const theirs = AGENTS.map(([model, name]) => board(model, name))
  const message = el("p", { class: "caption", "aria-live": "assertive" })
  const strip = el("div", { class: "attended", role: "img" })
  const moves = MOVES.map((name, action) =>
    button(["←", "stay", "→"][action], () => move(action), { "aria-label": name }),
  )
  const clock = new Clock({ label: "Frame of the agents", rate: 3, onMove: show })
  const watch = button("Let them play it", () => agentsPlay())

  yours.element.append(el("div", { class: "row moves" }, moves))
  theirs[0].element.append(el("p", { class: "quiet" }, "its memory attends to frame"), strip)
  stage.replaceChildren(
    el(
      "div",
      { class: "row" },
      button("New game", () => begin(), { class: "main" }),
      watch,
      message,
    ),
    el(
      "div",
      { class: "boards" },
      yours.element,
      theirs.map(({ element }) => element),
    ),
    el(
      "div",
      { class: "row" },
      clock.element,
      el("span", { class: "quiet" }, "In the dark you see ball and paddle of the agents; they do not."),
    ),
  )
  yours.canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && game.ended) begin()
    else if (event.key in KEYS) move(KEYS[event.key])
    else return
    event.preventDefault()
  })
  onLook(redraw)
  begin(new Game(3, 10))

  function board(model, name) {
    const canvas = el("canvas", { class: "cells screen", width: SIZE, height: SIZE, role: "img" })
    const tally = el("span", { class: "tally" }, "–")
    const policy = el("div", { class: "policy quiet" })
    const element = el(
      "article",
      { class: "card", "data-model": model },
      el("h3", {}, el("span", { class: "swatch" }), name, tally),
      canvas,
      policy,
    )
    return { element, canvas, tally, policy }
  }

  function begin(chosen = Game.random()) {
    game = chosen
    start = [game.ball, game.paddle]
    played = nets.map((net) => playOut(net, new Game(...start)))
    counted = false
    clock.of(SIZE, 0)
    say(`Frame 1 of ${SIZE}. Remember where the ball is.`)
    redraw()
    if (document.activeElement?.closest?.("#catch-stage")) yours.canvas.focus({ preventScroll: true })
  }

  function move(action) {
    if (game.ended) return
    game.step(action)
    if (game.ended) {
      tally("you", game.caught)
      say(
        game.caught
          ? "Caught! Now watch them play the same game."
          : "Missed. Now watch them play the same game.",
      )
      agentsPlay()
    } else
      say(
        `Frame ${game.frame} of ${SIZE}.${game.dark ? " It is dark: the ball falls on, straight down." : ""}`,
      )
    redraw()
  }

  function agentsPlay() {
    clock.position = 0
    clock.play()
  }

  function tally(player, caught) {
    score[player].games += 1
    score[player].caught += caught
    const { tally: text } = player === "you" ? yours : theirs[AGENTS.findIndex(([model]) => model === player)]
    text.textContent = `${score[player].caught} of ${score[player].games} caught`
  }

  function say(text) {
    message.textContent = text
  }

  function redraw() {
    paintScreen(yours.canvas, game.ball, game.paddle, game.frame, game.ended ? 1 : game.dark ? 0 : 1)
    yours.policy.textContent = game.ended
      ? game.caught
        ? "caught"
        : "missed"
      : game.dark
        ? "dark"
        : "you see"
    clock.move(clock.position)
  }

  function show(position) {
    played.forEach((frames, n) => {
      const { ball, paddle, frame, logits, ended, caught, action } = frames[position]
      const { canvas, policy } = theirs[n]
      paintScreen(canvas, ball, paddle, frame, frame > VISIBLE && !ended ? 0.45 : 1)
      canvas.setAttribute(
        "aria-label",
        `${AGENTS[n][1]}, frame ${frame}: ball in column ${ball + 1}, paddle in ${paddle + 1}`,
      )
      policy.textContent = ended
        ? caught
          ? "caught"
          : "missed"
        : `${frame > VISIBLE ? "dark" : "it sees"}, ${DOES[action]} (${percent(softmax(logits)[action])})`
    })
    attended(position)
    if (position === SIZE - 1 && !counted) {
      counted = true
      AGENTS.forEach(([model], n) => tally(model, played[n][position].caught))
    }
  }

  function attended(position) {
    const attention = played[0][position].attention?.at(-1) ?? []
    const most = Math.max(...attention, 1e-9)
    if (!strip.children.length)
      strip.append(
        ...Array.from({ length: SIZE - 1 }, (_, frame) =>
          el("div", { class: frame < VISIBLE ? "lit" : "" }, el("span"), String(frame + 1)),
        ),
      )
    Array.from(strip.children).forEach((each, frame) => {
      each.firstChild.style.height = `${(100 * Math.max(0, attention[frame] ?? 0)) / most}%`
      each.classList.toggle("now", frame === position)
    })
    const total = attention.reduce((sum, each) => sum + Math.max(0, each), 0)
    const best = attention.length ? argmax(attention) : -1
    strip.setAttribute(
      "aria-label",
      total > 1e-9 ? `Mostly frame ${best + 1}, ${percent(attention[best] / total)}` : "Nothing yet",
    )
    for (const term of equation.querySelectorAll("[data-term]")) term.classList.toggle("on", total > 1e-9)
  }
}

/** All frames of a game that an agent plays, always doing what it thinks best. */
function playOut(agent, game) {
  agent.start()
  const frames = []
  for (;;) {
    const { ball, paddle, frame, ended, caught } = game
    if (ended) return [...frames, { ball, paddle, frame, ended, caught }]
    const { logits, attention } = agent.step(game.screen())
    const action = argmax(logits)
    frames.push({ ball, paddle, frame, logits, attention, action })
    game.step(action)
  }
}

const [BALL, PADDLE, LIGHT, DARK] = [
  [255, 204, 51],
  [84, 168, 255],
  [36, 36, 48],
  [8, 8, 10],
]

/** The screen; `visible`: how much of ball and paddle is to be seen. */
function paintScreen(canvas, ball, paddle, frame, visible) {
  const context = canvas.getContext("2d")
  const image = context.createImageData(SIZE, SIZE)
  const ground = visible === 1 ? LIGHT : DARK
  for (let at = 0; at < SIZE * SIZE; at++) {
    const [row, column] = [Math.floor(at / SIZE), at % SIZE]
    const inPaddle = row === SIZE - 1 && (column === paddle || column === paddle + 1)
    const colour = row === frame - 1 && column === ball ? BALL : inPaddle ? PADDLE : ground
    for (let part = 0; part < 3; part++)
      image.data[4 * at + part] = ground[part] + visible * (colour[part] - ground[part])
    image.data[4 * at + 3] = 255
  }
  context.putImageData(image, 0, 0)
}
