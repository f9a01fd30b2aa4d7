"""Figures show the runs, and are written whole."""

import pytest

from fastweights.report import figures, statistics, style


def test_curves_are_the_mean_and_the_range(tmp_path):
    figure = figures.curves({"lstm": [[2.0, 1.0], [4.0]]}, "log-likelihood", scale=-1)
    (line,) = figure.axes[0].get_lines()
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx([-3, -2.5])
    assert line.get_label() == "LSTM (2 seeds)"
    written = figures.save(figures.finish(figure), tmp_path / "new" / "curves.png")
    assert [path.name for path in written] == ["curves.png", "curves.svg"]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"curves.png", "curves.svg"}


def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        figures.save(figures.curves({"lstm": [[1.0]]}, ""), tmp_path / f"{name}.png")
    for suffix in (".png", ".svg"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_models_have_their_colours_and_svg_files_follow_the_page(tmp_path):
    figure = figures.curves({"lstm": [[1.0]], "fast-weights": [[2.0]]}, "")
    colours = [line.get_color() for line in figure.axes[0].get_lines()]
    assert colours == [style.MODELS["lstm"].colour, style.MODELS["fast-weights"].colour]
    svg = figures.save(figures.finish(figure), tmp_path / "a.png")[1].read_text()
    assert style.INK not in svg.replace(figures.THEME, "")
    assert "currentColor" in svg
    assert len({look.colour for look in style.MODELS.values()}) == len(style.MODELS)


def test_a_heat_map_has_its_numbers_written_on_it():
    figure = figures.heat_map([[1.0, 50.0]], [0.9, 0.95], [0.5], ("λ", "η"))
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "50"]


def test_bands_are_the_interquartile_mean_its_interval_and_every_run():
    runs = [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1000.0, 1.0]]
    figure = figures.bands({"lstm": runs}, [10.0, 20.0], ("frames", "return"))
    (axes,) = figure.axes
    *thin, centre = axes.get_lines()
    assert [list(line.get_ydata()) for line in thin] == runs
    assert list(centre.get_xdata()) == [10, 20]
    assert list(centre.get_ydata()) == [1.5, 1]
    assert centre.get_label() == "LSTM (4 seeds)"
    assert len(axes.get_legend_handles_labels()[1]) == 1  # thin lines have no entry
    found = statistics.band(runs)
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert {found.low[0], found.high[0]} <= set(heights)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("frames", "return")


def test_bands_of_the_mean():
    figure = figures.bands({"lstm": [[0.0], [0.0], [0.0], [1000.0]]}, [1.0], ("", ""), interquartile=False)
    assert list(figure.axes[0].get_lines()[-1].get_ydata()) == [250]
