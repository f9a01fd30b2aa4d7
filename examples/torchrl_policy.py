"""Fast weights as the memory of a torchrl policy, which learns Catch by PPO; `is_init` marks where episodes begin.

pip install 'fastweights[paper]' torchrl
python examples/torchrl_policy.py
"""

import sys

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Categorical
from torchrl.data import Unbounded
from torchrl.envs import Compose, FlattenObservation, GymEnv, InitTracker, SerialEnv, TensorDictPrimer, TransformedEnv
from torchrl.modules import recurrent_mode, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import fastweights.tasks.catch  # noqa: F401 - registers the environment
from fastweights import FastWeights

GAMES, SIZE, UNITS = 16, 5, 32


class Memory(TensorDictModuleBase):
    """Observation and state → features and the next state: of one step, or in recurrent mode of all steps (B, T)."""

    in_keys = ["observation", "is_init", "h", "A"]
    out_keys = ["features", ("next", "h"), ("next", "A")]

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.layer = FastWeights(features, units, batch_first=True)

    def forward(self, data: TensorDictBase) -> TensorDictBase:
        x, reset, h, A = (data[key] for key in self.in_keys)
        whole = bool(recurrent_mode())
        if whole:
            output, _ = self.layer(x, (h[:, 0].unsqueeze(0), A[:, 0].unsqueeze(0)), reset=reset)
        else:
            output, state = self.layer(x.unsqueeze(1), (h.unsqueeze(0), A.unsqueeze(0)), reset=reset)
            data["next", "h"], data["next", "A"] = state.h[0], state.A[0]
        data["features"] = output if whole else output.squeeze(1)
        return data


def main(updates: int = 30) -> float:
    """The mean return of the last games; a player who moves at random has -0.2."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    states = TensorDictPrimer(
        {"h": Unbounded((UNITS,)), "A": Unbounded((UNITS, UNITS))}, default_value=0.0, expand_specs=True
    )
    games = SerialEnv(
        GAMES, lambda: GymEnv("fastweights/Catch-v0", size=SIZE, visible=2, categorical_action_encoding=True)
    )
    env = TransformedEnv(games, Compose(FlattenObservation(-2, -1, in_keys=["observation"]), InitTracker(), states))

    memory = Memory(SIZE * SIZE, UNITS)
    logits = TensorDictModule(nn.Linear(UNITS, 3), ["features"], ["logits"])
    draw = ProbabilisticTensorDictModule(
        in_keys=["logits"], out_keys=["action"], distribution_class=Categorical, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(memory, logits, draw)
    critic = TensorDictSequential(memory, TensorDictModule(nn.Linear(UNITS, 1), ["features"], ["state_value"]))
    loss, advantage = ClipPPOLoss(actor, critic, entropy_coeff=0.01), GAE(gamma=0.99, lmbda=0.95, value_network=None)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)

    returns = 0.0
    for _ in range(updates):
        with torch.no_grad():
            data = env.rollout(8 * SIZE, actor, break_when_any_done=False)
        ended = data["next", "done"]
        returns = float(data["next", "reward"][ended].mean())
        for _ in range(4):
            with set_recurrent_mode(True):
                with torch.no_grad():
                    values = critic(data)["state_value"]
                    data["next", "state_value"] = values.roll(-1, 1)
                    data["next", "truncated"][:, -1] = True
                    advantage(data)
                found = loss(data)
            optimizer.zero_grad()
            sum(found[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
            optimizer.step()
    return returns


if __name__ == "__main__":
    print(f"return {main(*map(int, sys.argv[1:])):+.2f}")
