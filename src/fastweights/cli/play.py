"""`play`: the page to play with, served or written."""

import webbrowser
from typing import Annotated

import tyro

from ..base import interrupts
from ..play import site
from ..play.server import Server
from .options import MaybePath


def play(
    *,
    out: MaybePath = None,
    port: int = 0,
    host: str = "127.0.0.1",
    browser: Annotated[bool, tyro.conf.arg(name="browser")] = True,
) -> int:
    """Open a page that runs trained nets in the browser: ask, draw, play, and see the memory at work; Ctrl-C ends it.

    Args:
        out: Write the page into this folder, for any static host, instead of serving it.
        port: Serve it at this port; 0: any that is free.
        host: Serve it at this address; by default to this machine alone.
        browser: Open it in the browser.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    if out is not None:
        size = site.write(out)
        print(f"written: {out}, {size / 1e6:.2f} MB; any web server can serve it")
        return 0
    try:
        server = Server(host, port)
    except OSError as error:
        raise OSError(f"--host {host} --port {port} cannot be served ({error.strerror}): try another port") from error
    interrupts.say("the page is closed")
    with server:
        print(f"{server.address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(server.address)
        server.serve_forever()
    return 0
