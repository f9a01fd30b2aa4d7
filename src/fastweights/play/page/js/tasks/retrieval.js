// Associative retrieval, as in tasks/retrieval.py: after pairs of a letter and a digit, one of the letters is asked for.

const LETTERS = "abcdefghijklmnopqrstuvwxyz"
export const ALPHABET = [...LETTERS, ..."0123456789?"]
export const LONGEST = 2 * 10 + 3 // of strings that the page takes

/** What a string asks: { answer, place }, or { wrong } with what is wrong with it, and where (from, to). */
export function parse(string) {
  const at = (from, to, wrong) => ({ wrong, from, to })
  if (!string) return at(0, 0, "Type pairs of a letter and a digit, then ?? and a letter: c9k8??k")
  const strange = [...string].findIndex((each) => !ALPHABET.includes(each))
  if (strange >= 0) return at(strange, strange + 1, `“${string[strange]}” is not one of a–z, 0–9 and ?`)
  if (string.length > LONGEST) return at(LONGEST, string.length, "At most ten pairs fit here")
  const question = string.indexOf("?")
  const shown = question < 0 ? string : string.slice(0, question)
  for (let i = 0; i < shown.length; i++) {
    const letter = LETTERS.includes(shown[i])
    if (i % 2 === 0 && !letter) return at(i, i + 1, `A letter belongs here, not “${shown[i]}”`)
    if (i % 2 === 1 && letter)
      return at(i, i + 1, `A digit belongs behind “${shown[i - 1]}”, not “${shown[i]}”`)
    if (i % 2 === 0 && shown.indexOf(shown[i]) < i) return at(i, i + 1, `“${shown[i]}” has a digit already`)
  }
  if (shown.length % 2) return at(shown.length - 1, shown.length, `“${shown.at(-1)}” has no digit yet`)
  if (!shown) return at(0, 1, "Begin with a letter and its digit")
  const rest = string.slice(shown.length)
  const query = rest.replace(/^\?{2}/, "")
  if (!rest.startsWith("??")) return at(shown.length, string.length, "Now two question marks")
  if (!query)
    return at(
      string.length,
      string.length,
      `Now the letter to ask for: ${[...shown].filter((_, i) => i % 2 === 0).join(", ")}`,
    )
  if (query.length > 1) return at(shown.length + 2, string.length, "One letter alone is asked for")
  const place = shown.indexOf(query)
  if (place < 0 || place % 2)
    return at(string.length - 1, string.length, `“${query}” has no digit in this string`)
  return { answer: Number(shown[place + 1]), place: place / 2 }
}

/** A random string: letters without replacement, digits with. */
export function sample(random = Math.random, pairs = 4) {
  const left = [...LETTERS]
  const letters = Array.from({ length: pairs }, () => left.splice(Math.floor(random() * left.length), 1)[0])
  const shown = letters.map((letter) => letter + Math.floor(random() * 10)).join("")
  return `${shown}??${letters[Math.floor(random() * pairs)]}`
}
