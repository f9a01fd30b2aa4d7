"""What a run of Catch came to: its curve, how soon it was where, whether its policy collapsed; as text for tables."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...report import tables
from ...report.statistics import interquartile_mean, interval
from ...training import a3c
from ...training.runs import RunFolder

THRESHOLDS = (-0.5, 0.0, 0.5, 0.9)
POINTS = 50  # of a curve
SMOOTHED = 4  # measurements, whose mean is looked at
FALL, BACK = 0.3, 0.1  # a policy has collapsed that lost so much, and is back so near to where it was
Metrics = Sequence[Mapping[str, Any]]


def smoothed(metrics: Metrics, over: int = SMOOTHED) -> list[float]:
    """The mean return of each measurement and those just before it, as soon as there are so many.

    >>> smoothed([{"return": 0.0}, {"return": 1.0}, {"return": 2.0}], over=2)
    [0.5, 1.5]
    """
    returns = [entry["return"] for entry in metrics]
    return [statistics.fmean(returns[last + 1 - over : last + 1]) for last in range(over - 1, len(returns))]


def frames_to(metrics: Metrics, threshold: float, over: int = SMOOTHED) -> int | None:
    """After how many frames the mean return of some measurements in a row was first as high; None: never.

    >>> frames_to([{"frames": 10, "return": 0.0}, {"frames": 20, "return": 1.0}], 0.5, over=2)
    20
    """
    for last, mean in enumerate(smoothed(metrics, over), over - 1):
        if mean >= threshold:
            return int(metrics[last]["frames"])
    return None


def curve(metrics: Metrics) -> dict[str, list[float]]:
    """The return against frames, at so many points of a whole run: each is the mean since the one before.

    >>> curve([{"frames": 10 * n, "return": n} for n in range(1, 9)])
    {'frames': [40, 80], 'return': [2.5, 6.5]}
    """
    each = a3c.WINDOWS // POINTS
    ends = range(each, len(metrics) + 1, each)
    means = [statistics.fmean(entry["return"] for entry in metrics[end - each : end]) for end in ends]
    return {"frames": [metrics[end - 1]["frames"] for end in ends], "return": [round(mean, 4) for mean in means]}


def mean_return(metrics: Metrics) -> float:
    """The mean over all measurements, the area under the curve: high for a policy that is learned fast and stays.

    -1 for nothing.
    """
    return statistics.fmean(entry["return"] for entry in metrics) if metrics else -1.0


def final_return(metrics: Metrics) -> float:
    """The mean of the last tenth of what was measured; -1 for nothing."""
    last = metrics[-max(1, len(metrics) // 10) :]
    return statistics.fmean(entry["return"] for entry in last) if last else -1.0


def collapse(metrics: Metrics) -> str | None:
    """Whether the policy collapsed: "back" if it was at the end near where it had fallen from, "lost" if not.

    >>> def run(*returns): return [{"return": value} for value in returns for _ in range(SMOOTHED)]
    >>> collapse(run(-1.0, 0.9, 0.2, 0.85)), collapse(run(-1.0, 0.9, 0.2)), collapse(run(-1.0, 0.5, 0.9))
    ('back', 'lost', None)
    """
    highest, fell_from = -math.inf, None
    returns = smoothed(metrics)
    for mean in returns:
        highest = max(highest, mean)
        if mean < highest - FALL:
            fell_from = highest
    if fell_from is None:
        return None
    return "back" if returns[-1] >= fell_from - BACK else "lost"


def of_seed(run: RunFolder) -> dict[str, Any]:
    """What a run came to."""
    result, metrics = run.result or {}, run.metrics
    share = len(metrics) / a3c.WINDOWS if result.get("stopped") == "diverged" else 1.0  # after that it is at -1
    found = {"seed": result["seed"], "auc": round(share * mean_return(metrics) - (1 - share), 4)}
    found |= {f"frames_to_{each:g}": frames_to(metrics, each) for each in THRESHOLDS}
    found |= {"final_return": final_return(metrics), "collapse": collapse(metrics)}
    found |= {"best_return": max((entry["return"] for entry in metrics), default=-1.0)}
    return found | {name: result.get(name, -1.0) for name in ("greedy_return", "sampled_return")}


COLUMNS = ("AUC", "greedy", "sampled", *(f"to {each:g}" for each in THRESHOLDS), "seeds")
CAPTION = (
    "AUC: the mean training return over all frames, its interquartile mean over seeds with the 95 % bootstrap interval "
    "of the mean; return of 1,000 fresh episodes, +1 at best, mean with its interval; "
    "frames to a training return of -0.5, 0, 0.5 and 0.9, median and range."
)
SHORT_CAPTION = "Greedy return of 1,000 fresh episodes, +1 at best; frames to a training return of 0.9, median."


def columns(seeds: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What runs that differ in their seeds came to, as the columns of `COLUMNS`; what was not measured is empty."""
    cells = []
    for name in ("auc", "greedy_return", "sampled_return"):
        values = [seed[name] for seed in seeds if name in seed]
        if len(values) < len(seeds):
            cells.append("")
            continue
        found = interval(values)
        centre = interquartile_mean(values) if name == "auc" else statistics.fmean(values)
        cells.append(tables.with_interval(centre, None, None) if found is None else _with(centre, found))
    for each in THRESHOLDS:
        known = [seed[f"frames_to_{each:g}"] for seed in seeds if f"frames_to_{each:g}" in seed]
        cells.append(in_thousands(known) if known else "")
    return (*cells, tables.seeds_of({"seeds": seeds}))


def _with(centre: float, found: Any) -> str:
    return f"{centre:.2f} [{found.low + 0.0:.2f}, {found.high + 0.0:.2f}]"


def short(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """For a terminal, where all columns with their ranges would be too wide."""
    wide = ("AUC", "sampled", "to -0.5", "to 0", "to 0.5", "seeds" if "game" not in header else "")
    return tables.without(wide, header, [[cell.split(" (")[0].split(" [")[0] for cell in row] for row in rows])


def in_thousands(frames: Sequence[int | None]) -> str:
    """The median of the seeds, and from where to where they are; those that never got there are last.

    >>> in_thousands([5000]), in_thousands([1000, 3000, 2000]), in_thousands([1000, 3000, None])
    ('5k', '2k (1k to 3k)', '3k (1k to never)')
    """
    found = sorted(math.inf if each is None else each for each in frames)
    some = found[0], found[len(found) // 2], found[-1]
    first, middle, last = ("never" if each == math.inf else f"{each / 1000:,.0f}k" for each in some)
    return middle if first == last else f"{middle} ({first} to {last})"
