"""The server of a target under test, in a process of its own that reports what it holds (``ors_server.leak_probe``).

The process has a temporary folder of its own, and ends with this one: its standard input then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ors_clients.conformance.rule import plain
from ors_clients.errors import ConfigurationError

__all__ = ["Observer", "State", "TargetServer", "serving"]

#: Seconds that a target may take to be loaded and served, to report, and to end.
_START, _ANSWER, _END = 180.0, 10.0, 15.0


@dataclass(frozen=True)
class State:
    """Things that the process of a server holds."""

    teardowns: int = 0
    #: Environments whose teardowns are counted.
    counted: frozenset[str] = frozenset()
    #: What may be left behind, by kind: the names of threads, processes and files.
    held: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: The fields of tasks that clients must not get, by environment.
    private: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: Those of them that a task had, by environment.
    withheld: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: Attributes that are named almost as the declaration of these fields, by environment.
    misspelt: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: The exceptions that teardowns raised.
    raised: Sequence[str] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any], temporary_files: list[str]) -> State:
        """Return the state that a process reported, with the temporary files that it has."""
        return cls(
            given["teardowns"],
            frozenset(given["counted"]),
            {
                "threads": given["threads"],
                "processes": given["children"],
                "open files": given["files"],
                "temporary files": temporary_files,
            },
            given["private"],
            given["withheld"],
            given["misspelt"],
            given["raised"],
        )


class Observer(Protocol):
    """The process behind a server under test."""

    async def state(self) -> State:
        """Return what the process holds now."""
        ...

    def second(self) -> contextlib.AbstractAsyncContextManager[str]:
        """Serve the same target in another process; return its URL."""
        ...


class TargetServer:
    """One process that serves a target."""

    def __init__(self, target: str, folder: Path, process: asyncio.subprocess.Process) -> None:
        self._target = target
        self._folder = folder
        self._process = process
        self.url = ""

    async def state(self) -> State:
        """Return what the process holds now. Raises ``ConfigurationError`` where it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(b"state\n")
            await self._process.stdin.drain()
        given: dict[str, Any] = json.loads(await self.line(_ANSWER))
        left = [str(path.relative_to(self._folder)) for path in (self._folder / "tmp").rglob("*")]
        return State.of(given, left)

    async def line(self, patience: float) -> str:
        """Read a line of the process. Raises ``ConfigurationError`` where none comes."""
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError, ValueError):  # ValueError: a line over the limit
            line = await asyncio.wait_for(self._process.stdout.readline(), patience)
        if not line:
            log = (self._folder / "log").read_text("utf-8", "replace").strip()
            raise ConfigurationError(
                f"{self._target} cannot be served", plain(log[-2000:], 1200) or f"It did not answer for {patience:g} s."
            )
        return line.decode()

    def second(self) -> contextlib.AbstractAsyncContextManager[str]:
        """Serve the same target in another process; return its URL."""
        return _second(self._target)


@contextlib.asynccontextmanager
async def _second(target: str) -> AsyncGenerator[str]:
    async with serving(target) as server:
        yield server.url


@contextlib.asynccontextmanager
async def serving(target: str) -> AsyncGenerator[TargetServer]:
    """Serve a target for a block. Raises ``ConfigurationError`` where it cannot be served."""
    with tempfile.TemporaryDirectory(prefix="ors-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ors_server.leak_probe", target),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "ORS_DATA_DIR": str(folder / "data"), "TMPDIR": str(folder / "tmp")},
                limit=4 * 1024 * 1024,
                start_new_session=True,
            )
        try:
            server = TargetServer(target, folder, process)
            server.url = (await server.line(_START)).strip()
            yield server
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END)
    except TimeoutError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what the target started and left
        await process.wait()
