"""A descriptor has one owner: nothing else closes its number, or uses it afterwards."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from ors_containers.linux.subprocesses import pipe_file
from ors_containers.runtimes.opened_file import in_thread, write_all

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
        return said, [file.closed and getattr(file, "closefd") for file in files]  # noqa: B009 - of FileIO

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
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
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
    await until(lambda: len(os.listdir("/proc/self/fd")) == before - 1)  # noqa: PTH208


async def test_a_thread_that_takes_the_work_late_closes_its_duplicate(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    release = threading.Event()
    busy = [loop.run_in_executor(None, release.wait, 10) for _ in range(64)]
    call = asyncio.create_task(in_thread(descriptor, lambda own: write_all(own, b"content")))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    os.close(descriptor)
    release.set()
    await asyncio.gather(*busy)
    await loop.shutdown_default_executor()
    assert (tmp_path / "file").read_bytes() == b"content"
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
