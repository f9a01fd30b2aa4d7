"""Every core takes (x, state), gives (output, state), goes on where it was, and starts as it should."""

import pytest
import torch

from fastweights.models.cores import CORES, make_core


@pytest.mark.parametrize("name", CORES)
def test_a_core_goes_on_where_it_was(name):
    core = make_core(name, 6, 8)
    x = torch.randn(7, 3, 6)
    whole, _ = core(x)
    first, state = core(x[:4])
    second, _ = core(x[4:], state)
    assert whole.shape == (7, 3, core.output_size)
    assert torch.allclose(torch.cat((first, second)), whole, atol=1e-6)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("reach", [0.1, 1.0])
def test_the_input_range(name, reach):
    core = make_core(name, 100, 30, input_range=reach)
    weights = next(values for key, values in core.named_parameters() if key.startswith("weight_ih"))
    assert 0.98 * reach < weights.abs().max() <= reach


def test_an_irnn_starts_as_half_the_identity():
    core = make_core("irnn", 5, 4)
    assert torch.equal(core.weight_hh_l0, torch.eye(4) / 2)
    assert not core.bias_ih_l0.any()
    h = torch.rand(1, 2, 4)
    _, after = core(torch.zeros(1, 2, 5), h)
    assert torch.allclose(after, h / 2)


def test_an_lstm_remembers_to_begin_with():
    core = make_core("lstm", 5, 4)
    assert (core.bias_ih_l0 + core.bias_hh_l0).tolist() == [0] * 4 + [1] * 4 + [0] * 8


def test_bad_cores():
    with pytest.raises(ValueError, match="core must be one of 'irnn', .*; got 'gru'"):
        make_core("gru", 5, 4)
    with pytest.raises(ValueError, match="options must be empty for 'lstm'"):
        make_core("lstm", 5, 4, options={"decay": 0.9})
    with pytest.raises(ValueError, match="input_range must be at least 0"):
        make_core("lstm", 5, 4, input_range=-1)
