"""Candidates of the benchmark: their interface, and our sandboxes on each runtime of this machine.

All candidates use the same image, that of the machine's own programs (``docker_like`` and ``by_hand`` have the others).
"""

from __future__ import annotations

import abc
import itertools
import json
import os
import re
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar

from ors_containers.errors import SandboxError
from ors_containers.image import Image
from ors_containers.limits import Limits
from ors_containers.runtime import Runtime, find_runtime
from ors_containers.sandbox import Sandbox

from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.http11 import Failure

__all__ = [
    "LIMITS",
    "PATIENCE",
    "Box",
    "Candidate",
    "NotHere",
    "Ours",
    "OursBox",
    "server_command",
    "user",
    "without_ids",
]

_ENVIRONMENT = Path(__file__).resolve().with_name("environment.py")
#: Seconds anything here may take before it counts as hung.
PATIENCE = 60.0
#: What an idle sandbox of a terminal task may use.
LIMITS = Limits()

_tokens = itertools.count(secrets.randbelow(2**32))


class Box(abc.ABC):
    """One sandbox."""

    async def check(self) -> None:
        """Run a command and check its answer, which no other sandbox and no earlier command could have given.

        Raises ``Failure``.
        """
        number = next(_tokens)
        answer = await self.run(f"echo $(({number} + 1))")
        if answer != b"%d\n" % (number + 1):
            raise WrongAnswer(f"a command answered {answer[:60]!r}")

    @abc.abstractmethod
    async def run(self, command: str) -> bytes:
        """Return the output of a command. Raises ``Failure``."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Stop it and remove all its traces."""


class Candidate(abc.ABC):
    """A way to have sandboxes."""

    name: str
    title: str
    #: The program it rests on.
    program: str
    #: Whether its sandboxes are our strict ones.
    ours: ClassVar[bool] = False
    #: Whether a command runs in a shell that stays, and not in a process of its own that enters the sandbox.
    keeps_shell: ClassVar[bool] = True

    @abc.abstractmethod
    def version(self) -> str:
        """Of the program, once it is open."""

    @abc.abstractmethod
    def open(self) -> AbstractAsyncContextManager[Candidate]:
        """Whatever its sandboxes share, while they are used; gives ``self``. Raises ``NotHere``."""

    @abc.abstractmethod
    async def start(self) -> Box:
        """Return a sandbox in which commands can run, started cold. Raises ``Failure``."""


class OursBox(Box):
    """A sandbox of ``ors_containers``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def run(self, command: str) -> bytes:
        try:
            result = await self.sandbox.run(command, timeout=PATIENCE)
        except SandboxError as error:
            raise Failure(without_ids(error)) from error
        if result.exit_status or result.timed_out or result.shell_restarted:
            raise WrongAnswer(f"a command ended with {result.exit_status}: {result.text[:60]!r}")
        return result.output

    async def stop(self) -> None:
        await self.sandbox.stop()


class Ours(Candidate):
    """Our sandboxes on one runtime."""

    ours = True
    #: The runtime, while it is open.
    runtime: Runtime

    def __init__(self, runtime: str) -> None:
        self.name = self.program = runtime
        self.title = f"ours, {runtime}"

    def version(self) -> str:
        return self.runtime.describe().version

    @property
    def image(self) -> Image:
        """The image of its sandboxes."""
        return self.runtime.host_image()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Ours]:
        try:
            self.runtime = find_runtime(self.name)()
            await self.runtime.start()
        except SandboxError as error:
            raise NotHere(str(error)) from error
        try:
            yield self
        finally:
            await self.runtime.close()

    async def start(self) -> OursBox:
        sandbox = self.runtime.sandbox(self.image, LIMITS)
        try:
            await sandbox.start()
        except SandboxError as error:
            raise Failure(without_ids(error)) from error
        return OursBox(sandbox)


def without_ids(error: SandboxError) -> str:
    """Return an error's text, the same for the same kind of error."""
    return re.sub(r"\b[0-9a-f]{12}\b", "…", f"{type(error).__name__}: {error}")[:200]


def server_command(candidate: Ours) -> list[str]:
    """Return the command of a server whose environment uses this runtime's sandboxes."""
    settings = json.dumps({"sandbox_runtime": candidate.name})
    return OUR_SERVER.command(sys.executable, "--target", str(_ENVIRONMENT), "--settings", settings)


def user() -> str:
    """Return the kind of user that runs the benchmark: the cost of a sandbox depends on it."""
    return "root" if os.geteuid() == 0 else "an ordinary user"
