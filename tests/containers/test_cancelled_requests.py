"""Descriptors of requests to the launcher: each is closed, and each is sent as the file that the caller meant."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from ors_containers import Sandbox
from ors_containers.errors import ServerExhausted
from ors_containers.launcher.client import LauncherClient, OperationFailed
from ors_containers.launcher.examining.packed_files import pack
from ors_containers.launcher.messages import FileFound, Opened, StatFile, User
from ors_containers.runtimes import examination

from tests.support.processes import open_descriptors
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_file_that_no_caller_gets_is_closed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is cancelled in the same turn of the event loop in which the response comes."""
    await sandbox.write_file("/tmp/file", b"content")
    before = open_descriptors()
    respond = LauncherClient._on_response  # pyright: ignore[reportPrivateUsage]

    def respond_and_cancel(client: LauncherClient, request: int, response: object, descriptors: list[int]) -> None:
        respond(client, request, response, descriptors)  # pyright: ignore[reportArgumentType]
        if isinstance(response, Opened):
            reading.cancel()

    monkeypatch.setattr(LauncherClient, "_on_response", respond_and_cancel)
    reading = asyncio.create_task(sandbox.read_file("/tmp/file"))
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert open_descriptors() == before


async def test_a_response_without_its_descriptor_is_an_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops it where this process may open no more files."""
    await sandbox.write_file("/tmp/file", b"content")
    respond = LauncherClient._on_response  # pyright: ignore[reportPrivateUsage]

    def respond_without(client: LauncherClient, request: int, response: object, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        respond(client, request, response, [])  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch:
        patch.setattr(LauncherClient, "_on_response", respond_without)
        with pytest.raises(ServerExhausted):  # not of the file: it would read as empty to who grades
            await sandbox.read_file("/tmp/file")
    assert await sandbox.read_file("/tmp/file") == b"content"


async def test_a_caller_may_close_its_descriptors_once_it_has_made_a_request(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("/tmp/file", b"content")
    before = open_descriptors()
    request = LauncherClient.request
    others: list[int] = []

    def request_and_close(
        client: LauncherClient, message: Any, descriptors: Sequence[int], response: type[Any]
    ) -> Coroutine[Any, Any, Any]:
        own = [os.dup(descriptor) for descriptor in descriptors]
        responding = request(client, message, own, response)
        for descriptor in own:
            os.close(descriptor)
        others.extend(os.open(os.devnull, os.O_RDONLY) for _ in own)
        return responding

    monkeypatch.setattr(LauncherClient, "request", request_and_close)
    assert await sandbox.read_file("/tmp/file") == b"content"
    assert others
    for other in others:
        os.close(other)
    assert open_descriptors() == before


@pytest.mark.parametrize("reason", ["the container has ended", "no room for another"])
async def test_a_request_that_cannot_be_sent_leaves_nothing(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    client = LauncherClient()
    client.start()
    reading, writing = os.pipe()
    before = open_descriptors()
    duplicate, second = os.dup, writing
    if reason == "the container has ended":
        second = -1
    else:

        def no_room(descriptor: int) -> int:
            if descriptor == writing:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return duplicate(descriptor)

        def not_now(*_: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr(os, "dup", no_room)
        monkeypatch.setattr(socket, "send_fds", not_now)  # the launcher has many to read
    with pytest.raises(OperationFailed if second == -1 else ServerExhausted):
        await client.request(StatFile("/", True, User(0, 0, one_id=False), "/"), (reading, second), FileFound)
    assert open_descriptors() == before
    monkeypatch.undo()
    for descriptor in (reading, writing):
        os.close(descriptor)
    await client.close()


async def test_files_of_a_cancelled_examination_take_no_memory(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing, cancelled = threading.Event(), threading.Event()

    def pack_slowly(descriptor: int, files: Mapping[str, bytes]) -> None:
        packing.set()
        cancelled.wait(30)
        pack(descriptor, files)

    before = open_descriptors()
    monkeypatch.setattr(examination, "pack", pack_slowly)
    examining = asyncio.create_task(sandbox.examine(["/bin/true"], files={"file": bytes(2**21)}, timeout=5))
    await until(packing.is_set)
    examining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await examining
    cancelled.set()
    await until(lambda: open_descriptors() == before)


@pytest.mark.parametrize("lasts", [False, True], ids=["for a moment", "until the end"])
@pytest.mark.parametrize(
    "what", ["read", "write", "a new shell", "examine", pytest.param("examine much", marks=pytest.mark.long)]
)
async def test_a_server_without_descriptors_blames_no_sandbox(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, what: str, lasts: bool
) -> None:
    """No file seems empty, no background process is killed, and no examination fails by the agent's doing."""
    await sandbox.write_file("/tmp/file", b"content")
    await sandbox.run("sleep 1000 & echo $! > /tmp/pid", timeout=5)
    work = {
        "read": lambda: sandbox.read_file("/tmp/file"),
        "write": lambda: sandbox.write_file("/tmp/file", b"other"),
        "a new shell": lambda: sandbox.run("kill -9 $$", timeout=5),
        "examine": lambda: sandbox.examine(["/bin/true"], timeout=5, keep_processes=True),
        "examine much": lambda: sandbox.examine(
            ["/bin/true"], files={"file": bytes(2**21)}, timeout=5, keep_processes=True
        ),
    }[what]
    before = open_descriptors()

    for kept in range(40):  # the shortage begins at each of the descriptors that are made
        with monkeypatch.context() as patch:
            reached = _run_out(patch, kept, lasts=lasts)
            with contextlib.suppress(ServerExhausted):
                await work()
        if not reached():
            break
        await until(lambda: len(open_descriptors()) <= len(before))
        alive = await sandbox.run("kill -0 $(cat /tmp/pid) && cat /tmp/file", timeout=5)
        assert alive.exit_status == 0, (kept, alive.text)
    else:
        pytest.fail("it is never done")
    assert kept, "no descriptor was made"


@pytest.mark.parametrize("lasts", [False, True], ids=["for a moment", "until the end"])
@pytest.mark.parametrize("ends", ["on time", "cancelled"])
async def test_a_command_is_ended_without_descriptors(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, ends: str, lasts: bool
) -> None:
    """With the processes that ignore a signal; the background processes of earlier commands go on."""
    await sandbox.run("sleep 1000 & echo $! > /tmp/kept", timeout=5)
    command = "(trap '' INT; echo $BASHPID > /tmp/child; exec sleep 1000) & echo $BASHPID > /tmp/pid; exec sleep 1000"
    started = asyncio.create_task(sandbox.run(command, timeout=1))
    await asyncio.sleep(0.5)
    with monkeypatch.context() as patch:
        _run_out(patch, 0, lasts=lasts)
        if ends == "cancelled":
            started.cancel()
        with contextlib.suppress(ServerExhausted, asyncio.CancelledError):
            assert (await started).timed_out
        await asyncio.sleep(1)
    left = await sandbox.run(
        "kill -0 $(cat /tmp/kept) && ! kill -0 $(cat /tmp/child) && ! kill -0 $(cat /tmp/pid)", timeout=9
    )
    assert left.exit_status == 0, left.text


def _run_out(patch: pytest.MonkeyPatch, kept: int, *, lasts: bool) -> Callable[[], bool]:
    """Let this process make only ``kept`` more descriptors, then none, or all but one; return whether that was met."""
    made = [0]

    def limited(make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made[0] += 1
            if made[0] > kept if lasts else made[0] == kept + 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return make(*arguments, **options)

        return call

    for module, name in ((os, "dup"), (os, "pipe"), (os, "memfd_create"), (socket, "socketpair")):
        patch.setattr(module, name, limited(getattr(module, name)))
    return lambda: made[0] > kept
