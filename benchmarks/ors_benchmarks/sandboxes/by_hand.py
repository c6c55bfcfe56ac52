"""The programs that our runtimes rest on, used by hand.

A candidate by hand does the least that gives a comparable sandbox: namespaces, a copy-on-write root of the same image,
no network, one bash. It has no limits, no lease and no user of its own, so it is the floor and not a rival.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ors_containers.image import host_image
from ors_containers.runtime import runtime_names

from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.sandboxes.candidates import PATIENCE, Box, Candidate, Ours
from ors_benchmarks.sandboxes.docker_like import DockerLike, Service

__all__ = ["BubblewrapByHand", "ByHand", "candidates"]


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

    #: While it is open: a folder for everything, the image's root, into which the host's /usr belongs, and its binds.
    folder: Path
    layer: Path
    _binds: Sequence[tuple[Path, str]]
    #: As our sandboxes have them: a locale costs each program time.
    _variables: Mapping[str, str]

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
            self.folder = Path(folder)
            self.folder.chmod(0o755)
            image = host_image(self.folder)
            self.layer, self._binds, self._variables = self.folder / "root", image.binds, image.variables
            shutil.copytree(image.layers[0], self.layer, symlinks=True)
            for name in ("dev", "proc", "run", "sys", "tmp", "var/tmp", "root"):
                (self.layer / name).mkdir(parents=True, exist_ok=True)
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

    async def _end(self) -> None:
        """Remove what is left of all sandboxes."""

    def add_binds(self, *binds: tuple[Path, str]) -> None:
        """Bind more of this machine into the sandboxes that start from now on, read-only."""
        self._binds = (*self._binds, *binds)

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
            *("--cap-drop", "ALL", "--clearenv", "--chdir", "/"),
            *(word for variable in self._variables.items() for word in ("--setenv", *variable)),
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
        self._options: Sequence[str] | None = None
        self._started: set[str] = set()

    async def start(self) -> Box:
        if self._options is None:
            self._options = await self._find_options()
        name = await self._run(self._options)
        return _Once(["podman", "exec", name], ["podman", "rm", "--force", "--time", "0", name])

    async def _run(self, options: Sequence[str]) -> str:
        """Start a container and return its name. Raises ``Failure``."""
        name = f"ors-bench-{secrets.token_hex(6)}"
        self._started.add(name)
        await _output(
            [
                *("podman", "run", "--detach", "--rm", "--name", name, "--network", "none", *options),
                *("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"),
                *self.binds("--volume", lambda source, target: (f"{source}:{target}:ro",)),
                *("--rootfs", f"{self.layer}:O", "sleep", "infinity"),
            ]
        )
        return name

    async def _find_options(self) -> Sequence[str]:
        """Return the runtime that works here: crun refuses hybrid control groups. Raises ``Failure`` if none does."""
        problem: Failure | None = None
        for options in ((), ("--runtime", "runc"), ("--runtime", "runc", "--cgroups", "disabled")):
            try:
                name = await self._run(options)
                await _output(["podman", "exec", name, "true"])
            except Failure as failure:
                problem = failure
            else:
                return options
            finally:
                await self._end()
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
    """Return all of them: strict sandboxes of every runtime that is installed, docker-like ones, and those by hand."""
    strict = [Ours(name) for name in runtime_names()]
    return [*strict, DockerLike(), Service(), BubblewrapByHand(), ApptainerExec(), PodmanExec()]
