"""The ways to play a graded episode that are compared: their interface, and ours."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import IntEnum
from pathlib import Path

from ors_clients.client.async_client import AsyncClient
from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import ClientError

from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.processes import ServerProcess, StartFailed, cpu_seconds
from ors_benchmarks.sandboxes.candidates import user
from ors_benchmarks.terminal.task import COMMANDS, SOLUTION, SOLVED, write_folder

__all__ = ["Candidate", "Ours", "Stage", "check_verdict"]


class Stage(IntEnum):
    """The end of an episode that is played in part."""

    STARTED = 0
    COMMANDED = 1
    GRADED = 2


class Candidate(abc.ABC):
    """A way to play episodes."""

    name: str
    title: str
    #: How many times fewer episodes of it are played than of ours, because one takes so much longer.
    fewer: int = 1
    #: Whether its sandboxes are in control groups beside those of the program that starts them.
    beside: bool = False
    #: Whether 64 sandboxes at once are too many for it.
    few: bool = False

    @abc.abstractmethod
    def open(self, folder: Path) -> AbstractAsyncContextManager[None]:
        """Whatever its episodes share, while they are played; ``folder`` is new. Raises ``NotHere``."""

    @abc.abstractmethod
    async def play(self, solved: bool, stage: Stage) -> float:
        """Play one episode, solve it or not, and check everything that it answers. Raises ``Failure``.

        Return the seconds after which its first command could run.
        """

    @abc.abstractmethod
    def version(self) -> Mapping[str, str]:
        """Versions of the programs that it rests on, once it is open."""

    def processes(self) -> Mapping[str, float]:
        """Return the processor time so far of the lasting processes that it has, by what they are."""
        return {}


def check_verdict(passed: bool, solved: bool) -> None:
    """Raise ``WrongAnswer`` for a verdict that is not the right one."""
    if passed is not solved:
        raise WrongAnswer(f"an episode that was {'' if solved else 'not '}solved was graded {int(passed)}")


class Ours(Candidate):
    """The terminal environment of our server, played by our client."""

    name = "ours"
    title = "ors-server"

    def __init__(self) -> None:
        self._process: ServerProcess | None = None
        self._client: AsyncClient | None = None

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncGenerator[None]:
        """Start a server with the task, and play one episode."""
        write_folder(folder / "tasks")
        variables = {"ORS_TERMINAL_TASKS": str(folder / "tasks"), "ORS_IMAGES": str(folder / "images")}
        command = OUR_SERVER.command(
            sys.executable, "--target", "terminal", "--settings", '{"sandbox_runtime": "bubblewrap"}'
        )
        try:
            self._process = await asyncio.to_thread(
                ServerProcess.start, command, folder, None, name=self.name, variables=variables
            )
        except StartFailed as error:
            raise NotHere(str(error)) from error
        address = self._process.address
        try:
            async with AsyncClient(f"http://{address.host}:{address.port}") as self._client:
                try:
                    await self.play(True, Stage.GRADED)
                except Failure as failure:
                    raise NotHere(f"no episode can be played: {failure}") from failure
                yield
        finally:
            await asyncio.to_thread(self._process.stop)

    async def play(self, solved: bool, stage: Stage) -> float:
        """Play one episode over HTTP."""
        assert self._client is not None
        begun = time.perf_counter()
        session = self._client.environment().session(split="train", index=0)
        try:
            async with session:
                await session.prompt()
                waited = time.perf_counter() - begun
                if stage >= Stage.COMMANDED:
                    for command, line in (*COMMANDS, *([(SOLUTION, SOLVED)] if solved else [])):
                        text = await _output(session, command)
                        if text != line:
                            raise WrongAnswer(f"a command answered {text[:60]!r}")
                if stage is Stage.GRADED:
                    result = await session.call("done")
                    if not result.finished or result.reward not in (0.0, 1.0):
                        raise WrongAnswer(f"an episode ended with {result.reward}: {result.text[:60]!r}")
                    check_verdict(result.reward == 1.0, solved)
        except ClientError as error:
            raise Failure(f"{type(error).__name__}: {error}"[:200]) from error
        return waited

    def version(self) -> Mapping[str, str]:
        """Return the kind of user that the server has; bubblewrap is that of the sandboxes by hand."""
        return {"user": user()}

    def processes(self) -> Mapping[str, float]:
        """Return the processor time of the server and of its launcher."""
        assert self._process is not None
        server = self._process.pid
        return {"server": cpu_seconds(server), "launcher": sum(map(cpu_seconds, _launchers(server)))}


async def _output(session: AsyncSession, command: str) -> str:
    result = await session.call("bash", {"command": command})
    if result.error is not None or (result.metadata or {}).get("exit_status") != 0:
        raise WrongAnswer(f"a command ended with {result.metadata}: {result.text[:60]!r}")
    return result.text


def _launchers(server: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{server}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                if b"ors_containers.launcher.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found
