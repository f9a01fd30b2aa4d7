"""What a training step launches on a GPU, counted on the CPU with the kernels themselves left out."""

import pytest
import torch

from fastweights import FastWeights, FastWeightsCell
from fastweights.memory import triton

pytest.importorskip("triton", reason="the package triton is not installed")
# Operations that look at memory in another way, or ask for some; and those made of others.
FREE = {"view", "transpose", "t", "as_strided", "select", "slice", "unsqueeze", "expand", "detach", "alias", "narrow"}
FREE |= {"empty", "empty_like", "new_empty", "empty_strided", "result_type", "resolve_conj", "resolve_neg", "unbind"}
FREE |= {"_unsafe_view", "lift_fresh", "is_nonzero", "squeeze", "permute", "_reshape_alias", "view_as", "sym_size"}
MADE_OF_OTHERS = {"linear", "matmul", "contiguous", "clone", "zeros", "new_zeros", "zeros_like", "reshape", "to"}
MADE_OF_OTHERS |= {"flatten", "_to_copy", "new_full", "split", "sum_to_size"}


def launching(event):
    """The operations of an event, itself or those that it is made of, that launch something."""
    name = event.name.removeprefix("aten::")
    if not event.name.startswith("aten::") or name in MADE_OF_OTHERS:
        return [launched for child in event.cpu_children for launched in launching(child)]
    return [] if name in FREE else [name]


def launches(T, *, state=False, **options):
    """Of a forward and a backward of all weights and x."""
    layer = FastWeights(5, 8, backend="triton", **options)
    given = (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8, 8)) if state else None
    x, grad, count = torch.randn(T, 3, 5, requires_grad=True), torch.randn(T, 3, 8), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton, "ON_CPU", True)
        patch.setattr(triton, "_launch", lambda *_: count.append("kernel"))
        for _ in range(2):  # what is kept from one call to the next is not counted
            count.clear()
            layer.zero_grad()
            x.grad = None
            with torch.profiler.profile() as profile:
                output, _ = layer(x, given)
                output.backward(grad)
    roots = [event for event in profile.events() if event.cpu_parent is None]
    return count + [name for event in roots for name in launching(event)]


@pytest.mark.parametrize("options", [{}, {"inner_steps": 3, "normalize_start": True}, {"layer_norm": False}])
@pytest.mark.parametrize("state", [False, True])
def test_their_number_is_small_and_the_same_for_any_number_of_steps(options, state):
    few, many = (launches(T, state=state, **options) for T in (100, 400))
    assert few.count("kernel") == 2
    assert len(few) == len(many), (few, many)
    assert len(few) <= 15, few


@pytest.mark.parametrize("started", [False, True])
def test_a_single_step_is_three(started, monkeypatch):
    monkeypatch.setattr(triton, "ON_CPU", True)
    monkeypatch.setattr(triton, "_launch", lambda *_: None)
    cell = FastWeightsCell(5, 8, backend="triton")
    x, state = torch.randn(3, 5), (torch.zeros(3, 8), torch.zeros(3, 8, 8)) if started else None
    with torch.no_grad():
        cell(x, state)
        with torch.profiler.profile() as profile:
            cell(x, state)
    roots = [event for event in profile.events() if event.cpu_parent is None]
    assert [name for event in roots for name in launching(event)] == ["addmm", "copy_"]  # and the kernel


def test_a_launch_more_would_be_counted():
    torch.manual_seed(0)
    plain = launches(8)
    learned = launches(8, learn_decay=True)
    assert len(learned) > len(plain)
