"""The verbs of the command line."""

import shlex
import sys
from collections.abc import Callable, Sequence

import tyro

from ..training.files import BadFileError
from ..training.runs import RunError
from .faces import faces_import, faces_look, faces_render
from .nets import ask, evaluate, look_glimpses, watch
from .reproduce import (
    report,
    reproduce_ablations,
    reproduce_catch,
    reproduce_claims,
    reproduce_inquiry,
    reproduce_table1,
    reproduce_table2,
    reproduce_table3,
)
from .search import search_catch, search_show, search_table1, search_table2, search_table3
from .train import train_catch, train_glimpses, train_retrieval


def run(words: Sequence[str]) -> int:
    """Do what the words of a command line say; the exit code."""
    name = next((verb for verb in VERBS if list(words[: len(verb.split())]) == verb.split()), None)
    if name is None:
        return _help(words)
    rest, prog = list(words[len(name.split()) :]), f"fastweights {name}"
    try:
        return int(tyro.cli(VERBS[name], args=rest, prog=prog, config=(tyro.conf.OmitArgPrefixes,)))
    except KeyboardInterrupt:
        print("\nfastweights: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except (BadFileError, RunError, ValueError, OSError) as error:
        print(f"fastweights: {error}", file=sys.stderr)
        return 1


def _help(words: Sequence[str]) -> int:
    asked = bool(words) and words[0] in ("-h", "--help", "help")
    out = sys.stdout if asked else sys.stderr
    if words and not asked:
        print(f"fastweights: no such command: {shlex.join(words[:2])}\n", file=out)
    print("usage: fastweights COMMAND …\n\nRecurrent nets with fast weights: the paper, reproduced.\n", file=out)
    for verb, function in VERBS.items():
        print(f"  {verb:<19} {(function.__doc__ or '').splitlines()[0]}", file=out)
    print("\nfastweights COMMAND --help says more.", file=out)
    return 0 if asked else 2


VERBS: dict[str, Callable[..., int]] = {
    "train retrieval": train_retrieval,
    "train glimpses": train_glimpses,
    "train catch": train_catch,
    "search table1": search_table1,
    "search table2": search_table2,
    "search table3": search_table3,
    "search catch": search_catch,
    "search show": search_show,
    "reproduce table1": reproduce_table1,
    "reproduce claims": reproduce_claims,
    "reproduce table2": reproduce_table2,
    "reproduce ablations": reproduce_ablations,
    "reproduce table3": reproduce_table3,
    "reproduce catch": reproduce_catch,
    "reproduce inquiry": reproduce_inquiry,
    "faces render": faces_render,
    "faces import": faces_import,
    "faces look": faces_look,
    "look glimpses": look_glimpses,
    "watch": watch,
    "evaluate": evaluate,
    "ask": ask,
    "report": report,
}
