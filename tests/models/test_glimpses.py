"""Nets of glimpses use the control signals; the ConvNet sees the same patches."""

import pytest
import torch
from torch.nn import functional

from fastweights.models.glimpses import ConvNet, GlimpseNet, GlimpseSignals

STORE = torch.tensor([True, False, False])
WIPE = torch.tensor([False, True, False])
INTEGRATE = torch.tensor([False, False, True])


def signals():
    return GlimpseSignals(STORE, WIPE, INTEGRATE, torch.rand(3, 6))


def net(core="fast-weights", **hyperparameters):
    made = GlimpseNet(core, 8, pixels=4, signals=signals(), classes=5, **hyperparameters)
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return made


def sees(made, place):
    """Whether the answer depends on the glimpse at this place."""
    glimpses = torch.rand(3, 2, 4, requires_grad=True)
    made(glimpses).sum().backward()
    return bool(glimpses.grad[place].count_nonzero())


@pytest.mark.parametrize("core", ["irnn", "lstm", "a-lstm", "fast-weights"])
def test_every_core_sees_all_glimpses_and_the_signals(core):
    made = net(core)
    assert all(sees(made, place) for place in range(3))
    before = made(torch.ones(3, 2, 4))
    made.inputs.add_(1)
    assert not torch.allclose(made(torch.ones(3, 2, 4)), before)


def test_what_was_wiped_is_known_through_the_memory_alone():
    assert sees(net(options={"rate": 0.5}), 0)
    assert not sees(net(options={"rate": 0.0}), 0)
    assert sees(net(options={"rate": 0.0}, control_signals=("store", "read", "integrate")), 0)  # nothing is wiped


def test_only_what_is_stored_is_read_and_only_where_it_is_told():
    attention = net().trace(torch.rand(3, 2, 4)).attention[0, :, 0]  # (T, B, T)
    assert attention[2, :, 0].count_nonzero() == 2
    attention[2, :, 0] = 0
    assert attention.count_nonzero() == 0
    everywhere = net(control_signals=("wipe",)).trace(torch.rand(3, 2, 4)).attention[0, :, 0]
    assert everywhere[1, :, 0].count_nonzero() == everywhere[2, :, 1].count_nonzero() == 2


def test_the_integration_matrix_is_there_to_be_obeyed():
    assert net().core.weight_integration_l0.shape == (8, 8)
    assert net(control_signals=("store", "wipe", "read")).core.weight_integration_l0 is None
    made = net()
    made(torch.rand(3, 2, 4)).sum().backward()
    assert made.core.weight_integration_l0.grad.count_nonzero()


def test_signals_are_no_weights():
    assert not any("inputs" in name or "store" in name for name in net().state_dict())


def test_the_convnet_by_hand():
    made, images = ConvNet(6, patch=2, classes=3), torch.rand(4, 8, 8)
    weight, bias = made.patches.weight, made.patches.bias
    details = made.details.weight.unflatten(1, (2, 2, 6))
    quadrants = []
    for top in (0, 4):
        for left in (0, 4):
            region = images[:, top : top + 4, left : left + 4]
            total = made.details.bias
            for i in range(2):
                for j in range(2):
                    patch = region[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(1)
                    total = total + functional.linear(patch, weight, bias).relu() @ details[:, i, j].T
            coarse = functional.avg_pool2d(region.unsqueeze(1), 2).flatten(1)
            total = total + functional.linear(coarse, weight, bias).relu() @ made.coarse.weight.T
            quadrants.append(total.relu())
    top = functional.linear(torch.cat(quadrants, 1), made.image.weight, made.image.bias)
    torch.testing.assert_close(made(images), made.readout(top.relu()))
