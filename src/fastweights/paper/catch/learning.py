"""Catch: agents with three kinds of memory that learn a game they see only the beginning of, by A3C."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...report import pages, style, tables
from ...tasks.catch import optimal_score, random_score
from ...training import a3c, devices
from ...training.runs import RunFolder
from ...training.workers import Job, Workers, run_all
from ..cells import finished
from ..reports import PROTOCOL, Report, commands_of
from ..run import with_hyperparameters
from ..studies import FIRST_SEED as SEARCH_SEED
from ..studies import Study
from . import run as agents
from .run import Catch, describe, train

CORES = ("irnn", "lstm", "fast-weights")
VARIANTS = ((16, 3), (24, 5))
FRAMES = {(16, 3): 4_000_000, (24, 5): 10_000_000}
SEEDS = 10
FIRST_SEED = 40  # of the published runs: those before it were seen while the search's rules were made

# The search, the same for every core: a trial is worth its mean return over all frames. A quarter of the frames is the
# first rung; the finalists learn from five seeds.
FOR_ALL = (
    "lr=1e-4..3e-2",
    "entropy_coef=1e-4..3e-2",
    "value_coef=0.03..1.0",
    "clip=0.1..10.0",
    "num_envs=16,32,64",
    "input_range=0.0,0.3,1.0,3.0",
)
W = "recurrent_init=0.05,0.5,1.0"
HYPERPARAMETERS = {
    "irnn": (*FOR_ALL, W),
    "lstm": FOR_ALL,
    "fast-weights": (*FOR_ALL, W, "rate=0.01..1.0", "decay=0.7..0.99", "inner_steps=1,2,3"),
}
RUNG = a3c.WINDOWS // 4
FINAL_SEEDS = 5
THRESHOLDS = (0.0, 0.5, 0.9)
POINTS = 50  # of a curve
QUICK_FRAMES = 800_000


def study(variant: tuple[int, int], core: str) -> Study:
    """The search for the hyperparameters of a core in a variant of the game."""
    run = config(core, variant, {}, SEARCH_SEED, FRAMES[variant])
    name = f"catch/{name_of(variant, core)}"
    return Study(name, run, HYPERPARAMETERS[core], RUNG, seeds=FINAL_SEEDS, function=train_for_return)


def config(core: str, variant: tuple[int, int], setting: Mapping[str, Any], seed: int, frames: int) -> Catch:
    """The run of a core in a variant of the game with a setting: hyperparameters of the run and of its recipe."""
    size, visible = variant
    training = a3c.Recipe(frames=frames, rollout=size - 1, **agents.STEADY)
    base = Catch(core=core, size=size, visible=visible, training=training, seed=seed)  # type: ignore[arg-type]
    found: Catch = with_hyperparameters(base, setting)
    return found


def frames_to(metrics: Sequence[Mapping[str, Any]], threshold: float, over: int = 4) -> int | None:
    """After how many frames the mean return of some windows in a row was first as high; None: never.

    >>> frames_to([{"frames": 10, "return": 0.0}, {"frames": 20, "return": 1.0}], 0.5, over=2)
    20
    """
    for last in range(over - 1, len(metrics)):
        if statistics.fmean(entry["return"] for entry in metrics[last + 1 - over : last + 1]) >= threshold:
            return int(metrics[last]["frames"])
    return None


def curve(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The return against frames, at so many points of a whole run: each is the mean since the one before.

    >>> curve([{"frames": 10 * n, "return": n} for n in range(1, 9)])
    {'frames': [40, 80], 'return': [2.5, 6.5]}
    """
    each = a3c.WINDOWS // POINTS
    ends = range(each, len(metrics) + 1, each)
    means = [statistics.fmean(entry["return"] for entry in metrics[end - each : end]) for end in ends]
    return {"frames": [metrics[end - 1]["frames"] for end in ends], "return": [round(mean, 4) for mean in means]}


def mean_return(metrics: Sequence[Mapping[str, Any]]) -> float:
    """The mean over all measurements: high for a policy that is learned fast and does not collapse; -1 for nothing."""
    return statistics.fmean(entry["return"] for entry in metrics) if metrics else -1.0


def train_for_return(
    config: Catch, path: Path, command: str, report: Callable[[Any], None], device: devices.Name = "cpu"
) -> dict[str, float]:
    """One trial of a search: its value is the negative mean return over all frames (lower is better)."""
    result = train(config, path, command, report, device=device)
    return {"value": -mean_return(RunFolder(path).metrics) if result["stopped"] == "finished" else math.inf}


def final_return(metrics: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the last tenth of what was measured; -1 for nothing."""
    last = metrics[-max(1, len(metrics) // 10) :]
    return statistics.fmean(entry["return"] for entry in last) if last else -1.0


# The selected hyperparameters of each variant and core: of the run and of its recipe.
TUNED: dict[tuple[tuple[int, int], str], dict[str, Any]] = {
    ((16, 3), "irnn"): {
        "lr": 0.004279672119738549,
        "entropy_coef": 0.0035049955278555747,
        "input_range": 0.3,
    },
    ((16, 3), "lstm"): {
        "lr": 0.0018928797993921088,
        "entropy_coef": 0.00494332095319177,
        "input_range": 0.3,
    },
    ((16, 3), "fast-weights"): {
        "lr": 0.009322397140925106,
        "entropy_coef": 0.01629637737935715,
        "input_range": 0.0,
        "rate": 0.08663737396378553,
        "decay": 0.8,
        "inner_steps": 2,
    },
    ((24, 5), "irnn"): {
        "lr": 0.004545141240366463,
        "entropy_coef": 0.004265147106108944,
        "input_range": 0.0,
    },
    ((24, 5), "lstm"): {
        "lr": 0.004545141240366463,
        "entropy_coef": 0.004265147106108944,
        "input_range": 0.0,
    },
    ((24, 5), "fast-weights"): {
        "lr": 0.004545141240366463,
        "entropy_coef": 0.004265147106108944,
        "input_range": 0.0,
        "rate": 0.2676546543323864,
        "decay": 0.99,
        "inner_steps": 3,
    },
}
# For a quick look: all three learn the game in a minute or two.
OF_QUICK = {"lr": 3e-3, "entropy_coef": 0.01, "input_range": 0.3, "num_envs": 16}
STARTING: dict[str, dict[str, Any]] = {
    "irnn": OF_QUICK,
    "lstm": OF_QUICK,
    "fast-weights": {**OF_QUICK, "rate": 0.1, "decay": 0.8, "inner_steps": 2},
}


def variant(game: str) -> tuple[int, int]:
    """A variant by the name that people give it.

    >>> variant("16,3")
    (16, 3)
    """
    size, visible = map(int, game.split(","))
    return size, visible


def name_of(variant: tuple[int, int], core: str) -> str:
    """Its name among run folders.

    >>> name_of((16, 3), "lstm")
    '16-3/lstm'
    """
    return f"{variant[0]}-{variant[1]}/{core}"


def reproduce(
    variants: Sequence[tuple[int, int]],
    cores: Sequence[str],
    runs: Path,
    workers: Workers,
    command: str,
    *,
    seeds: int = SEEDS,
    quick: bool = False,
) -> dict[str, str]:
    """Train each core with its selected hyperparameters, once per seed; what failed."""
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    jobs = []
    for variant in variants:
        for core in cores:
            setting = STARTING[core] if quick else TUNED.get((variant, core))
            if setting is None:
                raise ValueError(f"{core} has not been searched for {variant} yet: fastweights search catch")
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                run = config(core, variant, setting, seed, QUICK_FRAMES if quick else FRAMES[variant])
                path = runs / experiment(quick) / name_of(variant, core) / f"seed-{seed}"
                arguments = {"config": run, "path": path, "command": command, "device": workers.device}
                jobs.append(Job(f"{core} {variant} seed {seed}", train, arguments))
    return run_all(jobs, workers, describe).failures


def experiment(quick: bool = False) -> str:
    """The name of its folder of runs."""
    return "catch-quick" if quick else "catch"


def collect(runs: Path, quick: bool = False) -> list[dict[str, Any]]:
    """The cores whose runs are finished: the entries of `results/catch.json`."""
    entries = []
    for variant in VARIANTS:
        for core in CORES:
            done = finished(runs / experiment(quick) / name_of(variant, core))
            if done:
                entries.append(
                    {
                        "variant": list(variant),
                        "core": core,
                        "protocol": PROTOCOL,
                        "setting": STARTING[core] if quick else TUNED[variant, core],
                        "frames": done[0].config["settings"]["frames"],
                        "workers": done[0].config["settings"]["workers"],
                        "trials": 0 if quick else study(variant, core).plan.trials,
                        "seeds": [of_seed(run) | {"curve": curve(run.metrics)} for run in done],
                        "command": done[0].config["command"],
                    }
                )
    return entries


def of_seed(run: RunFolder) -> dict[str, Any]:
    """What a run came to."""
    result, metrics = run.result or {}, run.metrics
    found = {"seed": result["seed"], **{f"frames_to_{each:g}": frames_to(metrics, each) for each in THRESHOLDS}}
    found |= {"final_return": final_return(metrics)}
    found |= {"best_return": max((entry["return"] for entry in metrics), default=-1.0)}
    return found | {name: result.get(name, -1.0) for name in ("greedy_return", "sampled_return")}


CAPTION = (
    "Return of 1,000 fresh episodes, +1 at best, mean ± standard deviation over seeds; "
    "frames to a training return of 0, 0.5 and 0.9, median and range."
)
SHORT_CAPTION = "Greedy return of 1,000 fresh episodes, +1 at best; frames to a training return of 0.9, median."
MEASURES = ("greedy", "sampled", "to 0", "to 0.5", "to 0.9", "seeds")
HEADER = ("game", "core", *MEASURES, "source")


def rows(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row of text per entry: means, and medians of the frames."""
    return [
        (
            "{}, {}".format(*entry["variant"]),
            style.name_of(entry["core"]),
            *measures(entry["seeds"]),
            entry.get("source", ""),
        )
        for entry in entries
    ]


def measures(seeds: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What runs that differ in their seeds came to, as the columns of `MEASURES`."""
    means = []
    for name in ("greedy_return", "sampled_return"):
        found = [seed[name] for seed in seeds]
        deviation = statistics.stdev(found) if len(found) > 1 else 0.0
        means.append(tables.spread(statistics.fmean(found), deviation, len(found)))
    frames = [_in_thousands([seed[f"frames_to_{each:g}"] for seed in seeds]) for each in THRESHOLDS]
    return (*means, *frames, tables.seeds_of({"seeds": seeds}))


def short(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Any, Any]:
    """For a terminal, where all columns with their ranges would be too wide."""
    wide = ("sampled", "to 0", "to 0.5", "seeds" if "game" not in header else "")
    return tables.without(wide, header, [[cell.split(" (")[0] for cell in row] for row in rows])


def _in_thousands(frames: Sequence[int | None]) -> str:
    """The median of the seeds, and from where to where they are; those that never got there are last.

    >>> _in_thousands([5000]), _in_thousands([1000, 3000, 2000]), _in_thousands([1000, 3000, None])
    ('5k', '2k (1k to 3k)', '3k (1k to never)')
    """
    found = sorted(math.inf if each is None else each for each in frames)
    some = found[0], found[len(found) // 2], found[-1]
    first, middle, last = ("never" if each == math.inf else f"{each / 1000:,.0f}k" for each in some)
    return middle if first == last else f"{middle} ({first} to {last})"


def report(to: Report) -> bool:
    """Show what is finished, and write a page and the figures of it; whether there was anything."""
    from ...report import figures  # which is slow to load

    entries = to.entries("catch", collect(to.runs, to.quick), _place)
    if not entries:
        return False
    title, body = "Catch: agents with memory", rows(entries)
    to.show(title, *short(HEADER, body), SHORT_CAPTION)
    text = f"{CAPTION} {notes(entries)}".strip()
    sections = [pages.Section("Return", text, HEADER, body, commands=commands_of(entries))]
    for variant in VARIANTS:
        some = [entry for entry in to.drawn(entries) if tuple(entry["variant"]) == variant]
        groups = {entry["core"]: of_kind for entry in some if (of_kind := _curves(entry["seeds"]))}
        sections += _figure(figures, groups, f"Training return on {variant}", variant, to)
    to.write("catch", title, sections, entries)
    return True


def notes(entries: Sequence[Mapping[str, Any]]) -> str:
    """What is to be known of how some entries were run, as sentences."""
    return " ".join(dict.fromkeys(entry["note"] for entry in entries if "note" in entry))


def _place(entry: Mapping[str, Any]) -> tuple[int, int]:
    return VARIANTS.index(tuple(entry["variant"])), CORES.index(entry["core"])


def _curves(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each["curve"] for each in found if each.get("curve", {}).get("frames")]


def _figure(
    figures: Any, groups: Mapping[str, Any], heading: str, variant: tuple[int, int], to: Report
) -> list[pages.Section]:
    if not groups:
        return []
    figure = figures.against_frames(groups)
    size = variant[0]
    for score, words in ((optimal_score(size), "the best player"), (random_score(size), "a random player")):
        figure.axes[0].axhline(score, color="grey", linestyle=":" if score > 0 else "--", label=words)
    name = f"catch-{variant[0]}-{variant[1]}.png"
    picture = figures.save(figures.finish(figure), to.folder("catch") / name)[0]
    return [pages.Section(heading, figure=picture)]
