"""``ors-server serve``: real processes on real ports, and everything that keeps one from starting."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

Command = Callable[..., Any]
WriteEnvironment = Callable[..., Path]


# --- it serves -----------------------------------------------------------------------------------


def test_it_prints_what_it_serves_and_what_a_client_needs(servers: Any, write_environment: WriteEnvironment) -> None:
    """The first target is the default, an alias finds its environment, Ctrl-C ends it in peace."""
    left, right = write_environment("left"), write_environment("right", "Walk")
    served = servers.start(left, right, "echo", "--alias", "owner/Name=walk")

    with httpx.Client(base_url=served.url) as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/list_environments").json() == ["talk", "walk", "echoenvironment"]
        by_alias = client.post("/num_tasks", json={"split": "train"}, headers={"X-Deployment": "owner/Name"})
        assert by_alias.json() == {"num_tasks": 2}

    lines = [line.split() for line in served.banner.splitlines() if line.strip()]
    assert lines[1:6] == [
        ["Environment", "Split", "Tasks", "Also", "called"],
        ["talk", "train", "2"],
        ["walk", "train", "2", "owner/Name"],
        ["echoenvironment", "train", "4"],
        ["test", "2"],
    ]
    assert lines[-2:] == [
        ["export", f"OPENREWARD_API_URL={served.url}"],
        ["export", f"OPENREWARD_SESSION_URL={served.url}"],
    ]
    assert served.stop() == 0
    assert "Traceback" not in served.errors.read_text()


def test_a_count_that_takes_long_holds_nothing_up(servers: Any, write_environment: WriteEnvironment) -> None:
    """On every interface, with one environment that counts for long and one that cannot; SIGTERM ends it too."""
    slow = write_environment("slow", "Slow", head="import time")
    with (slow / "environment.py").open("a") as file:
        file.write("\n    @classmethod\n    def num_tasks(cls, split):\n        time.sleep(3.5)\n        return 5\n")
    unable = write_environment("unable", "Unable")
    with (unable / "environment.py").open("a") as file:
        file.write("\n    @classmethod\n    def num_tasks(cls, split):\n        raise RuntimeError('no idea')\n")
    served = servers.start(slow, unable, "--host", "0.0.0.0")

    port = served.url.rpartition(":")[2]
    assert served.url == f"http://0.0.0.0:{port}"
    assert f"export OPENREWARD_API_URL=http://127.0.0.1:{port}" in served.banner
    lines = [line.split() for line in served.banner.splitlines()]
    assert ["slow", "train", "many"] in lines
    assert ["unable", "train", "unknown"] in lines
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    assert served.stop(signal.SIGTERM) == 0


def test_a_flag_wins_over_its_variable(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_PORT", "1")
    monkeypatch.setenv("ORS_MAX_BODY", "10")
    monkeypatch.setenv("ORS_LOG_FORMAT", "json")
    served = servers.start("echo", "--max-body", "2000")
    assert httpx.post(f"{served.url}/create", content=b"x" * 1999).status_code == 400
    assert httpx.post(f"{served.url}/num_tasks", content=b"x" * 2001).status_code == 413
    assert served.stop() == 0
    assert '"event": "serving"' in served.errors.read_text()


# --- it does not ---------------------------------------------------------------------------------


def test_a_port_in_use(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = command("serve", "echo", "--port", port)
    assert outcome.code == 1
    assert outcome.out == ""
    assert f"Port {port} on 127.0.0.1 is in use" in outcome.err
    assert "--port 0" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["ech0"], ["There is no target 'ech0'", "Did you mean 'echo'?"]),
        (["echo", "echo"], ["Two environments are named 'echoenvironment'"]),
        (["echo", "--alias", "echo"], ["--alias 'echo' is no alias", "NAME=ENVIRONMENT"]),
        (["echo", "--alias", "a=b"], ["Alias 'a' names the unknown environment 'b'", "Hosted: echoenvironment"]),
        (["echo", "--session-ttl", "-1"], ["Invalid value for --session-ttl: '-1'", "greater than 0"]),
        (["echo", "--port", "http"], ["Invalid value for --port: 'http'", "valid integer"]),
        (["echo", "--sync-on-loop", "maybe"], ["Invalid value for --sync-on-loop: 'maybe'"]),
        (["echo", "--log-level", "loud"], ["Invalid value for --log-level: 'loud'", "'debug', 'info'"]),
        (["echo", "--host", "256.0.0.1"], ["Cannot listen on 256.0.0.1", "--host"]),
        (["echo", "--prot", "80"], ["No such option", "--port"]),
    ],
)
def test_what_cannot_be_served_is_refused(command: Command, arguments: list[str], messages: list[str]) -> None:
    outcome = command("serve", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    for message in messages:
        assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_a_variable_that_does_not_fit_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_CALL_TIMEOUT", "soon")
    outcome = command("serve", "echo")
    assert outcome.code == 2
    assert "the variable ORS_CALL_TIMEOUT: 'soon'" in outcome.err


@pytest.mark.parametrize(
    ("tail", "messages"),
    [
        # The server's own refusals pass through.
        ("", ["has no tools", "@tool"]),
        # What an author's code raises while the server is built has the author's line.
        (
            "    @classmethod\n    def name(cls):\n        return {}['name']\n",
            ["cannot be served: KeyError: 'name' ({file}, line 6)", "Correct it"],
        ),
    ],
)
def test_a_class_that_cannot_be_hosted(command: Command, tmp_path: Path, tail: str, messages: list[str]) -> None:
    file = tmp_path / "environment.py"
    file.write_text(
        f"from ors_server import Environment\nclass Odd(Environment):\n    def get_prompt(self): ...\n{tail}"
    )
    outcome = command("serve", tmp_path)
    assert outcome.code == 2
    for message in messages:
        assert message.format(file=file) in outcome.err


def test_an_error_is_two_lines_and_no_traceback(tmp_path: Path) -> None:
    """As the user meets it: a process of its own, narrow, not a terminal."""
    (tmp_path / "environment.py").write_text("raise RuntimeError('" + "long " * 40 + "')")
    done = subprocess.run(
        [sys.executable, "-m", "ors_server", "serve", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["Error:", "Correct"]
