"""The server: known files alone, with a strict policy, on this machine alone."""

import contextlib
import http.client
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from test_house import ROOT

from fastweights import cli
from fastweights.play import curves, site
from fastweights.play.server import TYPES

MOST = 2_000_000  # bytes of all that is served


def get(address, path, method="GET"):
    with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()


def test_every_file_of_the_page(address):
    for name, path in site.contents().items():
        answer, body = get(address, f"/{name}")
        assert answer.status == 200
        assert body == path.read_bytes()
        assert answer.headers["Content-Type"] == TYPES[path.suffix]
    assert get(address, "/")[1] == (site.PAGE / "index.html").read_bytes()
    assert get(address, "/?from=elsewhere")[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/js/../../server.py",
        "/..%2fserver.py",
        "//etc/passwd",
        "/etc/passwd",
        "/js",
        "/js/",
        "/nets/",
        "/nets/retrieval-50/config.json",
        "/index.html/",
        "/INDEX.HTML",
        "/favicon.ico",
        "/js\\main.js",
        "/index.html%00",
    ],
)
def test_nothing_else(address, path):
    answer, body = get(address, path)
    assert answer.status == 404
    assert b"import" not in body
    assert "Content-Security-Policy" in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_to_be_read(address, method):
    assert get(address, "/", method)[0].status == 501


def test_the_policy(address):
    headers = get(address, "/")[0].headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    page = (site.PAGE / "index.html").read_text(encoding="utf-8")
    assert "style=" not in page
    assert "http:" not in page
    assert "https:" not in page


def test_small():
    assert sum(path.stat().st_size for path in site.contents().values()) <= MOST


def test_the_page_is_written_for_any_host(tmp_path, capsys):
    out = tmp_path / "page"
    assert cli.run(["play", "--out", str(out)]) == 0
    assert "MB; any web server can serve it" in capsys.readouterr().out
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == set(site.contents())
    assert (out / "nets/retrieval-20.safetensors").read_bytes()[8:9] == b"{"
    assert cli.run(["play", "--out", str(out)]) == 0  # again, over what is there


def test_bad_words(tmp_path, capsys):
    (tmp_path / "file").touch()
    for words, why in {
        ("--port", "70000"): "port must be from 0 to 65535, got 70000",
        ("--port", "x"): "port",
        ("--out", str(tmp_path / "file")): "is a file",
        ("--host", "300.1.2.3", "--no-browser"): "--host 300.1.2.3",
    }.items():
        assert cli.run(["play", *words]) in (1, 2)
        error = capsys.readouterr().err
        assert why in error
        assert error.count("\n") == 1


def test_a_port_that_is_taken(address, capsys):
    port = str(urlsplit(address).port)
    assert cli.run(["play", "--port", port, "--no-browser"]) == 1
    assert f"--port {port} cannot be served" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_this_machine_until_it_is_stopped(number):
    command = [sys.executable, "-m", "fastweights", "play", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        assert get(address, "/")[0].status == 200
        process.send_signal(number)
        out, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert (out, error) == ("", "fastweights: the page is closed\n")


def test_the_curves_are_the_published_ones():
    published = curves.as_text(curves.extract(ROOT / "results"))
    again = "python -m fastweights.play.curves results"
    assert curves.FILE.read_text(encoding="utf-8") == published, f"the results have changed: {again}"
