"""``serve --reload``: a change ends the server and starts it again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import children
from tests.support.servers import Running, running

Command = Callable[..., Any]
WriteEnvironment = Callable[..., Path]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workers", "2"], "several workers"),
        (["--engine", "ray"], "--engine ray"),
        (["--listen", "tcp:127.0.0.1:0"], "--listen"),
    ],
)
def test_it_is_refused_where_it_cannot_work(command: Command, arguments: list[str], reason: str) -> None:
    outcome = command("serve", "echo", "--reload", *arguments)
    assert outcome.code == 2
    assert f"--reload does not work with {reason}" in outcome.err


def test_it_needs_watchfiles(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    outcome = command("serve", "echo", "--reload")
    assert outcome.code == 2
    assert "pip install '/path/to/ors-server[reload]'" in outcome.err


# --- with processes ------------------------------------------------------------------------------


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until(server: Running, text: str, times: int = 1) -> None:
    wait(lambda: server.log.read_text().count(text) >= times)


def edit(folder: Path, old: str, new: str) -> None:
    file = folder / "environment.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.long
def test_a_change_an_error_and_a_death(write_environment: WriteEnvironment, tmp_path: Path) -> None:
    folder = write_environment("env")
    command = [sys.executable, "-m", "ors_cli", "serve", folder, "--reload", "--port", "0"]
    variables = {"ORS_DATA_DIR": str(tmp_path / "data")}
    with (
        running(command, tmp_path / "server", variables=variables) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http,
    ):

        def prompt(times: int) -> str:
            """Wait for the server's next start; return the prompt of a new session."""
            wait(lambda: server.log.read_text().count("Ctrl-C stops it") == times)
            assert http.get("/prompt", headers={"X-Session-ID": "one"}).status_code == 404  # the session has ended
            http.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": "one"})
            return http.get("/prompt", headers={"X-Session-ID": "one"}).json()[0]["text"]

        assert prompt(1) == "Say something."
        edit(folder, "Say something.", "Say anything.")
        assert prompt(2) == "Say anything."
        edit(folder, "class Words", "class (Words")
        until(server, "the server has ended")
        assert "environment.py, line" in server.log.read_text()
        with pytest.raises(httpx.ConnectError):
            http.get("/tools")
        edit(folder, "class (Words", "class Words")
        assert prompt(3) == "Say anything."
        (child,) = children(server.process.pid)
        os.kill(child, signal.SIGKILL)
        until(server, "the server has ended", 2)
        edit(folder, "Say anything.", "Say nothing.")
        assert prompt(4) == "Say nothing."
        # A load that would not end.
        edit(folder, "class Words", "__import__('time').sleep(600)\n\n\nclass Words")
        until(server, "is being started again", 5)
        edit(folder, "__import__('time').sleep(600)", "")
        assert prompt(5) == "Say nothing."
        (child,) = children(server.process.pid)
    assert server.process.returncode == 0
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.long
def test_the_server_ends_with_its_parent(write_environment: WriteEnvironment, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ors_cli", "serve", write_environment("env"), "--reload", "--port", "0"]
    with running(command, tmp_path / "server", variables={"ORS_DATA_DIR": str(tmp_path / "data")}) as server:
        (child,) = children(server.process.pid)
        server.process.kill()
        wait(lambda: not Path(f"/proc/{child}/exe").exists())
