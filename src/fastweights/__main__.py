"""`fastweights` and `python -m fastweights`: the commands; without one, what is installed, and what computes it."""

import sys

import torch

import fastweights


def main() -> None:
    """Do what the command line says."""
    if len(sys.argv) == 1:
        print(f"fastweights {fastweights.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
        print(fastweights.backend())
        print("fastweights --help lists the commands")
        return
    try:
        from .cli import run
    except ModuleNotFoundError as error:
        sys.exit(f"fastweights: the commands need {error.name}: pip install 'fastweights[paper]'")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
