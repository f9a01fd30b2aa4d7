"""Decay, rate and controls as weights of the past."""

import pytest
import torch

from fastweights.memory.weights import Controls, weigh


def test_weights_by_hand():
    weights = weigh(3, 3, 0.5, 2.0, Controls(), torch.empty(0))
    w, p, (w_end, p_end) = weights.w, weights.p, weights.at_end(3, None)
    assert w[0, 0].tolist() == [[0, 0, 0], [2, 0, 0], [1, 2, 0]]
    assert w_end[0].tolist() == [0.5, 1, 2]
    assert p[0, 0].tolist() == [1, 0.5, 0.25]
    assert p_end.item() == 0.125
    assert weights.between(1, None) == (None, None)


def test_between_chunks_and_after_a_short_last_one():
    weights = weigh(5, 2, 0.5, 2.0, Controls(), torch.empty(0))  # chunks of 2, 2 and 1
    left, p_left = weights.between(3, None)
    assert left.tolist() == [[[1, 2]]]
    assert p_left.tolist() == [[0.25]]
    w_end, p_end = weights.at_end(5, None)
    assert w_end.tolist() == [[2]]
    assert p_end.tolist() == [0.5]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_nothing_is_seen_across_a_reset(at):
    reset = torch.zeros(3, 1, dtype=torch.bool)
    reset[at] = True
    weights = weigh(3, 3, 0.5, 2.0, Controls(reset=reset), torch.empty(0))
    w, p, (w_end, p_end) = weights.w, weights.p, weights.at_end(3, None)
    assert not w[0, 0, at:, :at].any()
    assert not p[0, 0, at:].any()
    assert p_end.item() == 0
    assert not w_end[0, :at].any()
    assert w_end[0, 2] == 2


def test_what_is_left_for_sequences_of_many_lengths():
    lengths = torch.tensor([3, 0, 2])
    w_left, p_left = weigh(3, 3, 0.5, 2.0, Controls(), torch.empty(0)).at_end(3, lengths)
    assert w_left.tolist() == [[0.5, 1, 2], [0, 0, 0], [1, 2, 0]]
    assert p_left.tolist() == [0.125, 1, 0.25]


def test_what_is_left_between_chunks_for_many_lengths():
    store = torch.tensor([[1.0, 1.0], [0.5, 1.0], [1.0, 1.0]])
    weights = weigh(3, 2, 0.5, 2.0, Controls(store=store), torch.empty(0))
    left, p_left = weights.between(2, torch.tensor([3, 1]))
    assert left.tolist() == [[[1, 1], [2, 0]]]
    assert p_left.tolist() == [[0.25, 0.5]]
