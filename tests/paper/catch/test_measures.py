"""What runs of Catch came to: curves read right, collapses found."""

import pytest

from fastweights.paper.catch import measures
from fastweights.training import a3c


def run(*returns):
    """Measurements, each return four times."""
    found = [value for value in returns for _ in range(measures.SMOOTHED)]
    return [{"frames": 10 * n, "return": value} for n, value in enumerate(found, 1)]


def test_frames_to_a_return():
    curve = [{"frames": 10 * n, "return": mean} for n, mean in enumerate([-1, 1, -1, 0.5, 0.75, 1, 1], 1)]
    assert measures.frames_to(curve, 0.5, over=1) == 20
    assert measures.frames_to(curve, 0.5, over=2) == 50
    assert measures.frames_to(curve, 0.99, over=2) == 70
    assert measures.frames_to(curve, 0.99, over=3) is None
    assert measures.final_return(curve) == 1
    assert measures.final_return([]) == measures.mean_return([]) == -1


@pytest.mark.parametrize(
    ("returns", "what"),
    [
        ((-1, 0, 0.9, 1), None),
        ((-1, 0.9, 0.61, 0.9), None),  # a small fall
        ((-1, 0.9, 0.5), "lost"),
        ((-1, 0.9, 0.5, 0.79), "lost"),
        ((-1, 0.9, 0.5, 0.81), "back"),
        ((-1, 0.9, 0.5, 1, 0.6), "lost"),  # twice
        ((-0.7, -0.9), None),
    ],
)
def test_collapse(returns, what):
    assert measures.collapse(run(*returns)) == what


def test_one_measurement_is_no_collapse():
    curve = run(*[0.9] * 10)
    curve[20]["return"] = -0.2  # by chance
    assert measures.collapse(curve) is None


class Folder:
    def __init__(self, metrics, stopped):
        self.metrics, self.result = metrics, {"seed": 7, "stopped": stopped}


def test_a_run_that_diverged_is_at_its_worst_from_there_on():
    half = [{"frames": n, "return": 0.0} for n in range(a3c.WINDOWS // 2)]
    assert measures.of_seed(Folder(half, "diverged"))["auc"] == -0.5
    assert measures.of_seed(Folder(half, "finished"))["auc"] == 0.0


def test_columns():
    seeds = [measures.of_seed(Folder(run(-1, value), "finished")) for value in (0.5, 0.6, 1.0)]
    auc, greedy, _, first, *_, last, which = measures.columns(seeds)
    assert auc == "-0.15 [-0.25, 0.00]"
    assert greedy == "-1.00 [-1.00, -1.00]"
    assert (first, last, which) == ("0k", "never (0k to never)", "7, 7, 7")
    old = [{"seed": 1, "greedy_return": 1.0, "sampled_return": 0.5, "frames_to_0": 1000}]
    assert measures.columns(old) == ("", "1.00", "0.50", "", "1k", "", "", "1")
