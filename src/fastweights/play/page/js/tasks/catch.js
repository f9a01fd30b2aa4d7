// Catch, as in tasks/catch.py: a ball falls, a paddle must be under it at the end, and soon all is black.

export const SIZE = 16
export const VISIBLE = 3

export class Game {
  constructor(ball, paddle) {
    this.ball = ball // its column
    this.paddle = paddle // the column of its left pixel
    this.frame = 1
  }

  static random(random = Math.random) {
    return new Game(Math.floor(random() * SIZE), Math.floor(random() * (SIZE - 1)))
  }

  get ended() {
    return this.frame === SIZE
  }

  get caught() {
    return this.ended && (this.ball === this.paddle || this.ball === this.paddle + 1)
  }

  get dark() {
    return this.frame > VISIBLE
  }

  /** Left (0), stay (1) or right (2). */
  step(action) {
    if (this.ended) throw new Error("the game is over")
    this.frame += 1
    this.paddle = Math.min(Math.max(this.paddle + action - 1, 0), SIZE - 2)
  }

  /** What a player sees: pixels, by rows; all 0 in the dark. */
  screen() {
    const pixels = new Float64Array(SIZE * SIZE)
    if (this.dark) return pixels
    pixels[(this.frame - 1) * SIZE + this.ball] = 1
    pixels[(SIZE - 1) * SIZE + this.paddle] = 1
    pixels[(SIZE - 1) * SIZE + this.paddle + 1] = 1
    return pixels
  }
}
