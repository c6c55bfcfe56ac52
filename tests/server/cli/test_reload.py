"""``serve --reload``: the port stays open, and a file that does not load leaves the old server running."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server.cli.reload_page import ErrorPage
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


async def test_the_error_page_leaves_the_port_to_the_next_server() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        page = ErrorPage(listening)
        await page.open("SyntaxError (environment.py, line 3)")
        async with httpx.AsyncClient(trust_env=False) as http:
            for _ in range(3):
                answer = await http.post(f"{url}/create", content=b"x" * 100_000)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
                assert answer.json() == {"detail": "SyntaxError (environment.py, line 3)"}
            await page.close()
            waiting = asyncio.create_task(http.get(f"{url}/health"))
            await asyncio.sleep(0.05)
            assert not waiting.done()  # in the queue of the socket
            await page.open("again")
            assert (await waiting).json() == {"detail": "again"}
            await page.close()


async def test_the_error_page_bears_clients_that_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_server.cli.reload_page._PATIENCE", 0.1)
    monkeypatch.setattr("ors_server.cli.reload_page._MOST", 1)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        page = ErrorPage(listening)
        await page.open("text")
        connections = [await asyncio.open_connection(*listening.getsockname()) for _ in range(3)]
        for reader, writer in connections:
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        await page.close()


# --- with processes ------------------------------------------------------------------------------


def until(server: Running, text: str, times: int = 1) -> str:
    deadline = time.monotonic() + 180
    while (log := server.log.read_text()).count(text) < times:
        assert time.monotonic() < deadline, log
        time.sleep(0.05)
    return log


def edit(folder: Path, old: str, new: str) -> None:
    file = folder / "environment.py"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.long
def test_a_change_an_error_a_death_and_an_overtaken_load(write_environment: WriteEnvironment, tmp_path: Path) -> None:
    folder = write_environment("env")
    command = [sys.executable, "-m", "ors_server", "serve", folder, "--reload", "--port", "0"]
    headers = {"X-Session-ID": "one"}
    with (
        running(command, tmp_path / "server", variables={"ORS_DATA_DIR": str(tmp_path / "data")}) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http,
    ):
        http.post("/create", json={"split": "train", "index": 0}, headers=headers).raise_for_status()
        edit(folder, "Say something.", "Say anything.")
        assert re.search(
            r"Started again in \d+\.\d s at http\S+, after .*environment\.py changed", until(server, "again in")
        )
        assert http.get("/prompt", headers=headers).status_code == 404  # the session has ended
        http.post("/create", json={"split": "train", "index": 0}, headers=headers).raise_for_status()
        assert http.get("/prompt", headers=headers).json()[0]["text"] == "Say anything."
        # A file that does not load.
        edit(folder, "class Words", "class (Words")
        log = until(server, "goes on")
        assert "SyntaxError" in log
        assert "class (Words" in log  # the traceback is in the terminal
        assert http.get("/prompt", headers=headers).json()[0]["text"] == "Say anything."
        # The process dies meanwhile.
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        (child,) = map(int, children)

        os.kill(child, signal.SIGKILL)
        until(server, "ended with status -9")
        answer = httpx.get(f"{server.url}/tools", trust_env=False, timeout=30)
        assert answer.status_code == 503
        assert "environment.py, line" in answer.json()["detail"]
        assert "Traceback" not in json.dumps(answer.json())
        edit(folder, "class (Words", "class Words")
        log = until(server, "Started again", 2)
        assert httpx.get(f"{server.url}/tools", trust_env=False, timeout=30).status_code == 200
        # A load that would not end is overtaken by the change that repairs it.
        edit(folder, "class Words", "__import__('time').sleep(600)\n\n\nclass Words")
        until(server, "is being started again", log.count("is being started again") + 1)
        edit(folder, "__import__('time').sleep(600)", "")
        until(server, "Started again", 3)
        assert httpx.get(f"{server.url}/tools", trust_env=False, timeout=30).status_code == 200
    assert server.process.returncode in (0, -signal.SIGTERM)


@pytest.mark.long
def test_the_openreward_client_across_a_reload(
    write_environment: WriteEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discovery goes on without an error, and a new session plays the new files."""
    pytest.importorskip("openreward")
    monkeypatch.setenv("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    from openreward import OpenReward  # pyright: ignore[reportMissingTypeStubs]

    folder = write_environment("env", answer='"old"')
    command = [sys.executable, "-m", "ors_server", "serve", folder, "--reload", "--port", "0"]
    with running(command, tmp_path / "server", variables={"ORS_DATA_DIR": str(tmp_path / "data")}) as server:
        monkeypatch.setenv("OPENREWARD_API_URL", server.url)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", server.url)
        environment: Any = OpenReward(api_key="").environments.get("talk")
        over = threading.Event()
        counts: list[int] = []
        failures: list[Exception] = []

        def discover() -> None:
            while not over.is_set():
                try:
                    counts.append(environment.num_tasks("train"))
                except Exception as error:  # noqa: BLE001 - any failure of the client is one of the reload
                    failures.append(error)

        def say() -> str:
            with environment.session(split="train", index=0) as session:
                return session.call_tool("say", {"text": "x"}).blocks[0].text

        assert say() == "old"
        thread = threading.Thread(target=discover)
        thread.start()
        try:
            edit(folder, '"old"', '"new"')
            until(server, "Started again")
            assert say() == "new"
        finally:
            over.set()
            thread.join()
        assert failures == []
        assert len(counts) > 1
        assert set(counts) == {2}
