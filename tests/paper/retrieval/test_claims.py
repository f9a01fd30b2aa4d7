"""What the paper says in words: every variant changes one thing, and is searched for like the others."""

import dataclasses
import json

import pytest

from fastweights.paper.reports import Report
from fastweights.paper.retrieval import claims
from fastweights.training.workers import Workers

SETTING = {"lr": 1e-2, "weight_decay": 0.1, "input_range": 1.0, "rate": 0.5, "decay": 0.9}


@pytest.fixture
def small(monkeypatch):
    full = claims.config

    def config(variant, setting, seed, epochs=1):
        return dataclasses.replace(full(variant, setting, seed, 1), pairs=1, examples=300)

    monkeypatch.setattr(claims, "config", config)
    monkeypatch.setattr(claims, "TUNED", dict.fromkeys(claims.VARIANTS, SETTING))
    monkeypatch.setattr(claims, "SEEDS", 2)


def test_a_variant_changes_one_thing_and_is_searched_for_alike():
    base = claims.study(claims.BASE)
    assert base.plan.trials == 60
    for name, change in claims.VARIANTS.items():
        study = claims.study(name)
        assert len(change) == (name != claims.BASE)
        assert dataclasses.replace(study, name=base.name, config=base.config) == base
        original = {hyperparameter: getattr(base.config, hyperparameter) for hyperparameter in change}
        assert dataclasses.replace(study.config, **original) == base.config != (study.config if change else None)


def test_the_variants_end_to_end(small, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "VARIANTS", {claims.BASE: {}, "method 2": {"settling": "identity"}})
    assert claims.reproduce(["variants"], tmp_path, Workers(2), "the command") == {}
    base, other = claims.collect(tmp_path)
    assert (base["variant"], other["variant"], len(other["seeds"]), other["trials"]) == (
        "as in the paper",
        "method 2",
        2,
        60,
    )
    assert base["seeds"] != other["seeds"]
    assert claims.report(Report(tmp_path, tmp_path / "results", publish=True))
    page = (tmp_path / "results" / "claims.md").read_text()
    assert "| method 2 | " in page
    assert "## At the start" in page
    assert "## Seconds until the validation error is as low" in page
    assert len(json.loads((tmp_path / "results" / "claims.json").read_text())) == 2
    with pytest.raises(ValueError, match="claims must be of 'variants', 'map'; got 'speed'"):
        claims.reproduce(["speed"], tmp_path, Workers(1), "")


def test_the_map_needs_all_of_it(small, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "RATES", (0.5,))
    monkeypatch.setattr(claims, "DECAYS", (0.9,))
    assert claims.reproduce(["map"], tmp_path, Workers(2), "the command") == {}
    claims.report(Report(tmp_path, tmp_path / "results"))
    assert (tmp_path / "claims" / "report" / "claims-with-norm.png").exists()
    assert (tmp_path / "claims" / "report" / "claims-without-norm.svg").exists()


def test_a_variant_that_was_not_searched_for(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "TUNED", {})
    with pytest.raises(ValueError, match="'as in the paper' has not been tuned yet: fastweights search claims"):
        claims.reproduce((), tmp_path, Workers(1), "")


def test_many_inner_steps_drown_the_question_of_a_fresh_net():
    def start(rate, inner_steps):
        run = claims.config(claims.BASE, {**SETTING, "rate": rate}, 0)
        return claims.at_the_start(dataclasses.replace(run, inner_steps=inner_steps), strings=50)

    silent = start(0.0, 2)
    assert silent.loudness == [0.0, 0.0]
    assert silent.query_share > 0.7
    assert start(0.5, 3).query_share < 0.01 < start(0.03, 3).query_share
    assert len(start(0.5, 3).loudness) == 3
