"""`completion`: what a shell can complete, for all commands, as a script for it."""

from __future__ import annotations

import argparse
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import tyro

from ..models import pretrained
from ..paper.faces import table3
from ..paper.glimpses import table2
from ..paper.retrieval import table1
from .parse import CONFIG

FILES, RUNS = "<files>", "<runs>"  # in place of words: any file; a run folder or a net of the package
INSTALL = {
    "bash": "In ~/.bashrc: source <(fastweights completion bash)",
    "zsh": "In ~/.zshrc, below compinit: source <(fastweights completion zsh)",
    "fish": "Once: fastweights completion fish > ~/.config/fish/completions/fastweights.fish",
}
CELLS = {"table1": table1.CELLS, "table2": table2.CELLS, "table3": table3.CELLS}


class Verb(NamedTuple):
    """What may follow a verb."""

    about: str
    options: dict[str, list[str] | None]  # the words that may follow each; None: it takes no word
    places: list[list[str]]  # the words at each position


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]) -> int:
    """Print a script that teaches a shell to complete these commands: `source <(fastweights completion bash)`.

    Args:
        shell: The shell; the script itself says how to install it.
    """
    from . import VERBS

    verbs = {name: look(name, function) for name, function in VERBS.items()}
    print(f"# {INSTALL[shell]}")
    print({"bash": bash, "zsh": zsh, "fish": fish}[shell](verbs), end="")
    return 0


def look(name: str, function: Callable[..., int]) -> Verb:
    """What may follow a verb, by the arguments of its function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way to ask for it yet
        parser = tyro.extras.get_parser(function, config=CONFIG)
    options: dict[str, list[str] | None] = {"--help": None}
    places = []
    for action in parser._actions:
        if action.option_strings and action.dest != "help":
            for option in action.option_strings:
                options[option] = None if action.nargs == 0 else _words(name, option, action)
        elif not action.option_strings:
            places.append(_words(name, action.dest, action))
    return Verb((function.__doc__ or "").splitlines()[0], options, places)


def _words(name: str, option: str, action: argparse.Action) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if option in ("--cells", "--cell"):
        return [str(cell) for cell in CELLS[name.split()[-1]]]
    shown = str(action.metavar)
    return [RUNS] if "RUN" in shown else [FILES] if "PATH" in shown else []


def _top(verbs: Mapping[str, Verb]) -> dict[str, list[str]]:
    """The first words, each with those that may be second."""
    found: dict[str, list[str]] = {}
    for name in verbs:
        first, _, second = name.partition(" ")
        found.setdefault(first, []).extend([second] if second else [])
    return found


def bash(verbs: Mapping[str, Verb]) -> str:
    """For bash, and for zsh, which knows bash's way."""
    first = [*_top(verbs), "--help", "--version"]
    lines = [
        "_fastweights() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" verb="${COMP_WORDS[1]}" start=2 option= place=0 number words=',
        "    COMPREPLY=()",
        "    if (( COMP_CWORD == 1 )); then",
        f'        COMPREPLY=($(compgen -W {shlex.quote(" ".join(first))} -- "$current")); return',
        "    fi",
        '    case "$verb" in',
    ]
    for group, second in _top(verbs).items():
        if second:
            lines += [
                f"    {group})",
                "        if (( COMP_CWORD == 2 )); then",
                f'            COMPREPLY=($(compgen -W {shlex.quote(" ".join(second))} -- "$current")); return',
                "        fi",
                '        verb="$verb ${COMP_WORDS[2]}"; start=3 ;;',
            ]
    lines += [
        "    esac",
        "    for (( number = start; number < COMP_CWORD; number++ )); do",
        '        case "${COMP_WORDS[number]}" in',
        '        --*) option="${COMP_WORDS[number]}" ;;',
        '        *) if [[ -z "$option" ]]; then place=$((place + 1)); fi ;;',
        "        esac",
        "    done",
        '    case "$verb:$option:$place" in',
    ]
    for name, verb in verbs.items():
        for option, words in verb.options.items():
            if words:
                lines.append(f"    {shlex.quote(f'{name}:{option}:')}*) words={_in_bash(words)} ;;")
        for place, words in enumerate(verb.places):
            lines.append(f"    {shlex.quote(f'{name}::{place}')}) words={_in_bash(words)} ;;")
    lines += ["    esac", '    if [[ "$current" == -* ]]; then', '        case "$verb" in']
    for name, verb in verbs.items():
        lines.append(f"        {shlex.quote(name)}) words={shlex.quote(' '.join(verb.options))} ;;")
    nets = shlex.quote(" ".join(pretrained.NAMES))
    lines += [
        "        esac",
        "    fi",
        '    case "$words" in',
        f'    {shlex.quote(FILES)}) COMPREPLY=($(compgen -f -- "$current")) ;;',
        f"    {shlex.quote(RUNS)}) compopt -o filenames 2>/dev/null",
        f'        COMPREPLY=($(compgen -W {nets} -- "$current") $(compgen -d -- "$current")) ;;',
        '    *) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;',
        "    esac",
        "}",
        "complete -F _fastweights fastweights",
        "",
    ]
    return "\n".join(lines)


def _in_bash(words: Sequence[str]) -> str:
    """As one word; those that have a space in them cannot be offered."""
    return shlex.quote(" ".join(word for word in words if " " not in word))


def zsh(verbs: Mapping[str, Verb]) -> str:
    """For zsh, by its emulation of bash."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash(verbs)


def fish(verbs: Mapping[str, Verb]) -> str:
    """For fish."""
    lines = [
        "function __fastweights_at",
        "    set -l words (commandline -opc)",
        "    test (count $words) -gt (count $argv); or return 1",
        "    for number in (seq (count $argv))",
        "        test $words[(math $number + 1)] = $argv[$number]; or return 1",
        "    end",
        "end",
        "function __fastweights_starts",
        "    __fastweights_at $argv; and test (count (commandline -opc)) -eq (math (count $argv) + 1)",
        "end",
        "complete -c fastweights -f",
    ]

    def offer(condition: str, words: Sequence[str], *more: str) -> None:
        lines.append(shlex.join(["complete", "-c", "fastweights", "-n", condition, *more]) + _offered(words))

    offer("__fastweights_starts", [*_top(verbs), "--help", "--version"])
    for group, second in _top(verbs).items():
        if second:
            offer(f"__fastweights_starts {group}", second)
    for name, verb in verbs.items():
        for option, words in verb.options.items():
            needs = [] if words is None else ["-r"] if words == [FILES] else ["-x"]
            offer(f"__fastweights_at {name}", words or (), "-l", option.removeprefix("--"), *needs)
        for words in verb.places:
            offer(f"__fastweights_at {name}", words)
    return "\n".join(lines) + "\n"


def _offered(words: Sequence[str]) -> str:
    if list(words) == [FILES]:
        return " -F"
    if list(words) == [RUNS]:
        return f" -a {shlex.quote(' '.join(pretrained.NAMES) + ' (__fish_complete_directories)')}"
    return f" -a {shlex.quote(' '.join(map(_in_fish, words)))}" if words else ""


def _in_fish(word: str) -> str:
    return f'"{word}"' if " " in word or "," in word else word
