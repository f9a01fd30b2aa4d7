"""SIGINT and SIGTERM: one stops the program where no work is lost, a second one ends it at once.

No exception is raised by the signal itself, which may come at any moment. It sets a flag, and work that would be lost
is done in a `with deferred():`, inside which `check` raises `Interrupted` at places of its own choice. Elsewhere, the
imports included, there is nothing to save, and the program ends there and then.

Imports the standard library alone, and little of it: until `install` is called, Python has its own way.
"""

import os
import signal
import sys
from types import FrameType, TracebackType

CODE = 130  # what shells say of a program that Ctrl-C ended
GOES_ON = "stopped; the same command goes on from here"


class Interrupted(BaseException):  # noqa: N818 - no error, and not to be taken for one by `except Exception`
    """Raised by `check`, and at the end of a `with deferred():`, after a signal."""


class _State:
    """Of this process."""

    installed = False
    asked = False
    deferred = 0  # how many `with deferred():` there are around what runs now
    said: str | None = "stopped"  # None: nothing, in a process that another one has started


def install() -> None:
    """Heed both signals, in the main thread of a program."""
    _State.installed = True
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle)


def install_in_child() -> None:
    """In a process that another one has started inside `blocked`: it is stopped by SIGTERM, and ends with its parent.

    However the parent went: the same command will go on from the checkpoint.
    """
    import multiprocessing
    import threading

    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    _State.said = None
    _State.installed = True
    signal.signal(signal.SIGTERM, _handle)
    threading.Thread(target=end_with_parent, daemon=True).start()


def install_again() -> None:
    """After a library has put handlers of its own in place."""
    if _State.installed:
        install()


def say(message: str) -> None:
    """What is said in the end of a program that was stopped."""
    _State.said = message


def asked() -> bool:
    """Whether there was a signal."""
    return _State.asked


def check() -> None:
    """Stop here if there was a signal."""
    if _State.asked:
        raise Interrupted


class deferred:  # noqa: N801 - used like a function
    """`with deferred():` waits with a signal for the next `check` inside it, or for its end."""

    def __enter__(self) -> None:
        _State.deferred += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _State.deferred -= 1
        if _State.deferred == 0 and _State.asked and kind is not Interrupted:
            raise Interrupted from error


class blocked:  # noqa: N801 - used like a function
    """`with blocked():` a process that is started has SIGINT blocked, from before its first import to its end.

    A terminal sends Ctrl-C to all of them. One that comes meanwhile is heeded afterwards.
    """

    def __enter__(self) -> None:
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # which unblocks the signal when it starts
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)


def end() -> None:
    """End this process now, with a word, and leave the terminal as it was."""
    if _State.said is None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (RuntimeError, OSError, ValueError, AttributeError):  # it was being written to, or is not there
            continue
    after_bars = "\x1b[?25h\n" if os.isatty(2) else ""  # which hide the cursor
    try:
        os.write(2, f"{after_bars}fastweights: {_State.said}\n".encode())
    finally:
        os._exit(CODE)


def over() -> None:
    """All is done and told: there is nothing left to interrupt."""
    if _State.installed:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.asked or not _State.deferred:
        end()
    _State.asked = True
