"""What a training step launches on a GPU, counted on the CPU with the kernels themselves left out."""

import pytest
import torch

from fastweights import FastWeights
from fastweights.memory import triton

pytest.importorskip("triton", reason="the package triton is not installed")
# Operations that look at memory in another way, or ask for some.
FREE = {"view", "reshape", "transpose", "t", "as_strided", "select", "slice", "unsqueeze", "expand", "detach", "alias"}
FREE |= {"empty", "empty_like", "new_empty", "empty_strided", "result_type", "resolve_conj", "resolve_neg", "unbind"}
FREE |= {"_unsafe_view", "lift_fresh", "is_nonzero", "contiguous", "squeeze", "permute", "_reshape_alias", "size"}


def launches(T, *, state=False, **options):
    """Of a forward and a backward of all weights and x."""
    layer = FastWeights(5, 8, backend="triton", **options)
    given = (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8, 8)) if state else None
    x, count = torch.randn(T, 3, 5, requires_grad=True), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "ON_CPU", True)
        patch.setattr(triton, "_launch", lambda *_: count.append("kernel"))
        for _ in range(2):  # what is kept from one call to the next is not counted
            count.clear()
            with torch.profiler.profile() as profile:
                output, after = layer(x, given)
                output.backward(torch.ones_like(output))
    for event in profile.events():
        name = event.name.removeprefix("aten::")
        if event.name.startswith("aten::") and not event.cpu_children and name not in FREE:
            count.append(name)
    return [name for name in count if name != "ones_like"], after


@pytest.mark.parametrize("options", [{}, {"inner_steps": 3, "normalize_start": True}, {"layer_norm": False}])
@pytest.mark.parametrize("state", [False, True])
def test_their_number_is_small_and_the_same_for_any_number_of_steps(options, state):
    few, many = (launches(T, state=state, **options)[0] for T in (100, 400))
    assert few.count("kernel") == 2
    assert len(few) == len(many), (few, many)
    assert len(few) <= 15, few


def test_a_launch_more_would_be_counted():
    torch.manual_seed(0)
    plain, _ = launches(8)
    learned, _ = launches(8, learn_decay=True)
    assert len(learned) > len(plain)
