"""The committed results: complete where they claim to be, selected by validation, and not judged on a plateau."""

import json
import re
from pathlib import Path

import pytest

from fastweights.paper.catch import learning as catch
from fastweights.paper.faces import table3
from fastweights.paper.glimpses import table2
from fastweights.paper.retrieval import table1
from fastweights.report import tables
from fastweights.report.style import name_of

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "results"
ENTRIES = json.loads((RESULTS / "table1.json").read_text())
UPDATES_PER_EPOCH = 782
PLATEAU = 30_000  # updates that an LSTM may spend at the no-retrieval baseline before it solves the task


def judged_on_a_plateau(entry):
    """A model that was given up before it had the time to beat the no-retrieval baseline: a common mistake."""
    return any(seed["test_error"] > 10 and seed["epochs"] * UPDATES_PER_EPOCH < PLATEAU for seed in entry["seeds"])


def selected_by_validation(entry):
    """The test error of the seed that was best on the validation set."""
    best = min(entry["seeds"], key=lambda seed: (seed["validation_error"], seed["validation_loss"]))
    return best["test_error"]


def test_the_law_catches_the_mistake():
    early = {"seeds": [{"test_error": 61.0, "epochs": 20}]}
    assert judged_on_a_plateau(early)
    assert not judged_on_a_plateau({"seeds": [{"test_error": 61.0, "epochs": 100}, {"test_error": 0.0, "epochs": 20}]})


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['model']}/{entry['units']} {entry['recipe']}")
def test_a_cell(entry):
    cell = table1.Cell(entry["model"], entry["units"])
    assert cell in table1.CELLS
    assert entry["paper"] == table1.paper_error(cell)
    assert not judged_on_a_plateau(entry)
    assert entry["command"].startswith("fastweights reproduce table1")
    if entry["recipe"] == "tuned":
        assert len(entry["seeds"]) >= table1.SEEDS[cell.units]
    assert entry["test_error_best_validation"] == selected_by_validation(entry)


def test_glimpses():
    entries = json.loads((RESULTS / "table2.json").read_text())
    all_cells = [(cell, recipe) for recipe in table2.RECIPES for cell in table2.CELLS]
    assert [(table2.Cell(entry["model"], entry["units"]), entry["recipe"]) for entry in entries] == all_cells
    for entry in entries:
        assert len(entry["seeds"]) >= table2.SEEDS
        assert {seed["epochs"] for seed in entry["seeds"]} == {table2.EPOCHS}
        assert entry["test_error_best_validation"] == selected_by_validation(entry)


def test_faces():
    entries = json.loads((RESULTS / "table3.json").read_text())
    assert [entry["model"] for entry in entries] == list(table3.MODELS)
    for entry in entries:
        assert entry["recipe"] == "rendered"
        assert len(entry["seeds"]) >= table3.SEEDS
        assert {seed["epochs"] for seed in entry["seeds"]} == {table3.EPOCHS}
        assert entry["test_error_best_validation"] == selected_by_validation(entry)


def test_the_settings_are_those_that_the_search_chose():
    found = json.loads((RESULTS / "table1-search.json").read_text())["cells"]
    selected = {cell: table1.Setting(**what["selected"]) for cell, what in found.items() if what["selected"]}
    assert selected == table1.TUNED


def test_the_learning_rates_for_glimpses_are_those_that_the_search_chose():
    found = json.loads((RESULTS / "table2-search.json").read_text())["recipes"]
    selected = {recipe: {cell: what["selected"] for cell, what in cells.items()} for recipe, cells in found.items()}
    assert selected == table2.TUNED


def test_the_learning_rates_for_faces_are_those_that_the_search_chose():
    found = json.loads((RESULTS / "table3-search.json").read_text())
    assert {cell: what["selected"] for cell, what in found["cells"].items()} == table3.TUNED[found["data"]]


def test_the_settings_for_catch_are_those_that_the_search_chose():
    found = json.loads((RESULTS / "catch-search.json").read_text())["trials"]
    counts = {len(tried) for tried in found.values()}
    assert len(counts) == 1  # as many for every core
    assert found.keys() == {catch.name_of(*which) for which in catch.TUNED}
    for variant, core in catch.TUNED:
        tried = found[catch.name_of(variant, core)]
        finalists = [trial for trial in tried if trial["mean_returns"]]
        best = max(finalists, key=lambda trial: min(trial["mean_returns"]))
        assert (len(finalists), len(best["mean_returns"])) == (catch.FINALISTS, 1 + catch.FINAL_SEEDS)
        assert best["setting"] == catch.TUNED[variant, core]
        drawn = catch.trials(core, variant, counts.copy().pop())
        assert {trial["trial"]: trial["setting"] for trial in tried} == {
            name: {hyperparameter: trial.settings()[hyperparameter] for hyperparameter in best["setting"]}
            for name, trial in drawn.items()
        }


PAGE = (ROOT / "docs" / "results.md").read_text()


def test_the_readme_has_the_same_numbers():
    """Each of its rows: the means, and in brackets the paper's."""
    table1_, table2_, table3_, catch_ = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in ("table1", "table2", "table3", "catch")
    )

    def of(entries, model, units, recipe, accuracy=False):
        (entry,) = (e for e in entries if (e["model"], e["units"], e["recipe"]) == (model, units, recipe))
        numbers = (100 - entry[key] if accuracy else entry[key] for key in ("test_error_mean", "paper"))
        mean, paper = numbers
        return f"{mean:.2f} ({round(paper, 2):g})"

    def sampled(core):
        (entry,) = (e for e in catch_ if (e["variant"], e["core"]) == ([24, 5], core))
        return f"{sum(seed['sampled_return'] for seed in entry['seeds']) / len(entry['seeds']):.2f}"

    models = ("fast-weights", "lstm")
    expected = [[of(table1_, model, units, "tuned") for model in (*models, "a-lstm")] for units in (20, 50)] + [
        [of(table2_, model, units, "plain") for model in (*models, "convnet")] for units in (100, 200)
    ]
    expected.append([of(table3_, model, 200, "rendered", accuracy=True) for model in (*models, "convnet")])
    expected.append([sampled(core) for core in (*models, "irnn")])
    readme = (ROOT / "README.md").read_text().replace("**", "")
    table = readme[readme.index("| | fast weights | LSTM | best other |") :].split("\n\n")[0]
    shown = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in table.splitlines()[2:]]
    assert [[first, second, third.split(" ", 1)[1]] for first, second, third in shown] == expected


def test_the_page_has_the_same_numbers():
    rows = tables.rows([entry for entry in ENTRIES if entry["recipe"] == "tuned"])
    rows += table3.rows(json.loads((RESULTS / "table3.json").read_text()))
    for row in rows:
        assert f"| {' | '.join(row[:6])} |" in PAGE
    glimpses = json.loads((RESULTS / "table2.json").read_text())
    for recipe in table2.RECIPES:
        for model in table2.MODELS:  # one row with all sizes
            some = [entry for entry in glimpses if (entry["recipe"], entry["model"]) == (recipe, model)]
            row = [value for cells in tables.rows(some, usual=recipe) for value in cells[2:5]]
            assert f"| {' | '.join([name_of(model), *row])} |" in PAGE


def test_catch():
    """Five fresh seeds of each core, with all frames; all learn the game, and the page has what came of them."""
    entries = json.loads((RESULTS / "catch.json").read_text())
    assert [(tuple(entry["variant"]), entry["core"]) for entry in entries] == [
        (game, core) for game in catch.VARIANTS for core in catch.CORES
    ]
    learned = {(16, 3): 0.95, (24, 5): 0.9}
    for entry, row in zip(entries, catch.rows(entries), strict=True):
        game, first = tuple(entry["variant"]), catch.FIRST_SEED
        assert entry["setting"] == catch.TUNED[game, entry["core"]]
        assert entry["frames"] == catch.FRAMES[game]
        assert [seed["seed"] for seed in entry["seeds"]] == list(range(first, first + catch.SEEDS))
        assert min(seed["greedy_return"] for seed in entry["seeds"]) >= learned[game]
        assert (
            entry["trials"]
            == json.loads((RESULTS / "catch-search.json").read_text())["trials"][catch.name_of(game, entry["core"])]
        )
        assert f"| {' | '.join(row[:-2])} |" in PAGE


def test_the_page_on_glimpses_has_the_same_numbers():
    quoted, *rest = (
        re.findall(r"\d+\.\d\d ± \d+\.\d\d", page.read_text())
        for page in (ROOT / "docs" / "glimpses.md", RESULTS / "table2.md", RESULTS / "glimpses-ablations.md")
    )
    found = [number for numbers in rest for number in numbers]
    assert sorted(quoted) == sorted(found)


def test_the_page_on_faces_has_the_same_numbers():
    page = (ROOT / "docs" / "faces.md").read_text()
    for row in table3.rows(json.loads((RESULTS / "table3.json").read_text())):
        assert f"| {row[2]} | {row[3]} |" in page


def test_the_findings_have_the_same_numbers():
    """All means and deviations of the inner steps and of settling are there, and no others."""
    claims = json.loads((RESULTS / "claims.json").read_text())
    quoted = re.findall(r"\d+\.\d\d ± \d+\.\d\d", (ROOT / "docs" / "findings.md").read_text())
    found = [
        f"{entry['test_error_mean']:.2f} ± {entry['test_error_std']:.2f}"
        for entry in claims
        if entry["claim"] != "robust"
    ]
    assert sorted(quoted) == sorted(found)
