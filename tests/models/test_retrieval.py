"""The net is the paper's: 50, 100, core, 100 ReLUs, and it reads at the last step alone."""

import pytest
import torch
from torch import nn

from fastweights.models.cores import CORES
from fastweights.models.retrieval import RetrievalNet


def net(core="fast-weights", units=20):
    return RetrievalNet(core, units, characters=37, answers=10)


@pytest.mark.parametrize("core", CORES)
def test_shapes_and_gradients(core):
    model = net(core)
    output = model(torch.randint(37, (5, 11)))
    assert output.shape == (5, 10)
    output.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_it_is_an_embedding_expanded():
    model = net()
    tokens = torch.randint(37, (5, 11))
    one_by_one = model.expand(nn.functional.embedding(tokens, model.embedding)).transpose(0, 1)
    assert torch.allclose(model.inputs(tokens), one_by_one, atol=1e-6)
    output, _ = model.core(one_by_one)
    assert torch.allclose(model(tokens), model.readout(output[-1]), atol=1e-5)


def test_parameters_of_the_papers_sizes():
    own = {name: sum(p.numel() for p in net(name, 50).parameters()) for name in ("fast-weights", "irnn", "lstm")}
    around = 37 * 50 + 50 * 100 + 100 + 50 * 100 + 100 + 100 * 10 + 10
    assert own["irnn"] - around == 50 * 100 + 50 * 50 + 2 * 50
    assert own["fast-weights"] - around == 50 * 100 + 50 * 50 + 3 * 50
    assert own["lstm"] - around == 4 * (50 * 100 + 50 * 50 + 2 * 50)


def test_settings_make_the_same_net_again():
    model = RetrievalNet("fast-weights", 20, characters=37, answers=10, input_range=0.5, options={"decay": 0.8})
    again = RetrievalNet(**model.settings)
    again.load_state_dict(model.state_dict())
    tokens = torch.randint(37, (5, 11))
    assert torch.equal(again(tokens), model(tokens))


def test_a_trace_has_the_steps_of_the_string():
    hidden, attention = net().trace(torch.randint(37, (5, 11)))
    assert hidden.shape == (1, 11, 2, 5, 20)
    assert attention.shape == (1, 11, 1, 5, 11)
