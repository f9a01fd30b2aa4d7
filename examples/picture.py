"""Draw what a trained net attends to while it reads a string: the picture in the README.

python examples/picture.py docs/attention.png
"""

import sys

import torch
from matplotlib import pyplot
from retrieval import Net, train

from fastweights.tasks import retrieval

STRING = "k8j3??k"


def main(path: str) -> None:
    torch.manual_seed(0)
    net = Net(units=50)
    train(net, pairs=2, updates=3000, generator=torch.Generator().manual_seed(0))
    tokens = retrieval.encode(STRING)
    with torch.no_grad():
        answer = int(net(tokens.unsqueeze(0)).argmax())
        _, attention = net.core.trace(net.embed(tokens))
    paid = attention[0, 1:, -1, :-1]  # (step, earlier step)
    paid = paid / paid.max(1, keepdim=True).values.clamp(min=1e-9)
    future = torch.ones_like(paid).triu(1).bool()

    figure, axes = pyplot.subplots(figsize=(5.6, 4.4), layout="constrained")
    image = axes.imshow(paid.masked_fill(future, torch.nan), cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(STRING) - 1), list(STRING[:-1]), fontfamily="monospace", fontsize=14)
    axes.set_yticks(range(len(STRING) - 1), list(STRING[1:]), fontfamily="monospace", fontsize=14)
    axes.set_xlabel("… attends to the states of these")
    axes.set_ylabel("reading this character …")
    axes.set_title(f"{STRING} → {answer}", fontfamily="monospace", fontsize=16)
    axes.spines[["top", "right"]].set_visible(False)
    figure.colorbar(image, label="attention, relative to the row's largest")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/picture.py FILE.png")
    main(sys.argv[1])
