"""Intervals, and tests of whether two models differ or are alike.

What is random here has a fixed seed: the same values give the same numbers. Everything that is returned goes to JSON as
it is, by `_asdict()`.

Which test for what: values of several seeds, `permutation` and `equivalent`; two nets on the same test items,
`mcnemar`; the same where people have several items each, `by_person`; several of these at once, `holm`.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, permutations
from typing import Any, Literal, NamedTuple

import numpy
import scipy  # which loads scipy.stats, a second's work, when it is first used
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 9_999
RESAMPLED_CURVES = 1_999
FEWEST_FOR_BCA = 10
MOST = 200_000  # arrangements that are enumerated: more than the 184,756 of ten values against ten
Floats = NDArray[numpy.float64]


class Estimate(NamedTuple):
    """What was estimated or tested.

    Args:
        estimate: the mean, the difference, the correlation.
        low, high: its interval; None where there is none.
        p: two-sided, unless `method` says something else; None where nothing was tested.
        n: how many values, of each side.
        method: how interval and p were computed.
    """

    estimate: float
    low: float | None
    high: float | None
    p: float | None
    n: tuple[int, ...]
    method: str


class Band(NamedTuple):
    """A curve with an interval at each of its points."""

    centre: list[float]
    low: list[float]
    high: list[float]
    n: int
    method: str


def interval(values: Sequence[float], level: float = 0.95) -> Estimate | None:
    """The bootstrap interval of the mean; None of one value alone.

    It is BCa (Efron 1987) of ten values or more, the percentile interval of fewer, where BCa hangs on the last bit, and
    of values that BCa is not defined for. A bootstrap of few values is too narrow: of normally distributed ones, an
    interval of 95 % has the true mean in it in 75 of 100 cases where there are three, in 84 where there are five and in
    90 where there are ten; of skewed ones in fewer. What rests on it needs a test.

    >>> found = interval([1.0, 2.0, 4.0, 5.0])
    >>> found.estimate, round(found.low, 2), round(found.high, 2), found.n
    (3.0, 1.5, 4.5, (4,))
    >>> interval([1.0])
    """
    sample = _sample("values", values)
    level = _share("level", level)
    if len(sample) == 1:
        return None
    low, high, kind = _bootstrap((sample,), lambda x, axis: x.mean(axis=axis), level)
    return Estimate(float(sample.mean()), low, high, None, (len(sample),), f"{_percent(level)} {kind} bootstrap")


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter of the values, rounded down, is left out on each side.

    >>> interquartile_mean([0.0, 2.0, 4.0, 6.0, 100.0])
    4.0
    """
    return float(scipy.stats.trim_mean(_sample("values", values), 0.25))


def band(runs: Sequence[Sequence[float]], level: float = 0.95, *, interquartile: bool = True) -> Band:
    """The interquartile mean (or the mean) of curves at each point, with its percentile bootstrap interval over runs.

    Args:
        runs: one curve for each seed, all of the same length.

    >>> found = band([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    >>> found.centre, found.low, found.high
    ([2.0, 1.0], [0.0, 1.0], [4.0, 1.0])
    """
    if len({len(run) for run in runs}) != 1:
        raise ValueError(f"runs must be curves of the same length, these have {[len(run) for run in runs]} points")
    sample = numpy.stack([_sample("runs", run) for run in runs])
    tail = (1 - _share("level", level)) / 2

    def centre(x: Floats) -> Floats:
        return numpy.asarray(scipy.stats.trim_mean(x, 0.25 if interquartile else 0.0, axis=0))

    drawn = numpy.random.default_rng(0).integers(len(runs), size=(RESAMPLED_CURVES, len(runs)))
    low, high = numpy.quantile(centre(sample[drawn].swapaxes(0, 1)), [tail, 1 - tail], axis=0)
    name = "interquartile mean" if interquartile else "mean"
    method = f"{name}, {_percent(level)} percentile bootstrap"
    return Band(centre(sample).tolist(), low.tolist(), high.tolist(), len(runs), method)


def permutation(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Estimate:
    """Is the mean of `a` another than that of `b`? A two-sided permutation test, with the bootstrap interval of a - b.

    p is the share of all ways to deal the values to the two sides that have at least this difference: exact, with no
    assumption but that under the null hypothesis both sides come from one distribution. Three against three cannot
    come below 0.1, five against five below 0.0079. Where there are more than `MOST` ways, `RESAMPLES` random ones are
    drawn.

    >>> permutation([1.0, 2.0, 3.0], [7.0, 8.0, 9.0]).p
    0.1
    >>> permutation([1.0] * 5, [2.0] * 5).p == 2 / 252
    True
    """
    left, right = _sample("a", a), _sample("b", b)
    differences, observed, exact = _dealt(left, right)
    p = _share_of(numpy.abs(differences) >= abs(observed) - _tolerance(left, right), exact)
    low, high, kind = _interval_of_difference(left, right, level)
    method = f"{_kind(exact)} permutation test of the difference of means; {_percent(level)} {kind} bootstrap"
    return Estimate(observed, low, high, p, (len(left), len(right)), method)


def equivalent(a: Sequence[float], b: Sequence[float], margin: float) -> Estimate:
    """Is the mean of `a` within `margin` of that of `b`? Two one-sided permutation tests; p is the larger of the two.

    This is the usual equivalence test (TOST; Schuirmann 1987) with permutation tests in place of t tests: `a` is moved
    by the margin, up and then down, and each time the test asks whether it is still not on the other side of `b`. A
    small p means that they are alike; a test of the difference whose p is large does not. The interval is the
    bootstrap's at 90 %, which belongs to two one-sided tests at 5 %. To call two models similar, both are needed,
    p < 0.05 and the interval inside the margin: a bootstrap of few values is too narrow, and the permutations assume
    that both sides have the same spread.

    >>> found = equivalent([1.0, 1.1, 1.2, 1.3, 1.4], [1.0, 1.1, 1.2, 1.3, 1.5], margin=1.0)
    >>> round(found.p, 4), found.n
    (0.004, (5, 5))
    """
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin must be above 0, not {margin}")
    left, right = _sample("a", a), _sample("b", b)
    sides = []
    for shift in (margin, -margin):  # is a + margin above b; is a - margin below it
        differences, observed, exact = _dealt(left + shift, right)
        sign = math.copysign(1, shift)
        reached = sign * differences >= sign * observed - _tolerance(left + shift, right)
        sides.append(_share_of(reached, exact))
    low, high, kind = _interval_of_difference(left, right, 0.9)
    method = f"two one-sided {_kind(exact)} permutation tests with a margin of {margin:g}; 90 % {kind} bootstrap"
    return Estimate(float(left.mean() - right.mean()), low, high, max(sides), (len(left), len(right)), method)


def mcnemar(right_a: ArrayLike, right_b: ArrayLike) -> Estimate:
    """Do two nets differ on the same test items? McNemar's test, exact: of the items on which one alone is right, is it
    each of them equally often?

    The estimate is the difference of their accuracies, with the Clopper-Pearson interval of 95 % given the number
    of such items. It says nothing of other seeds.

    Args:
        right_a, right_b: for each item, whether it was right.

    >>> found = mcnemar([True] * 8 + [False] * 2, [True] * 2 + [False] * 8)
    >>> found.estimate, found.p
    (0.6, 0.03125)
    """
    a, b = _right("right_a", right_a), _right("right_b", right_b)
    _same_length("right_a", a, "right_b", b)
    for name, side in (("right_a", a), ("right_b", b)):
        if not numpy.isin(side, (0, 1)).all():
            raise ValueError(f"{name} must be 0 (wrong) or 1 (right) for each item: this test is of one net")
    alone, other = int((a > b).sum()), int((b > a).sum())
    differ, n = alone + other, len(a)
    method = "exact McNemar's test; 95 % Clopper-Pearson"
    if not differ:
        return Estimate(0.0, 0.0, 0.0, 1.0, (n,), method)
    test = scipy.stats.binomtest(alone, differ)
    bounds = test.proportion_ci(0.95, method="exact")
    low, high = (float(2 * bound - 1) * differ / n for bound in (bounds.low, bounds.high))
    return Estimate((alone - other) / n, low, high, float(test.pvalue), (n,), method)


def by_person(correct_a: ArrayLike, correct_b: ArrayLike, person: Sequence[object]) -> Estimate:
    """Do two models differ on items of people, of whom each has several? What is drawn are people, not items.

    The estimate is the difference of accuracies, with the percentile interval of 95 % of a bootstrap over people. For
    p the two models are swapped, or not, for each person: p is the share of swaps with at least this difference, of all
    of them, or with many people of random ones.

    Args:
        correct_a, correct_b: for each item, whether it was right, or how often over several seeds, from 0 to 1.
        person: whose item it is.

    >>> found = by_person([1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1], ["Ada", "Ada", "Bo", "Bo", "Cy", "Cy"])
    >>> found.estimate, found.p, found.n
    (0.5, 0.25, (6, 3))
    """
    a, b = _right("correct_a", correct_a), _right("correct_b", correct_b)
    _same_length("correct_a", a, "correct_b", b)
    _same_length("correct_a", a, "person", person)
    places: dict[object, int] = {}
    whose = numpy.array([places.setdefault(name, len(places)) for name in person])
    people = len(places)
    if people == 1:
        raise ValueError("person must name at least two people, this is one")
    gains = numpy.bincount(whose, a - b)
    items = numpy.bincount(whose)
    observed = float(gains.sum() / items.sum())
    generator = numpy.random.default_rng(0)
    drawn = generator.integers(people, size=(RESAMPLES, people))
    low, high = numpy.quantile(gains[drawn].sum(1) / items[drawn].sum(1), [0.025, 0.975])
    exact = 2**people <= MOST
    if exact:
        swaps = 1 - 2 * ((numpy.arange(2**people)[:, None] >> numpy.arange(people)) & 1)
    else:
        swaps = generator.choice([-1, 1], size=(RESAMPLES, people))
    differences = numpy.abs(swaps @ gains) / len(a)
    p = _share_of(differences >= abs(observed) - 1e-9, exact)
    method = f"{_kind(exact)} swaps of the models for each person; 95 % percentile bootstrap over people"
    return Estimate(observed, float(low), float(high), p, (len(a), people), method)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p of several comparisons, adjusted so that all of them together are wrong once in twenty at 0.05 (Holm 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        p = p_values[place]
        if not 0 <= p <= 1:
            raise ValueError(f"p_values must be from 0 to 1, not {p}")
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[place] = largest
    return adjusted


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Spearman's: does what is better by `a` come out better by `b`? Equal values share the mean of their ranks.

    None where all values of one side are the same: they have no order. p by all orders of up to eight values, and by
    random ones of more.

    >>> rank_correlation([0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 4.0, 3.0]).estimate
    0.8
    >>> rank_correlation([0.1, 0.2], [1.0, 1.0])
    """
    left, right = _sample("a", a), _sample("b", b)
    _same_length("a", left, "b", right)
    x, y = (scipy.stats.rankdata(side) - (len(side) + 1) / 2 for side in (left, right))
    length = math.sqrt(float(x @ x) * float(y @ y))
    if not length:
        return None
    exact = math.factorial(len(x)) <= MOST
    if exact:
        orders = numpy.array(list(permutations(range(len(x)))))
    else:
        orders = numpy.random.default_rng(0).permuted(numpy.tile(numpy.arange(len(x)), (RESAMPLES, 1)), axis=1)
    observed = float(x @ y)
    p = _share_of(numpy.abs(y[orders] @ x) >= abs(observed) - 1e-9, exact)
    method = f"Spearman's rank correlation, {_kind(exact)} permutation test"
    return Estimate(round(observed / length, 12), None, None, p, (len(x),), method)


def _sample(name: str, values: ArrayLike) -> Floats:
    """As an array; an error where there is nothing, or something that is not a finite number."""
    sample = numpy.asarray(values, dtype=numpy.float64)
    if sample.ndim != 1 or not sample.size:
        raise ValueError(f"{name} must be one or more numbers in a row, not of shape {sample.shape}")
    if not numpy.isfinite(sample).all():
        raise ValueError(f"{name} must be finite, this has {sample[~numpy.isfinite(sample)][0]}")
    return sample


def _right(name: str, values: ArrayLike) -> Floats:
    sample = _sample(name, values)
    if sample.min() < 0 or sample.max() > 1:
        raise ValueError(f"{name} must be from 0 (wrong) to 1 (right), this has {sample.min():g} to {sample.max():g}")
    return sample


def _same_length(name: str, one: Sequence[object] | Floats, other: str, two: Sequence[object] | Floats) -> None:
    if len(one) != len(two):
        raise ValueError(f"{name} and {other} must be as long as each other, these are {len(one)} and {len(two)}")


def _share(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value}")
    return value


def _percent(level: float) -> str:
    return f"{100 * level:g} %"


def _kind(exact: bool) -> str:
    return "exact" if exact else f"{RESAMPLES:,} random"


def _share_of(reached: NDArray[numpy.bool_], exact: bool) -> float:
    """p; what was observed is one of all ways, and is added to random ones, so that p is never 0."""
    return float(reached.mean() if exact else (reached.sum() + 1) / (len(reached) + 1))


def _tolerance(left: Floats, right: Floats) -> float:
    """Within which two sums of the same numbers in another order are the same."""
    return 1e-12 * float(max(numpy.abs(left).max(), numpy.abs(right).max()))


@cache
def _ways(n: int, chosen: int) -> tuple[NDArray[numpy.intp], bool]:
    """The places that go to the first side, for every way to deal n values; whether these are all ways."""
    if math.comb(n, chosen) <= MOST:
        return numpy.array(list(combinations(range(n), chosen))), True
    every = numpy.tile(numpy.arange(n), (RESAMPLES, 1))
    return numpy.random.default_rng(0).permuted(every, axis=1)[:, :chosen], False


def _dealt(left: Floats, right: Floats) -> tuple[Floats, float, bool]:
    """The difference of means for every way to deal the values, the observed one, and whether these are all ways."""
    pool = numpy.concatenate([left, right])
    ways, exact = _ways(len(pool), len(left))
    sums = pool[ways].sum(1)
    differences = sums / len(left) - (pool.sum() - sums) / len(right)
    return differences, float(left.mean() - right.mean()), exact


def _interval_of_difference(left: Floats, right: Floats, level: float) -> tuple[float | None, float | None, str]:
    """Of left less right; there is none of one value on a side."""
    if min(len(left), len(right)) == 1:
        return None, None, "no"
    return _bootstrap((left, right), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), _share("level", level))


def _bootstrap(samples: tuple[Floats, ...], statistic: Callable[..., Any], level: float) -> tuple[float, float, str]:
    """The interval, and which: BCa or, of few values and where that is not defined, the percentiles."""
    methods: list[Literal["BCa", "percentile"]] = ["BCa", "percentile"]
    for method in methods[min(map(len, samples)) < FEWEST_FOR_BCA :]:
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of data that BCa is not defined for
            found = scipy.stats.bootstrap(
                samples,
                statistic,
                n_resamples=RESAMPLES,
                confidence_level=level,
                method=method,
                vectorized=True,
                rng=numpy.random.default_rng(0),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            break
    return float(found.low), float(found.high), method
