"""Put a trained net into the package: its run folder in half precision, without its history.

python -m fastweights.paper.ship runs/table1/tuned/lstm-20/seed-0 retrieval-20-lstm

Says the error, or the return, of the net before and after it was rounded.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from ..base import files
from ..models.cores import OF_FAST_WEIGHTS
from ..models.pretrained import FOLDER
from ..tasks.catch import ACTIONS
from ..training import a3c
from ..training.runs import RunFolder
from .catch import run as agents
from .glimpses import run as glimpses
from .retrieval import run as retrieval


def ship(run: Path, name: str, folder: Path = FOLDER) -> Path:
    """Write the net of a run folder, rounded to half precision, into the package's folder of nets."""
    source, target = RunFolder(run), folder / name
    weights, facts = files.read_tensors(run / "best.safetensors")
    task = source.config["settings"]["task"]
    if task == agents.TASK:
        facts = {"task": task, "net": _of_agent(agents.load_config(source)), **facts}
    if task == glimpses.TASK:  # what the net knows of every glimpse, which a page then need not work out
        signals = glimpses.load_config(source).make_schedule().signals()
        facts["signals"] = {kind: values.tolist() for kind, values in signals._asdict().items()}
    files.write_json(target / "config.json", files.seal(source.config))
    half = {key: values.half() for key, values in weights.items()}
    files.write_tensors(target / "best.safetensors", half, facts)
    return target


def _of_agent(config: agents.Catch) -> dict[str, Any]:
    """The arguments of its net, which an agent's file does not have."""
    names = [name for name in OF_FAST_WEIGHTS if hasattr(config, name)]
    return {
        "core": config.core,
        "units": agents.UNITS,
        "pixels": config.size**2,
        "actions": ACTIONS,
        "input_range": config.input_range,
        "recurrent_init": config.recurrent_init,
        "options": {name: getattr(config, name) for name in names} if config.core == "fast-weights" else None,
    }


def measure(run: Path) -> str:
    """How good a net is, in words."""
    folder = RunFolder(run)
    task = folder.config["settings"]["task"]
    if task == agents.TASK:
        game, net = agents.load_config(folder), agents.load_net(folder)
        found = a3c.score(game, net, greedy=True, seed=game.seed + a3c.EVALUATION_SEED)
        return f"return of 1,000 episodes {found:.3f}"
    error = (retrieval if task == retrieval.TASK else glimpses).evaluate(folder, "test").error
    return f"test error {error:.3%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("name", help="what the net is to be called")
    words = parser.parse_args()
    torch.set_num_threads(1)
    before, target = measure(words.run), ship(words.run, words.name)
    size = (target / "best.safetensors").stat().st_size
    print(json.dumps({"net": words.name, "trained": before, "shipped": measure(target), "bytes": size}))


if __name__ == "__main__":
    main()
