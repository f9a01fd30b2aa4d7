"""Trained nets that come with the package."""

from pathlib import Path
from typing import Literal, overload

from ..base.hints import install
from .agent import Agent
from .retrieval import RetrievalNet

FOLDER = Path(__file__).parent / "weights"
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))  # a run folder for each


@overload
def pretrained(name: Literal["retrieval-50"]) -> RetrievalNet: ...
@overload
def pretrained(name: Literal["catch-16-3", "catch-16-3-lstm"]) -> Agent: ...
@overload
def pretrained(name: str) -> RetrievalNet | Agent: ...
def pretrained(name: str) -> RetrievalNet | Agent:
    """A trained net, ready for use.

    Args:
        name: "retrieval-50", associative retrieval with 50 fast-weights units; "catch-16-3" or "catch-16-3-lstm", an
            agent that plays Catch, with 128 units of fast weights or of an LSTM. Their `config.json` have the commands.

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
    net = (Agent if facts["task"] == "catch" else RetrievalNet)(**facts["net"])
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise BadFileError(f"{path} is of another net: install the package again") from error
    return net.eval()
