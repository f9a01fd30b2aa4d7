"""Intervals and tests are what the textbooks and scipy say, and what brute force finds."""

import json
import math
from itertools import combinations, product

import numpy
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from scipy import stats

from fastweights.report import statistics

numbers = some.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


def lists(least, most):
    return some.lists(numbers, min_size=least, max_size=most)


def brute_force(a, b):
    """The share of all ways to deal the values that have at least the observed difference of means."""
    pool, observed = [*a, *b], abs(sum(a) / len(a) - sum(b) / len(b))
    reached = []
    for chosen in combinations(range(len(pool)), len(a)):
        left = [pool[place] for place in chosen]
        right = [pool[place] for place in range(len(pool)) if place not in chosen]
        reached.append(abs(sum(left) / len(left) - sum(right) / len(right)) >= observed - 1e-9)
    return sum(reached) / len(reached)


class TestInterval:
    def test_it_is_scipys_bca(self):
        values = [1.2, 0.7, 3.1, 0.9, 1.5, 1.1, 0.8, 1.0, 1.9, 1.3]
        found = statistics.interval(values, 0.9)
        reference = stats.bootstrap(
            (values,), numpy.mean, confidence_level=0.9, n_resamples=9_999, rng=numpy.random.default_rng(0)
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
        assert found.method == "90 % BCa bootstrap"
        assert found.estimate == pytest.approx(numpy.mean(values))

    def test_it_is_the_same_each_time(self):
        assert statistics.interval([1, 2, 3, 5]) == statistics.interval([1, 2, 3, 5])

    def test_one_value_has_none(self):
        assert statistics.interval([1.0]) is None

    @pytest.mark.parametrize("values", [[2.0] * 12, [2.0] * 3])
    def test_equal_values_have_no_bca(self, values):
        found = statistics.interval(values)
        assert (found.low, found.high, found.method) == (2.0, 2.0, "95 % percentile bootstrap")

    def test_of_few_values_it_does_not_hang_on_the_last_bit(self):
        values = [0.0, 0.0, 1.938, 24.93]  # whose BCa interval ends at 19.2, or at 24.9 when 1000 is added to all
        found, moved = statistics.interval(values), statistics.interval([value + 1000 for value in values])
        assert (moved.low, moved.high) == pytest.approx((found.low + 1000, found.high + 1000))

    def test_it_covers_the_mean_about_as_often_as_it_says(self, monkeypatch):
        monkeypatch.setattr(statistics, "RESAMPLES", 499)
        generator, hits = numpy.random.default_rng(3), 0
        for _ in range(100):
            found = statistics.interval(generator.normal(size=40))
            hits += found.low <= 0 <= found.high
        assert 88 <= hits <= 100

    @settings(max_examples=20, deadline=None)
    @given(lists(2, 12))
    def test_it_lies_among_the_values(self, values):
        found = statistics.interval(values)
        assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9

    def test_a_higher_level_is_wider(self):
        values = [1.0, 2.0, 4.0, 8.0, 9.0]
        narrow, wide = statistics.interval(values, 0.5), statistics.interval(values, 0.99)
        assert wide.low < narrow.low < narrow.high < wide.high


class TestInterquartileMean:
    def test_a_quarter_is_left_out_on_each_side(self):
        assert statistics.interquartile_mean([-1000, 1, 2, 1000]) == 1.5
        assert statistics.interquartile_mean([9, 1, 2, 3, 4, 5, 6, 7, -50, 900]) == pytest.approx(4.5)  # of 2 to 7

    def test_of_three_none_is_left_out(self):
        assert statistics.interquartile_mean([0, 0, 9]) == 3


class TestBand:
    def test_each_point_is_that_of_its_values(self):
        runs = numpy.random.default_rng(0).normal(size=(8, 5)).tolist()
        found = statistics.band(runs)
        assert found.centre == pytest.approx(
            [statistics.interquartile_mean(point) for point in zip(*runs, strict=True)]
        )
        reference = stats.bootstrap(
            (runs,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="percentile", axis=0, rng=1
        ).confidence_interval
        assert found.low == pytest.approx(reference.low, abs=0.1)
        assert found.high == pytest.approx(reference.high, abs=0.1)
        assert found.method == "interquartile mean, 95 % percentile bootstrap"

    def test_an_outlier_moves_the_mean_alone(self):
        runs = [[0.0], [1.0], [2.0], [1000.0]]
        assert statistics.band(runs).centre == [1.5]
        assert statistics.band(runs, interquartile=False).centre == [250.75]

    def test_one_run_is_its_own_band(self):
        assert statistics.band([[1.0, 2.0]])[:3] == ([1, 2], [1, 2], [1, 2])

    def test_curves_of_different_lengths_are_refused(self):
        with pytest.raises(ValueError, match=r"runs must be curves of the same length.*\[1, 2\]"):
            statistics.band([[1.0], [1.0, 2.0]])


class TestPermutation:
    @settings(max_examples=40, deadline=None)
    @given(lists(1, 5), lists(1, 5))
    def test_it_is_brute_force(self, a, b):
        assert statistics.permutation(a, b).p == pytest.approx(brute_force(a, b))

    def test_it_is_scipys(self):
        a, b = [1.1, 0.7, 0.9, 1.6], [1.5, 1.4, 2.2, 1.0, 1.9]
        reference = stats.permutation_test(
            (a, b),
            lambda x, y, axis: abs(x.mean(axis) - y.mean(axis)),
            vectorized=True,
            alternative="greater",
            n_resamples=numpy.inf,
        )
        assert statistics.permutation(a, b).p == pytest.approx(reference.pvalue)

    def test_known_values(self):
        # Catch at (24, 5) with fast weights, three seeds of a search against five fresh ones: 1 of 56 ways.
        assert statistics.permutation([0.71, 0.68, 0.65], [0.36, 0.34, 0.50, 0.38, 0.42]).p == pytest.approx(1 / 56)
        assert statistics.permutation([1, 2, 3], [4, 5, 6]).p == pytest.approx(2 / 20)
        assert statistics.permutation(range(5), range(10, 15)).p == pytest.approx(2 / 252)

    def test_ten_against_ten_is_exact(self):
        found = statistics.permutation(range(10), range(10, 20))
        assert found.p == 2 / math.comb(20, 10)
        assert "exact" in found.method

    def test_with_more_the_ways_are_drawn(self):
        a, b = numpy.random.default_rng(2).normal(size=(2, 30)) + [[0.0], [0.5]]
        found = statistics.permutation(a, b)
        assert "9,999 random" in found.method
        assert found.p == pytest.approx(stats.ttest_ind(a, b).pvalue, abs=0.02)
        assert statistics.permutation(range(30), range(100, 130)).p == 1 / 10_000  # never 0

    @settings(max_examples=25, deadline=None)
    @given(lists(2, 5), lists(2, 5), some.floats(0.1, 10))
    def test_neither_order_nor_scale_nor_sides_matter(self, a, b, scale):
        found = statistics.permutation(a, b)
        assert statistics.permutation(a[::-1], b[::-1]).p == pytest.approx(found.p)
        other = statistics.permutation(b, a)
        assert (other.p, other.estimate) == pytest.approx((found.p, -found.estimate))
        assert statistics.permutation([scale * x for x in a], [scale * x for x in b]).p == pytest.approx(found.p)

    def test_it_is_rarely_wrong_where_there_is_nothing(self, monkeypatch):
        monkeypatch.setattr(statistics, "RESAMPLES", 9)
        sides = numpy.random.default_rng(0).normal(size=(200, 2, 5))
        wrong = sum(statistics.permutation(a, b).p < 0.05 for a, b in sides)
        assert 1 <= wrong <= 20

    def test_equal_values_do_not_differ(self):
        found = statistics.permutation([0.1, 0.1, 0.1], [0.1, 0.1, 0.1])
        assert (found.estimate, found.low, found.high, found.p) == (0, 0, 0, 1)

    def test_one_value_on_a_side_has_no_interval(self):
        found = statistics.permutation([1.0], [2.0, 3.0])
        assert (found.low, found.high, found.p) == (None, None, pytest.approx(2 / 3))


class TestEquivalent:
    def test_what_is_alike_is_found_alike(self):
        a = [0.01, 0.02, 0.00, 0.03, 0.01, 0.02, 0.01, 0.00, 0.02, 0.01]
        found = statistics.equivalent(a, a[::-1], 0.2)
        assert found.p == pytest.approx(1 / math.comb(20, 10))
        assert -0.2 < found.low <= 0 <= found.high < 0.2

    def test_what_differs_by_more_than_the_margin_is_not(self):
        assert statistics.equivalent([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3], 0.5).p > 0.9

    def test_little_is_known_of_few(self):
        assert statistics.equivalent([1, 1.1, 1.2], [1, 1.1, 1.2], 10).p == pytest.approx(1 / 20)  # as low as it can be

    def test_at_the_margin_it_is_rarely_wrong(self, monkeypatch):
        monkeypatch.setattr(statistics, "RESAMPLES", 9)
        sides = numpy.random.default_rng(0).normal(size=(200, 2, 5)) + [[1.0], [0.0]]  # differ by the margin exactly
        wrong = sum(statistics.equivalent(a, b, 1.0).p < 0.05 for a, b in sides)
        assert 1 <= wrong <= 20

    def test_the_larger_side_counts(self):
        a, b = [1.0, 1.2, 1.4, 1.3], [1.1, 1.2, 1.5, 1.6]
        one_sided = [
            stats.permutation_test(
                (numpy.array(a) + shift, b),
                lambda x, y, axis: x.mean(axis) - y.mean(axis),
                vectorized=True,
                alternative=side,
                n_resamples=numpy.inf,
            ).pvalue
            for shift, side in ((0.4, "greater"), (-0.4, "less"))
        ]
        assert statistics.equivalent(a, b, 0.4).p == pytest.approx(max(one_sided))

    @pytest.mark.parametrize("margin", [0, -1, math.nan, math.inf])
    def test_a_margin_is_above_zero(self, margin):
        with pytest.raises(ValueError, match="margin must be above 0"):
            statistics.equivalent([1.0, 2.0], [1.0, 2.0], margin)


class TestMcNemar:
    @settings(max_examples=40, deadline=None)
    @given(some.lists(some.tuples(some.booleans(), some.booleans()), min_size=1, max_size=12))
    def test_it_is_a_coin_for_each_item_they_differ_on(self, items):
        a, b = zip(*items, strict=True)
        alone = sum(one > two for one, two in items)
        differ = sum(one != two for one, two in items)
        reached = [abs(2 * sum(coins) - differ) >= abs(2 * alone - differ) for coins in product((0, 1), repeat=differ)]
        found = statistics.mcnemar(a, b)
        assert found.p == pytest.approx(sum(reached) / len(reached))
        assert found.estimate == pytest.approx(sum(a) / len(a) - sum(b) / len(b))
        assert found.low - 1e-12 <= found.estimate <= found.high + 1e-12

    def test_a_known_value(self):
        # 59 and 6 of 100 items on which one alone is right: sum of the binomial's tails.
        a, b = [1] * 59 + [0] * 6 + [1] * 35, [0] * 59 + [1] * 6 + [1] * 35
        expected = 2 * sum(math.comb(65, k) for k in range(7)) / 2**65
        assert statistics.mcnemar(a, b).p == pytest.approx(expected)

    def test_the_interval_has_zero_in_it_where_p_is_high(self):
        a, b = [1] * 6 + [0] * 5 + [1] * 89, [0] * 6 + [1] * 5 + [1] * 89
        found = statistics.mcnemar(a, b)
        assert found.p > 0.05
        assert found.low < 0 < found.high

    def test_shares_are_refused(self):
        with pytest.raises(ValueError, match="right_b must be 0"):
            statistics.mcnemar([1, 0], [1, 0.5])

    def test_the_items_are_the_same(self):
        with pytest.raises(ValueError, match="right_a and right_b must be as long as each other, these are 2 and 1"):
            statistics.mcnemar([1, 0], [1])


class TestByPerson:
    def test_swaps_are_brute_force(self):
        generator = numpy.random.default_rng(4)
        person = generator.integers(6, size=60)
        a, b = generator.random((2, 60)) < [[0.8], [0.6]]
        found = statistics.by_person(a, b, person)
        gains = [float((a[person == who].astype(float) - b[person == who]).sum()) for who in range(6)]
        reached = [
            abs(sum(sign * gain for sign, gain in zip(signs, gains, strict=True))) >= abs(sum(gains)) - 1e-9
            for signs in product((1, -1), repeat=6)
        ]
        assert found.p == pytest.approx(sum(reached) / 64)
        assert found.estimate == pytest.approx(sum(gains) / 60)
        assert found.low < found.estimate < found.high

    def test_many_items_of_few_people_tell_less_than_of_many(self):
        gains = numpy.array([1] * 12 + [0] * 8)
        few = statistics.by_person(numpy.repeat(gains, 5), numpy.repeat(1 - gains, 5), numpy.repeat(range(20), 5))
        many = statistics.by_person(numpy.repeat(gains, 5), numpy.repeat(1 - gains, 5), range(100))
        assert few.estimate == pytest.approx(many.estimate)
        assert few.high - few.low > 1.8 * (many.high - many.low)
        assert few.p > many.p

    def test_it_is_rarely_wrong_where_people_differ_and_models_do_not(self, monkeypatch):
        monkeypatch.setattr(statistics, "RESAMPLES", 99)
        generator, wrong = numpy.random.default_rng(1), 0
        person = numpy.repeat(range(10), 20)
        for _ in range(200):
            a, b = (
                generator.random(200) < numpy.repeat(generator.random(10), 20) for _ in range(2)
            )  # each model is good with other people
            wrong += statistics.by_person(a, b, person).p < 0.05
        assert 1 <= wrong <= 20

    def test_names_and_order_do_not_matter(self):
        a, b = [1, 1, 0, 1, 1, 1], [0, 1, 0, 1, 0, 0]
        found = statistics.by_person(a, b, ["x", "x", "y", "y", "z", "z"])
        assert statistics.by_person(a[::-1], b[::-1], [3, 3, 2, 2, 1, 1]).p == found.p

    def test_one_person_is_refused(self):
        with pytest.raises(ValueError, match="person must name at least two"):
            statistics.by_person([1, 0], [0, 0], ["Ada", "Ada"])

    def test_every_item_has_its_person(self):
        with pytest.raises(ValueError, match="correct_a and person must be as long as each other, these are 2 and 1"):
            statistics.by_person([1, 0], [0, 0], ["Ada"])


class TestHolm:
    def test_a_known_value(self):
        assert statistics.holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])

    @given(some.lists(some.floats(0, 1), max_size=8))
    def test_between_the_p_and_bonferronis(self, p_values):
        adjusted = statistics.holm(p_values)
        for p, after in zip(p_values, adjusted, strict=True):
            assert p <= after <= min(1, len(p_values) * p) or after == pytest.approx(max(adjusted))
        order = sorted(range(len(p_values)), key=lambda place: p_values[place])
        assert [adjusted[place] for place in order] == sorted(adjusted)
        if p_values:
            assert min(adjusted) == min(1, len(p_values) * min(p_values))

    def test_a_p_is_a_share(self):
        with pytest.raises(ValueError, match=r"p_values must be from 0 to 1, not 1\.5"):
            statistics.holm([0.1, 1.5])


class TestRankCorrelation:
    @settings(max_examples=40, deadline=None)
    @given(some.lists(some.tuples(some.integers(0, 5), some.integers(0, 5)), min_size=2, max_size=12))
    def test_it_is_scipys_ties_included(self, pairs):
        a, b = zip(*pairs, strict=True)
        assume(len(set(a)) > 1)
        assume(len(set(b)) > 1)
        assert statistics.rank_correlation(a, b).estimate == pytest.approx(stats.spearmanr(a, b).statistic)

    def test_p_is_of_all_orders(self):
        assert statistics.rank_correlation([1, 2, 3, 4], [2, 4, 6, 8]).p == pytest.approx(2 / 24)
        found = statistics.rank_correlation(range(20), range(20))
        assert (found.estimate, found.p) == (1, 1 / 10_000)

    def test_there_is_none_where_all_are_tied(self):
        assert statistics.rank_correlation([61.65, 61.65, 61.65], [1, 2, 3]) is None
        assert statistics.rank_correlation([1], [2]) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda values: statistics.interval(values),
        lambda values: statistics.interquartile_mean(values),
        lambda values: statistics.permutation(values, [1.0]),
        lambda values: statistics.equivalent([1.0], values, 1),
        lambda values: statistics.rank_correlation(values, values),
    ],
)
@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf, 1.0], [[1.0, 2.0]]])
def test_what_is_not_a_row_of_finite_numbers_is_refused(call, values):
    with pytest.raises(ValueError, match=r"(values|a|b) must be (finite|one or more numbers)"):
        call(values)


@pytest.mark.parametrize("level", [0, 1, 95])
def test_a_level_is_between_zero_and_one(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        statistics.interval([1.0, 2.0], level)


def test_all_goes_to_json():
    for found in (
        statistics.interval([1, 2, 3]),
        statistics.permutation([1, 2, 3], [2, 3, 4]),
        statistics.equivalent([1, 2, 3], [2, 3, 4], 2),
        statistics.mcnemar([True, False], [True, True]),
        statistics.by_person([1, 0], [0, 0], ["Ada", "Bo"]),
        statistics.rank_correlation([1, 2, 3], [2, 3, 4]),
        statistics.band([[1, 2], [3, 4]]),
    ):
        assert json.loads(json.dumps(found._asdict()))["method"] == found.method
