"""Catch: agents with three kinds of memory that learn a game they see only the beginning of, by A3C."""

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import pages, style, tables
from ..tasks.catch import optimal_score, random_score
from ..training import a3c
from ..training.runs import RunFolder
from ..training.workers import Job, Workers, run_all
from . import agents, run
from .agents import Catch, describe, train, train_until
from .cells import finished
from .reports import Report, commands_of

CORES = ("irnn", "lstm", "fast-weights")
VARIANTS = ((16, 3), (24, 5))
FRAMES = {(16, 3): 4_000_000, (24, 5): 10_000_000}
SEEDS, TRIALS, TOP = 5, 50, 5
FIRST_SEED = 30  # of the published runs: those before it were seen while the search's rules were made
SEARCH_SEED = 1000
SEARCH_SHARE = 0.25  # of the frames: then the TOP go on, those with the highest return
FINALISTS = (
    2  # of these, those that learned fastest: they learn again, and the one with the better worst run is selected
)
FINAL_SEEDS = 2  # of each finalist: a policy that collapses from some seeds is not to be selected
FOR_ALL = ("lr", "entropy_coef", "input_range")
HYPERPARAMETERS = {  # of a core, that the search draws
    "irnn": FOR_ALL,
    "lstm": FOR_ALL,
    "fast-weights": (*FOR_ALL, "rate", "decay", "inner_steps"),
}
THRESHOLDS = (0.0, 0.5, 0.9)
POINTS = 50  # of a curve
QUICK_FRAMES = 800_000


def trials(core: str, variant: tuple[int, int], count: int) -> dict[str, Catch]:
    """Settings drawn at random, as many and from the same ranges for every core, by name.

    What only one core has is drawn for all, so that the others have the same learning rates and entropy coefficients.
    """
    generator, found = random.Random(f"{SEARCH_SEED} {variant}"), {}
    for number in range(count):
        lr, entropy_coef = 10 ** generator.uniform(-3.5, -2), 10 ** generator.uniform(-2.5, -1.5)
        drawn = {
            "lr": lr,
            "entropy_coef": entropy_coef,
            "input_range": generator.choice((0.0, 0.3, 1.0)),
            "rate": 10 ** generator.uniform(-2, 0),
            "decay": generator.choice((0.8, 0.9, 0.95, 0.99)),
            "inner_steps": generator.choice((1, 2, 3)),
        }
        setting = {name: drawn[name] for name in HYPERPARAMETERS[core]}
        found[f"trial-{number}"] = config(core, variant, setting, SEARCH_SEED + number, FRAMES[variant])
    return found


def config(core: str, variant: tuple[int, int], setting: Mapping[str, Any], seed: int, frames: int) -> Catch:
    """The run of a core in a variant of the game with a setting: hyperparameters of the run and of its recipe."""
    size, visible = variant
    training = a3c.Recipe(frames=frames, rollout=size - 1, **agents.STEADY)
    base = Catch(core=core, size=size, visible=visible, training=training, seed=seed)  # type: ignore[arg-type]
    found: Catch = run.with_hyperparameters(base, setting)
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


def train_for_return(config: Catch, path: Path, command: str, report: Callable[[Any], None]) -> dict[str, float]:
    """One trial of a search: its value is the negative final return (lower is better)."""
    result = train(config, path, command, report)
    return {"value": -final_return(RunFolder(path).metrics) if result["stopped"] == "finished" else math.inf}


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
STARTING: dict[str, Any] = {
    "lr": 3e-3,
    "entropy_coef": 0.01,
    "input_range": 0.3,
    "num_envs": 16,
    "rate": 0.1,
    "decay": 0.8,
    "inner_steps": 2,
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


def search(
    variants: Sequence[tuple[int, int]], cores: Sequence[str], count: int, runs: Path, workers: Workers, command: str
) -> dict[str, str]:
    """Run the beginnings of all trials, the best of them to their end, then the finalists; what failed."""
    if count < 1:
        raise ValueError(f"trials must be at least 1, got {count}")
    failures: dict[str, str] = {}
    for stage in ("all", "best", "finalists"):
        jobs = []
        for variant in variants:
            for core in cores:
                drawn = trials(core, variant, count)
                ran = [trial for trial in searched(variant, core, runs) if trial["trial"] in drawn]
                until = round(SEARCH_SHARE * FRAMES[variant]) if stage == "all" else None
                names = [trial["trial"] for trial in leading(ran, FINALISTS if stage == "finalists" else TOP)]
                chosen = drawn if stage == "all" else {name: drawn[name] for name in names}
                if stage == "finalists":
                    chosen = {name: again for each in chosen.items() for name, again in finals(*each).items()}
                for name, trial in chosen.items():
                    path = runs / "search-catch" / name_of(variant, core) / name
                    arguments = {"config": trial, "path": path, "command": command, "until": until}
                    jobs.append(Job(f"{core} {variant} {name}", train_until, arguments))
        failures |= run_all(jobs, workers, describe).failures
    return failures


def finals(name: str, trial: Catch) -> dict[str, Catch]:
    """The further runs of a finalist, from other seeds."""
    seeds = [trial.seed + 100 * number for number in range(1, FINAL_SEEDS + 1)]
    return {f"again/{name}-{number}": dataclasses.replace(trial, seed=seed) for number, seed in enumerate(seeds)}


def leading(found: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The trials that learned fastest, of those that were trained to the end; the others by how well they began."""
    return sorted(found, key=_rank_alone)[:count]


def _rank_alone(trial: Mapping[str, Any]) -> tuple[float, float]:
    whole = trial["mean_return"]
    return math.inf if whole is None else -whole, -trial["early_return"]


def searched(variant: tuple[int, int], core: str, runs: Path) -> list[dict[str, Any]]:
    """The trials that have begun: what was drawn, and what came of it; the one to be selected before the others.

    The `early_return` is that after a quarter of the frames. The `mean_return` is over all frames, and the trial has
    its curve; None: it did not go on. The `mean_returns` are those of a finalist from all its seeds; None: it is none.
    """
    found, folder = [], runs / "search-catch" / name_of(variant, core)
    for path in sorted(folder.glob("trial-*")):
        trial = RunFolder(path)
        again = [RunFolder(folder / "again" / f"{path.name}-{number}") for number in range(FINAL_SEEDS)]
        metrics, until = trial.metrics, SEARCH_SHARE * trial.config["settings"]["frames"]
        early = [number for number, entry in enumerate(metrics, 1) if entry["frames"] >= until][:1]
        if trial.result is None and not early:
            continue
        each = {
            "trial": path.name,
            "setting": {name: trial.config["settings"][name] for name in HYPERPARAMETERS[core]},
            "early_return": final_return(metrics[: early[0]] if early else []),  # nothing: it diverged
            "mean_return": None,
            "mean_returns": None,
        }
        if trial.result is not None:
            each |= {"mean_return": _mean_return(trial), "curve": curve(metrics)}
            if all(run.result is not None for run in again):
                each["mean_returns"] = [_mean_return(run) for run in (trial, *again)]
        found.append(each)
    return sorted(found, key=_rank)


def _rank(trial: Mapping[str, Any]) -> tuple[float, ...]:
    means = trial["mean_returns"]
    return math.inf if means is None else -min(means), *_rank_alone(trial)


def _mean_return(run: RunFolder) -> float:
    """Of a finished run; -1: it diverged."""
    return mean_return(run.metrics) if (run.result or {})["stopped"] == "finished" else -1.0


def all_searched(runs: Path, known: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The same by name, for all variants and cores; of those that were not searched here, what is known."""
    names = {name_of(variant, core): (variant, core) for variant in VARIANTS for core in CORES}
    found = {name: searched(*which, runs) or known.get(name) for name, which in names.items()}
    return {name: tried for name, tried in found.items() if tried}


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
            setting = STARTING if quick else TUNED.get((variant, core))
            if setting is None:
                raise ValueError(f"{core} has not been searched for {variant} yet: fastweights search catch")
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                run = config(core, variant, setting, seed, QUICK_FRAMES if quick else FRAMES[variant])
                path = runs / experiment(quick) / name_of(variant, core) / f"seed-{seed}"
                jobs.append(
                    Job(f"{core} {variant} seed {seed}", train, {"config": run, "path": path, "command": command})
                )
    return run_all(jobs, workers, describe).failures


def experiment(quick: bool = False) -> str:
    """The name of its folder of runs."""
    return "catch-quick" if quick else "catch"


def collect(runs: Path, known: Mapping[str, Any], quick: bool = False) -> list[dict[str, Any]]:
    """The cores whose runs are finished: the entries of `results/catch.json`.

    Args:
        known: the trials of searches that did not run here.
    """
    tried = {} if quick else all_searched(runs, known)
    entries = []
    for variant in VARIANTS:
        for core in CORES:
            done = finished(runs / experiment(quick) / name_of(variant, core))
            if done:
                entries.append(
                    {
                        "variant": list(variant),
                        "core": core,
                        "setting": STARTING if quick else TUNED[variant, core],
                        "frames": done[0].config["settings"]["frames"],
                        "seeds": [of_seed(run) | {"curve": curve(run.metrics)} for run in done],
                        "trials": tried.get(name_of(variant, core), []),
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
    from ..report import figures  # which is slow to load

    known = (to.published("catch-search") or {}).get("trials", {}) if to.publish else {}
    entries = to.entries("catch", collect(to.runs, known, to.quick), _place)
    if not entries:
        return False
    title, body = "Catch: agents with memory", rows(entries)
    to.show(title, *short(HEADER, body), SHORT_CAPTION)
    text = f"{CAPTION} {notes(entries)}".strip()
    sections = [pages.Section("Return", text, HEADER, body, commands=commands_of(entries))]
    for variant in VARIANTS:
        some = [entry for entry in to.drawn(entries) if tuple(entry["variant"]) == variant]
        for heading, suffix, kind in (
            ("seeds of the selected hyperparameters", "", "seeds"),
            (f"the {TOP} best trials of the search", "-search", "trials"),
        ):
            groups = {entry["core"]: of_kind for entry in some if (of_kind := _curves(entry[kind]))}
            sections += _figure(figures, groups, f"Training return on {variant}, {heading}", variant, to, suffix)
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
    figures: Any, groups: Mapping[str, Any], heading: str, variant: tuple[int, int], to: Report, suffix: str
) -> list[pages.Section]:
    if not groups:
        return []
    figure = figures.against_frames(groups)
    size = variant[0]
    for score, words in ((optimal_score(size), "the best player"), (random_score(size), "a random player")):
        figure.axes[0].axhline(score, color="grey", linestyle=":" if score > 0 else "--", label=words)
    name = f"catch-{variant[0]}-{variant[1]}{suffix}.png"
    picture = figures.save(figures.finish(figure), to.folder("catch") / name)[0]
    return [pages.Section(heading, figure=picture)]
