"""Table 3: its cells are the paper's, all tuned alike, and the table says what the runs say; the commands for faces."""

import json

import numpy as np
import pytest
import torch

from fastweights import cli
from fastweights.paper.cells import Cell
from fastweights.paper.faces import table3
from fastweights.paper.reports import Report
from fastweights.tasks.faces import rendered, sets
from fastweights.training.runs import RunFolder
from fastweights.training.workers import Workers

CELL = Cell("fast-weights", 200)


@pytest.fixture
def faces(tmp_path, monkeypatch):
    """A small set in the place of the quick one: each expression lights another corner of the image."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    index = rendered.index_of(rendered.Set(identities=5))[::5]
    images = random.integers(0, 120, (len(index), 48, 48), dtype=np.uint8)
    for image, label in zip(images, index[:, 1], strict=True):
        image[8 * label : 8 * label + 8] += 120
    facts = {
        "name": "rendered",
        "classes": sets.EXPRESSIONS,
        "views": ["-15°", "+0°", "+15°"],
        "lights": rendered.LIGHTS,
    }
    sets.save(sets.folder_of("rendered-20"), images, index, facts)
    monkeypatch.setattr(rendered, "render", lambda which, workers, report: sets.folder_of("rendered-20"))


def test_the_papers_numbers():
    assert table3.PAPER == {"irnn": 81.11, "lstm": 81.32, "convnet": 88.23, "fast-weights": 86.34}
    assert [str(cell) for cell in table3.CELLS] == [f"{model}/200" for model in (*table3.PAPER, "linear")]


def test_cells_differ_in_nothing_but_the_model_and_what_was_tuned():
    base = table3.config(CELL, "rendered", {"lr": 1e-3}, 0, 9).settings()
    for cell in table3.CELLS:
        run = table3.config(cell, "multipie", {"lr": 1e-2}, 7, 9).settings()
        assert run == base | {"model": cell.model, "data": "multipie", "lr": 1e-2, "seed": 7}
        photographs = table3.config(cell, "fer+", {}, 7, 9).settings()
        assert photographs["mirror"]
        assert photographs["translation"] == 2
        study = table3.study(cell, "fer+")
        assert (study.plan.trials, study.rung) == (8 * len(study.hyperparameters), 11)


def test_a_cell_that_was_not_tuned(tmp_path, monkeypatch):
    monkeypatch.setattr(table3, "TUNED", {"rendered": {}})
    with pytest.raises(ValueError, match="fast-weights/200 has not been tuned yet: fastweights search table3"):
        table3.reproduce([CELL], "rendered", tmp_path, Workers(1), "", seeds=1, quick=False)


def test_a_quick_look_end_to_end(faces, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table3, "QUICK_EPOCHS", 4)
    words = ["reproduce", "table3", "--quick", "--cells", "convnet/200", "linear/200", "--runs", str(tmp_path)]
    assert cli.run(words) == 0
    results = tmp_path / "table3-quick" / "report"
    entries = json.loads((results / "table3.json").read_text())
    assert [(entry["model"], entry["recipe"], entry["paper"]) for entry in entries] == [
        ("convnet", "rendered-20", 11.77),
        ("linear", "rendered-20", None),
    ]
    result = RunFolder(tmp_path / "table3-quick" / "rendered-20" / "convnet-200" / "seed-0").result
    assert entries[0]["test_error_mean"] == 100 * result["test_error"] < 20
    page = (results / "table3.md").read_text()
    assert f"| ConvNet | 200 | {100 - entries[0]['test_error_mean']:.2f} |" in page
    assert "| view | ConvNet | linear |" in page
    assert "| no flash |" in page
    assert "**Quick look: not a result.**" in page
    for picture in ("table3-confusion-rendered-20.png", "table3-faces-rendered-20.png"):
        assert f"({picture})" in page
        assert (results / picture).stat().st_size > 10_000
    assert "Table 3: facial expressions by glimpses, rendered-20 faces" in capsys.readouterr().out


def test_where_nets_err():
    labels, predicted = torch.tensor([0, 0, 0, 2]), torch.tensor([0, 0, 1, 2])
    third = 100 / 3
    expected = torch.tensor([[2 * third, third, 0], [0, 0, 0], [0, 0, 100]])
    torch.testing.assert_close(table3.confusion(labels, predicted, 3), expected)
    assert table3.accuracy_by(torch.tensor([1, 1, 0, 1]), predicted == labels, 3) == pytest.approx([0, 100, 0])


def test_without_the_faces_there_is_still_the_table(faces, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table3, "QUICK_EPOCHS", 1)
    assert table3.reproduce([Cell("linear", 200)], "rendered-20", tmp_path, Workers(1), "", seeds=1, quick=True) == {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert table3.report(Report(tmp_path, tmp_path / "results", quick=True))
    assert "without the faces there is less to show" in capsys.readouterr().err
    assert "| linear |" in (tmp_path / "table3-quick" / "report" / "table3.md").read_text()


def test_nothing_to_report(tmp_path):
    assert not table3.report(Report(tmp_path, tmp_path / "results"))


def test_published_details_are_drawn_again(tmp_path):
    details = {"classes": ["a", "b"], "confusion": [[90.0, 10.0], [0.0, 100.0]], "views": {"left": 91.0}}
    entry = {
        "model": "lstm",
        "units": 200,
        "recipe": "rendered",
        "paper": 18.68,
        "protocol": 2,
        "parameters": 1,
        "seeds": [{"seed": 0, "test_error": 5.0}],
        "test_error_mean": 5.0,
        "test_error_std": 0.0,
        "test_error_best_validation": 5.0,
        "command": "the command",
        "details": details,
    }
    (tmp_path / "table3.json").write_text(json.dumps([entry]))
    assert table3.report(Report(tmp_path / "runs", tmp_path, publish=True))
    assert (tmp_path / "table3-confusion-rendered.svg").exists()
    assert "| left | 91.0 |" in (tmp_path / "table3.md").read_text()
    assert json.loads((tmp_path / "table3.json").read_text()) == [entry]


def test_a_contact_sheet_says_how_frequent_expressions_are(faces, tmp_path, capsys):
    assert cli.run(["faces", "look", "rendered-20", "--out", str(tmp_path / "faces.png")]) == 0
    printed = capsys.readouterr().out
    assert "rendered-20, test: 72 faces of 1 people" in printed
    assert printed.count("%") == 6
    assert (tmp_path / "faces.png").stat().st_size > 10_000


def test_faces_that_are_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.run(["faces", "look", "multipie"]) == 1
    assert "there is no set of faces in" in capsys.readouterr().err
    assert cli.run(["train", "glimpses", "--data", "fer", "--out", str(tmp_path / "run")]) == 1
    assert "`fastweights faces import` makes one" in capsys.readouterr().err


def test_fer_is_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pixels = " ".join(["7"] * 48 * 48)
    rows = [f"{label},{pixels},{usage}" for label in range(7) for usage in ("Training", "PublicTest", "PrivateTest")]
    table = tmp_path / "fer2013.csv"
    table.write_text("\n".join(["emotion,pixels,Usage", *rows]) + "\n")
    assert cli.run(["faces", "import", "fer", str(table)]) == 0
    assert len(sets.load(sets.folder_of("fer"), "test").labels) == 7
    assert cli.run(["faces", "import", "fer", str(tmp_path / "nowhere.csv")]) == 2
    assert "nowhere.csv" in capsys.readouterr().err
    assert cli.run(["faces", "import", "facekit", str(tmp_path)]) == 2
    assert "must hold generic_neutral_mesh.obj" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "classes"), [("linear", 6), ("convnet", 6), ("fast-weights", 6)])
def test_nets_for_faces_see_through_brightness_and_contrast(model, classes):
    net = table3.config(Cell(model, 200), "rendered", {}, 0, 1).make_net().eval()
    images = torch.randint(60, 120, (3, 48, 48), dtype=torch.uint8)
    answers = net(images)
    assert answers.shape == (3, classes)
    torch.testing.assert_close(net(2 * images - 50), answers, atol=1e-4, rtol=1e-4)
