"""The layer in a net of your own: learn which digit stood behind which letter, `k8j3??j` → 3.

    python examples/retrieval.py

Two pairs, some seconds. The paper's four, with everything around them: `fastweights train retrieval`.
"""

import torch
from torch import Tensor, nn

from fastweights import FastWeights
from fastweights.tasks import retrieval


class Net(nn.Module):
    """Character → fast weights → digit, read at the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(retrieval.ALPHABET), 50)
        self.core = FastWeights(50, 50, decay=0.9)
        self.readout = nn.Linear(50, retrieval.ANSWERS)

    def forward(self, tokens: Tensor) -> Tensor:
        output, _ = self.core(self.embed(tokens.T))
        return self.readout(output[-1])


def main() -> None:
    torch.manual_seed(0)
    net, baseline = Net(), float(retrieval.baseline_error(2))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for update in range(1, 1201):
        tokens, answers = retrieval.sample(128, pairs=2)
        logits = net(tokens)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, answers).backward()
        optimizer.step()
        if update % 200 == 0:
            error = (logits.argmax(1) != answers).double().mean().item()
            print(f"{update:5d} updates: error {error:6.2%} (no-retrieval baseline {baseline:.0%})", flush=True)
    _, attention = net.core.trace(net.embed(retrieval.encode("k8j3??j")))
    paid = zip("k8j3??", attention[0, -1, -1].tolist(), strict=False)
    print("attention that the last j pays:", ", ".join(f"{character} {amount:.2f}" for character, amount in paid))


if __name__ == "__main__":
    main()
