"""Draw what a trained net attends to while it reads a string: the picture in the README.

python examples/picture.py docs/attention.png
"""

import sys

import torch
from matplotlib import pyplot

import fastweights
from fastweights.tasks import retrieval

STRING = "c9k8j3f1??c"


def main(path: str) -> None:
    net, tokens = fastweights.pretrained("retrieval-50"), retrieval.encode(STRING).unsqueeze(0)
    with torch.no_grad():
        answer = int(net(tokens).argmax())
        _, attention = net.trace(tokens)
    paid = attention[0, 1:, -1, 0, :-1]  # (step, earlier step)
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
