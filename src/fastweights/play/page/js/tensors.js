// A net's file: safetensors, with facts about the net as JSON in its header and a SHA-256 of all of it.

/** A file that cannot be read for what it should be; the message says which, and why. */
export class BadFile extends Error {}

/** The tensors, by name, as Float32Array, and the facts. */
export async function readTensors(content, name) {
  const bytes = new Uint8Array(content)
  if (bytes.length < 8) throw new BadFile(`${name} is cut off: it has ${bytes.length} bytes`)
  const length = Number(new DataView(content).getBigUint64(0, true))
  const start = 8 + length
  if (start > bytes.length) throw new BadFile(`${name} is cut off, or no safetensors file`)
  const header = parsed(new TextDecoder().decode(bytes.subarray(8, start)), name)
  const facts = parsed(header.__metadata__?.facts ?? "", name)
  const end = Math.max(...Object.values(header).map(({ data_offsets }) => data_offsets?.[1] ?? 0))
  if (start + end > bytes.length)
    throw new BadFile(`${name} is cut off: it has ${bytes.length} of ${start + end} bytes`)
  await check(bytes, facts.sha256, name)
  const tensors = {}
  for (const [key, { dtype, data_offsets }] of Object.entries(header)) {
    if (key === "__metadata__") continue
    const [from, to] = data_offsets
    tensors[key] = asFloats(content.slice(start + from, start + to), dtype, `${name}: ${key}`)
  }
  return { tensors, facts }
}

function parsed(text, name) {
  try {
    return JSON.parse(text)
  } catch {
    throw new BadFile(`${name} is damaged, or no net of this page: its header is not JSON`)
  }
}

function asFloats(buffer, dtype, name) {
  if (dtype === "F32") return new Float32Array(buffer)
  if (dtype === "F16") return Float32Array.from(new Uint16Array(buffer), fromHalf)
  throw new BadFile(`${name} is of type ${dtype}, not F16 or F32`)
}

/** The number that 16 bits of IEEE half precision mean. */
export function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >> 10) & 31
  const fraction = bits & 1023
  if (exponent === 0) return sign * fraction * 2 ** -24
  if (exponent === 31) return fraction ? NaN : sign * Infinity
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15)
}

/** The checksum was computed with zeros in its own place. Browsers have SHA-256 on secure pages (loopback is one). */
async function check(bytes, sha256, name) {
  if (!/^[0-9a-f]{64}$/.test(sha256 ?? "")) throw new BadFile(`${name} has no checksum`)
  if (!globalThis.crypto?.subtle) return
  const digits = new TextEncoder().encode(sha256)
  const copy = bytes.slice()
  const place = copy.findLastIndex((_, i) => digits.every((digit, n) => copy[i + n] === digit))
  copy.fill("0".charCodeAt(0), place, place + digits.length)
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", copy))
  const hex = Array.from(found, (byte) => byte.toString(16).padStart(2, "0")).join("")
  if (hex !== sha256) throw new BadFile(`${name} is damaged: it is not what its checksum says`)
}
