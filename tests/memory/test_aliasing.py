"""Nothing that is done to a tensor after a call changes what the call has left: a short form of `tests/aliasing.py`."""

import aliasing
import pytest
import torch

from fastweights import FastWeightsState
from fastweights.memory import autograd, batch, chunked, kernel, state
from fastweights.memory.state import End

needs_kernel = pytest.mark.skipif(not kernel.AVAILABLE, reason="the kernel was not built")


def short(count, **kinds):
    total = aliasing.run(0, count, **kinds)
    assert not total["different"]
    assert total["the same"] > count // 2
    # Nothing else fails than what torch or the layer refuse to differentiate after a change.
    known = ("the same", "cannot be changed so", "nothing to change", "RuntimeError: x was", "RuntimeError: one of the")
    assert not [became for became in total if not became.startswith(known)]


def test_changes_after_a_call_do_not_count():
    short(250, compiled=0)


def test_changes_after_a_compiled_call_do_not_count():
    torch._dynamo.reset()
    short(60, compiled=1, structures=aliasing.COMPILED[:1])


def same(tensor):
    return tensor


def shared(forward):
    """A `chunked.forward` that copies nothing."""

    def run(*args):
        saved = forward(*args)
        return saved._replace(states=saved.hs, x=None if saved.x is None else args[0].x)

    return run


def forget_edits(patch):
    """States whose parts are built anew for everybody who looks."""
    for name, part, sizes in (("h", End.hidden, 0), ("A", End.matrix, 1)):
        kept = getattr(FastWeightsState, name)

        def look(self, name=name, part=part, sizes=sizes, kept=kept):
            return self._build(part, self._shape + self._shape[-1:] * sizes) if self._ends else kept.fget(self)

        patch(FastWeightsState, name, property(look))


# A snapshot that is left out: what it is of, and how to leave it out.
MISTAKES = {
    "states": (("output",), lambda patch: patch(kernel, "_lazy_clone", same)),
    "x": (("x",), lambda patch: patch(kernel, "digest", lambda x: 0)),
    "signals": (("lengths", "reset", "wipe", "store"), lambda patch: patch(batch, "snapshot", same)),
    "carried": (("h", "A"), lambda patch: patch(autograd, "snapshot", same)),
    "torch": (("output", "x"), lambda patch: patch(chunked, "forward", shared(chunked.forward))),
    "h": (("new h",), lambda patch: patch(state, "last_of", lambda hs, *_: hs[-1])),
    "edits": (("new h", "new A"), forget_edits),
}


@needs_kernel
@pytest.mark.parametrize("way", aliasing.WAYS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(mistake, way, monkeypatch):
    if way == "operation" and mistake in ("x", "carried"):
        pytest.skip("autograd counts the operations")
    targets, leave_out = MISTAKES[mistake]
    leave_out(monkeypatch.setattr)
    for seed in range(150):
        if aliasing.one(aliasing.Case(seed, targets, (way,), compiled=0))[1]:
            return
    pytest.fail("no case of 150 is different")
