"""What the paper says in words: every claim varies one thing and keeps the rest."""

import dataclasses
import json
import shutil

import pytest

from fastweights.paper import claims, table1
from fastweights.paper.reports import Report
from fastweights.paper.table1 import Setting
from fastweights.training.workers import Workers


@pytest.fixture
def small(monkeypatch):
    full = table1.config

    def config(cell, setting, seed):
        return dataclasses.replace(full(cell, setting, seed), pairs=1, examples=300)

    monkeypatch.setattr(claims, "config", config)
    monkeypatch.setitem(claims.TUNED, "fast-weights/50", Setting(1e-2, 1.0, 1.0))
    monkeypatch.setattr(claims, "EPOCHS", dict.fromkeys(claims.EPOCHS, 1))
    monkeypatch.setattr(claims, "SEEDS", dict.fromkeys(claims.SEEDS, 1))


def test_a_claim_varies_one_thing(small):
    for claim, variants in claims.variants().items():
        base = claims.runs_of(claim, {})[0]
        for hyperparameters in variants.values():
            (run,) = claims.runs_of(claim, hyperparameters)
            assert dataclasses.replace(run, **{name: getattr(base, name) for name in hyperparameters}) == base


def test_a_claim_end_to_end(small, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "SETTLING_RATES", (0.5,))
    assert claims.reproduce(["settling"], tmp_path, Workers(2), "the command") == {}
    entries = claims.collect(tmp_path)
    assert [(entry["settling"], entry["rate"]) for entry in entries] == [("sustained", 0.5), ("identity", 0.5)]
    assert claims.report(Report(tmp_path, tmp_path / "results", publish=True))
    assert "| identity,rate-0.5 | " in (tmp_path / "results" / "claims.md").read_text()
    monkeypatch.setattr(claims, "SETTLING_RATES", (0.5, 0.1))
    shutil.rmtree(tmp_path / "claims")  # and on another machine
    assert claims.reproduce(["settling"], tmp_path / "other", Workers(2), "another command") == {}
    shutil.rmtree(tmp_path / "other" / "claims" / "settling" / "identity,rate-0.5")
    assert claims.report(Report(tmp_path / "other", tmp_path / "results", publish=True))
    found = json.loads((tmp_path / "results" / "claims.json").read_text())
    assert [(entry["settling"], entry["rate"], entry["command"]) for entry in found] == [
        ("sustained", 0.5, "another command"),
        ("sustained", 0.1, "another command"),
        ("identity", 0.5, "the command"),
        ("identity", 0.1, "another command"),
    ]
    with pytest.raises(ValueError, match="claims must be of 'robust', .*; got 'speed'"):
        claims.reproduce(["speed"], tmp_path, Workers(1), "")


def test_the_heat_map_needs_all_of_it(small, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "RATES", (0.5,))
    monkeypatch.setattr(claims, "DECAYS", (0.9,))
    assert claims.reproduce(["robust"], tmp_path, Workers(2), "the command") == {}
    claims.report(Report(tmp_path, tmp_path / "results"))
    assert (tmp_path / "claims" / "report" / "claims-with-norm.png").exists()
    assert (tmp_path / "claims" / "report" / "claims-without-norm.svg").exists()


def test_many_inner_steps_drown_the_question_of_a_fresh_net():
    def start(**hyperparameters):
        return claims.at_the_start(claims.runs_of("inner steps", hyperparameters)[0], strings=50)

    silent = start(rate=0.0, inner_steps=2)
    assert silent.loudness == [0.0, 0.0]
    assert silent.query_share > 0.7
    assert start(rate=0.5, inner_steps=3).query_share < 0.01 < start(rate=0.03, inner_steps=3).query_share
    assert len(start(rate=0.5, inner_steps=3).loudness) == 3


def test_the_page_says_what_inner_steps_do_at_the_start(small, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "INNER_STEPS", (2,))
    monkeypatch.setattr(claims, "INNER_STEPS_RATES", (0.1,))
    assert claims.reproduce(["inner steps"], tmp_path, Workers(1), "the command") == {}
    assert claims.report(Report(tmp_path, tmp_path / "results"))
    page = (tmp_path / "claims" / "report" / "claims.md").read_text()
    assert "| 2 | 0.1 | " in page
    assert "## Inner steps at the start" in page
