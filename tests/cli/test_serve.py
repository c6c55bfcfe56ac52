"""``ors-server serve``: real processes on real ports, and every error that prevents the start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server.errors import DefinitionError
from tests.support.servers import StartServer, free_port, running

Command = Callable[..., Any]
WriteEnvironment = Callable[..., Path]


# --- it serves -------------------------------------------------------------------------------------


def test_it_prints_what_it_serves_and_what_a_client_needs(
    start_server: StartServer, write_environment: WriteEnvironment
) -> None:
    """The first target is the default, an alias selects its environment, Ctrl-C ends it cleanly."""
    left, right = write_environment("left"), write_environment("right", "Walk")
    served = start_server(left, right, "echo", "--alias", "owner/Name=walk")

    with httpx.Client(base_url=served.url) as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/list_environments").json() == ["talk", "walk", "echoenvironment"]
        by_alias = client.post("/num_tasks", json={"split": "train"}, headers={"X-Deployment": "owner/Name"})
        assert by_alias.json() == {"num_tasks": 2}

    banner = served.logged("OPENREWARD_SESSION_URL")
    lines = [line.split() for line in banner.partition("It serves:")[2].splitlines() if line.strip()]
    assert lines[:5] == [
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
    assert "Traceback" not in served.log.read_text()


@pytest.mark.long
def test_a_slow_count_of_tasks_blocks_nothing(start_server: StartServer, write_environment: WriteEnvironment) -> None:
    """On every interface, with an environment that counts slowly and one that cannot count; SIGTERM ends it, too."""
    slow = write_environment("slow", "Slow", head="import time")
    with (slow / "environment.py").open("a") as file:
        file.write("\n    @classmethod\n    def num_tasks(cls, split):\n        time.sleep(3.5)\n        return 5\n")
    unable = write_environment("unable", "Unable")
    with (unable / "environment.py").open("a") as file:
        file.write("\n    @classmethod\n    def num_tasks(cls, split):\n        raise RuntimeError('no idea')\n")
    served = start_server(slow, unable, "--host", "0.0.0.0", "--insecure")

    port = served.port
    banner = served.logged("OPENREWARD_SESSION_URL")
    assert served.url == f"http://0.0.0.0:{port}"
    assert f"export OPENREWARD_API_URL=http://127.0.0.1:{port}" in banner
    lines = [line.split() for line in banner.splitlines()]
    assert ["slow", "train", "many"] in lines
    assert ["unable", "train", "unknown"] in lines
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    assert served.stop(signal.SIGTERM) == 0


def test_json_logs_are_json_from_the_first_line_to_the_stop(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORS_LOG_FORMAT", "json")
    monkeypatch.setenv("ORS_MAX_BODIES", "10")  # misspelt: the first line warns of it
    served = start_server("echo")
    served.logged("It serves")  # it counts its tasks for that, and may be stopped before
    assert served.stop() == 0
    events = [json.loads(line)["event"] for line in served.log.read_text().splitlines()]
    assert "ORS_MAX_BODIES" in events[0]
    assert events[-2:] == ["stopping", "stopped"]


def test_a_flag_wins_over_its_variable(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_PORT", "1")
    monkeypatch.setenv("ORS_MAX_BODY", "10")
    monkeypatch.setenv("ORS_LOG_FORMAT", "json")
    served = start_server("echo", "--max-body", "2000")
    assert httpx.post(f"{served.url}/create", content=b"x" * 1999).status_code == 400
    assert httpx.post(f"{served.url}/num_tasks", content=b"x" * 2001).status_code == 413
    assert served.stop() == 0
    assert '"event": "serving"' in served.log.read_text()


def test_a_second_interrupt_does_not_wait_for_a_slow_end(
    start_server: StartServer, write_environment: WriteEnvironment
) -> None:
    folder = write_environment("talk", head="import time")
    with (folder / "environment.py").open("a") as file:
        file.write("\n    def teardown(self):\n        time.sleep(60)\n")
    served = start_server(folder)
    with httpx.Client(base_url=served.url) as client:
        headers = {"X-Session-ID": client.post("/create_session").json()["sid"]}
        client.post("/create", json={"env_name": "talk", "task_spec": {"id": "one"}}, headers=headers)
        assert client.get("/talk/prompt", headers=headers).status_code == 200
    served.process.send_signal(signal.SIGINT)
    served.logged("stopping")  # signals that wait for a busy process are one
    with pytest.raises(subprocess.TimeoutExpired):
        served.process.wait(1)
    interrupted = time.monotonic()
    assert served.stop() == 0
    assert time.monotonic() - interrupted < 40


@pytest.mark.parametrize(
    "code",
    [
        "wait()",
        # The author's handling of the exception changes nothing.
        "try:\n    wait()\nexcept BaseException:\n    pass",
        "try:\n    wait()\nexcept BaseException as error:\n    raise ImportError('no such file') from error",
        # While the server is being built.
        "class Late(Environment):\n    @classmethod\n    def name(cls): wait()",
    ],
)
def test_stopped_while_an_environment_loads(tmp_path: Path, code: str) -> None:
    """It ends as a server that is stopped later, without an error."""
    (tmp_path / "environment.py").write_text(
        "import time\nfrom ors_server import Environment\n"
        f"def wait():\n    print('loading', flush=True)\n    time.sleep(60)\n{code}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ors_cli", "serve", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output, errors) == (0, "", "")


@pytest.mark.long
def test_a_thread_of_the_author_does_not_keep_it_alive(
    start_server: StartServer, write_environment: WriteEnvironment
) -> None:
    """An SDK's server is ended by the signal itself, which waits for no thread."""
    head = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    served = start_server(write_environment("talk", head=head))
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(20) == 0


# --- its output may be lost ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2], ids=["stdout", "stderr"])
@pytest.mark.parametrize(
    "output",
    ["broken", pytest.param("full", marks=pytest.mark.long), pytest.param("closed", marks=pytest.mark.long)],
)
def test_a_server_survives_the_loss_of_its_output(
    write_environment: WriteEnvironment, tmp_path: Path, number: int, output: str
) -> None:
    """A pipe without a reader, a full disk, no output at all."""
    port = free_port()
    arguments = [sys.executable, "-m", "ors_cli", "serve", str(write_environment("talk")), "--port", str(port)]
    if output == "closed":
        arguments = ["sh", "-c", f'exec "$@" {number}>&-', "sh", *arguments]
    reader, broken = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    lost = {"broken": broken, "full": full, "closed": None}[output]
    stdout, stderr = (lost, None) if number == 1 else (None, lost)
    url = f"http://127.0.0.1:{port}"
    try:
        with running(arguments, tmp_path / "server", url=url, stdout=stdout, stderr=stderr) as server:
            assert httpx.post(f"{server.url}/num_tasks", json={"split": "train"}).status_code == 200
            # The table is printed as soon as the tasks are counted.
            time.sleep(0.3)
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert server.stop() == 0
    finally:
        os.close(broken)
        os.close(full)
    assert "Traceback" not in server.output.read_text() + server.log.read_text()


def test_a_character_that_the_output_cannot_encode(
    start_server: StartServer, write_environment: WriteEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    served = start_server(write_environment("talk"), "--alias", "owner/Größe=talk")
    assert "owner/gr" in served.logged("OPENREWARD_SESSION_URL").lower()
    assert httpx.get(f"{served.url}/health").status_code == 200
    assert served.stop() == 0


# --- variables -----------------------------------------------------------------------------------


def test_a_misspelt_setting_is_warned_of(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ORS_SESION_TTL", "ors_prot"):
        monkeypatch.setenv(variable, "8")
    # Settings, variables of other programs with and without the prefix.
    for variable in ("ORS_SESSION_TTL", "ors_max_body", "ORS_API_KEY", "ORS_SOMETHING_ELSE", "ORSON"):
        monkeypatch.setenv(variable, "8")
    outcome = command("serve", "ech0")
    warnings = [line for line in outcome.err.splitlines() if line.startswith("Warning: ")]
    assert warnings == [
        "Warning: the variable ORS_SESION_TTL is not a setting and has no effect; did you mean ORS_SESSION_TTL?",
        "Warning: the variable ors_prot is not a setting and has no effect; did you mean ORS_PORT?",
    ]


# --- it does not start -----------------------------------------------------------------------------


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
        (["echo", "--alias", "echo"], ["--alias 'echo' is not an alias", "NAME=ENVIRONMENT"]),
        (["echo", "--alias", "a=b"], ["Alias 'a' names the unknown environment 'b'", "Hosted: echoenvironment"]),
        (["echo", "--session-ttl", "-1"], ["Invalid value for --session-ttl: '-1'", "greater than 0"]),
        (["echo", "--port", "http"], ["Invalid value for --port: 'http'", "valid integer"]),
        (["echo", "--sync-on-loop", "maybe"], ["Invalid value for --sync-on-loop: 'maybe'"]),
        (["echo", "--log-level", "loud"], ["Invalid value for --log-level: 'loud'", "'debug', 'info'"]),
        (["echo", "--host", "256.0.0.1"], ["Cannot listen on 256.0.0.1", "--host"]),
        (["echo", "--prot", "80"], ["No such option", "--port"]),
    ],
)
def test_targets_that_cannot_be_served_are_refused(command: Command, arguments: list[str], messages: list[str]) -> None:
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
        # The server's own refusals are printed unchanged.
        ("", ["has no tools", "@tool"]),
        # An exception of the author's code while the server is built is reported with the author's line.
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


@pytest.mark.parametrize("method", ["list_splits", "name"])
@pytest.mark.parametrize("code", ["0", ""])
def test_an_environment_that_ends_the_process_says_so(
    command: Command, write_environment: WriteEnvironment, method: str, code: str
) -> None:
    """A silent exit with code 0 would look like a server that was stopped."""
    folder = write_environment("talk", head="import sys")
    with (folder / "environment.py").open("a") as file:
        file.write(f"\n    @classmethod\n    def {method}(cls):\n        sys.exit({code})\n")
    outcome = command("serve", folder)
    assert outcome.code == 2
    assert "SystemExit" in outcome.err
    assert "Raise an error instead" in outcome.err


@pytest.mark.parametrize("error", [DefinitionError("It is odd", "Make it even."), SystemExit(0)])
def test_an_exception_while_the_server_is_built_is_an_error(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Also without a frame of the author's code in its traceback."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ors_server.server.Server.__init__", refuse)
    outcome = command("serve", "echo")
    assert outcome.code == 2
    expected = "Error: It is odd.\nMake it even.\n" if isinstance(error, DefinitionError) else "SystemExit: 0"
    assert expected in outcome.err


def test_an_error_is_two_lines_and_no_traceback(tmp_path: Path) -> None:
    """As a user sees it: a process of its own, with a narrow output that is not a terminal."""
    (tmp_path / "environment.py").write_text("raise RuntimeError('" + "long " * 40 + "')")
    done = subprocess.run(
        [sys.executable, "-m", "ors_cli", "serve", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["Error:", "Correct"]
