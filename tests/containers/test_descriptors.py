"""A descriptor has one owner: nothing else closes its number, or uses it afterwards."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvloop
from ors_containers.linux.subprocesses import pipe_file
from ors_containers.runtimes.containers.container_disks import ContainerDisks
from ors_containers.runtimes.opened_file import in_thread, write_all

from tests.support.processes import open_descriptors
from tests.support.waiting import until


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_pipe_is_closed_once(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def read_and_write() -> tuple[bytes, list[bool]]:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        files = [pipe_file(reading, "rb"), pipe_file(writing, "wb")]
        reader = asyncio.StreamReader()
        read, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), files[0])
        written, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, files[1])
        written.write(b"said")
        written.close()
        said = await reader.read()
        read.close()
        await asyncio.sleep(0.01)
        for descriptor in (reading, writing):
            with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
                os.fstat(descriptor)
        return said, [isinstance(file, io.FileIO) and file.closed and file.closefd for file in files]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        said, closed_by_file = runner.run(read_and_write())
    assert said == b"said"
    # uvloop has closed the number itself before it closes the file.
    assert closed_by_file == [new_loop is asyncio.new_event_loop] * 2


async def test_a_thread_of_a_cancelled_call_writes_into_its_own_file(tmp_path: Path) -> None:
    cancelled = threading.Event()

    def write(descriptor: int) -> None:
        cancelled.wait(10)
        write_all(descriptor, b"content")

    descriptor = os.open(tmp_path / "its own", os.O_WRONLY | os.O_CREAT)
    before = len(open_descriptors())
    call = asyncio.create_task(in_thread(descriptor, write))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    os.close(descriptor)
    others = [os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT) for number in range(3)]
    assert descriptor in others
    cancelled.set()
    await until(lambda: (tmp_path / "its own").read_bytes() != b"")
    assert (tmp_path / "its own").read_bytes() == b"content"
    assert [(tmp_path / str(number)).read_bytes() for number in range(3)] == [b""] * 3
    for other in others:
        os.close(other)
    # Neither the descriptor nor its duplicate is left.
    await until(lambda: len(open_descriptors()) == before - 1)


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError(f"can't start new thread {thread.name}")


async def test_work_that_no_thread_has_taken_is_dropped_with_its_call(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    release = threading.Event()
    busy = [loop.run_in_executor(None, release.wait, 30) for _ in range(64)]
    before = open_descriptors()
    call = asyncio.create_task(in_thread(descriptor, lambda own: write_all(own, b"content")))
    try:
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert open_descriptors() == before
    finally:
        release.set()
    await asyncio.gather(*busy)
    await loop.shutdown_default_executor()
    assert (tmp_path / "file").read_bytes() == b""
    os.close(descriptor)


async def test_work_is_dropped_when_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor keeps it in its queue then, and a thread takes it later."""
    loop = asyncio.get_running_loop()
    release = threading.Event()
    executor = ThreadPoolExecutor(2)
    loop.set_default_executor(executor)
    busy = loop.run_in_executor(None, release.wait, 30)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    before = open_descriptors()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError, match="thread"):
            await in_thread(descriptor, lambda own: write_all(own, b"content"))
        assert open_descriptors() == before
    others = [os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT) for number in range(3)]
    release.set()
    await busy
    executor.shutdown()
    assert [(tmp_path / str(number)).read_bytes() for number in range(3)] == [b""] * 3
    for other in (descriptor, *others):
        os.close(other)


async def test_a_disk_is_closed_once_when_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = ContainerDisks()
    disk = os.open(tmp_path, os.O_RDONLY)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        disks.free(disk)
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    assert other == disk
    disks.free(os.open(tmp_path, os.O_RDONLY))  # starts a thread, which also takes what was left in the queue
    await disks.close()
    os.close(other)


async def test_an_error_of_a_cancelled_call_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = threading.Event()

    def fail(descriptor: int) -> None:
        cancelled.wait(30)
        raise OSError(errno.ENOSPC, f"of {descriptor}")

    reading, writing = os.pipe()
    call = asyncio.create_task(in_thread(reading, fail))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    cancelled.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.text == ""
    os.close(reading)
    os.close(writing)
