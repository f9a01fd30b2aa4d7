"""Learning from examples: a plain loop over batches that can be killed at any moment and goes on where it was."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..base import interrupts
from ..base.files import BadFileError
from ..base.progress import Progress
from . import devices
from .runs import RunFolder

Examples = tuple[Tensor, Tensor]  # inputs (n, …) and classes (n,)
READ_EVERY = 50  # batches: to read a device's losses is to wait for it; the CPU's are read at once


@dataclass(frozen=True)
class Recipe:
    """How to train."""

    lr: float = 1e-3
    """The learning rate of AdamW, at its highest."""
    weight_decay: float = 0.0
    """Decoupled weight decay: each update shrinks all weights by this times the learning rate."""
    epochs: int = 20
    """Passes through the training set."""
    batch: int = 128
    """Examples in a batch, for one update."""
    clip: float = 1.0
    """Clip the gradient to this norm; 0: never."""
    schedule: Literal["constant", "cosine", "warm-cosine"] = "cosine"
    """The learning rate stays, or falls to zero along a cosine, or rises for a twentieth of the updates first."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0 and finite, got {self.lr}")
        for name in ("weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if self.schedule not in ("constant", "cosine", "warm-cosine"):
            raise ValueError(f"schedule must be 'constant', 'cosine' or 'warm-cosine', got {self.schedule!r}")


class Measured(NamedTuple):
    loss: float  # mean negative log-likelihood
    error: float  # share of wrong answers


@torch.no_grad()
def logits(model: nn.Module, inputs: Tensor, batch: int = 2000) -> Tensor:
    """The logits of all inputs, a batch at a time: (n, classes), on the model's device."""
    was_training, inputs = model.training, inputs.to(next(model.parameters()).device)
    model.eval()
    found = []
    for part in inputs.split(batch):
        interrupts.check()
        found.append(model(part))
    model.train(was_training)
    return torch.cat(found)


def measure(model: nn.Module, examples: Examples) -> Measured:
    """Loss and error on a set."""
    inputs, classes = examples
    return measure_logits(logits(model, inputs).cpu(), classes.cpu())


def measure_logits(found: Tensor, classes: Tensor) -> Measured:
    """Loss and error of logits, on the CPU: not every device has double precision."""
    wrong = found.argmax(1) != classes
    return Measured(functional.cross_entropy(found.double(), classes).item(), wrong.double().mean().item())


def rank(measured: Mapping[str, float]) -> tuple[float, float]:
    """How good an epoch was on the validation set, the smaller the better: its error, and for the same error its loss.

    The error is what tables show; it still falls when a net grows too sure of itself and the loss rises.
    """
    return measured["validation_error"], measured["validation_loss"]


def score(measured: Mapping[str, float]) -> float:
    """The same order as one number, to be minimised by a search: an error is worth more than any loss.

    >>> score({"validation_error": 0.25, "validation_loss": 2.0})
    0.250002
    """
    error, loss = rank(measured)
    return error + 1e-6 * min(loss, 50.0)


class _Position:
    """Where a run is, all of it: what is saved and what a killed run goes on from."""

    def __init__(self, seed: int, device: str) -> None:
        self.epoch, self.batch, self.updates, self.seconds = 0, 0, 0, 0.0
        self.loss_sum, self.wrong_sum = 0.0, 0
        self.best_epoch = 0
        self.device = device  # and before it, those on which the run was begun
        self.generator = torch.Generator().manual_seed(seed)  # as it was at the beginning of the epoch
        self.unread: list[tuple[Tensor, Tensor, int]] = []  # the loss of a batch, how many are wrong, of how many

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("generator", "unread")}

    def add(self, loss: Tensor, wrong: Tensor, count: int) -> None:
        """An update, of which the device may not be done yet."""
        self.unread.append((loss, wrong, count))
        self.batch, self.updates = self.batch + 1, self.updates + 1

    def read(self) -> bool:
        """Wait for what is unread; whether all losses are numbers. If not, this is the position at the first."""
        unread, self.unread = self.unread, []
        if not unread:
            return True
        losses = torch.stack([loss for loss, _, _ in unread]).cpu().tolist()
        wrongs = torch.stack([wrong for _, wrong, _ in unread]).cpu().tolist()
        for number, (loss, wrong) in enumerate(zip(losses, wrongs, strict=True), 1):
            self.loss_sum += loss * unread[number - 1][2]
            self.wrong_sum += wrong
            if not math.isfinite(self.loss_sum):
                self.batch -= len(unread) - number
                self.updates -= len(unread) - number
                return False
        return True


def fit(
    model: nn.Module,
    splits: Mapping[str, Examples],
    recipe: Recipe,
    folder: RunFolder,
    *,
    seed: int,
    curves: bool = False,
    checkpoint_seconds: float = 30.0,
    report: Callable[[Progress], None] = lambda progress: None,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train in a folder that is `opened`, or go on with what was begun there; the result.

    The best epoch is selected on `splits["validation"]`. `splits["test"]`, if there is one, is measured with the
    weights of that epoch at the end (and after every epoch, to be looked at later, with `curves`), and decides nothing.
    The sets are taken to the device that the model is on. A run that was begun on another device goes on here.

    Args:
        seed: of the order of the examples.
        checkpoint_seconds: a kill loses no more than this much work.
        report: is called about twice a second with where the run is.
        facts: saved beside the best weights.
    """
    done = folder.result
    if done is not None:
        return done
    device = next(model.parameters()).device
    splits = {name: (inputs.to(device), classes.to(device)) for name, (inputs, classes) in splits.items()}
    inputs, classes = splits["train"]
    read_every = 1 if device.type == "cpu" else READ_EVERY
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)
    at = _restore(model, optimizer, folder, seed)
    batches = math.ceil(len(inputs) / recipe.batch)
    folder.keep_metrics(at.epoch)
    metrics = folder.metrics
    measured, best = (dict(metrics[-1]), metrics[at.best_epoch - 1]) if at.epoch else ({}, None)
    writer = folder.tensorboard(at.epoch)
    started, last_saved, last_told = time.monotonic(), time.monotonic(), -math.inf
    seconds_before, stopped = at.seconds, _stopped(at, recipe)

    def save() -> None:
        nonlocal last_saved, stopped
        if not at.read():
            stopped = "diverged"
            return
        at.seconds = seconds_before + time.monotonic() - started
        folder.save_checkpoint(*_snapshot(model, optimizer, at))
        last_saved = time.monotonic()

    try:
        with interrupts.deferred():
            while not stopped:
                shuffled = at.generator.clone_state()
                order = torch.randperm(len(inputs), generator=shuffled).to(device).split(recipe.batch)
                while at.batch < batches and not stopped:
                    for group in optimizer.param_groups:
                        group["lr"] = _learning_rate(recipe, at.updates, recipe.epochs * batches)
                    batch = order[at.batch]
                    output = model(inputs[batch])
                    loss = functional.cross_entropy(output, classes[batch])
                    optimizer.zero_grad()
                    loss.backward()
                    if recipe.clip:
                        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
                    optimizer.step()
                    at.add(loss.detach(), (output.argmax(1) != classes[batch]).sum(), len(batch))
                    if len(at.unread) >= read_every and not at.read():
                        stopped = "diverged"
                    now = time.monotonic()
                    if now - last_told > 0.5:
                        report(_progress(at, recipe.epochs * batches, measured, best))
                        last_told = now
                    if now - last_saved > checkpoint_seconds and not stopped:
                        save()
                    interrupts.check()
                if not at.read():
                    stopped = "diverged"
                if stopped:
                    break
                ended: dict[str, Any] = {"epoch": at.epoch + 1, "updates": at.updates}
                ended |= {"train_loss": at.loss_sum / len(inputs), "train_error": at.wrong_sum / len(inputs)}
                for name in ("validation", "test") if curves else ("validation",):
                    found = measure(model, splits[name])
                    ended |= {f"{name}_loss": found.loss, f"{name}_error": found.error}
                at.epoch, at.batch, at.generator, at.loss_sum, at.wrong_sum = at.epoch + 1, 0, shuffled, 0.0, 0
                measured = ended
                if not math.isfinite(measured["validation_loss"]):
                    stopped = "diverged"
                    break
                if best is None or rank(measured) < rank(best):
                    at.best_epoch, best = at.epoch, measured
                    folder.save_best(model.state_dict(), {**(facts or {}), "epoch": at.epoch})
                measured["seconds"] = seconds_before + time.monotonic() - started
                folder.add_metrics(measured)
                for name, value in measured.items():
                    writer.add_scalar(name, value, at.epoch)
                save()
                stopped = _stopped(at, recipe)
                report(_progress(at, recipe.epochs * batches, measured, best))
                last_told = time.monotonic()
    except interrupts.Interrupted:
        if not stopped:
            save()
        raise
    finally:
        writer.close()
    result = _result(model, splits, folder, at, stopped, seed)
    folder.finish(result)
    return result


def _progress(at: _Position, updates: int, measured: Mapping[str, float], best: Mapping[str, float] | None) -> Progress:
    note = f"error {measured['validation_error']:.2%}" if measured else ""
    return Progress(at.updates, updates, at.epoch, note, None if best is None else score(best))


def _learning_rate(recipe: Recipe, update: int, updates: int) -> float:
    if recipe.schedule == "constant":
        return recipe.lr
    warm = updates // 20 if recipe.schedule == "warm-cosine" else 0
    if update < warm:
        return recipe.lr * (update + 1) / warm
    return recipe.lr * (1 + math.cos(math.pi * (update - warm) / (updates - warm))) / 2


def _stopped(at: _Position, recipe: Recipe) -> str:
    """Why the run is over, or nothing."""
    return "finished" if at.epoch >= recipe.epochs else ""


def _result(
    model: nn.Module, splits: Mapping[str, Examples], folder: RunFolder, at: _Position, stopped: str, seed: int
) -> dict[str, Any]:
    result: dict[str, Any] = {"seed": seed, "stopped": stopped, "epochs": at.epoch, "best_epoch": at.best_epoch}
    result["updates"] = at.updates
    result["device"] = at.device
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    if at.best_epoch:
        model.load_state_dict(folder.best()[0])
        for name in ("validation", "test"):
            if name in splits:
                found = measure(model, splits[name])
                result |= {f"{name}_loss": found.loss, f"{name}_error": found.error}
    result["seconds"] = at.seconds
    return result


def _named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, parameter in model.named_parameters():
        yield name, optimizer.state.get(parameter, {})


def _snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer, at: _Position
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, state in _named_state(model, optimizer):
        tensors |= {f"optimizer.{name}.{key}": value for key, value in state.items()}
    tensors["generator.order"] = at.generator.get_state()
    states = devices.random_states(next(model.parameters()).device)
    tensors |= {f"generator.{name}": state for name, state in states.items()}
    return tensors, at.facts()


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, folder: RunFolder, seed: int) -> _Position:
    """Put model, optimiser and generators where the folder's checkpoint has them, on whatever device it was made."""
    device = next(model.parameters()).device
    at, saved = _Position(seed, devices.describe(device)), folder.checkpoint()
    if saved is None:
        return at
    tensors, facts = saved

    def under(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    try:
        model.load_state_dict(under("model."))
        for name, parameter in model.named_parameters():
            state = under(f"optimizer.{name}.")
            optimizer.state[parameter] = {key: value.to(device) for key, value in state.items()}
        at.generator.set_state(tensors["generator.order"])
        devices.restore_random(under("generator."), device)
        vars(at).update({name: facts[name] for name in at.facts() if name != "device"})
        at.device = devices.moved(facts, at.device)
    except (KeyError, RuntimeError) as error:
        what = str(error).splitlines()[0]
        raise BadFileError(f"the checkpoint in {folder.path} is of another net ({what}): delete the folder") from error
    return at
