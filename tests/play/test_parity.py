"""What the page computes is what Python computes, in a real browser."""

import itertools

import numpy as np
import pytest
import torch

import fastweights
from fastweights.memory import equations
from fastweights.models.agent import Player
from fastweights.models.pretrained import NAMES
from fastweights.tasks import retrieval
from fastweights.tasks.catch import CatchVector
from fastweights.tasks.glimpses import make_schedule

INPUTS = 200
NETS = {task: [name for name in NAMES if name.startswith(task)] for task in ("retrieval", "glimpses", "catch")}


def compare(found, expected, within=1e-5):
    """The same logits where Python computes in double precision, as the page does, and the same answers."""
    found, expected = torch.tensor(found, dtype=torch.float64), expected.double()
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < within
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_every_net_is_tried():
    assert sorted(name for names in NETS.values() for name in names) == sorted(NAMES)


@pytest.mark.parametrize("name", NETS["retrieval"])
def test_retrieval(modules, name):
    tokens, _ = retrieval.split("test", INPUTS)
    strings = [retrieval.decode(each) for each in tokens]
    found = modules(
        """const { loadNet } = await import("./js/nets.js")
        const net = await loadNet(arguments.name)
        return arguments.strings.map(string => Array.from(net.logits(string)))""",
        name=name,
        strings=strings,
    )
    net = fastweights.pretrained(name)
    with torch.no_grad():
        in_single = net(tokens)
        compare(found, net.double()(tokens))
        compare(in_single.tolist(), net(tokens), within=2e-4)  # Python's own rounding, of logits up to 20, is larger


@pytest.mark.parametrize("name", NETS["glimpses"])
def test_glimpses(modules, name):
    schedule = make_schedule(28, 7)
    images = (torch.rand(INPUTS, 28, 28, dtype=torch.float64) < 0.3).double() * torch.rand(INPUTS, 28, 28).double()
    found = modules(
        """const { loadNet } = await import("./js/nets.js")
        const { look } = await import("./js/tasks/glimpses.js")
        const net = await loadNet(arguments.name)
        return arguments.images.map(image => Array.from(net.run(look(image)).at(-1).logits))""",
        name=name,
        images=images.flatten(1).tolist(),
    )
    net = fastweights.pretrained(name).double()
    with torch.no_grad():
        compare(found, net(schedule.look(images)))


@pytest.mark.parametrize("name", NETS["catch"])
def test_agents(modules, name):
    """At every frame of games that the agent of Python plays."""
    net = fastweights.pretrained(name).double()
    games, player = CatchVector(INPUTS, size=16, visible=3), Player(net)
    screens, reset = games.reset(seed=0)[0], torch.ones(INPUTS, dtype=torch.bool)
    starts = [games.ball.tolist(), games.paddle.tolist()]
    expected, actions = [], []
    for _ in range(15):
        expected.append(player(torch.as_tensor(screens).double().flatten(1), reset))
        actions.append(expected[-1].argmax(1))
        screens, reset = games.step(actions[-1].numpy())[0], torch.zeros(INPUTS, dtype=torch.bool)
    found = modules(
        """const { loadNet } = await import("./js/nets.js")
        const { Game } = await import("./js/tasks/catch.js")
        const net = await loadNet(arguments.name)
        return arguments.starts[0].map((ball, n) => {
          const game = new Game(ball, arguments.starts[1][n])
          net.start()
          return arguments.actions.map(action => {
            const { logits } = net.step(game.screen())
            game.step(action[n])
            return Array.from(logits)
          })
        })""",
        name=name,
        starts=starts,
        actions=torch.stack(actions).tolist(),
    )
    compare(found, torch.stack(expected, 1))


DYNAMICS = [
    dict(zip(("inner_steps", "settling", "nonlinearity", "normalize_start", "norm", "bias"), each, strict=True))
    for each in itertools.product(range(6), ("sustained", "identity"), ("relu", "tanh"), *[(False, True)] * 3)
]


def test_the_step(modules):
    """Against the oracle, for all options, S = 0…5, with signals: all of h_0 … h_S and A."""
    T, H, features = 5, 7, 5
    generator = np.random.default_rng(0)
    cases, expected = [], []
    for dynamics in DYNAMICS:
        shapes = {"W": (H, H), "C": (H, features), "b": (H,), "gain": (H,), "shift": (H,), "W_int": (H, H)}
        slow = {name: 0.3 * generator.standard_normal(shape) for name, shape in shapes.items()}
        if not dynamics["bias"]:
            del slow["b"]
        if not dynamics["norm"]:
            del slow["gain"], slow["shift"]
        x = generator.standard_normal((T, features))
        signals = {name: generator.random(T) < 0.5 for name in ("wipe", "integrate")}
        signals |= {name: generator.random(T) for name in ("store", "read")}
        fixed = {name: dynamics[name] for name in ("inner_steps", "settling", "nonlinearity", "normalize_start")}
        flat = {name: values.flatten().tolist() for name, values in slow.items()}
        as_lists = {name: values.tolist() for name, values in signals.items()}
        cases.append({"dynamics": fixed, "slow": flat, "x": x.tolist(), "signals": as_lists})
        tensors = {name: torch.tensor(slow[name]) if name in slow else None for name in shapes}
        memory = equations.MatrixMemory(
            torch.zeros(1, H, H).double(),
            torch.tensor(0.9, dtype=torch.float64),
            torch.tensor(0.02, dtype=torch.float64),
        )
        hidden, _ = equations.run(
            torch.tensor(x).unsqueeze(1),
            torch.zeros(1, H).double(),
            memory,
            equations.SlowWeights(**tensors),
            equations.Dynamics(**fixed),
            **{name: torch.tensor(values).unsqueeze(1) for name, values in signals.items()},
        )
        expected.append([hidden[:, 0].flatten().tolist(), memory.A.flatten().tolist()])
    found = modules(
        """const { Memory, step } = await import("./js/equations.js")
        return arguments.cases.map(({ dynamics, slow, x, signals }) => {
          const memory = new Memory(arguments.H, { decay: 0.9, rate: 0.02 })
          let h = new Float64Array(arguments.H), all = []
          const weights = Object.fromEntries(Object.entries(slow).map(([name, w]) => [name, Float64Array.from(w)]))
          x.forEach((each, t) => {
            const now = Object.fromEntries(Object.entries(signals).map(([name, values]) => [name, values[t]]))
            const { hidden } = step(Float64Array.from(each), h, memory, weights, dynamics, now)
            h = hidden.at(-1)
            all.push(...h)
          })
          return [all, Array.from(memory.A)]
        })""",
        cases=cases,
        H=H,
    )
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert np.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_attention_is_what_the_layer_traces(modules):
    string = "c9k8j3f1??c"
    found = modules(
        """const { loadNet } = await import("./js/nets.js")
        const net = await loadNet("retrieval-50")
        return net.run(arguments.string, { inner_steps: 3 }).map(step => step.attention)""",
        string=string,
    )
    net = fastweights.pretrained("retrieval-50").double()
    net.core.inner_steps = 3
    expected = net.trace(retrieval.encode(string).unsqueeze(0)).attention[0, :, :, 0]  # (T, S, T)
    for t, steps in enumerate(found):
        assert torch.allclose(torch.tensor(steps, dtype=torch.float64).reshape(3, t), expected[t, :, :t], atol=1e-6)
