"""`fastweights` and `python -m fastweights`: the commands; without one, what is installed, and what computes it."""

import os
import sys

from . import __version__
from .base import interrupts


def main() -> None:
    """Do what the command line says."""
    interrupts.install()  # before anything that takes long to import
    try:
        code = _run(sys.argv[1:])
    except interrupts.Interrupted:
        interrupts.end()
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on: `fastweights … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    interrupts.over()
    sys.exit(code)


def _run(words: list[str]) -> int:
    if words in (["--version"], ["-V"]):
        print(f"fastweights {__version__}")
        return 0
    if not words:
        import torch

        from . import backend

        print(f"fastweights {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
        print(backend())
        print("fastweights --help lists the commands")
        return 0
    try:
        from .cli import run

        return run(words)
    except ModuleNotFoundError as error:
        module = str(error.name)
        if module.startswith("fastweights"):
            raise
        from .base.hints import install

        print(f"fastweights: this needs {module}, which is not installed: {install(module)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
