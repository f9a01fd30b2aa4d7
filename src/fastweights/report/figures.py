"""Figures, as PNG and SVG."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from . import statistics
from .style import INK, MODELS, WIDTH, Look, look_of

matplotlib.rcParams["svg.hashsalt"] = "fastweights"  # the same figure is the same file
matplotlib.rcParams["font.size"] = 11
for side in ("axes.spines.top", "axes.spines.right", "legend.frameon"):
    matplotlib.rcParams[side] = False
for ink in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"):
    matplotlib.rcParams[ink] = INK
matplotlib.rcParams["grid.color"] = "#8c959f"
matplotlib.rcParams["grid.alpha"] = 0.35
# In SVG files text and axes are light where the page around them is dark.
THEME = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


def save(figure: Figure, path: Path) -> list[Path]:
    """As PNG and SVG, whole or not at all; the files written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in (".png", ".svg"):
        target = path.with_suffix(suffix)
        temporary = target.with_name(f".{target.stem}-{os.getpid()}{suffix}")
        if suffix == ".svg":
            figure.savefig(temporary, metadata={"Date": None}, transparent=True)
            text = temporary.read_text(encoding="utf-8").replace(INK, "currentColor")
            temporary.write_text(text.replace("<defs>", f"{THEME}<defs>", 1), encoding="utf-8")
        else:
            figure.savefig(temporary, dpi=150)
        temporary.replace(target)
        written.append(target)
    pyplot.close(figure)
    return written


def curves(
    groups: Mapping[str, Sequence[Sequence[float]]],
    label: str,
    *,
    scale: float = 1.0,
    looks: Mapping[str, Look] = MODELS,
) -> Figure:
    """What was measured after every epoch: the mean over the runs of a group as a line, their range as a band.

    A run that ended early stays where it ended.

    Args:
        looks: of the groups.
    """
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4.2), layout="constrained")
    for name, runs in groups.items():
        epochs = max(len(run) for run in runs)
        values = [[scale * run[min(epoch, len(run) - 1)] for run in runs] for epoch in range(epochs)]
        steps = range(1, epochs + 1)
        look = looks.get(name) or look_of(name)
        axes.plot(
            steps,
            [sum(each) / len(each) for each in values],
            color=look.colour,
            linestyle=look.line,
            label=f"{look.name} ({len(runs)} {'seed' if len(runs) == 1 else 'seeds'})",
        )
        axes.fill_between(steps, [*map(min, values)], [*map(max, values)], color=look.colour, alpha=0.2, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epochs")
    axes.set_ylabel(label)
    axes.grid()
    return figure


def bands(
    groups: Mapping[str, Sequence[Sequence[float]]],
    x: Sequence[float],
    labels: tuple[str, str],
    *,
    interquartile: bool = True,
    looks: Mapping[str, Look] = MODELS,
) -> Figure:
    """The interquartile mean (or the mean) of a group's runs as a line, with its 95 % bootstrap interval as a band.

    Every run is there, too, as a thin line.

    Args:
        groups: by name, what was measured in each run, at the points `x`.
        labels: of the axes.
        looks: of the groups.
    """
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4.2), layout="constrained")
    for name, runs in groups.items():
        look, found = looks.get(name) or look_of(name), statistics.band(runs, interquartile=interquartile)
        for run in runs:
            axes.plot(x, run, color=look.colour, linestyle=look.line, linewidth=0.7, alpha=0.4, zorder=1)
        axes.fill_between(x, found.low, found.high, color=look.colour, alpha=0.2, linewidth=0, zorder=2)
        label = f"{look.name} ({len(runs)} {'seed' if len(runs) == 1 else 'seeds'})"
        axes.plot(x, found.centre, color=look.colour, linestyle=look.line, linewidth=2.2, label=label, zorder=3)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid()
    return figure


def finish(figure: Figure) -> Figure:
    """With a legend; one that would cover the lines is below them."""
    handles, _ = figure.axes[0].get_legend_handles_labels()
    if len(handles) > 5:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    else:
        figure.axes[0].legend(fontsize=9.5)
    return figure


def heat_map(
    values: Sequence[Sequence[float]], x: Sequence[float], y: Sequence[float], labels: tuple[str, str]
) -> Figure:
    """Errors (len(y), len(x)) in percent, as colours with the numbers written on them; 100 is a run that diverged."""
    figure, axes = pyplot.subplots(figsize=(WIDTH, 0.55 * len(y) + 1), layout="constrained")
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
    return figure


def glimpses(image: Sequence[Sequence[float]], regions: Sequence[tuple[Any, ...]], patches: Any, across: int) -> Figure:
    """A schedule of glimpses on an image: where each looks, and what it sees.

    Args:
        regions: top, left, size and whether it stores and integrates, in the order of the glimpses.
        patches: what is seen there, one square of numbers per glimpse.
        across: glimpses in a row.
    """
    rows = -(-len(regions) // across)
    figure, axes = pyplot.subplots(
        2 * rows, across, figsize=(WIDTH, 2.15 * rows * WIDTH / across), layout="constrained"
    )
    for axis in axes.flat:
        axis.axis("off")
    for number, ((top, left, size, store, integrate), patch) in enumerate(zip(regions, patches, strict=True)):
        row, column = divmod(number, across)
        where, what = axes[2 * row, column], axes[2 * row + 1, column]
        where.imshow(image, cmap="gray_r")
        colour = "#d55e00" if store else "#0072b2" if integrate else "#808080"
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
    across = min(3, len(images))
    down = -(-len(images) // across)
    figure, axes = pyplot.subplots(
        2 * down, across, figsize=(WIDTH, 4.4 * down * WIDTH / 3 / across), layout="constrained", squeeze=False
    )
    for axis in axes.flat:
        axis.axis("off")
    stored = [str(place + 1) for place, region in enumerate(regions) if region[3]]
    reading = [str(place + 1) for place, region in enumerate(regions) if region[4]]
    for number, (image, strengths) in enumerate(zip(images, attention, strict=True)):
        row, column = divmod(number, across)
        axes[2 * row, column].imshow(image, cmap="gray_r")
        axis = axes[2 * row + 1, column]
        axis.axis("on")
        axis.imshow(strengths, cmap="viridis", aspect="equal")
        axis.set_xticks(range(len(stored)), stored)
        axis.set_yticks(range(len(reading)), reading)
        axis.set_xlabel("stored glimpse")
        if column == 0:
            axis.set_ylabel("glimpse that reads")
    return figure


def attention(maps: Mapping[str, Sequence[Sequence[float]]], visible: int) -> Figure:
    """Shares of attention, in percent, of each frame (columns) at each step (rows); from `visible` on all is black."""
    figure, axes = pyplot.subplots(
        1, len(maps), figsize=(WIDTH, 0.15 + WIDTH / len(maps)), layout="constrained", squeeze=False
    )
    for axis, (name, shares) in zip(axes.flat, maps.items(), strict=True):
        picture = axis.imshow(shares, cmap="viridis", vmin=0, vmax=50)
        axis.axvline(visible - 0.5, color="white", linestyle=":")
        axis.axhline(visible - 0.5, color="white", linestyle=":")
        axis.set_xticks(range(0, len(shares), 3), [str(frame + 1) for frame in range(0, len(shares), 3)])
        axis.set_yticks(range(0, len(shares), 3), [str(frame + 1) for frame in range(0, len(shares), 3)])
        axis.set_xlabel("frame attended to")
        axis.set_title(name, fontsize=11)
    axes[0, 0].set_ylabel("frame")
    figure.colorbar(picture, ax=axes, shrink=0.6, label="% of attention")
    return figure


def confusion(matrices: Mapping[str, Sequence[Sequence[float]]], classes: Sequence[str]) -> Figure:
    """Which class (rows) was taken for which (columns), in percent of the row; two models beside each other."""
    across = min(2, len(matrices))
    down = -(-len(matrices) // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(WIDTH, 3.1 * down * 2 / across), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(matrices) :]:
        axis.axis("off")
    for place, (axis, (name, matrix)) in enumerate(zip(axes.flat, matrices.items(), strict=False)):
        axis.imshow(matrix, cmap="Blues", vmin=0, vmax=100)
        for row, shares in enumerate(matrix):
            for column, value in enumerate(shares):
                shade = "white" if value > 55 else "black"
                axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=shade, fontsize=10)
        bottom = place + across >= len(matrices)
        axis.set_xticks(range(len(classes)), classes if bottom else [""] * len(classes), rotation=55, ha="right")
        axis.set_yticks(range(len(classes)), classes if place % across == 0 else [""] * len(classes))
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_title(look_of(name).name, fontsize=12)
    return figure


def contact_sheet(rows: Mapping[str, Sequence[Any]]) -> Figure:
    """Images in rows that have names."""
    across = max(map(len, rows.values()))
    figure, axes = pyplot.subplots(
        len(rows), across, figsize=(WIDTH, WIDTH / across * 1.22 * len(rows)), layout="constrained", squeeze=False
    )
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.axis("off")
        for axis, image in zip(line, images, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
        line[0].set_title(name, loc="left", fontsize=11)
    return figure


def parallel(trials: Sequence[tuple[float, Mapping[str, Any]]]) -> Figure:
    """A line for each trial through its settings, the best on top and darkest; a lower value is better."""
    names = list(trials[0][1])
    figure, axes = pyplot.subplots(figsize=(WIDTH, 4.2), layout="constrained")
    heights = [_heights([setting[name] for _, setting in trials]) for name in names]
    heights.append(_heights(list(range(len(trials)))))
    for rank in reversed(range(len(trials))):
        shade = 0.15 + 0.85 * (1 - rank / max(1, len(trials) - 1))
        axes.plot([places[0][rank] for places in heights], color=pyplot.get_cmap("Blues")(shade), linewidth=1.5)
    for across, (_, labels) in enumerate(heights[:-1]):
        for height, label in labels:
            axes.text(across - 0.04, height, label, ha="right", va="center", fontsize=9.5)
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
    figure, axes = pyplot.subplots(figsize=(WIDTH, 0.45 * len(shares) + 0.8), layout="constrained")
    axes.barh(list(shares), list(shares.values()), color="#808080")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    return figure
