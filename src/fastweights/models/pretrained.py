"""Trained nets that come with the package, in half precision."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, overload

import torch

from ..base.hints import install
from .agent import Agent
from .glimpses import GlimpseNet, GlimpseSignals
from .retrieval import RetrievalNet

FOLDER = Path(__file__).parent / "weights"
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))  # a run folder for each


@overload
def pretrained(
    name: Literal["retrieval-20", "retrieval-20-lstm", "retrieval-50", "retrieval-50-lstm"],
) -> RetrievalNet: ...
@overload
def pretrained(name: Literal["glimpses-50", "glimpses-200"]) -> GlimpseNet: ...
@overload
def pretrained(name: Literal["catch-16-3", "catch-16-3-lstm", "catch-16-3-irnn"]) -> Agent: ...
@overload
def pretrained(name: str) -> RetrievalNet | GlimpseNet | Agent: ...
def pretrained(name: str) -> RetrievalNet | GlimpseNet | Agent:
    """A trained net, ready for use.

    Args:
        name: "retrieval-20" or "retrieval-50", associative retrieval with so many units of fast weights, and the same
            with "-lstm"; "glimpses-50" or "glimpses-200", handwritten digits by glimpses; "catch-16-3", an agent that
            plays Catch with 128 units of fast weights, and the same with "-lstm" or "-irnn" (a ReLU RNN). Their
            `config.json` have the commands.

    >>> from fastweights.tasks import retrieval
    >>> net = pretrained("retrieval-50")
    >>> int(net(retrieval.encode("c9k8j3f1??c").unsqueeze(0)).argmax())
    9
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(map(repr, NAMES))}; got {name!r}")
    try:
        from ..base.files import BadFileError, read_tensors
    except ModuleNotFoundError as error:
        message = f"trained nets need {error.name}: {install(str(error.name))}"
        raise ModuleNotFoundError(message, name=error.name) from error
    path = FOLDER / name / "best.safetensors"
    weights, facts = read_tensors(path)
    net: RetrievalNet | GlimpseNet | Agent
    if facts["task"] == "glimpses":
        net = _glimpses(facts["net"], facts["signals"])
        weights = {key.removeprefix("net."): values for key, values in weights.items()}
    else:
        net = (Agent if facts["task"] == "catch" else RetrievalNet)(**facts["net"])
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise BadFileError(f"{path} is of another net: install the package again") from error
    return net.eval()


def _glimpses(settings: Mapping[str, Any], signals: Mapping[str, Any]) -> GlimpseNet:
    """A net of fast weights for glimpses of 7 × 7 pixels of digits, as its run's settings say."""
    return GlimpseNet(
        settings["model"],
        settings["units"],
        pixels=49,
        signals=GlimpseSignals(**{name: torch.tensor(values) for name, values in signals.items()}),
        classes=10,
        options={name: settings[name] for name in ("decay", "rate", "inner_steps", "settling")},
    )
