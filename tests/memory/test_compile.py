"""torch.compile: one graph, the numbers of eager mode, whatever is done afterwards to what went in and came out."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.utils.rnn import pack_sequence

from fastweights import FastWeights, FastWeightsCell

BACKENDS = pytest.mark.parametrize("backend", ["auto", "torch"])


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize(("backend", "looked_at"), [("auto", "output"), ("torch", "output"), ("auto", "state")])
def test_one_graph_for_many_numbers_of_steps(backend, looked_at):
    layer = FastWeights(3, 10, backend=backend)

    def run(x, start):
        output, state = layer(x, start)
        return (output,) if looked_at == "output" else (output, state.h, state.A)

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    # Short sequences are computed in one form, long ones in another, which is another graph.
    for expected, lengths in ((1, (5, 8, 20, 3, 56)), (2, (60, 100, 65))):
        for steps in lengths:
            x, start = torch.randn(steps, 4, 3, requires_grad=True), layer(torch.randn(2, 4, 3))[1].detach()
            ours, theirs = compiled(x, start), run(x, start)
            leaves = [x, *layer.parameters()]
            grads = [torch.autograd.grad(sum(part.sum() for part in parts), leaves) for parts in (ours, theirs)]
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)
        assert counters["stats"]["unique_graphs"] == expected


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch looks at where a graph ends
@BACKENDS
def test_packed_sequences_compile_once(backend):
    layer = FastWeights(3, 10, backend=backend)

    def run(x):
        output, state = layer(x)
        return output.data, state.h, state.A

    # Not in one graph: how many sequences are in a pack is a number in it, not a size.
    compiled, graphs = torch.compile(run, dynamic=True, backend="eager"), []
    for lengths in ((5, 4, 2), (6, 6, 3), (9, 2, 1), (7, 5, 4)):
        x = pack_sequence([torch.randn(n, 3) for n in lengths])
        torch.testing.assert_close(compiled(x), run(x))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == graphs[:1] * 4


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", [FastWeights, FastWeightsCell])
@BACKENDS
def test_the_state_is_that_of_the_call_whatever_is_done_to_the_rest(backend, kind, grad):
    module = kind(3, 5, backend=backend)
    x = torch.randn(6, 4, 3) if kind is FastWeights else torch.randn(4, 3)
    start = module(x).detach() if kind is FastWeightsCell else module(x)[1].detach()

    def run(x, h, A, change):
        results = module(x, (h, A))
        output, state = results if kind is FastWeights else (None, results)
        if change:
            if not grad:  # else, without a copy of x, its change is an error, as with nn.LSTM
                x.mul_(0)
            for tensor in (h, A) if output is None else (h, A, output):
                tensor.mul_(0)
        return state.h, state.A

    with torch.set_grad_enabled(grad):
        expected = run(x.clone(), start.h.clone(), start.A.clone(), False)
        for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
            found = function(x.clone(), start.h.clone(), start.A.clone(), True)
            torch.testing.assert_close(found, expected)
            if grad:
                grads = [
                    torch.autograd.grad(
                        sum(part.square().sum() for part in parts), list(module.parameters()), retain_graph=True
                    )
                    for parts in (found, expected)
                ]
                torch.testing.assert_close(*grads)
