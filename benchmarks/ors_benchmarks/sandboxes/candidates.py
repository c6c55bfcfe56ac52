"""The candidates: our sandboxes on each runtime of this machine, and the same programs by hand.

A candidate by hand does the least that gives a comparable sandbox: namespaces, a copy-on-write root of the same image,
no network, one bash. It has no limits, no lease and no user of its own, so it is the floor and not a rival. All use the
same image, that of the machine's own programs.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar

from ors_containers.errors import SandboxError
from ors_containers.image import Image, host_image
from ors_containers.limits import Limits
from ors_containers.runtime import Runtime, find_runtime, runtime_names
from ors_containers.sandbox import Sandbox

from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.http11 import Failure

__all__ = ["Box", "ByHand", "Candidate", "NotHere", "Ours", "OursBox", "candidates", "server_command", "user"]

_ENVIRONMENT = Path(__file__).resolve().with_name("environment.py")
#: Seconds anything here may take before it counts as hung.
PATIENCE = 60.0
#: What an idle sandbox of a terminal task may use.
LIMITS = Limits()

_tokens = itertools.count(secrets.randbelow(2**32))


class NotHere(Exception):
    """A candidate that cannot be measured on this machine; the text says why."""


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
    #: Whether it is ours, with everything that makes a sandbox one.
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


# --- ours ------------------------------------------------------------------------------------


class OursBox(Box):
    """A sandbox of ``ors_containers``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def run(self, command: str) -> bytes:
        try:
            result = await self.sandbox.run(command, timeout=PATIENCE)
        except SandboxError as error:
            raise Failure(_without_ids(error)) from error
        if result.exit_status or result.timed_out or result.shell_restarted:
            raise WrongAnswer(f"a command ended with {result.exit_status}: {result.text[:60]!r}")
        return result.output

    async def stop(self) -> None:
        await self.sandbox.stop()


class Ours(Candidate):
    """Our sandboxes on one runtime."""

    ours = True

    def __init__(self, runtime: str) -> None:
        self.name = self.program = runtime
        self.title = f"ours, {runtime}"
        self.runtime: Runtime | None = None

    def version(self) -> str:
        return self.opened.describe().version

    @property
    def opened(self) -> Runtime:
        """The runtime, started."""
        assert self.runtime is not None
        return self.runtime

    @property
    def image(self) -> Image:
        """The image of its sandboxes."""
        return self.opened.host_image()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Ours]:
        try:
            runtime = find_runtime(self.name)()
            await runtime.start()
        except SandboxError as error:
            raise NotHere(str(error)) from error
        self.runtime = runtime
        try:
            yield self
        finally:
            self.runtime = None
            await runtime.close()

    async def start(self) -> OursBox:
        sandbox = self.opened.sandbox(self.image, LIMITS)
        try:
            await sandbox.start()
        except SandboxError as error:
            raise Failure(_without_ids(error)) from error
        return OursBox(sandbox)


def _without_ids(error: SandboxError) -> str:
    """Return an error's text, the same for the same kind of error."""
    return re.sub(r"\b[0-9a-f]{12}\b", "…", f"{type(error).__name__}: {error}")[:200]


# --- by hand -----------------------------------------------------------------------------------


class _Program:
    """A child process that reads commands and writes answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, command: Sequence[str], folder: Path) -> _Program:
        with tempfile.TemporaryFile(dir=folder) as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
            program = cls(process)
            try:
                if await program.ask("echo ready") != b"ready\n":
                    raise WrongAnswer("a shell that is not ready")
            except Failure as failure:
                await program.stop()
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise Failure(f"{failure}: {' '.join(said)}"[:200]) from failure
        return program

    async def ask(self, command: str) -> bytes:
        """Return the line a command answers with."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(command.encode() + b"\n")
            async with asyncio.timeout(PATIENCE):
                line = await self.process.stdout.readline()
        except (TimeoutError, OSError) as error:
            raise Failure(f"no answer: {type(error).__name__}") from error
        if not line:
            raise Failure("the shell ended")
        return line

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self.process.wait()


class _ProgramBox(Box):
    """A bash in namespaces of its own, which ends with the process that holds it."""

    def __init__(self, program: _Program, folder: Path) -> None:
        self._program = program
        self._folder = folder

    async def run(self, command: str) -> bytes:
        return await self._program.ask(command)

    async def stop(self) -> None:
        await self._program.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class ByHand(Candidate):
    """Something that is started by a command line."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._layer: Path | None = None
        self._binds: list[tuple[Path, str]] = []

    def version(self) -> str:
        done = subprocess.run(
            [self.program, "--version"], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        return done.stdout.split()[-1] if done.stdout else "unknown"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[ByHand]:
        if shutil.which(self.program) is None:
            raise NotHere(f"{self.program} is not installed")
        with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
            self._folder = Path(folder)
            self._folder.chmod(0o755)
            image = host_image(self._folder)
            self._layer, self._binds = self._folder / "root", list(image.binds)
            shutil.copytree(image.layers[0], self._layer, symlinks=True)
            for name in ("dev", "proc", "run", "sys", "tmp", "var/tmp", "root"):
                (self._layer / name).mkdir(parents=True, exist_ok=True)
            try:
                try:
                    box = await self.start()
                    await box.check()
                    await box.stop()
                except Failure as failure:
                    raise NotHere(f"{self.program} does not start a sandbox here: {failure}") from failure
                yield self
            finally:
                await self._end()
                self._folder = self._layer = None

    async def _end(self) -> None:
        """Remove what is left of all sandboxes."""

    @property
    def folder(self) -> Path:
        """A folder for everything."""
        assert self._folder is not None
        return self._folder

    @property
    def layer(self) -> Path:
        """The image's root, into which the host's /usr belongs."""
        assert self._layer is not None
        return self._layer

    def binds(self, option: str, form: Callable[[Path, str], Sequence[str]]) -> list[str]:
        """Return the arguments that put the image's binds in place."""
        return [word for source, target in self._binds for word in (option, *form(source, target))]


class BubblewrapByHand(ByHand):
    """bubblewrap over an overlay that was mounted by hand, one bash kept open."""

    name = "bwrap"
    title = "bwrap + overlay by hand"
    program = "bwrap"

    async def start(self) -> Box:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        place = shlex.quote(str(folder))
        mounts = (
            f"mount -t tmpfs -o size=512m tmpfs {place} && cd {place} && mkdir upper work root && "
            f"mount -t overlay -o lowerdir={shlex.quote(str(self.layer))},upperdir=upper,workdir=work,userxattr "
            'overlay root && exec "$@"'
        )
        command = [
            *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounts, "sh"),
            *("bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"),
            *("--bind", f"{folder}/root", "/", "--proc", "/proc", "--dev", "/dev"),
            *self.binds("--ro-bind", lambda source, target: (str(source), target)),
            *("--cap-drop", "ALL", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--chdir", "/"),
            *("bash", "--norc", "--noprofile"),
        ]
        return _ProgramBox(await _Program.start(command, self.folder), folder)


class _Once(Box):
    """A sandbox that every command enters with a process of its own."""

    def __init__(self, command: Sequence[str], end: Sequence[str] | None) -> None:
        self._command = command
        self._end = end

    async def run(self, command: str) -> bytes:
        return await _output([*self._command, "bash", "-c", command])

    async def stop(self) -> None:
        if self._end is not None:
            await _output(self._end)


class ApptainerExec(ByHand):
    """``apptainer exec`` for every command, as Endless Terminals does it."""

    name = "apptainer-exec"
    title = "apptainer exec"
    program = "apptainer"
    keeps_shell = False

    async def start(self) -> Box:
        command = [
            *("apptainer", "--silent", "exec", "--containall", "--net", "--network", "none", "--no-privs"),
            *("--writable-tmpfs", "--no-home", "--pwd", "/"),
            *self.binds("--bind", lambda source, target: (f"{source}:{target}:ro",)),
            str(self.layer),
        ]
        return _Once(command, None)


class PodmanExec(ByHand):
    """A container of podman, and ``podman exec`` for every command."""

    name = "podman"
    title = "podman exec"
    program = "podman"
    keeps_shell = False

    def __init__(self) -> None:
        super().__init__()
        self._options: list[str] | None = None
        self._started: set[str] = set()

    async def start(self) -> Box:
        if self._options is None:
            await self._find_options()
        assert self._options is not None
        name = f"ors-bench-{secrets.token_hex(6)}"
        self._started.add(name)
        await _output(["podman", *self._run(name, self._options)])
        return _Once(["podman", "exec", name], ["podman", "rm", "--force", "--time", "0", name])

    def _run(self, name: str, options: Sequence[str]) -> list[str]:
        return [
            *("run", "--detach", "--rm", "--name", name, "--network", "none", *options),
            *("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"),
            *self.binds("--volume", lambda source, target: (f"{source}:{target}:ro",)),
            *("--rootfs", f"{self.layer}:O", "sleep", "infinity"),
        ]

    async def _find_options(self) -> None:
        """Return the runtime that works here: crun refuses hybrid control groups."""
        problem: Failure | None = None
        for options in ([], ["--runtime", "runc"], ["--runtime", "runc", "--cgroups", "disabled"]):
            name = f"ors-bench-{secrets.token_hex(6)}"
            self._started.add(name)
            try:
                await _output(["podman", *self._run(name, options)])
                await _output(["podman", "exec", name, "true"])
            except Failure as failure:
                problem = failure
                continue
            finally:
                with contextlib.suppress(Failure):
                    await _output(["podman", "rm", "--force", "--ignore", "--time", "0", name])
            self._options = list(options)
            return
        assert problem is not None
        raise problem

    async def _end(self) -> None:
        if self._started:
            with contextlib.suppress(Failure):
                await _output(["podman", "rm", "--force", "--ignore", "--time", "0", *self._started])
            self._started.clear()


async def _output(command: Sequence[str]) -> bytes:
    """Run a command and return its output. Raises ``Failure``."""
    # Files instead of pipes: processes that podman leaves running would keep pipes open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise Failure(f"{command[0]} did not end") from None
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            said = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Failure(f"{command[0]} ended with {process.returncode}: {' '.join(said)}"[:200])
        return output.read()


def candidates() -> list[Candidate]:
    """All of them: every runtime that is installed, ours first, then those by hand."""
    return [*(Ours(name) for name in runtime_names()), BubblewrapByHand(), ApptainerExec(), PodmanExec()]


def server_command(candidate: Ours) -> list[str]:
    """Return the command of a server whose environment uses this runtime's sandboxes."""
    settings = json.dumps({"sandbox_runtime": candidate.name})
    return OUR_SERVER.command(sys.executable, "--target", str(_ENVIRONMENT), "--settings", settings)


def user() -> str:
    """Return the kind of user that runs the benchmark: the cost of a sandbox depends on it."""
    return "root" if os.geteuid() == 0 else "an ordinary user"
