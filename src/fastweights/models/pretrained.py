"""Trained nets that come with the package."""

from pathlib import Path

from .retrieval import RetrievalNet

FOLDER = Path(__file__).parent / "weights"
NAMES = ("retrieval-50",)


def pretrained(name: str) -> RetrievalNet:
    """A trained net, ready to be asked.

    Args:
        name: "retrieval-50", associative retrieval with 50 fast-weights units.

    >>> from fastweights.tasks import retrieval
    >>> net = pretrained("retrieval-50")
    >>> int(net(retrieval.encode("c9k8j3f1??c").unsqueeze(0)).argmax())
    9
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(map(repr, NAMES))}; got {name!r}")
    try:
        import json

        import safetensors
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("trained nets need safetensors: pip install 'fastweights[paper]'") from error
    with safetensors.safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        net = RetrievalNet(**json.loads(file.metadata()["facts"])["net"])
        net.load_state_dict({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    return net.eval()
