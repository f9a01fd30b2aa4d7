// The page: its parts, each started when its turn comes, and what they have in common.
import { ask } from "./parts/ask.js"
import { capacity } from "./parts/capacity.js"
import { catchGame } from "./parts/catch.js"
import { draw } from "./parts/draw.js"
import { speed } from "./parts/speed.js"

const PARTS = { ask, capacity, draw, catch: catchGame, speed }

const theme = document.getElementById("theme")
const dark = matchMedia("(prefers-color-scheme: dark)")
const looks = () => dispatchEvent(new Event("look"))

function paintTheme(name) {
  document.documentElement.dataset.theme = name
  theme.textContent = name === "dark" ? "☀" : "☾"
  theme.setAttribute("aria-label", name === "dark" ? "Light ground" : "Dark ground")
  looks()
}
let resized
addEventListener("resize", () => {
  clearTimeout(resized)
  resized = setTimeout(looks, 150)
})
paintTheme(dark.matches ? "dark" : "light")
dark.addEventListener("change", () => paintTheme(dark.matches ? "dark" : "light"))
theme.addEventListener("click", () =>
  paintTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
)

const links = [...document.querySelectorAll("nav.parts a")]
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries)
      if (isIntersecting)
        for (const link of links) link.toggleAttribute("aria-current", link.hash === `#${target.id}`)
  },
  { rootMargin: "-45% 0px -50% 0px" },
)

for (const [name, start] of Object.entries(PARTS)) {
  const section = document.getElementById(name)
  seen.observe(section)
  const stage = document.getElementById(`${name}-stage`)
  // One after the other: the first part is not to wait for the nets of the others.
  try {
    await start(stage, document.getElementById(`${name}-equation`))
  } catch (error) {
    console.error(error)
    const problem = document.createElement("p")
    problem.className = "problem"
    problem.setAttribute("role", "alert")
    problem.textContent = `This part does not work: ${error.message}`
    stage.replaceChildren(problem)
  }
  section.dataset.ready = ""
}
document.documentElement.dataset.ready = ""
