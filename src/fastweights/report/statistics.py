from typing import Any, NamedTuple


class R(NamedTuple):
    estimate: float


def interval(values) -> Any:
    return None


def rank_correlation(a, b) -> R:
    return R(0.0)
