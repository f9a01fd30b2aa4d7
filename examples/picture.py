"""Draw what a trained net attends to while it reads a string, and its memory filling: the picture in the README.

python examples/picture.py docs/attention.png
"""

import sys

import torch
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch

import fastweights
from fastweights.report.style import MODELS
from fastweights.tasks import retrieval

STRING = "c9k8j3f1??c"
COLOUR, GREY = MODELS["fast-weights"].colour, "#8c959f"


def main(path: str) -> None:
    net, tokens = fastweights.pretrained("retrieval-50"), retrieval.encode(STRING).unsqueeze(0)
    count = len(STRING)
    with torch.no_grad():
        probabilities = net(tokens)[0].softmax(0)
        paid = net.trace(tokens).attention[0, :, -1, 0].abs()  # (step, earlier step)
        memories = [net.core(net.inputs(tokens[:, :t]))[1].A[0, 0] for t in range(1, count + 1)]
    answer = int(probabilities.argmax())
    paid = paid / paid.max(1, keepdim=True).values.clamp(min=1e-9)

    figure = pyplot.figure(figsize=(9, 4.3))
    above = figure.add_axes((0.01, 0.335, 0.98, 0.655))
    above.set(xlim=(-0.5, count + 1.5), ylim=(-0.62, 4.2))
    above.axis("off")
    for step in range(1, count):
        for earlier in range(step):
            last = step == count - 1
            if paid[step, earlier] > (0.12 if last else 0.3):
                strength = float(paid[step, earlier])
                arc = FancyArrowPatch(
                    (step, 0.4),
                    (earlier, 0.4),
                    connectionstyle=f"arc3,rad={0.28 + 0.8 / (step - earlier + 1)}",
                    arrowstyle="-|>,head_length=5,head_width=3" if last else "-",
                    color=COLOUR if last else GREY,
                    alpha=strength if last else 0.5 * strength,
                    linewidth=4.5 * strength if last else 1.3 * strength,
                    shrinkA=2,
                    shrinkB=2,
                    zorder=3 if last else 1,
                )
                above.add_patch(arc)
    for place, character in enumerate(STRING):
        at_last = place == count - 1
        shown = float(paid[-1, place])
        box = {"boxstyle": "round,pad=0.28", "facecolor": "white", "edgecolor": GREY, "linewidth": 1.2}
        if at_last or shown > 0.5:
            box |= {"edgecolor": COLOUR, "linewidth": 2.6}
        above.text(place, 0, character, fontsize=21, family="monospace", ha="center", va="center", bbox=box, zorder=4)
    above.annotate(
        "", (count + 0.12, 0), (count - 0.45, 0), arrowprops={"arrowstyle": "-|>", "color": COLOUR, "linewidth": 2.5}
    )
    box = {"boxstyle": "circle,pad=0.3", "facecolor": COLOUR, "edgecolor": COLOUR}
    above.text(
        count + 0.72, 0, str(answer), fontsize=24, family="monospace", color="white", ha="center", va="center", bbox=box
    )
    above.text(count + 0.72, -0.6, f"{probabilities[answer]:.1%}", fontsize=10, ha="center", va="center", color=GREY)
    above.text(-0.4, 4.05, "Which digit stood behind c?", fontsize=15, va="top", weight="bold")
    above.text(
        -0.4,
        3.55,
        "Reading the last c, the net is drawn towards earlier states\nthat resemble its own (grey: the steps before).",
        fontsize=11,
        va="top",
        color="#59636e",
    )

    bound = float(max(memory.abs().quantile(0.98) for memory in memories))
    width = 0.98 / (count + 2)
    for place, memory in enumerate(memories):
        below = figure.add_axes((0.01 + width * (place + 0.06), 0.085, 0.88 * width, 0.88 * width * 9 / 4.3))
        below.imshow(memory, cmap="Oranges", vmin=0, vmax=bound)
        below.set(xticks=[], yticks=[])
        below.spines[:].set_color(GREY)
    figure.text(
        0.012, 0.03, "its fast weights A after each character: they fill as it reads", fontsize=11, color="#59636e"
    )
    figure.savefig(path, dpi=180, metadata={"Software": None})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/picture.py FILE.png")
    main(sys.argv[1])
