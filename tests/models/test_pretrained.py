"""The nets that come with the package know their task."""

import pytest
import torch

import fastweights
from fastweights.tasks import retrieval


def test_it_knows_its_task():
    net = fastweights.pretrained("retrieval-50")
    tokens, answers = retrieval.split("test", 2000)
    with torch.no_grad():
        error = (net(tokens).argmax(1) != answers).double().mean()
    assert error < 0.002


def test_a_name_that_is_not_there():
    with pytest.raises(ValueError, match="name must be one of 'retrieval-50'; got 'retrieval-51'"):
        fastweights.pretrained("retrieval-51")
