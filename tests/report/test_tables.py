"""Numbers in tables are shown to as many places as they have."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fastweights.report import sentences, tables

errors = some.floats(0, 100)


@given(some.tuples(errors, errors, errors))
def test_an_interval_is_found_again_by_the_page_checker(values):
    low, mean, high = sorted(values)
    shown = tables.with_interval(mean, low, high)
    recorded = {"test_error_mean": mean, "interval": [low, high]}
    assert sentences.unmeasured(f"| {shown} |", [recorded]) == []
    places = {len(number.partition(".")[2]) for number in re.findall(r"\d+\.\d+", shown)}
    assert len(places) == 1
    assert places <= {1, 2, 3}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.0, 0.0, 0.0), "0.00 [0.00, 0.00]"),
        ((-0.0004, -0.0203, 0.0204), "0.000 [-0.020, 0.020]"),
        ((61.654, 55, 66), "61.7 [55.0, 66.0]"),
        ((61.654, 60, 62), "61.65 [60.00, 62.00]"),
        ((1.5, None, None), "1.50"),
    ],
)
def test_with_interval(values, shown):
    assert tables.with_interval(*values) == shown
