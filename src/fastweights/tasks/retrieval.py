"""Associative retrieval: after K letter-digit pairs, one of the letters is asked for. `c9k8j3f1??c` → `9`.

Letters are drawn without replacement, digits with: the same digit may stand behind several letters.
"""

from fractions import Fraction
from math import comb, factorial, log
from string import ascii_lowercase, digits
from typing import NamedTuple

import torch
from torch import Tensor

ALPHABET = ascii_lowercase + digits + "?"
ANSWERS, MOST_PAIRS = len(digits), len(ascii_lowercase)
SIZES = {"train": 100_000, "validation": 10_000, "test": 20_000}
_SEEDS = {"train": 2016, "validation": 1610, "test": 6258}  # each set has a generator of its own
_FIRST_DIGIT, _SEPARATOR = len(ascii_lowercase), len(ALPHABET) - 1


def split(name: str, count: int | None = None, *, pairs: int = 4, separators: int = 2) -> tuple[Tensor, Tensor]:
    """The first `count` strings (all: `SIZES`) of the training, validation or test set, as `sample` gives them.

    They are the same for everybody, always: a generator of its own, seeded, makes each set.

    >>> tokens, answers = split("test", 1)
    >>> decode(tokens[0]), int(answers[0])
    ('c7x8v1n5??v', 1)
    """
    if name not in SIZES:
        raise ValueError(f"name must be one of {', '.join(map(repr, SIZES))}; got {name!r}")
    if count is not None and not 1 <= count <= SIZES[name]:
        raise ValueError(f"count must be from 1 to {SIZES[name]}, the size of the {name} set; got {count}")
    generator = torch.Generator().manual_seed(_SEEDS[name])
    tokens, answers = sample(SIZES[name], pairs, separators=separators, generator=generator)
    return tokens[:count], answers[:count]


def sample(
    count: int, pairs: int = 4, *, separators: int = 2, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Random strings as tokens (count, 2·pairs + separators + 1), and the digits asked for (count,).

    >>> tokens, answers = sample(3, generator=torch.Generator().manual_seed(0))
    >>> decode(tokens[0]), int(answers[0])
    ('m1c0d2s9??s', 9)
    """
    if not 1 <= pairs <= MOST_PAIRS:
        raise ValueError(f"pairs must be from 1 to {MOST_PAIRS}, one letter each; got {pairs}")
    if separators < 0:
        raise ValueError(f"separators must be at least 0, got {separators}")
    letters = torch.rand(count, len(ascii_lowercase), generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(len(digits), (count, pairs), generator=generator)
    asked = torch.randint(pairs, (count, 1), generator=generator)
    shown = torch.stack((letters, values + _FIRST_DIGIT), 2).flatten(1)
    separator = torch.full((count, separators), _SEPARATOR)
    tokens = torch.cat((shown, separator, letters.gather(1, asked)), 1)
    return tokens, values.gather(1, asked).squeeze(1)


def encode(string: str) -> Tensor:
    """A string as tokens (len,)."""
    if not isinstance(string, str):
        raise TypeError(f"string must be a str, got {type(string).__name__}")
    strange = sorted(set(string) - set(ALPHABET))
    if strange:
        raise ValueError(f"string must be of a-z, 0-9 and ?, got {', '.join(map(repr, strange))} in {string!r}")
    return torch.tensor([ALPHABET.index(character) for character in string])


def decode(tokens: Tensor) -> str:
    """Tokens (len,) as a string."""
    return "".join(ALPHABET[token] for token in tokens.tolist())


class Question(NamedTuple):
    """What a string asks: its tokens, the right answer, and which pair was asked for (from 0)."""

    tokens: Tensor
    answer: int
    place: int


def parse(string: str) -> Question:
    """A string of any number of pairs and question marks, checked.

    >>> parse("c9k8j3f1??c")[1:]
    (9, 0)
    """
    tokens = encode(string)
    shown = string.rstrip(ascii_lowercase).rstrip("?")
    letters, values, query = shown[0::2], shown[1::2], string[len(string.rstrip(ascii_lowercase)) :]
    fits = letters and letters.isalpha() and values.isdigit() and len(letters) == len(values) and len(query) == 1
    if not fits:
        raise ValueError(
            f"string must be pairs of a letter and a digit, ?? and a letter, as in c9k8j3f1??c; got {string!r}"
        )
    repeated = sorted({letter for letter in letters if letters.count(letter) > 1})
    if repeated:
        raise ValueError(
            f"string must have each letter once before the question, got {', '.join(repeated)} twice in {string!r}"
        )
    if query not in letters:
        raise ValueError(f"string must ask for one of its letters, {', '.join(letters)}; got {query} in {string!r}")
    place = letters.index(query)
    return Question(tokens, int(values[place]), place)


def places(tokens: Tensor, pairs: int) -> Tensor:
    """Which pair each string of tokens (count, T) asks for, from 0: (count,)."""
    return (tokens[:, : 2 * pairs : 2] == tokens[:, -1:]).int().argmax(1)


def error_by_place(tokens: Tensor, pairs: int, wrong: Tensor) -> list[float]:
    """The error among the strings that ask for the first pair, the second, …, where `wrong` (count,) is."""
    asked = places(tokens, pairs)
    return [wrong[asked == place].double().mean().item() for place in range(pairs)]


def baseline_error(pairs: int = 4) -> Fraction:
    """The error of a model that knows which digits occurred, not where, and answers the commonest: no retrieval at all.

    It is right max_d(count of d) / pairs of the time. With n = 10 digits, P(max ≤ m) is pairs!/n^pairs times the
    coefficient of x^pairs in (Σ_{j≤m} x^j/j!)^n.

    >>> float(baseline_error(4))
    0.6165
    """

    def probability_of_at_most(m: int) -> Fraction:
        series = [Fraction(1)] + [Fraction(0)] * pairs
        for _ in digits:
            series = [
                sum((series[total - j] / factorial(j) for j in range(min(m, total) + 1)), Fraction(0))
                for total in range(pairs + 1)
            ]
        return series[pairs] * Fraction(factorial(pairs), len(digits) ** pairs)

    expected_maximum = sum((1 - probability_of_at_most(m) for m in range(pairs)), Fraction(0))
    return 1 - expected_maximum / pairs


def baseline_loss(pairs: int = 4) -> float:
    """The loss, in nats, of a model that gives every digit the share of the pairs in which it occurred.

    A digit occurs in c ~ Binomial(pairs, 1/10) of them, and adds -c/pairs · log(c/pairs).

    >>> round(baseline_loss(4), 4)
    1.1868
    """
    chance = 1 / len(digits)
    expected = 0.0
    for count in range(1, pairs + 1):
        probability = comb(pairs, count) * chance**count * (1 - chance) ** (pairs - count)
        expected -= len(digits) * probability * count / pairs * log(count / pairs)
    return expected
