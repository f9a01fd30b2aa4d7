"""The fast associative memory: the layer, its cell and its state. Imports torch, and nothing else of this package."""

import torch

OLDEST = (2, 13)  # torch, as in pyproject.toml
if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
    raise ImportError(
        f"fastweights needs torch {'.'.join(map(str, OLDEST))} or newer, this is {torch.__version__}: "
        "pip install --upgrade torch"
    )

from .kernel import backend  # noqa: E402
from .layer import FastWeights, FastWeightsCell, Trace  # noqa: E402
from .state import FastWeightsState  # noqa: E402

__all__ = ["FastWeights", "FastWeightsCell", "FastWeightsState", "Trace", "backend"]
