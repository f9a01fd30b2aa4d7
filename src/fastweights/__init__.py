"""Recurrent layers with a fast associative memory (Ba et al. 2016) for PyTorch."""

import sys

TYPE_CHECKING = False  # what type checkers take for True; `typing` is slow to load
if TYPE_CHECKING or "torch" in sys.modules:  # which is then told of the state: `torch.load` reads no others
    from .memory import FastWeights, FastWeightsCell, FastWeightsState, Trace, backend
if TYPE_CHECKING:
    from .models.pretrained import pretrained

__all__ = ["FastWeights", "FastWeightsCell", "FastWeightsState", "Trace", "backend", "pretrained"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Public names are loaded when they are first used: torch, which they need, would keep the commands waiting."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "pretrained":
        from .models.pretrained import pretrained as found
    else:
        from . import memory

        found = getattr(memory, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
