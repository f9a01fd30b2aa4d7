"""Products in the CPU's memory: right in every shape, alike with any number of threads, and tensors of their own."""

import pytest
import torch

from fastweights import FastWeights
from fastweights.memory.products import product


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 3), (4, 5, 3), (0, 3), (2, 0, 3), (1, 1, 3)])
def test_it_is_the_product(shape, dtype):
    a, weights = torch.randn(shape, dtype=dtype), torch.randn(6, 3, dtype=dtype)
    for b in (weights.t(), weights.t().contiguous()):
        found = product(a, b)
        torch.testing.assert_close(found, a @ b)
        assert found.shape == (*shape[:-1], 6)
        assert found.is_contiguous()
        assert not found._is_view()


def test_numbers_that_overlap_in_memory():
    a, b = torch.randn(5, 3), torch.randn(20).as_strided((3, 8), (1, 1))
    torch.testing.assert_close(product(a, b), a @ b)


def test_threads_do_not_matter():
    a, b = torch.randn(1320, 30), torch.randn(20, 30).t()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 4, 5):
            torch.set_num_threads(threads)
            found.append(product(a, b))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("batch", [1, 4, 16, 33])
@pytest.mark.parametrize("lengths", [False, True])
def test_an_output_may_be_changed_in_place(batch, lengths):
    layer, x = FastWeights(3, 5), torch.randn(6, batch, 3)
    given = torch.arange(batch) % 7 if lengths else None
    output, _ = layer(x, lengths=given)
    expected = torch.autograd.grad((2 * output).sum(), layer.weight_ih_l0)[0]
    output, _ = layer(x, lengths=given)
    output.mul_(2)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), layer.weight_ih_l0)[0], expected)
