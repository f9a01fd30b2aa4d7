"""Catch: agents with three kinds of memory that learn a game they see only the beginning of, by A3C."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...report import pages, style
from ...tasks.catch import optimal_score, random_score
from ...training import a3c, devices
from ...training.runs import RunFolder
from ...training.workers import Job, Workers, run_all
from ..cells import finished
from ..reports import PROTOCOL, Report, commands_of
from ..run import with_hyperparameters
from ..studies import FIRST_SEED as SEARCH_SEED
from ..studies import Study, outcome
from . import run as agents
from .inside import attended, of_the_first_frames
from .measures import CAPTION, COLUMNS, FALL, SHORT_CAPTION, columns, curve, mean_return, of_seed, short
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
    "normalize_advantage=false,true",
    "schedule=constant,linear",
)
W = "recurrent_init=0.05,0.5,1.0"
HYPERPARAMETERS = {
    "irnn": (*FOR_ALL, W),
    "lstm": FOR_ALL,
    "fast-weights": (*FOR_ALL, W, "rate=0.01..1.0", "decay=0.7..0.99", "inner_steps=1,2,3"),
}
RUNG = a3c.WINDOWS // 4
FINAL_SEEDS = 5
ASYNCHRONOUS = 4  # workers of the runs that are A3C as published; the others have one
QUICK_FRAMES = 800_000


def hyperparameters(variant: tuple[int, int], core: str) -> tuple[str, ...]:
    """What is searched: as well, updates after a third of an episode, or after all of it."""
    size = variant[0]
    return (*HYPERPARAMETERS[core], f"rollout={(size - 1) // 3},{size - 1}")


def study(variant: tuple[int, int], core: str) -> Study:
    """The search for the hyperparameters of a core in a variant of the game."""
    run = config(core, variant, {}, SEARCH_SEED, FRAMES[variant])
    name = f"catch/{name_of(variant, core)}"
    return Study(
        name,
        run,
        hyperparameters(variant, core),
        RUNG,
        seeds=FINAL_SEEDS,
        function=train_for_return,
        kept=lambda folder: {"curve": curve(folder.metrics)},
    )


def config(core: str, variant: tuple[int, int], setting: Mapping[str, Any], seed: int, frames: int) -> Catch:
    """The run of a core in a variant of the game with a setting: hyperparameters of the run and of its recipe."""
    size, visible = variant
    training = a3c.Recipe(frames=frames, rollout=size - 1, **agents.STEADY)
    base = Catch(core=core, size=size, visible=visible, training=training, seed=seed)  # type: ignore[arg-type]
    found: Catch = with_hyperparameters(base, setting)
    return found


def train_for_return(
    config: Catch, path: Path, command: str, report: Callable[[Any], None], device: devices.Name = "cpu"
) -> dict[str, float]:
    """One trial of a search: its value is the negative mean return over all frames (lower is better)."""
    result = train(config, path, command, report, device=device)
    return {"value": -mean_return(RunFolder(path).metrics) if result["stopped"] == "finished" else math.inf}


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
    asynchronous: int = 1,
    quick: bool = False,
) -> dict[str, str]:
    """Train each core with its selected hyperparameters, once per seed; what failed.

    Args:
        asynchronous: workers of each run; 1: the synchronous algorithm.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if asynchronous < 1:
        raise ValueError(f"asynchronous must be at least 1, got {asynchronous}")
    jobs = []
    for variant in variants:
        for core in cores:
            setting = STARTING[core] if quick else TUNED.get((variant, core))
            if setting is None:
                raise ValueError(f"{core} has not been searched for {variant} yet: fastweights search catch")
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                frames = QUICK_FRAMES if quick else FRAMES[variant]
                run = config(core, variant, {**setting, "workers": asynchronous}, seed, frames)
                path = folder_of(runs, variant, core, asynchronous, quick) / f"seed-{seed}"
                arguments = {"config": run, "path": path, "command": command, "device": workers.device}
                jobs.append(Job(f"{core} {variant} seed {seed}", train, arguments))
    return run_all(jobs, workers, describe).failures


def experiment(quick: bool = False) -> str:
    """The name of its folder of runs."""
    return "catch-quick" if quick else "catch"


def folder_of(runs: Path, variant: tuple[int, int], core: str, asynchronous: int = 1, quick: bool = False) -> Path:
    """Where the seeds of a core are."""
    name = name_of(variant, core) + (f"-{asynchronous}-workers" if asynchronous > 1 else "")
    return runs / experiment(quick) / name


def collect(runs: Path, quick: bool = False) -> list[dict[str, Any]]:
    """The cores whose runs are finished: the entries of `results/catch.json`."""
    return [
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
        for variant in VARIANTS
        for core in CORES
        for asynchronous in (1, ASYNCHRONOUS)
        if (done := finished(folder_of(runs, variant, core, asynchronous, quick)))
    ]


HEADER = ("game", "core", *COLUMNS, "source")


def rows(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row of text per entry."""
    return [
        (
            "{}, {}".format(*entry["variant"]),
            style.name_of(entry["core"]) + (f" ({entry['workers']} workers)" if entry.get("workers", 1) > 1 else ""),
            *columns(entry["seeds"]),
            entry.get("source", ""),
        )
        for entry in entries
    ]


def collapses(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Of each entry: how many seeds there are, how many policies collapsed, and how many of these came back."""
    found: list[tuple[str, ...]] = []
    for (game, core, *_), entry in zip(rows(entries), entries, strict=True):
        states = [seed["collapse"] for seed in entry["seeds"] if "collapse" in seed]
        if states:
            fallen = [state for state in states if state]
            found.append((game, core, f"{len(states)}", f"{len(fallen)}", f"{fallen.count('back')}"))
    return found


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
        for asynchronous in (1, ASYNCHRONOUS):
            groups = {
                entry["core"]: curves
                for entry in some
                if entry.get("workers", 1) == asynchronous and (curves := _curves(entry["seeds"]))
            }
            words = "of fresh seeds" if asynchronous == 1 else f"with {asynchronous} asynchronous workers"
            sections += _figure(figures, groups, variant, words, "" if asynchronous == 1 else "-asynchronous", to)
        sections += _look_inside(figures, variant, to)
        groups = {} if to.quick else finalists(variant, to)
        sections += _figure(figures, groups, variant, "of the search's five best trials, as in the paper", "-best", to)
    fallen = collapses(entries)
    if fallen:
        words = f"Policies whose training return fell by more than {FALL:g}, and which of these were back at the end."
        sections.append(pages.Section("Policy collapse", words, ("game", "core", "seeds", "fell", "came back"), fallen))
    to.write("catch", title, sections, entries)
    return True


def _look_inside(figures: Any, variant: tuple[int, int], to: Report) -> list[pages.Section]:
    """What the memory of the first seed with fast weights attends to, if it was trained here."""
    done = finished(folder_of(to.runs, variant, "fast-weights", quick=to.quick))
    if not done or done[0].config["settings"]["inner_steps"] == 0:
        return []
    found, visible = attended(done[0]), variant[1]
    maps = {f"{name} ({each.episodes} episodes)": each.shares.tolist() for name, each in found.items()}
    name = f"catch-{variant[0]}-{variant[1]}-attention.png"
    picture = figures.save(figures.attention(maps, visible), to.folder("catch") / name)[0]
    shares = ", ".join(f"{of_the_first_frames(each, visible):.0f} % where it {name}" for name, each in found.items())
    text = (
        "The share of each frame at each step, in the last inner step; seed "
        f"{done[0].config['settings']['seed']}, sampled actions, after the dotted line all frames are black. "
        f"Of the attention of black frames, this much is on the visible ones: {shares}."
    )
    return [pages.Section(f"What the memory attends to on {variant}", text, figure=picture)]


def finalists(variant: tuple[int, int], to: Report) -> dict[str, list[Mapping[str, Any]]]:
    """The curves of the five best trials of the search for each core, of here or else as published."""
    there = (to.published("catch-search") or {}).get("cells", {})
    found = {}
    for core in CORES:
        known = outcome(study(variant, core), to.runs) or there.get(name_of(variant, core), {})
        if curves := _curves(known.get("finalists", [])):
            found[core] = curves
    return found


def notes(entries: Sequence[Mapping[str, Any]]) -> str:
    """What is to be known of how some entries were run, as sentences."""
    return " ".join(dict.fromkeys(entry["note"] for entry in entries if "note" in entry))


def _place(entry: Mapping[str, Any]) -> tuple[int, int, int]:
    return VARIANTS.index(tuple(entry["variant"])), CORES.index(entry["core"]), entry.get("workers", 1)


def _curves(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of whole runs: one that diverged has no end."""
    some = [each["curve"] for each in found if each.get("curve", {}).get("frames")]
    longest = max((len(each["frames"]) for each in some), default=0)
    return [each for each in some if len(each["frames"]) == longest]


def _figure(
    figures: Any, groups: Mapping[str, Any], variant: tuple[int, int], words: str, suffix: str, to: Report
) -> list[pages.Section]:
    if not groups:
        return []
    points = min(len(run["frames"]) for runs in groups.values() for run in runs)
    frames = [each / 1e6 for each in next(iter(groups.values()))[0]["frames"][:points]]
    returns = {core: [run["return"][:points] for run in runs] for core, runs in groups.items()}
    labels = ("million frames", "return of an episode")
    figure = figures.bands(returns, frames, labels, interquartile=suffix != "-best")
    size = variant[0]
    for score, line in ((optimal_score(size), "the best player"), (random_score(size), "a random player")):
        figure.axes[0].axhline(score, color="grey", linestyle=":" if score > 0 else "--", label=line)
    name = f"catch-{variant[0]}-{variant[1]}{suffix}.png"
    picture = figures.save(figures.finish(figure), to.folder("catch") / name)[0]
    middle = "mean" if suffix == "-best" else "interquartile mean"
    text = f"A thin line for each run; their {middle}, and its 95 % bootstrap interval."
    return [pages.Section(f"Training return on {variant}, {words}", text, figure=picture)]
