"""Two processes with half of a batch each: the gradients of one with all of it."""

import pytest
import torch
import torch.distributed as dist
from ranks import WRAPPERS, call_with_sharded_weights, compare, in_two_processes

from fastweights import FastWeights, FastWeightsCell

needs_gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


@needs_gloo
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_gradients_are_those_of_one_process(kind):
    learned, cases = {"learn_decay": True, "learn_rate": True}, []
    for bare in (False, True):
        wrappers = [name for name in WRAPPERS if name != "nested" or not bare]
        cases += [(kind, bare, options, True, wrappers) for options in ({}, learned, {"backend": "torch"})]
        # Through all pieces at once. DistributedDataParallel wants one backward for one forward.
        cases.append((kind, bare, {}, False, [name for name in wrappers if name in ("sharded", "nested")]))
    in_two_processes(compare, cases)


@needs_gloo
def test_weights_in_pieces_are_an_error_of_torch():
    in_two_processes(call_with_sharded_weights)


@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
def test_what_was_saved_when_decay_and_rate_had_no_dimension_loads(kind):
    module = kind(3, 5, learn_decay=True, learn_rate=True)
    # FSDP2 divides the first dimension of every parameter.
    assert all(parameter.dim() for parameter in module.parameters())
    outer = torch.nn.Sequential(module)
    learned = ("decay_logit", "rate_log")
    old = {
        name: torch.tensor(0.25) if any(part in name for part in learned) else value
        for name, value in outer.state_dict().items()
    }
    given = dict(old)
    for assign in (False, True):
        outer.load_state_dict(given, strict=True, assign=assign)
        assert all(given[name] is old[name] for name in old)  # the caller's own stays as it was
        for name, parameter in module.named_parameters():
            assert parameter.dim()
            if any(part in name for part in learned):
                assert parameter.item() == 0.25
