"""An agent with memory: a policy and a value."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .cores import make_core, run_episodes


class Agent(nn.Module):
    """Screen → 128 ReLUs → recurrent core → logits of the actions, and the value.

    Args:
        core: the recurrent core, by name: see `make_core`.
        units: its size.
        pixels: of a screen.
        actions: how many there are.
        recurrent_init: W of an "irnn" or of "fast-weights" starts as this times I; 0: as 1 and 0.05 times I. Elsewhere
            an "irnn" has 0.5, but of a state that is halved at every step nothing is left at the end of a game.
        input_range, options: of the core.

    >>> agent = Agent("fast-weights", 128, pixels=256, actions=3)
    >>> reset = torch.zeros(5, 4, dtype=torch.bool)
    >>> logits, values, state = agent(torch.rand(5, 4, 256), None, reset)
    >>> logits.shape, values.shape
    (torch.Size([5, 4, 3]), torch.Size([5, 4]))
    """

    def __init__(
        self,
        core: str,
        units: int,
        *,
        pixels: int,
        actions: int,
        recurrent_init: float = 0.0,
        input_range: float = 0.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.look = nn.Linear(pixels, 128)
        start = recurrent_init or (1.0 if core == "irnn" else 0.0)
        self.core = make_core(core, 128, units, input_range=input_range, recurrent_init=start, options=options)
        self.policy = nn.Linear(self.core.output_size, actions)  # type: ignore[arg-type]
        self.value = nn.Linear(self.core.output_size, 1)  # type: ignore[arg-type]
        nn.init.zeros_(self.policy.weight)  # to begin with, all actions are alike

    def forward(self, screens: Tensor, state: Any, reset: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Logits (T, B, actions), values (T, B) and the state after screens (T, B, pixels).

        Args:
            state: from an earlier call; None: at the beginning of an episode.
            reset: (T, B) bool: this screen is the first of an episode, and nothing from before is remembered. On the
                CPU, wherever the agent is: nothing then waits to know where episodes begin.
        """
        output, state = run_episodes(self.core, self.see(screens), state, reset)
        return self.policy(output), self.value(output).squeeze(-1), state

    def see(self, screens: Tensor) -> Tensor:
        """What the core sees of screens (…, pixels): `look(screens).relu()`, where black ones cost the CPU nothing."""
        if not screens.is_cpu:  # to know which are black, another device would have to be waited for
            return self.look(screens).relu()  # type: ignore[no-any-return]
        lit = screens.any(-1)
        if not lit.any():
            return self.look.bias.relu().expand(*lit.shape, -1)
        shown = self.look(screens[lit])
        return self.look.bias.expand(*lit.shape, -1).index_put((lit,), shown).relu()

    @torch.no_grad()
    def trace(self, screens: Tensor) -> Any:
        """What a core of fast weights did with the screens (T, B, pixels) of an episode."""
        return self.core.trace(self.see(screens))  # type: ignore[operator]


class Player:
    """An agent that plays B games step by step, without gradients.

    >>> player = Player(Agent("fast-weights", 128, pixels=256, actions=3))
    >>> player(torch.rand(4, 256), torch.ones(4, dtype=torch.bool)).shape
    torch.Size([4, 3])
    """

    def __init__(self, agent: Agent, state: Any = None) -> None:
        self.agent, self.state = agent, state

    @torch.no_grad()
    def __call__(self, screens: Tensor, reset: Tensor) -> Tensor:
        """Logits (B, actions) for the next screens (B, pixels); reset (B,), on the CPU: the first of an episode."""
        agent, state, resets = self.agent, self.state, None
        if reset.all():
            state = None  # none has anything to forget
        elif reset.any():
            resets = reset.unsqueeze(0)
        output, self.state = run_episodes(agent.core, agent.see(screens).unsqueeze(0), state, resets)
        policy: Tensor = agent.policy(output[0])
        return policy
