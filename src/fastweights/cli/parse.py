"""From the words of a command line to a call of the verb's function; what is wrong with them is said in one line."""

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tyro

from ..base.hints import did_you_mean

HELP = ("-h", "--help")
CONFIG = (tyro.conf.OmitArgPrefixes,)


class UsageError(Exception):
    """The words of a command line are wrong; the message says what they should be."""


def parse(function: Callable[..., int], words: Sequence[str], prog: str) -> Callable[[], int]:
    """The call that the words say. Asked for help, it prints that and leaves by SystemExit."""
    said, asked = io.StringIO(), any(word in HELP for word in words)
    try:
        with contextlib.nullcontext() if asked else _wide(), contextlib.redirect_stderr(said):
            call: Callable[[], int] = tyro.cli(deferred(function), args=words, prog=prog, config=CONFIG)
            return call
    except ValueError as error:
        raise UsageError(str(error)) from error
    except SystemExit as end:
        if not end.code:
            raise
    raise UsageError(one_line(said.getvalue()))


def deferred(function: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """The same arguments, but they are kept for a call without any."""

    @functools.wraps(function)
    def keep(*args: Any, **options: Any) -> Callable[[], int]:
        return functools.partial(function, *args, **options)

    return keep


def one_line(box: str) -> str:
    r"""An error as tyro draws it, in a box, as one line.

    >>> one_line("╭ Value error ╮\n│ Error parsing x: lr must be above 0 │\n│ ───── │\n│ For full helptext │\n╰╯")
    'lr must be above 0'
    """
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    parts = " ".join("\n" if line and not line.strip("─-") else line for line in lines).split("\n")
    parts = parts if box.startswith("╭") else parts[1:]  # where the terminal has no such signs, there is a title first
    message = " ".join(parts[0].split())
    for pattern, plain in PLAIN:
        message = re.sub(pattern, plain, message)
    choice = re.match(r"(\S+) must be one of (.*); got '(.*)'$", message)
    option = re.search(r"Perhaps you meant:.*?(--[\w-]+)", " ".join(parts[1:]))
    if choice:
        message += did_you_mean(choice[3], choice[2].replace("'", "").split(", "))
    return message + (f"; did you mean {option[1]}?" if option else "")


PLAIN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (  # what tyro says, and what we do
    (r"^Error parsing (?!--)[\w.\-]+: ", ""),
    (r"^Error parsing (\S+): invalid literal for int\(\) with base 10: ", r"\1 must be a whole number; got "),
    (r"^Error parsing (\S+): could not convert string to float: ", r"\1 must be a number; got "),
    (r"^Error parsing ", ""),
    (r"^invalid choice ('.*') for argument '(.*)'\. Expected one of \((.*?),?\)\.$", r"\2 must be one of \3; got \1"),
    (r"^Missing value for argument '(.*?)'.*", r"\1 must have a value"),
    (r"^Missing from [^:]+: (.*?) \(required\).*", r"there must be a \1"),
    (r"^Unrecognized options: (.*)", lambda found: f"there is no such argument: {_unknown(found[1])}"),
    (r"^there must be a \{(\S+)\} ", lambda found: f"there must be one of {found[1].replace(',', ', ')}: "),
    (r"^(there must be a )(\S+) ", r"\1\2: "),
)


def _unknown(words: str) -> str:
    """Of what nobody asked for, the options, without the values that were meant for them.

    >>> _unknown("--unit, 5"), _unknown("extra")
    ('--unit', 'extra')
    """
    options = [word for word in words.split(", ") if word.startswith("-")]
    return ", ".join(options) or words


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """So that no line of a box is broken."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
