"""Train a fast-weights net to remember which digit stood behind which letter, and look at what it learned.

    python examples/retrieval.py [--pairs 2] [--units 50] [--updates 3000] [--seed 0]

The paper's task has four pairs and takes many times longer; two are learned in seconds and show the same.
"""

import argparse
import sys
import time

import torch
from torch import Tensor, nn

from fastweights import FastWeights
from fastweights.tasks import retrieval


class Net(nn.Module):
    """Character → 50 → 100 → fast weights → 100 ReLUs → digit, read at the last step."""

    def __init__(self, units: int) -> None:
        super().__init__()
        characters = nn.Embedding(len(retrieval.ALPHABET), 50)
        self.embed = nn.Sequential(characters, nn.Linear(50, 100))
        self.core = FastWeights(100, units, decay=0.9)
        self.readout = nn.Sequential(nn.Linear(units, 100), nn.ReLU(), nn.Linear(100, 10))
        # Large inputs make the states of different characters differ enough to be told apart in memory.
        nn.init.uniform_(characters.weight, -1, 1)
        with torch.no_grad():
            self.core.get_parameter("weight_ih_l0").mul_(10)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.core(self.embed(tokens.T))
        return self.readout(output[-1])


def train(net: Net, pairs: int, updates: int, generator: torch.Generator) -> float:
    """Adam on fresh strings until fresh strings are answered; returns the error on them."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    started, report = time.monotonic(), max(1, updates // 12)
    error = 1.0
    for update in range(1, updates + 1):
        tokens, answers = retrieval.sample(128, pairs, generator=generator)
        loss = nn.functional.cross_entropy(net(tokens), answers)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1)
        optimizer.step()
        if update % report == 0:
            error = measure(net, pairs, generator)
            spent = time.monotonic() - started
            left = spent / update * (updates - update)
            print(f"{update:6d} updates  error {error:6.2%}  {spent:4.0f} s, at most {left:.0f} s to go", flush=True)
            if error < 0.005:
                break
    return error


@torch.no_grad()
def measure(net: Net, pairs: int, generator: torch.Generator) -> float:
    tokens, answers = retrieval.sample(2000, pairs, generator=generator)
    return (net(tokens).argmax(1) != answers).float().mean().item()


@torch.no_grad()
def show(net: Net, string: str) -> None:
    """The answer to one string, and what its last character paid attention to."""
    tokens = retrieval.encode(string)
    chances = net(tokens.unsqueeze(0)).softmax(1)[0]
    print(f"\n{string} → {chances.argmax()}  ({chances.max():.1%} sure)")
    _, attention = net.core.trace(net.embed(tokens))
    paid = attention[0, -1, -1, :-1]  # by the query, to the characters before it
    for character, amount in zip(string, (paid / paid.max()).tolist(), strict=False):
        print(f"  {character} {'█' * round(30 * amount)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2, help="letter-digit pairs to remember (the paper: 4)")
    parser.add_argument("--units", type=int, default=50, help="recurrent units")
    parser.add_argument("--updates", type=int, default=3000, help="batches of 128 strings, at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 1 <= args.pairs <= 26 or args.units < 1 or args.updates < 1:
        sys.exit("--pairs must be from 1 to 26, --units and --updates at least 1")
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    floor = float(retrieval.floor_error(args.pairs))
    print(f"Associative retrieval: {args.pairs} pairs, {args.units} units. Error without any retrieval: {floor:.1%}.")
    net = Net(args.units)
    error = train(net, args.pairs, args.updates, generator)
    tokens, _ = retrieval.sample(2, args.pairs, generator=generator)
    for string in tokens:
        show(net, retrieval.decode(string))
    print(f"\nError on fresh strings: {error:.2%} (without retrieval {floor:.1%}).")


if __name__ == "__main__":
    main()
