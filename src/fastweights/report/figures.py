"""Figures, as PNG and SVG."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

matplotlib.rcParams["svg.hashsalt"] = "fastweights"  # the same figure is the same file


def save(figure: Figure, path: Path) -> list[Path]:
    """As PNG and SVG, whole or not at all; the files written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in (".png", ".svg"):
        target = path.with_suffix(suffix)
        temporary = target.with_name(f".{target.stem}-{os.getpid()}{suffix}")
        metadata = {"Date": None} if suffix == ".svg" else None
        figure.savefig(temporary, dpi=150, metadata=metadata)
        temporary.replace(target)
        written.append(target)
    pyplot.close(figure)
    return written


def curves(groups: Mapping[str, Sequence[Sequence[float]]], label: str, *, scale: float = 1.0) -> Figure:
    """What was measured after every epoch: the mean over the runs of a group as a line, their range as a band.

    A run that ended early stays where it ended.
    """
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, runs in groups.items():
        epochs = max(len(run) for run in runs)
        values = [[scale * run[min(epoch, len(run) - 1)] for run in runs] for epoch in range(epochs)]
        steps = range(1, epochs + 1)
        (line,) = axes.plot(
            steps,
            [sum(each) / len(each) for each in values],
            label=f"{name} ({len(runs)} {'seed' if len(runs) == 1 else 'seeds'})",
        )
        axes.fill_between(steps, [*map(min, values)], [*map(max, values)], color=line.get_color(), alpha=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    return figure


def finish(figure: Figure, title: str) -> Figure:
    """With a legend and a title."""
    axes = figure.axes[0]
    axes.set_title(title)
    axes.legend()
    return figure


def heat_map(
    values: Sequence[Sequence[float]], x: Sequence[float], y: Sequence[float], labels: tuple[str, str], title: str
) -> Figure:
    """Errors (len(y), len(x)) in percent, as colours with the numbers written on them; 100 is a run that diverged."""
    figure, axes = pyplot.subplots(figsize=(1.1 * len(x) + 1.5, 0.8 * len(y) + 1.5), layout="constrained")
    axes.imshow(values, cmap="viridis_r", vmin=0, vmax=65, origin="lower", aspect="auto")
    axes.set_xticks(range(len(x)), [f"{each:g}" for each in x])
    axes.set_yticks(range(len(y)), [f"{each:g}" for each in y])
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    for row, across in enumerate(values):
        for column, value in enumerate(across):
            shade = "white" if value > 35 else "black"
            text = "diverged" if value == 100 else f"{value:.3g}"
            axes.text(column, row, text, ha="center", va="center", color=shade)
    axes.set_title(title)
    return figure


def glimpses(image: Sequence[Sequence[float]], regions: Sequence[tuple[Any, ...]], patches: Any, across: int) -> Figure:
    """A schedule of glimpses on an image: where each looks, and what it sees.

    Args:
        regions: top, left, size and whether it stores and integrates, in the order of the glimpses.
        patches: what is seen there, one square of numbers per glimpse.
        across: glimpses in a row.
    """
    rows = -(-len(regions) // across)
    figure, axes = pyplot.subplots(2 * rows, across, figsize=(1.3 * across, 2.7 * rows), layout="constrained")
    for axis in axes.flat:
        axis.axis("off")
    for number, ((top, left, size, store, integrate), patch) in enumerate(zip(regions, patches, strict=True)):
        row, column = divmod(number, across)
        where, what = axes[2 * row, column], axes[2 * row + 1, column]
        where.imshow(image, cmap="gray_r")
        colour = "tab:red" if store else "tab:blue" if integrate else "tab:grey"
        where.add_patch(Rectangle((left - 0.5, top - 0.5), size, size, fill=False, edgecolor=colour, linewidth=2))
        where.set_title(f"{number + 1}" + (" store" if store else " integrate" if integrate else ""), fontsize=8)
        what.imshow(patch, cmap="gray_r", vmin=0, vmax=1)
        what.axis("on")
        what.set(xticks=[], yticks=[])
    return figure


def retrieved(images: Sequence[Any], regions: Sequence[tuple[Any, ...]], attention: Sequence[Any]) -> Figure:
    """For each image, what the glimpses that read a memory got from those that were stored in it.

    Args:
        regions: of the glimpses, as for `glimpses`.
        attention: for each image, one row per glimpse that reads, one number per glimpse that was stored.
    """
    figure, axes = pyplot.subplots(
        2, len(images), figsize=(1.7 * len(images), 3.6), layout="constrained", squeeze=False
    )
    stored = [str(place + 1) for place, region in enumerate(regions) if region[3]]
    reading = [str(place + 1) for place, region in enumerate(regions) if region[4]]
    for column, (image, strengths) in enumerate(zip(images, attention, strict=True)):
        axes[0, column].imshow(image, cmap="gray_r")
        axes[0, column].axis("off")
        axis = axes[1, column]
        axis.imshow(strengths, cmap="viridis", aspect="equal")
        axis.set_xticks(range(len(stored)), stored)
        axis.set_yticks(range(len(reading)), reading)
        axis.set_xlabel("stored glimpse")
        if column == 0:
            axis.set_ylabel("glimpse that reads")
    return figure


def against_frames(groups: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Figure:
    """Reward against frames: the mean over the runs of a group as a line, from the least to the greatest as a band.

    Args:
        groups: by name, the `frames` and the `reward` of each run at points that they have in common.
    """
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, runs in groups.items():
        rewards = list(zip(*(run["reward"] for run in runs), strict=False))  # as long as the shortest
        frames = [each / 1e6 for each in runs[0]["frames"][: len(rewards)]]
        (line,) = axes.plot(frames, [sum(each) / len(each) for each in rewards], label=f"{name} ({len(runs)})")
        axes.fill_between(frames, [*map(min, rewards)], [*map(max, rewards)], color=line.get_color(), alpha=0.2)
    axes.set_xlabel("million frames")
    axes.set_ylabel("reward of an episode")
    axes.grid(alpha=0.3)
    return figure


def film(episodes: Sequence[tuple[Any, Any, Any, float]], path: Path, per_second: int = 4) -> Path:
    """Games as a GIF: the screen, what the agent saw of it, and which earlier screens its memory attends to.

    Args:
        episodes: for each, screens, what was seen, what each move paid to each screen (None: nothing), and the reward.
    """
    figure, axes = pyplot.subplots(1, 3, figsize=(8, 3.1), layout="constrained")
    writer = PillowWriter(fps=per_second)
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with writer.saving(figure, temporary, dpi=80):
        for number, (screens, seen, attention, reward) in enumerate(episodes, 1):
            for frame, (there, visible) in enumerate(zip(screens, seen, strict=True)):
                for axis, image, name in zip(axes, (there, visible), ("screen", "seen by the agent"), strict=False):
                    axis.clear()
                    axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
                    axis.set(title=name, xticks=[], yticks=[])
                last = frame == len(screens) - 1
                axes[2].clear()
                if attention is not None and not last:
                    axes[2].bar(range(1, len(attention) + 1), [abs(each) for each in attention[frame]])
                axes[2].set(title="memory attends to frame", xlim=(0, len(screens)), yticks=[])
                figure.suptitle(f"game {number}, frame {frame + 1}" + (f": {reward:+.0f}" if last else ""))
                for _ in range(per_second if last else 1):
                    writer.grab_frame()
    pyplot.close(figure)
    temporary.replace(path)
    return path


def confusion(matrices: Mapping[str, Sequence[Sequence[float]]], classes: Sequence[str]) -> Figure:
    """Side by side, which class (rows) was taken for which (columns), in percent of the row."""
    figure, axes = pyplot.subplots(
        1, len(matrices), figsize=(3.2 * len(matrices) + 1, 4.6), layout="constrained", squeeze=False
    )
    for axis, (name, matrix) in zip(axes[0], matrices.items(), strict=True):
        axis.imshow(matrix, cmap="Blues", vmin=0, vmax=100)
        for row, across in enumerate(matrix):
            for column, value in enumerate(across):
                shade = "white" if value > 55 else "black"
                axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=shade, fontsize=8)
        axis.set_xticks(range(len(classes)), classes, rotation=60, ha="right")
        axis.set_yticks(range(len(classes)), classes if axis is axes[0, 0] else [""] * len(classes))
        axis.set_title(name)
    return figure


def contact_sheet(rows: Mapping[str, Sequence[Any]]) -> Figure:
    """Images in rows that have names."""
    across = max(map(len, rows.values()))
    figure, axes = pyplot.subplots(
        len(rows), across, figsize=(1.1 * across + 1, 1.15 * len(rows)), layout="constrained", squeeze=False
    )
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.axis("off")
        for axis, image in zip(line, images, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
        line[0].set_title(name, loc="left", fontsize=9)
    return figure


def parallel(trials: Sequence[tuple[float, Mapping[str, Any]]]) -> Figure:
    """A line for each trial through its settings, the best on top and darkest; trials have a value to be small."""
    names = list(trials[0][1])
    figure, axes = pyplot.subplots(figsize=(1.8 * len(names) + 2, 4.5), layout="constrained")
    heights = [_heights([setting[name] for _, setting in trials]) for name in names]
    heights.append(_heights(list(range(len(trials)))))
    for rank in reversed(range(len(trials))):
        shade = 0.15 + 0.85 * (1 - rank / max(1, len(trials) - 1))
        axes.plot([places[0][rank] for places in heights], color=pyplot.get_cmap("Blues")(shade), linewidth=1.5)
    for across, (_, labels) in enumerate(heights[:-1]):
        for height, label in labels:
            axes.text(across - 0.04, height, label, ha="right", va="center", fontsize=8)
    axes.set_xticks(range(len(names) + 1), [*names, "rank"])
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(-0.5, len(names) + 0.2)
    axes.grid(axis="x", alpha=0.5)
    return figure


def _heights(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each value is on an axis from 0 to 1, in their order, and what to write there."""
    order = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    places = {value: place / max(1, len(order) - 1) for place, value in enumerate(order)}
    some = order if len(order) <= 8 else [order[0], order[len(order) // 2], order[-1]]
    labels = [(places[value], f"{value:g}" if isinstance(value, float) else str(value)) for value in some]
    return [places[value] for value in values], labels


def bars(shares: Mapping[str, float]) -> Figure:
    """Names with what each has a share of."""
    figure, axes = pyplot.subplots(figsize=(6, 0.5 * len(shares) + 1.2), layout="constrained")
    axes.barh(list(shares), list(shares.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    return figure
