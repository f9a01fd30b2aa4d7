"""`train`: a single run."""

import functools
import sys
from typing import Annotated

import tyro

from ..base.progress import Board, duration
from ..paper.catch import learning as catch
from ..paper.catch import run as agents
from ..paper.glimpses import run as glimpses
from ..paper.retrieval import run as retrieval
from ..paper.run import Config, train
from ..tasks import retrieval as task
from ..training import devices
from ..training.workers import prepare_process
from .options import RUNS, MaybeCount, MaybePath, MaybeText, Training, command


def train_retrieval(
    config: Annotated[retrieval.Retrieval, tyro.conf.arg(name="")] = retrieval.Retrieval(),  # noqa: B008
    training: Annotated[Training, tyro.conf.arg(name="")] = Training(),  # noqa: B008
) -> int:
    """Train one net on associative retrieval; the same command goes on where it was stopped."""
    baseline = f" (no-retrieval baseline {float(task.baseline_error(config.pairs)):.2%})"
    return _train(config, training, f"{config.core}-{config.units}", baseline)


def train_glimpses(
    config: Annotated[glimpses.Glimpses, tyro.conf.arg(name="")] = glimpses.Glimpses(),  # noqa: B008
    training: Annotated[Training, tyro.conf.arg(name="")] = Training(),  # noqa: B008
) -> int:
    """Train one net on images by glimpses; the same command goes on where it was stopped."""
    return _train(config, training, f"{config.model}-{config.units}")


def _train(config: Config, training: Training, name: str, more: str = "") -> int:
    prepare_process(training.threads)
    folder = training.out or RUNS / config.settings()["task"] / name / f"seed-{config.seed}"
    with Board(1) as board:
        result = train(
            config,
            folder,
            command(),
            curves=training.curves,
            checkpoint_seconds=training.checkpoint_seconds,
            device=training.device,
            report=functools.partial(board.update, f"{name} seed {config.seed}"),
        )
    assert result is not None
    print(f"{folder}: {result['stopped']} after {result['epochs']} epochs, the best was {result['best_epoch']}")
    if "test_error" in result:
        print(f"validation error {result['validation_error']:.3%}, test error {result['test_error']:.3%}{more}")
    return 0 if result["stopped"] != "diverged" else 1


def train_catch(
    config: Annotated[agents.Catch, tyro.conf.arg(name="")] = agents.Catch(),  # noqa: B008
    *,
    out: MaybePath = None,
    ray: MaybeText = None,
    device: devices.Name = "cpu",
    gpus: MaybeCount = None,
) -> int:
    """Train one agent to play Catch by A3C; the same command goes on where it was stopped.

    Args:
        out: The run folder; by default one in runs/ named after game, core and seed.
        ray: Let the workers play on the Ray cluster at this address, "auto" for that of this machine.
        device: Compute on the CPU, a GPU (cuda), a Mac's (mps), or auto: one of them if it is there. Their numbers
            differ.
        gpus: Spread the workers over so many GPUs; by default all that are here, and on a Ray cluster one for each.
    """
    prepare_process()
    name = catch.name_of((config.size, config.visible), config.core)
    folder = out or RUNS / "catch-single" / name / f"seed-{config.seed}"
    with Board(1) as board:
        report = functools.partial(board.update, f"{name} seed {config.seed}")
        result = agents.train(config, folder, command(), report, ray, device, gpus)
    print(f"{folder}: {result['frames']:,} frames in {duration(result['seconds'])}, {agents.describe(result)}")
    if result["stopped"] == "diverged":
        print("fastweights: a gradient was not a number: try a lower lr", file=sys.stderr)
        return 1
    return 0
