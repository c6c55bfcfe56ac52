"""A runtime that starts no process, for tests of the pool's logic; other tests use real sandboxes."""

import asyncio
import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ors_containers import (
    CommandResult,
    Description,
    FileStatus,
    Image,
    Limits,
    NoSuchFile,
    Runtime,
    Sandbox,
    SandboxDied,
    SandboxStopped,
    StartFailed,
    WarmProgram,
)
from ors_containers.scheduling.capacity import Capacity, CapacityReader

GIB = 2**30


def image(name: str = "image") -> Image:
    """Return an image that is never started."""
    return Image(name=name, layers=(Path("/"),))


class FakeSandbox(Sandbox):
    """A sandbox that answers commands without running them."""

    def __init__(self, runtime: "FakeRuntime", number: int, image: Image, limits: Limits) -> None:
        self.id = f"fake-{number}"
        self.image = image
        self.limits = limits
        self.state = "new"
        self._runtime = runtime

    async def start(self) -> None:
        runtime = self._runtime
        runtime.starting += 1
        runtime.most_starting = max(runtime.most_starting, runtime.starting)
        try:
            await asyncio.sleep(runtime.start_seconds)
            if runtime.broken:
                raise StartFailed("no such luck")
        finally:
            runtime.starting -= 1
        self.state = "running"

    async def run(self, command: str, *, timeout: float, output_limit: int | None = None) -> CommandResult:
        await asyncio.sleep(0)
        if self.state == "dead":
            raise SandboxDied(self.id)
        if self.state != "running":
            raise SandboxStopped(self.id)
        return CommandResult(0, b"", 0.0)

    async def examine(
        self,
        program: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        input: bytes = b"",
        timeout: float,
        output_limit: int | None = None,
        keep_processes: bool = False,
        private_output: bool = False,
        warm: WarmProgram | None = None,
    ) -> CommandResult:
        raise NotImplementedError

    async def read_file(self, path: str, *, limit: int = 100 * 2**20) -> bytes:
        raise NoSuchFile(path, errno.ENOENT)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644, parents: bool = True) -> None:
        raise NotImplementedError

    async def stat_file(self, path: str, *, follow: bool = True) -> FileStatus:
        raise NotImplementedError

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.state = "stopped"


class FakeRuntime(Runtime):
    """A runtime that records the sandboxes it created."""

    name: ClassVar[str] = "fake"

    def __init__(self, *, start_seconds: float = 0.0) -> None:
        self.start_seconds = start_seconds
        self.broken = False
        self.made: list[FakeSandbox] = []
        self.starting = 0
        self.most_starting = 0

    @property
    def running(self) -> list[FakeSandbox]:
        """Sandboxes that are started and not stopped."""
        return [sandbox for sandbox in self.made if sandbox.state == "running"]

    async def start(self) -> None:
        pass

    def describe(self) -> Description:
        raise NotImplementedError

    def host_image(self) -> Image:
        return image()

    def sandbox(self, image: Image, limits: Limits | None = None) -> FakeSandbox:
        self.made.append(FakeSandbox(self, len(self.made), image, limits or Limits()))
        return self.made[-1]

    async def close(self) -> None:
        for sandbox in self.made:
            await sandbox.stop()


class FakeMachine(CapacityReader):
    """A machine with the capacity that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = 64 * GIB
        self.pids = 30_000
        self.pressure = 0.0

    def read(self) -> Capacity:
        return Capacity(self.memory, 64 * GIB, self.pids, 32_768, self.pressure)
