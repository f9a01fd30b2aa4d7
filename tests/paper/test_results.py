"""The committed results: complete where they claim to be, selected by validation, and not judged on a plateau."""

import json
from pathlib import Path

import pytest

from fastweights.paper.catch import learning as catch
from fastweights.paper.faces import table3
from fastweights.paper.glimpses import table2
from fastweights.paper.reports import PROTOCOL
from fastweights.paper.retrieval import claims, table1

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
    assert entry["test_error_best_validation"] == selected_by_validation(entry)


@pytest.mark.parametrize(
    ("name", "seeds", "epochs"),
    [
        ("table1", lambda entry: table1.SEEDS[entry["model"]], lambda entry: table1.EPOCHS[entry["units"]]),
        ("table2", lambda entry: table2.SEEDS, lambda entry: table2.EPOCHS),
        ("table3", lambda entry: table3.SEEDS, lambda entry: table3.EPOCHS[entry["recipe"]]),
        ("claims", lambda entry: claims.SEEDS, lambda entry: claims.EPOCHS),
    ],
)
def test_results_are_of_one_protocol_and_keep_to_it(name, seeds, epochs):
    entries = json.loads((RESULTS / f"{name}.json").read_text())
    protocols = {entry.get("protocol", 1) for entry in entries}
    assert len(protocols) == 1
    for entry in entries:
        if "model" in entry:
            assert entry["test_error_best_validation"] == selected_by_validation(entry)
        if protocols == {PROTOCOL} and entry.get("claim") != "map":
            assert len(entry["seeds"]) >= seeds(entry)
            assert {seed["epochs"] for seed in entry["seeds"]} == {epochs(entry)}
            assert entry["interval"][0] <= entry["test_error_mean"] <= entry["interval"][1]
            assert entry["trials"] > 0


def by_both(tuned):
    return {f"{recipe}/{cell}": found for recipe, cells in tuned.items() for cell, found in cells.items()}


def test_the_hyperparameters_are_those_that_the_searches_selected():
    tuned = {
        "table1": table1.TUNED,
        "claims": claims.TUNED,
        "table2": {
            f"{recipe}/{cell}": found for recipe, cells in table2.TUNED.items() for cell, found in cells.items()
        },
        "table3": {f"{data}/{cell}": found for data, cells in table3.TUNED.items() for cell, found in cells.items()},
        "catch": {catch.name_of(*which): found for which, found in catch.TUNED.items()},
    }
    for name, known in tuned.items():
        path = RESULTS / f"{name}-search.json"
        found = json.loads(path.read_text()).get("cells", {}) if path.exists() else {}
        for cell, outcome in found.items():
            if outcome.get("finalists") and outcome["selected"]:  # of the present protocol, and to its end
                assert known[cell] == outcome["selected"], (name, cell)
                assert outcome["at_edge"] == [], (name, cell)


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

    def difference(place, sign=1):
        records = json.loads((RESULTS / f"{place.partition('/')[0]}-tests.json").read_text())
        (record,) = (r for r in records if r["id"] == place and r["claim"] != "similar")
        low, high = sorted(sign * record[bound] for bound in ("low", "high"))
        return f"{sign * record['estimate']:.2f} [{low:.2f}, {high:.2f}]"

    models = ("fast-weights", "lstm")
    expected = [[of(table1_, model, units, "tuned") for model in (*models, "a-lstm")] for units in (20, 50)] + [
        [of(table2_, model, units, "plain") for model in (*models, "convnet")] for units in (100, 200)
    ]
    expected.append([of(table3_, model, 200, "rendered", accuracy=True) for model in (*models, "convnet")])
    expected.append([sampled(core) for core in (*models, "irnn")])
    readme = (ROOT / "README.md").read_text().replace("**", "")
    of_lstm = [f"table1/tuned/fast-weights-{units}-lstm-{units}" for units in (20, 50)]
    of_lstm += [f"table2/plain/fast-weights-{units}-lstm-{units}" for units in (100, 200)]
    differences = [*map(difference, of_lstm), difference("table3/rendered/fast-weights-200-lstm-200", -1)]
    differences.append(difference("catch/24-5/fast-weights-lstm/sampled_return"))
    table = readme[readme.index("| | fast weights | LSTM | best other | difference") :].split("\n\n")[0]
    shown = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in table.splitlines()[2:]]
    assert [[first, second, third.split(" ", 1)[1]] for first, second, third, _ in shown] == expected
    assert [row[-1] for row in shown] == differences


def test_catch():
    """Fresh seeds of each core, with all frames; all learn the game."""
    entries = json.loads((RESULTS / "catch.json").read_text())
    assert [(tuple(entry["variant"]), entry["core"]) for entry in entries] == [
        (game, core) for game in catch.VARIANTS for core in catch.CORES
    ]
    learned = {(16, 3): 0.95, (24, 5): 0.9}
    for entry in entries:
        game = tuple(entry["variant"])
        assert entry["frames"] == catch.FRAMES[game]
        returns = sorted(seed["greedy_return"] for seed in entry["seeds"])
        assert returns[len(returns) // 10] >= learned[game]  # all but one of ten
        if entry.get("protocol") == PROTOCOL:
            assert entry["setting"] == catch.TUNED[game, entry["core"]]
            assert [seed["seed"] for seed in entry["seeds"]] == list(
                range(catch.FIRST_SEED, catch.FIRST_SEED + catch.SEEDS)
            )
