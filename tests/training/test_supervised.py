"""The loop learns, chooses by validation, and goes on where it was stopped, to the same numbers."""

import math

import pytest
import torch
from torch import nn

from fastweights.base.interrupts import Interrupted
from fastweights.training import supervised
from fastweights.training.runs import RunFolder
from fastweights.training.supervised import Recipe, fit, measure


def classes(count, seed, noise=0.0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    right = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
    random = torch.randint(4, (count,), generator=generator)
    return inputs, torch.where(torch.rand(count, generator=generator) < noise, random, right)


def splits(noise=0.0):
    return {"train": classes(1000, 0, noise), "validation": classes(300, 1), "test": classes(300, 2)}


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def train(path, recipe, model=None, **options):
    folder = RunFolder(path)
    with folder.opened({}, ""):
        return fit(model or net(), options.pop("splits", splits()), recipe, folder, seed=7, **options), folder


def without_time(entries):
    return [{name: value for name, value in entry.items() if name != "seconds"} for entry in entries]


def stop_after(path, recipe, epochs):
    """A run that is interrupted at the end of an epoch."""

    def stop(progress):
        if progress.epoch == epochs:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(path, recipe, report=stop)


def test_it_learns(tmp_path):
    result, folder = train(tmp_path, Recipe(lr=0.03, epochs=8, batch=32))
    assert result["test_error"] < 0.1
    assert result["stopped"] == "finished"
    assert result["parameters"] == 4 * 16 + 16 + 16 * 4 + 4
    assert [entry["epoch"] for entry in folder.metrics] == list(range(1, 9))
    assert folder.result == result
    assert list(tmp_path.glob("events.*"))


def test_the_best_epoch_is_that_of_the_lowest_validation_error(tmp_path):
    """Of those with the same error, the one with the lowest loss; also if the run was stopped in between."""
    recipe = Recipe(lr=0.03, epochs=8, schedule="constant", clip=0)
    result, folder = train(tmp_path / "a", recipe, curves=True)
    by_error = sorted(folder.metrics, key=lambda entry: (entry["validation_error"], entry["validation_loss"]))
    best = by_error[0]
    assert result["best_epoch"] == best["epoch"] == folder.best()[1]["epoch"]
    assert result["best_epoch"] != min(folder.metrics, key=lambda entry: entry["validation_loss"])["epoch"]
    assert {name: result[name] for name in ("validation_error", "test_error", "test_loss")} == {
        name: best[name] for name in ("validation_error", "test_error", "test_loss")
    }
    for epochs in range(1, 8):
        stop_after(tmp_path / "b", recipe, epochs)
    again, _ = train(tmp_path / "b", recipe)
    assert without_time([again]) == without_time([result])


def test_weight_decay_shrinks_all_weights_whatever_the_gradient(tmp_path):
    """Decoupled: by lr times the decay at each update, not by way of the gradient's moments."""
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    still = {name: (inputs * 0, labels) for name, (inputs, labels) in splits().items()}  # the weights get no gradient
    recipe = Recipe(lr=0.1, weight_decay=0.5, epochs=1, batch=50, schedule="constant")
    result, folder = train(tmp_path, recipe, model, splits=still)
    expected = before * (1 - 0.1 * 0.5) ** result["updates"]
    torch.testing.assert_close(folder.checkpoint()[0]["model.weight"], expected)


def test_the_test_set_decides_nothing(tmp_path):
    other = {**splits(), "test": classes(300, 3, noise=1.0)}
    one, _ = train(tmp_path / "a", Recipe(lr=0.3, epochs=4), curves=True)
    two, _ = train(tmp_path / "b", Recipe(lr=0.3, epochs=4), curves=True, splits=other)
    three, _ = train(tmp_path / "c", Recipe(lr=0.3, epochs=4), splits={k: v for k, v in other.items() if k != "test"})
    assert one["test_error"] != two["test_error"]
    assert "test_error" not in three
    assert one["validation_loss"] == two["validation_loss"] == three["validation_loss"]


@pytest.mark.parametrize("stop", range(1, 30, 4))
def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path, stop):
    recipe = Recipe(lr=0.01, epochs=3, batch=100)
    whole, folder = train(tmp_path / "whole", recipe)
    calls = 0

    class Stopped(Exception):  # noqa: N818
        pass

    class Stops(nn.Sequential):
        def forward(self, x):
            nonlocal calls
            calls += self.training
            if calls == stop:
                raise Stopped
            return super().forward(x)

    part = tmp_path / "part"
    with pytest.raises(Stopped):
        train(part, recipe, Stops(*net()), checkpoint_seconds=0)
    torch.rand(3)  # the generator that dropout draws from is part of the run
    again, resumed = train(part, recipe)
    assert without_time([again]) == without_time([whole])
    assert without_time(resumed.metrics) == without_time(folder.metrics)
    mine, theirs = resumed.best()[0], folder.best()[0]
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_stopping_at_an_epoch_and_going_on(tmp_path):
    recipe = Recipe(epochs=3)
    stop_after(tmp_path / "a", recipe, 1)
    folder = RunFolder(tmp_path / "a")
    assert len(folder.metrics) == 1
    assert folder.result is None
    on, _ = train(tmp_path / "a", recipe)
    whole, _ = train(tmp_path / "b", recipe)
    assert without_time([on]) == without_time([whole])


def test_a_finished_run_is_not_run_again(tmp_path):
    first, _ = train(tmp_path, Recipe(epochs=1))
    again, _ = train(tmp_path, Recipe(epochs=1), nn.Linear(1, 1))  # which could not be trained on this
    assert again == first


def test_a_run_that_diverges_ends_and_says_so(tmp_path):
    model = net()
    with torch.no_grad():
        model[0].bias[0] = math.inf
    result, _ = train(tmp_path, Recipe(epochs=3), model)
    assert result["stopped"] == "diverged"
    assert "test_error" not in result


def test_the_learning_rate_falls_along_a_cosine():
    recipe = Recipe(lr=2.0)
    assert [supervised._learning_rate(recipe, update, 4) for update in range(4)] == pytest.approx(
        [2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)]
    )
    assert supervised._learning_rate(Recipe(lr=2.0, schedule="constant"), 3, 4) == 2


def test_the_learning_rate_warms_up_first():
    recipe = Recipe(lr=2.0, schedule="warm-cosine")
    rates = [supervised._learning_rate(recipe, update, 80) for update in range(80)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[4 + 38] == pytest.approx(1.0)
    assert all(later < earlier for earlier, later in zip(rates[4:], rates[5:], strict=False))
    assert supervised._learning_rate(recipe, 0, 10) == 2  # too few updates to warm up


def test_clipping_bounds_the_gradient(tmp_path):
    model = net()
    seen = []
    original = torch.optim.AdamW.step

    def step(self, *args):
        seen.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        train(tmp_path, Recipe(epochs=1, clip=0.01), model)
    assert max(seen) == pytest.approx(0.01, rel=1e-3)


def test_measure_is_the_mean_over_all():
    inputs, right = classes(4567, 5)
    model = nn.Linear(4, 4)
    output = model(inputs)
    loss, error = measure(model, (inputs, right))
    assert loss == pytest.approx(nn.functional.cross_entropy(output, right).item(), rel=1e-5)
    assert error == pytest.approx((output.argmax(1) != right).double().mean().item())


@pytest.mark.parametrize(
    ("hyperparameter", "value", "message"),
    [
        ("lr", 0, "lr must be above 0"),
        ("lr", math.nan, "lr must be above 0"),
        ("epochs", 0, "epochs must be at least 1, got 0"),
        ("batch", 0, "batch must be at least 1"),
        ("clip", -1, "clip must be at least 0"),
        ("weight_decay", -1, "weight_decay must be at least 0"),
        ("schedule", "linear", "schedule must be 'constant', 'cosine' or 'warm-cosine', got 'linear'"),
    ],
)
def test_bad_recipes(hyperparameter, value, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{hyperparameter: value})
