"""Recurrent layers with a fast associative memory (Ba et al. 2016) for PyTorch."""

from .memory import FastWeights, FastWeightsCell, FastWeightsState, Trace, backend
from .models.pretrained import pretrained

__all__ = ["FastWeights", "FastWeightsCell", "FastWeightsState", "Trace", "backend", "pretrained"]
__version__ = "0.1.0"
