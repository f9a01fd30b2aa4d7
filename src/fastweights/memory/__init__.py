"""The fast associative memory: the layer, its cell and its state. Imports torch, and nothing else of this package."""

from .kernel import backend
from .layer import FastWeights, FastWeightsCell, Trace
from .state import FastWeightsState

__all__ = ["FastWeights", "FastWeightsCell", "FastWeightsState", "Trace", "backend"]
