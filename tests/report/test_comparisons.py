"""The records of tests are of the published results, of every two models, and adjusted for how many there are."""

import json
from pathlib import Path

import pytest

from fastweights.report import comparisons, statistics
from fastweights.report.comparisons import Sample, holds

RESULTS = Path(__file__).parent.parent.parent / "results"
LOW, HIGH = [0.0, 0.1, 0.2, 0.3, 0.4], [1.0, 1.1, 1.2, 1.3, 1.4]


def entry(model, units, errors, recipe="tuned"):
    return {"model": model, "units": units, "recipe": recipe, "seeds": [{"test_error": error} for error in errors]}


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "catch"])
def test_the_published_records_are_those_of_the_published_results(table):
    published = json.loads((RESULTS / f"{table}-tests.json").read_text())
    again = json.loads(json.dumps(comparisons.of(table, json.loads((RESULTS / f"{table}.json").read_text()))))
    assert len(published) == len(again) > 0
    for there, here in zip(published, again, strict=True):
        assert there.keys() == here.keys()
        for name, value in here.items():
            assert there[name] == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value)


def test_every_two_models_of_a_size_and_recipe_are_compared_and_no_others():
    records = comparisons.of(
        "t",
        [
            entry("lstm", 20, HIGH),
            entry("irnn", 20, HIGH),
            entry("fast-weights", 20, LOW),
            entry("lstm", 50, HIGH),
            entry("fast-weights", 50, LOW),
            entry("fast-weights", 20, LOW, "literal"),
        ],
    )
    assert {record["id"]: record["claim"] for record in records} == {
        "t/tuned/fast-weights-20-lstm-20": "better",
        "t/tuned/fast-weights-20-irnn-20": "better",
        "t/tuned/lstm-20-irnn-20": "equal",
        "t/tuned/fast-weights-50-lstm-50": "better",
    }
    assert len(records) == 4


def test_p_is_adjusted_among_what_was_asked_and_among_the_rest():
    models = {"fast-weights": LOW, "lstm": HIGH, "irnn": [10 * value for value in HIGH], "a-lstm": [5, 6, 7, 8, 9]}
    records = comparisons.comparisons([Sample("t", model, "", values) for model, values in models.items()], "error")
    found = {record["id"]: record for record in records}
    assert {record["family"] for record in records} == {3}
    for other in ("lstm", "irnn", "a-lstm"):
        assert found[f"t/fast-weights-{other}"]["p_adjusted"] == pytest.approx(3 * 2 / 252)
    rest = [record["p"] for record in records if record["a"] != "fast-weights"]
    adjusted = [record["p_adjusted"] for record in records if record["a"] != "fast-weights"]
    assert adjusted == statistics.holm(rest)


def test_what_is_better_depends_on_what_was_measured():
    samples = [Sample("t", "fast-weights", "", HIGH), Sample("t", "lstm", "", LOW)]
    (errors,) = comparisons.comparisons(samples, "error")
    (returns,) = comparisons.comparisons(samples, "return", higher=True)
    assert (errors["claim"], returns["claim"]) == ("worse", "better")
    assert errors["estimate"] == returns["estimate"] == pytest.approx(1.0)


def test_a_margin_asks_for_similarity_as_well():
    samples = [Sample("t", "fast-weights", "", LOW), Sample("t", "lstm", "", [*LOW[:4], 0.5])]
    better, similar = comparisons.comparisons(samples, "error", margin=1.0)
    assert (better["id"], better["claim"], holds(better)) == ("t/fast-weights-lstm", "better", False)
    assert (similar["id"], similar["claim"], holds(similar)) == ("t/fast-weights-lstm", "similar", True)
    assert similar["margin"] == 1.0
    narrow = comparisons.comparisons(samples, "error", margin=0.1)[1]
    assert not holds(narrow)


def test_what_holds():
    record = {"claim": "better", "estimate": -1.0, "low": -2.0, "high": -0.5, "p_adjusted": 0.01}
    assert holds(record)
    assert not holds({**record, "p_adjusted": 0.05})
    similar = {**record, "claim": "similar", "margin": 3.0}
    assert holds(similar)
    assert not holds({**similar, "margin": 1.5})
    assert not holds({**similar, "p_adjusted": 0.2})
    assert not holds({**similar, "low": None, "high": None})
    assert not holds({**record, "claim": "equal"})
    assert holds({**record, "claim": "equal", "estimate": 0, "low": 0, "high": 0, "p_adjusted": 1.0})


def test_three_seeds_show_nothing():
    far = [entry("fast-weights", 20, [0, 0, 0.1]), entry("lstm", 20, [60, 61, 62])]
    assert not any(map(holds, comparisons.of("table1", far)))


def agent(core, frames, curve):
    seeds = [
        {"seed": number, "frames_to_0": reached, "greedy_return": 1.0, "curve": {"frames": [1, 2], "return": curve}}
        for number, reached in enumerate(frames)
    ]
    return {"variant": [24, 5], "core": core, "frames": 1000, "seeds": seeds}


def test_agents_are_compared_by_all_that_was_measured():
    records = comparisons.of(
        "catch", [agent("lstm", [900, 950, None], [0.0, 0.5]), agent("fast-weights", [100, 110, 120], [0.5, 1.0])]
    )
    found = {record["id"]: record for record in records}
    assert found.keys() == {
        f"catch/24-5/fast-weights-lstm/{measure}" for measure in ("auc", "greedy_return", "frames_to_0")
    }
    soon = found["catch/24-5/fast-weights-lstm/frames_to_0"]
    assert soon["claim"] == "better"  # fewer frames
    assert soon["estimate"] == pytest.approx(110 - 950)  # never is after all frames
    assert found["catch/24-5/fast-weights-lstm/auc"]["estimate"] == pytest.approx(0.5)
    assert found["catch/24-5/fast-weights-lstm/greedy_return"]["claim"] == "equal"


def test_an_area_that_was_measured_is_taken_as_it_is():
    entries = [agent("lstm", [1, 2], [0.0, 0.5]), agent("fast-weights", [1, 2], [0.0, 0.5])]
    for place, each in enumerate(entries):
        for seed in each["seeds"]:
            seed["auc"] = 10.0 * place
    records = comparisons.of("catch", entries)
    assert next(record for record in records if record["measure"] == "auc")["estimate"] == 10


def test_other_results_have_no_models_to_compare():
    assert comparisons.of("claims", [{"claim": "robust", "seeds": []}]) == []
