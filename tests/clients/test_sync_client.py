"""The synchronous client: the same names and arguments as the asynchronous client, and the behaviour of a thread."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.client.sessions import AsyncSession
from ors_clients.client.sync_client import Client, Environment, Session
from ors_clients.errors import DeadlineExceeded, ServerUnavailable
from ors_clients.transport.loop_thread import LoopThread

from tests.server.protocol.live import LiveServer, live_server

PAIRS: list[tuple[type, type]] = [
    (AsyncClient, Client),
    (AsyncEnvironment, Environment),
    (AsyncSession, Session),
]


@pytest.fixture(scope="module")
def server() -> Generator[LiveServer]:
    with live_server() as running:
        yield running


def public(kind: type) -> dict[str, object]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_one_api(asynchronous: type, synchronous: type) -> None:
    theirs, ours = public(asynchronous), public(synchronous)
    assert set(theirs) == set(ours)
    for name, member in theirs.items():
        if inspect.isfunction(member):
            own = ours[name]
            assert inspect.isfunction(own)
            assert not inspect.iscoroutinefunction(own)
            assert list(inspect.signature(own).parameters.values()) == list(
                inspect.signature(member).parameters.values()
            ), name
        else:
            assert isinstance(member, property) and isinstance(ours[name], property)
    assert inspect.signature(Client).parameters == inspect.signature(AsyncClient).parameters


async def test_inside_a_running_event_loop(server: LiveServer) -> None:
    """As in a notebook."""
    with Client(server.url) as client, client.environment("wire").session(split="train", index=0) as session:
        assert session.call("step", {"text": "x"}).text == "x"
        assert "Session" in repr(session)
        with pytest.raises(DeadlineExceeded):
            session.call("step", {"milliseconds": 10_000}, timeout=0.05)
    with pytest.raises(ServerUnavailable):
        Client("http://127.0.0.1:1", retries=0).environments()


def test_a_background_thread_cannot_wait_for_itself() -> None:
    thread = LoopThread("test")

    async def outer() -> None:
        thread.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="own background thread"):
        thread.run(outer())
    thread.loop.call_soon_threadsafe(thread.loop.stop)


def test_a_background_thread_that_wakes_after_the_interpreter_harms_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    # What the C library does at the end, after the interpreter, takes long where PyTorch is loaded. Here it sleeps.
    program.write_text("""
import asyncio, atexit, ctypes
def last():
    print(thread.run(asyncio.sleep(0, "used at the end")))
from ors_clients.transport.loop_thread import LoopThread
thread = LoopThread("test")
atexit.register(last)
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.usleep, ctypes.c_void_p), ctypes.c_void_p(800_000), None)
for tenth in range(1, 8):
    thread.start(asyncio.sleep(tenth / 10))
""")
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "used at the end\n", "")


def test_an_interrupt_ends_the_session(server: LiveServer, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    # Tests in the background of a shell ignore interrupts, and so do their child processes.
    program.write_text(f"""
import signal
from ors_clients.client.sync_client import Client
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with Client({server.url!r}) as client, client.environment("wire").session(split="train", index=0) as session:
        sid = session.id
        print(sid, flush=True)
        session.call("step", {{"milliseconds": 60_000}})
except KeyboardInterrupt:
    print("interrupted")
""")
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    time.sleep(0.5)  # so that the interrupt comes during the call
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (output, errors) == ("interrupted\n", "")
