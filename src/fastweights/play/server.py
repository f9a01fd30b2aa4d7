"""A server for the page: GET of its own files, and nothing else."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .site import INDEX, contents

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".safetensors": "application/octet-stream",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Handler(BaseHTTPRequestHandler):
    """Answers with a file of the page, by its exact address; a path of the machine is never made from a request."""

    files: dict[str, Path]
    protocol_version = "HTTP/1.1"  # a browser asks for many files: one connection for all
    timeout = 30  # seconds that a silent connection is kept
    server_version = "fastweights"
    sys_version = ""

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Send a file, or say that there is none."""
        address = unquote(urlsplit(self.path).path).removeprefix("/") or INDEX
        path = self.files.get(address)
        if path is None:
            self.send_error(HTTPStatus.NOT_FOUND, "no file of this page")
            return
        content = path.read_bytes()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[path.suffix])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """Errors, too, have the headers."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *words: object) -> None:
        """Say nothing: the terminal has the address, and that is enough."""


class Server(ThreadingHTTPServer):
    """Serves the page at `host` and `port`; 0: any port that is free."""

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), type("PageHandler", (Handler,), {"files": contents()}))

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away in the middle of an answer is no error."""
