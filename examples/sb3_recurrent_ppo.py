"""Fast weights in place of the LSTM of sb3-contrib's RecurrentPPO: an agent that learns Catch.

pip install 'fastweights[paper]' sb3-contrib
python examples/sb3_recurrent_ppo.py
"""

import sys

import torch
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import Tensor, nn
from torch.nn import functional

import fastweights.tasks.catch  # noqa: F401 - registers the environment
from fastweights import FastWeights

State = tuple[Tensor, Tensor]


class Core(nn.Module):
    """Fast weights as sb3-contrib sees an LSTM: two states of one size, which is H² here; h is filled up with zeros."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.layer = FastWeights(features, units)
        self.units, self.input_size, self.num_layers, self.hidden_size = units, features, 1, units**2

    def forward(self, x: Tensor, state: State, reset: Tensor) -> tuple[Tensor, State]:
        h, A = state[0][..., : self.units], state[1].unflatten(-1, (self.units, self.units))
        output, (h, A) = self.layer(x, (h, A), reset=reset)
        return output, (functional.pad(h, (0, self.hidden_size - self.units)), A.flatten(-2))


class Policy(RecurrentActorCriticPolicy):
    """One core, from which both the actions and the value are read."""

    def __init__(self, *args, lstm_hidden_size: int = 32, **options) -> None:  # type: ignore[no-untyped-def]
        options |= {"shared_lstm": True, "enable_critic_lstm": False}
        super().__init__(*args, lstm_hidden_size=lstm_hidden_size, **options)
        self.lstm_actor = Core(self.features_dim, lstm_hidden_size)  # type: ignore[assignment]
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        self.optimizer = self.optimizer_class(self.parameters(), lr=args[2](1), **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: State, episode_starts: Tensor, lstm: Core
    ) -> tuple[Tensor, State]:  # type: ignore[override]
        sequences = lstm_states[0].shape[1]
        x = features.unflatten(0, (sequences, -1)).transpose(0, 1)
        reset = episode_starts.unflatten(0, (sequences, -1)).transpose(0, 1) > 0
        output, state = lstm(x, lstm_states, reset)
        return output.transpose(0, 1).flatten(0, 1), state


def main(steps: int = 30_000) -> float:
    """The mean return of 100 games after so many steps; a player who moves at random has -0.33."""
    torch.set_num_threads(1)
    games = make_vec_env("fastweights/Catch-v0", n_envs=16, seed=0, env_kwargs={"size": 6, "visible": 2})
    agent = RecurrentPPO(
        Policy, games, n_steps=40, batch_size=320, learning_rate=2e-3, ent_coef=0.01, n_epochs=4, seed=0
    )
    agent.learn(steps)
    return float(evaluate_policy(agent, games, n_eval_episodes=100, warn=False)[0])


if __name__ == "__main__":
    print(f"return {main(*map(int, sys.argv[1:])):+.2f}")
