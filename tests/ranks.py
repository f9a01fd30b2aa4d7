"""What two processes do in tests of distribution: a module of its own, as a process of its own can be sent."""

import datetime
import os
import socket
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fastweights import FastWeights, FastWeightsCell

LIMIT = 120  # seconds: a process that waits for another one for ever is a failure


def in_two_processes(function, *arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.spawn(function, (port, *arguments), nprocs=2, join=False)
    end = time.monotonic() + LIMIT
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < end, f"not finished after {LIMIT} seconds"
    finally:
        for process in context.processes:
            process.kill()


class Net(nn.Module):
    """With a readout, and the state handed through."""

    def __init__(self, core):
        super().__init__()
        self.core, self.readout = core, nn.Linear(core.hidden_size, 2)

    def forward(self, x, state=None):
        if isinstance(self.core, FastWeights):
            output, state = self.core(x, state)
            return self.readout(output), state
        outputs = []
        for step in x:
            state = self.core(step, state)
            outputs.append(self.readout(state.h))
        return torch.stack(outputs), state


def make(kind, bare, options):
    torch.manual_seed(0)
    core = kind(3, 5, **options)  # in double precision: a layer norm of few units makes much of little
    nn.init.uniform_(core.weight_hh_l0 if kind is FastWeights else core.weight_hh, -0.4, 0.4)
    return (core if bare else Net(core)).double()


WRAPPERS = {
    "DDP": lambda module, _: DistributedDataParallel(module),
    "find_unused": lambda module, _: DistributedDataParallel(module, find_unused_parameters=True),
    "static": lambda module, _: DistributedDataParallel(module, static_graph=True),
    "sharded": lambda module, mesh: fully_shard(module, mesh=mesh),
    "nested": lambda module, mesh: [fully_shard(each, mesh=mesh) for each in (module.core, module.readout, module)][-1],
}


def run(module, x, state, stepwise):
    """The loss of some steps, which looks at all that comes out, and the state after them."""
    if stepwise:
        losses = []
        for step in x:
            state = module(step, state)
            losses.append(state.h.square().mean())
        return sum(losses) + state.A.square().mean(), state
    output, state = module(x, state)
    return output.square().mean() + state.h.square().mean() + state.A.square().mean(), state


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(module, pieces, stepwise, detach):
    """Truncated backpropagation through time, or one backward through all pieces: all gradients on the way."""
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    state, gradients, total = None, [], 0
    for x in pieces:
        loss, state = run(module, x, state, stepwise)
        total = loss if detach else total + loss
        if detach or x is pieces[-1]:
            optimizer.zero_grad()
            total.backward()
            gradients.append([full(parameter.grad).clone() for parameter in module.parameters()])
            optimizer.step()
        if detach:
            state = state.detach()
    return gradients


def end():
    """All is well here, and in the other process. At an ordinary exit a thread of gloo's may abort the process."""
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def compare(rank, port, cases):
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # returned a view, as nn.Linear's do
    limit = datetime.timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=limit)
    mesh = init_device_mesh("cpu", (2,))
    pieces = list(torch.randn(3, 6, 4, 3, generator=torch.Generator().manual_seed(1)).double())
    for kind, bare, options, detach, wrappers in cases:
        stepwise = bare and kind is FastWeightsCell
        expected = train(make(kind, bare, options), pieces, stepwise, detach)
        for name in wrappers:
            wrapped = WRAPPERS[name](make(kind, bare, options), mesh)
            found = train(wrapped, [piece[:, 2 * rank : 2 * rank + 2] for piece in pieces], stepwise, detach)
            for ours, theirs in zip(found, expected, strict=True):
                for one, other in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(
                        one, other, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
                    )
    end()


def call_with_sharded_weights(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for kind, x in ((FastWeights, torch.randn(5, 4, 3)), (FastWeightsCell, torch.randn(4, 3))):
        module = fully_shard(kind(3, 8), mesh=mesh)
        for grad in (True, False):
            with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
                module.forward(x)  # not through the hooks that gather the weights
        with torch.inference_mode():
            module(x)
    end()
