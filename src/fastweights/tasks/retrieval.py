"""Associative retrieval: after K letter-digit pairs, one of the letters is asked for. `c9k8j3f1??c` → `9`.

Letters are drawn without replacement, digits with: the same digit may stand behind several letters.
"""

from fractions import Fraction
from math import factorial
from string import ascii_lowercase, digits

import torch
from torch import Tensor

ALPHABET = ascii_lowercase + digits + "?"
_FIRST_DIGIT, _SEPARATOR = len(ascii_lowercase), len(ALPHABET) - 1


def sample(count: int, pairs: int = 4, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Random strings as tokens (count, 2·pairs + 3), and the digits asked for (count,).

    >>> tokens, answers = sample(3, generator=torch.Generator().manual_seed(0))
    >>> decode(tokens[0]), int(answers[0])
    ('m1c0d2s9??s', 9)
    """
    if not 1 <= pairs <= len(ascii_lowercase):
        raise ValueError(f"pairs must be from 1 to {len(ascii_lowercase)}, one letter each; got {pairs}")
    letters = torch.rand(count, len(ascii_lowercase), generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(len(digits), (count, pairs), generator=generator)
    asked = torch.randint(pairs, (count, 1), generator=generator)
    shown = torch.stack((letters, values + _FIRST_DIGIT), 2).flatten(1)
    separator = torch.full((count, 2), _SEPARATOR)
    tokens = torch.cat((shown, separator, letters.gather(1, asked)), 1)
    return tokens, values.gather(1, asked).squeeze(1)


def encode(string: str) -> Tensor:
    """A string as tokens (len,)."""
    strange = sorted(set(string) - set(ALPHABET))
    if strange:
        raise ValueError(f"string must be of a-z, 0-9 and ?, got {', '.join(map(repr, strange))} in {string!r}")
    return torch.tensor([ALPHABET.index(character) for character in string])


def decode(tokens: Tensor) -> str:
    """Tokens (len,) as a string."""
    return "".join(ALPHABET[token] for token in tokens.tolist())


def floor_error(pairs: int = 4) -> Fraction:
    """The error of a model that knows which digits occurred, not where, and answers the commonest: no retrieval at all.

    It is right max_d(count of d) / pairs of the time. With n = 10 digits, P(max ≤ m) is pairs!/n^pairs times the
    coefficient of x^pairs in (Σ_{j≤m} x^j/j!)^n.

    >>> float(floor_error(4))
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
