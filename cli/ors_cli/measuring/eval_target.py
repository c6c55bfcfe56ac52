"""The server that ``ors-server eval TARGET`` plays on: ``ors-server serve TARGET`` in a process of its own.

A process, so that an environment which keeps its interpreter busy does not slow the requests to the model. It listens
on the loopback device only, wants a key that only the run has, and ends with the run, also if that is killed. If it
ends before the run, the run ends as well, and can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from ors_containers.linux.syscalls import end_with_parent

from ors_server.errors import InfrastructureFailure
from ors_server.hosting.errors import TargetError

__all__ = ["Serve", "address_of", "is_address", "serving"]

#: Seconds that the server may take to listen, and to end.
_START, _END = 300.0, 60.0
#: Seconds in which an interrupt from the terminal, which ends the server as well, has reached this process.
_INTERRUPT = 0.2
#: Characters of the end of its log that an error has.
_LOGGED = 2000
_LISTENS = re.compile(rb"listens on (http://\S+:\d+)")
#: Variables that would make it listen elsewhere, or not say where.
_LEFT_OUT = ("ORS_LISTEN", "ORS_HOST", "ORS_PORT", "ORS_WORKER")


#: Serves a target; its address, and the key that it wants, or None for the client's own.
Serve = Callable[[str], AbstractAsyncContextManager[tuple[str, str | None]]]


@asynccontextmanager
async def address_of(target: str, serve: Serve) -> AsyncGenerator[tuple[str, str | None]]:
    """Yield the address of a target, which is one or is served during the block, and the key that it wants."""
    if is_address(target):
        yield target, None
        return
    async with serve(target) as served:
        yield served


def is_address(target: str) -> bool:
    """Return whether a target is the address of a server."""
    return target.startswith(("http://", "https://"))


@asynccontextmanager
async def serving(
    target: str, data_dir: Path, defaults: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[str, str | None]]:
    """Serve a target during the block. Yield its address, and its key if it is not the client's ``ORS_API_KEY``.

    ``defaults`` are variables of the server that are not set here.
    Raises ``TargetError``, and ``InfrastructureFailure`` if the server ends during the block, which is then cancelled.
    """
    command = [sys.executable, "-m", "ors_cli", "serve", target, "--host", "127.0.0.1", "--port", "0"]
    command += ["--log-level", "info", "--data-dir", str(data_dir)]
    variables = {name: value for name, value in os.environ.items() if name.upper() not in _LEFT_OUT}
    variables = {**(defaults or {}), **variables}
    key: str | None = None
    if not os.environ.get("ORS_API_KEY"):
        # The data directory may have keys; and other users of the machine have nothing to play on it.
        key = variables["ORS_SERVER_KEY"] = secrets.token_urlsafe(32)
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )
        try:
            address = await _address(process, log.fileno(), target)
            async with _cancelled_at_end(process, target, log.fileno()):
                yield address, key
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _END)
            except TimeoutError:
                process.kill()
                await process.wait()


@asynccontextmanager
async def _cancelled_at_end(process: asyncio.subprocess.Process, target: str, log: int) -> AsyncGenerator[None]:
    """Cancel the block if the process ends during it. Raises ``InfrastructureFailure`` then."""
    block = asyncio.current_task()
    assert block is not None
    ended = False

    async def watch() -> None:
        nonlocal ended
        await process.wait()
        await asyncio.sleep(_INTERRUPT)
        if not block.cancelling():
            ended = True
            block.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:  # the cancellation, and whatever it makes of the block's own ends
        if not ended:
            raise
        block.uncancel()
        status = process.returncode
        how = f"status {status}" if status is None or status >= 0 else f"signal {_signal(-status)}"
        size = os.fstat(log).st_size
        said = os.pread(log, 4 * _LOGGED, max(0, size - 4 * _LOGGED)).decode("utf-8", "replace").strip()[-_LOGGED:]
        raise InfrastructureFailure(
            f"The server of {target} ended with {how} during the run",
            f"See why, then go on with the run. The end of the server's log:\n{said or '(nothing)'}",
        ) from None
    finally:
        watcher.cancel()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return str(number)


async def _address(process: asyncio.subprocess.Process, log: int, target: str) -> str:
    deadline = asyncio.get_running_loop().time() + _START
    while True:
        text = os.pread(log, 1 << 20, 0)
        if found := _LISTENS.search(text):
            return found[1].decode()
        if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
            said = text.decode("utf-8", "replace").strip().removeprefix("Error: ")
            raise TargetError(f"{target} cannot be served: {said[-_LOGGED:] or 'no reason given'}", "")
        await asyncio.sleep(0.02)
