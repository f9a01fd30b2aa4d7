"""The verbs of the command line."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence

from ..base import interrupts
from ..base.files import BadFileError
from ..base.hints import did_you_mean
from ..training.runs import RunError
from .completion import completion
from .export import export
from .faces import faces_import, faces_look, faces_render
from .nets import ask, evaluate, look_glimpses, watch
from .parse import UsageError, parse
from .play import play
from .reproduce import (
    report,
    reproduce_ablations,
    reproduce_catch,
    reproduce_claims,
    reproduce_table1,
    reproduce_table2,
    reproduce_table3,
)
from .search import search_catch, search_claims, search_show, search_table1, search_table2, search_table3
from .train import train_catch, train_glimpses, train_retrieval


def run(words: Sequence[str]) -> int:
    """Do what the words of a command line say; the exit code."""
    if words[:1] == ["help"] and len(words) > 1:  # as with git
        words = [*words[1:], "--help"]
    name = next((verb for verb in VERBS if list(words[: len(verb.split())]) == verb.split()), None)
    if name is None:
        return _without_verb(words)
    if name.startswith(GOING_ON):
        interrupts.say(interrupts.GOES_ON)
    try:
        return parse(VERBS[name], words[len(name.split()) :], f"fastweights {name}")()
    except UsageError as error:
        print(f"fastweights: {error} (fastweights {name} --help)", file=sys.stderr)
        return WRONG_WORDS
    except BrokenPipeError:  # nobody reads on, as in `fastweights … | head`
        return 0
    except (BadFileError, RunError, OSError) as error:
        print(f"fastweights: {_one_line(error)}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"fastweights: {_one_line(error)}", file=sys.stderr)
        return WRONG_WORDS
    except (MemoryError, RuntimeError) as error:  # torch has no exception of its own for it
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        print("fastweights: there is not enough memory for this: try fewer units, or a smaller batch", file=sys.stderr)
        return 1


def _one_line(error: Exception) -> str:
    """What went wrong; of the system's own errors, with the file first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _without_verb(words: Sequence[str]) -> int:
    """Help for all verbs or for those of a group; what is wrong with words that are no verb."""
    asked = bool(words) and words[-1] in ("-h", "--help", "help")
    rest = list(words[:-1] if asked else words)
    group = rest[0] if rest and rest[0] in GROUPS else ""
    if not rest or rest == [group]:
        print(_help(group), file=sys.stdout if asked or not rest else sys.stderr)
        return 0 if asked or not rest else WRONG_WORDS
    if group:
        known, word = GROUPS[group], rest[1]
    else:
        known, word = [*GROUPS, *(verb for verb in VERBS if " " not in verb)], rest[0]
    all_of = f"{group} {word}" if group else word
    close = did_you_mean(word, [*known, "--help", *([] if group else ["--version"])])
    hint = close or f"; there are {', '.join(known)}"
    print(f"fastweights: no such command: {all_of}{hint}", file=sys.stderr)
    return WRONG_WORDS


def _help(group: str) -> str:
    verbs = {verb: function for verb, function in VERBS.items() if not group or verb.split()[0] == group}
    width = max(map(len, verbs)) + 3
    columns = min(100, shutil.get_terminal_size().columns)
    listed = []
    for verb, function in verbs.items():
        about = (function.__doc__ or "").splitlines()[0]
        listed.append(
            textwrap.fill(
                about, columns, initial_indent=f"  {verb}".ljust(width + 1), subsequent_indent=" " * (width + 1)
            )
        )
    usage = f"usage: fastweights {f'{group} ' if group else ''}COMMAND …"
    more = f"fastweights {f'{group} ' if group else ''}COMMAND --help says more."
    title = "" if group else "Recurrent nets with fast weights: the paper, reproduced.\n\n"
    version = "" if group else " fastweights --version prints the version."
    return f"{usage}\n\n{title}" + "\n".join(listed) + f"\n\n{more}{version}"


WRONG_WORDS = 2  # the exit code for a command line that cannot be done as it is
GOING_ON = ("train ", "search ", "reproduce ", "faces render")  # from where they were stopped
VERBS: dict[str, Callable[..., int]] = {
    "train retrieval": train_retrieval,
    "train glimpses": train_glimpses,
    "train catch": train_catch,
    "search table1": search_table1,
    "search claims": search_claims,
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
    "faces render": faces_render,
    "faces import": faces_import,
    "faces look": faces_look,
    "look glimpses": look_glimpses,
    "watch": watch,
    "evaluate": evaluate,
    "ask": ask,
    "play": play,
    "export": export,
    "report": report,
    "completion": completion,
}
GROUPS: dict[str, list[str]] = {}
for _verb in VERBS:
    if " " in _verb:
        GROUPS.setdefault(_verb.split()[0], []).append(_verb.split()[1])
