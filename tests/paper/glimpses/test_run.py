"""Runs of images by glimpses: known by their settings, exact after a stop, and found again."""

import pytest
import torch

from fastweights.base.interrupts import Interrupted
from fastweights.paper.glimpses import run as glimpses
from fastweights.paper.glimpses.run import Glimpses
from fastweights.paper.run import train
from fastweights.tasks import mnist
from fastweights.training.runs import RunFolder
from fastweights.training.supervised import Recipe

SHORT = Recipe(lr=1e-2, epochs=2, batch=32, schedule="warm-cosine")
MODELS = ("irnn", "lstm", "convnet", "fast-weights", "ln-rnn")


@pytest.fixture(autouse=True)
def bars(monkeypatch):
    """Ten classes of images that are easy to report apart: a bright bar at a height of its own."""

    def split(part, name="mnist", count=None):
        generator = torch.Generator().manual_seed(len(part))
        classes = torch.randint(10, (300,), generator=generator)
        images = torch.randint(40, (300, 28, 28), generator=generator)
        rows = 2 * classes + 4
        for offset in (0, 1):
            images[torch.arange(300), rows + offset] = 250
        return images.to(torch.uint8)[:count], classes[:count]

    monkeypatch.setattr(mnist, "split", split)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_learns_and_is_found_again(model, tmp_path):
    config = Glimpses(model=model, units=20, training=Recipe(lr=1e-2, epochs=6, batch=32), examples=300)
    result = train(config, tmp_path, "the command")
    assert result["test_error"] < 0.5
    folder = RunFolder(tmp_path)
    assert glimpses.load_config(folder) == config
    assert glimpses.evaluate(folder).error == result["test_error"]
    assert glimpses.evaluate(folder, "validation").loss == result["validation_loss"]


def test_a_run_that_was_stopped_goes_on_exactly_with_the_same_shifts(tmp_path):
    config = Glimpses(units=8, translation=2, training=SHORT, examples=100)
    whole = train(config, tmp_path / "whole", "")

    def stop(progress):
        if progress.epoch == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(config, tmp_path / "halves", "", report=stop)
    halves = train(config, tmp_path / "halves", "")
    assert {name: value for name, value in whole.items() if name != "seconds"} == {
        name: value for name, value in halves.items() if name != "seconds"
    }


def test_images_are_augmented_only_while_training():
    net, images = Glimpses(translation=2).make_net(), mnist.split("test")[0][:50]
    assert not torch.equal(net.look(images), Glimpses().make_net().look(images))
    torch.testing.assert_close(net.eval().look(images), Glimpses().make_net().look(images))


def test_what_is_retrieved_was_stored_before():
    net, images = Glimpses(units=10).make_net().eval(), mnist.split("test")[0][:3]
    stored, reading, attention = glimpses.retrieved(net, images)
    assert (stored, reading) == ([0, 6, 12, 18], [5, 11, 17, 23])
    assert attention.shape == (3, 4, 4)
    assert torch.triu(attention, 1).count_nonzero() == 0
    assert torch.tril(attention).count_nonzero() > 0
    for model in ("convnet", "lstm", "ln-rnn"):
        with pytest.raises(ValueError, match="net must be one of fast weights with the control signal 'store'"):
            glimpses.retrieved(Glimpses(model=model).make_net(), images)


def test_the_picture_of_a_schedule(tmp_path):
    for order in ("return", "once", "three levels"):
        written = glimpses.draw("mnist", order, 3, tmp_path / f"{order}.png")
        assert [path.suffix for path in written] == [".png", ".svg"]
        assert all(path.stat().st_size > 1000 for path in written)
    with pytest.raises(ValueError, match="image must be from 0 to 299, got 300"):
        glimpses.draw("mnist", "return", 300, tmp_path / "none.png")


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"units": 0}, "units must be at least 1, got 0"),
        ({"translation": -1}, "translation must be at least 0, got -1"),
        ({"translation": 28}, "translation must be below the size of the images, 28; got 28"),
        ({"input_range": -1.0}, "input_range must be at least 0 and finite, got -1.0"),
        ({"control_signals": ("write",)}, "control_signals must be of store, wipe, read, integrate; got 'write'"),
    ],
)
def test_bad_settings(hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        Glimpses(**hyperparameters)


def test_a_run_of_another_task(tmp_path):
    with RunFolder(tmp_path).opened({"task": "retrieval"}, "the command"):
        pass
    with pytest.raises(ValueError, match="is a run of 'retrieval', not of 'glimpses'"):
        glimpses.evaluate(RunFolder(tmp_path))
