"""The server's side of build sandboxes: run scripts over an image and make a layer of what they wrote.

``run_scripts`` starts the process of ``builds.worker``, reads its output, and makes a layer of its upper directory.

Invariant: whatever happens, no process of a build outlives the call, and no control group is left without a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import platform
import re
import secrets
import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ors_containers.builds.messages import OVER_LIMIT, SCRIPT_AT, BuildRequest, BuildScript, HomeOwner
from ors_containers.errors import BuildFailed, BuildNeedsNetwork, StartFailed
from ors_containers.image import Image
from ors_containers.launcher.messages import Bind, RootDirectory
from ors_containers.launcher.records import to_json
from ors_containers.layers.ownership import LayerOwners, interpreter
from ors_containers.layers.tree import clean_layer
from ors_containers.layers.writer import too_large
from ors_containers.limits import Limits
from ors_containers.linux.cgroups import ControlGroups, Controller, remove_group
from ors_containers.linux.host_support import IDS, likely_remedy
from ors_containers.linux.kernel_limits import OPEN_FILES
from ors_containers.linux.leases import Owner, make_state, state_directory
from ors_containers.linux.subprocesses import child_process

__all__ = ["BuildLimits", "Built", "Script", "run_scripts"]

_NETWORK_REMEDY = "It seems to need a network, which a build has only when it is given one (--network)"

#: Host ids of build sandboxes as root: one range of those sandboxes are given, whichever.
_BASES = range(0x8000_0000, 0xFFFE_0000, IDS)
_TAIL_LINES, _TAIL_LETTERS = 40, 4000
_MOST_LINE = 1 << 16
_MOST_ANSWER = 1 << 20
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Limits of a build. The time is for all of its scripts together."""

    memory: int = 4 * 2**30
    pids: int = 4096
    #: Bytes of files; 0 for what the disk has.
    disk: int = 0
    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Script:
    """Shell text to run in a build sandbox."""

    #: Its name in errors, a section of a definition or "the script"; lines count from its first.
    label: str
    text: str
    shell: str = "/bin/sh"
    #: User and group; 0 has the rights of root over the image's files.
    user: int = 0
    group: int = 0
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    directory: str = "/"
    #: Its standard output is the result of the build and not shown.
    capture: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build: bytes of files, and the output of captured scripts."""

    size: int
    captured: bytes


async def run_scripts(
    image: Image,
    scripts: Sequence[Script],
    folder: Path,
    *,
    owners: LayerOwners,
    limits: BuildLimits,
    network: bool = False,
    temporary: Sequence[str] = (),
    own: tuple[str, int, str] | None = None,
    said: Said | None = None,
    state: Path | None = None,
    where: Callable[[Script, int], str] | None = None,
) -> Built:
    """Run scripts one after the other over ``image``.

    ``folder`` is an empty directory of the caller's; afterwards it holds ``upper``, a layer of what the scripts wrote,
    and temporary files.

    ``temporary`` are directories that are not kept. ``own`` is a user's name, and the user's id and home for an image
    that does not know the name: files of root in that home are chowned to the user when the scripts have ended.
    ``said`` is called with each line of output. ``where`` names the place of a script's line in its file, for errors.

    Raises ``BuildFailed`` for a script that fails or times out (``BuildNeedsNetwork`` where it lacked a network),
    ``ImageTooLarge``, ``StartFailed`` where this machine cannot make a build sandbox, and ``OSError`` of the disk.
    """
    state = state or state_directory()
    make_state(state)
    mapping = owners.mapping.of_sandbox(secrets.choice(_BASES))
    shift = mapping.base if owners.mapping.by == "root" else 0
    for name in ("upper", "work"):
        place = folder / name
        place.mkdir()
        place.chmod(0o755)
        if shift:
            os.chown(place, shift, shift)
    mark = secrets.token_hex(16)
    # Writes go to a disk, not to memory; the process itself enforces their limit.
    machine_limits = Limits(memory=limits.memory, pids=limits.pids, cpu=float(os.cpu_count() or 1), disk=2**20)
    environment = _network_variables() if network else {}
    listener = _Listener(mark, scripts, said)
    user = (image.user, image.group)
    async with _control_group(state, machine_limits) as (groups, enforced):
        resources = {"CORE": 0, "NOFILE": OPEN_FILES}
        if limits.disk:
            resources["FSIZE"] = limits.disk
        if "pids" not in enforced:
            resources["NPROC"] = limits.pids
        request = BuildRequest(
            server=os.getpid(),
            mark=mark,
            groups=groups,
            stage=str(state / "stage"),
            disk=str(folder),
            layers=[str(layer) for layer in image.layers],
            binds=[Bind(str(source), target, source.is_dir()) for source, target in image.binds],
            directories=[
                RootDirectory(place.path, place.mode, *(user if place.owned else (0, 0))) for place in image.directories
            ],
            mapping=mapping,
            network=network,
            network_files=_network_files() if network else [],
            temporary=list(temporary),
            memory=limits.memory // 2,
            limit=limits.disk,
            resources=resources,
            own=None if own is None or owners.one_id else HomeOwner(*own),  # with one id, every file is the user's
            scripts=[
                BuildScript(
                    text=script.text if script.text.endswith("\n") else f"{script.text}\n",
                    arguments=[script.shell, *([] if script.capture else ["-ev"]), f"/proc/self/fd/{SCRIPT_AT}"],
                    user=script.user,
                    group=script.group,
                    environment={**environment, **script.environment},
                    directory=script.directory,
                    capture=script.capture,
                )
                for script in scripts
            ],
            answer=-1,
        )
        status, problem, captured = await _converse(request, listener, limits.seconds)
    if problem == OVER_LIMIT:
        raise too_large(limits.disk)
    problem = problem or listener.failure or ("it ended at once" if status and listener.current < 0 else "")
    if problem:
        raise StartFailed(f"The build sandbox did not come up: {problem}", likely_remedy(problem))
    if status != 0:
        raise _failure(scripts, listener, status, limits, network, owners, where)
    size = await asyncio.to_thread(clean_layer, folder / "upper", shift=shift) if shift else listener.size
    return Built(size, captured)


def _failure(
    scripts: Sequence[Script],
    listener: _Listener,
    status: int | None,
    limits: BuildLimits,
    network: bool,
    owners: LayerOwners,
    where: Callable[[Script, int], str] | None,
) -> BuildFailed:
    script = scripts[max(listener.current, 0)]
    line = _start_of_command(script, listener.line)
    place = where(script, line) if where is not None else f"{script.label}, line {line}" if line else script.label
    how = f"failed with {status}" if status is not None else f"was not done after {limits.seconds:g} s"
    if status == 128 + signal.SIGKILL:
        how = "was killed, most likely for using more memory than a build may"
    source = script.text.splitlines()
    command = f": {source[line - 1].strip()[:200]}" if 0 < line <= len(source) else ""
    cause = f"{place} {how}{command}"
    if not network and _NO_NETWORK.search(listener.tail) and not _NO_SPACE.search(listener.tail):
        return BuildNeedsNetwork(cause, _NETWORK_REMEDY, output=listener.tail)
    return BuildFailed(cause, _remedy(listener.tail, owners), output=listener.tail)


_NO_SPACE = re.compile(r"no space left on device|file too large|file size limit exceeded", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"temporary failure (in name resolution|resolving)|could not resolve|name or service not known|"
    r"network is unreachable|no matching distribution found|failed to establish a new connection|bad address|"
    r"unable to locate package|has no installation candidate|failed to fetch|could not connect",
    re.IGNORECASE,
)
_NO_OWNERS = re.compile(r"invalid argument|seteuid|setgroups|setegid|chown|changing ownership", re.IGNORECASE)


def _remedy(said: str, owners: LayerOwners) -> str:
    """Return the remedy for what a failed script most likely lacked, judging by its last output."""
    if _NO_SPACE.search(said):
        return "The disk is full, or the limit of the image is reached (--max-size)"
    if owners.one_id and _NO_OWNERS.search(said):
        return (
            "This user has one id only, so files can have no other owner: install uidmap and give it a range of 65536 "
            "in /etc/subuid and /etc/subgid"
        )
    return ""


def _start_of_command(script: Script, last: int) -> int:
    """Return the first line of the command that ends in line ``last``: the shortest text that a shell can parse."""
    lines = script.text.splitlines()
    if not 0 < last <= len(lines):
        return last
    for first in range(last, max(last - 100, 0), -1):
        if first > 1 and lines[first - 2].endswith("\\"):
            continue
        piece = "\n".join(lines[first - 1 : last]) + "\n"
        try:
            checked = subprocess.run(
                ["/bin/sh", "-n"], input=piece.encode(), capture_output=True, timeout=5, check=False
            )
        except (OSError, subprocess.SubprocessError):
            break
        if checked.returncode == 0:
            return first
    return last


class _Listener:
    """Follow the output of scripts, and their current line: with ``-v`` a shell prints each line before it runs it."""

    def __init__(self, mark: str, scripts: Sequence[Script], said: Said | None) -> None:
        #: Index of the script that runs, and its line that was read last, from 1.
        self.current = -1
        self.line = 0
        self.failure = ""
        #: Bytes of the layer.
        self.size = 0
        self._blank = False
        self._mark = mark
        self._scripts = scripts
        self._said = said
        self._lines: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def tail(self) -> str:
        """The last lines of output."""
        return "\n".join(self._tail)[-_TAIL_LETTERS:].strip("\n")

    def hear(self, line: str) -> None:
        """Process a line without its end."""
        if self._mark in line:
            self._blank = False  # the newline before the mark, for scripts whose last line has none
            what = line.partition(self._mark)[2].strip()
            if what == "start":
                self.current += 1
                self.line = 0
                self._lines = self._scripts[self.current].text.splitlines()
                self._tail.clear()
            elif what.startswith("size "):
                self.size = int(what.removeprefix("size "))
            else:
                self.failure = what.removeprefix("failed").strip()
            return
        if self.current < 0:
            return
        if self.line < len(self._lines) and line == self._lines[self.line]:
            self.line += 1
            return
        if self._blank:
            self._blank = False
            self._tell("")
        if line:
            self._tell(line)
        else:
            self._blank = True

    def _tell(self, line: str) -> None:
        # Only the last state of a line that was overwritten after carriage returns, such as a progress bar.
        line = line.rstrip("\r").rpartition("\r")[2]
        line = line.replace(f"/proc/self/fd/{SCRIPT_AT}", self._scripts[self.current].label)
        self._tail.append(line)
        if self._said is not None:
            self._said(line)


async def _converse(request: BuildRequest, listener: _Listener, seconds: float) -> tuple[int | None, str, bytes]:
    """Run the process; return its exit code (None after a time-out), its own error, and the captured output."""
    answer, answer_there = os.pipe()
    request = request._replace(answer=answer_there)  # the process inherits it under the same number
    captured = asyncio.create_task(_read_pipe(answer))
    pipe = asyncio.subprocess.PIPE
    command = interpreter("builds.worker", platform.machine())
    status: int | None = None
    problem = ""
    try:
        async with child_process(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=[answer_there], env={}, cwd="/", limit=_MOST_LINE
        ) as process:
            os.close(answer_there)
            answer_there = -1
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            async with asyncio.timeout(seconds):
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(json.dumps(to_json(request)).encode())
                    await process.stdin.drain()
                    process.stdin.close()
                # The error is one line: it fits the pipe while standard output is read.
                async for line in _lines(process.stdout):
                    listener.hear(line)
                problem = (await process.stderr.read()).decode(errors="replace").strip()
                status = await process.wait()
    except TimeoutError:
        pass
    finally:
        if answer_there != -1:
            os.close(answer_there)
        # Every process of the sandbox is killed with process 1; then the pipe reaches its end.
        answered = await captured
    return status, problem.splitlines()[-1] if problem else "", answered


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while piece := await stream.read(_MOST_LINE):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(rest) > _MOST_LINE:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")


async def _read_pipe(descriptor: int) -> bytes:
    """Read a pipe to its end, and return the first ``_MOST_ANSWER`` bytes. No thread: a build may take an hour."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), io.FileIO(descriptor)
    )
    try:
        content = b""
        while len(content) < _MOST_ANSWER and (piece := await reader.read(_MOST_LINE)):
            content += piece
        return content
    finally:
        transport.close()


def _network_files() -> list[str]:
    return [name for name in ("/etc/resolv.conf", "/etc/hosts") if Path(name).exists()]


def _network_variables() -> dict[str, str]:
    names = [*_PROXIES, *(name.upper() for name in _PROXIES)]
    return {name: value for name in names if (value := os.environ.get(name))}


@contextlib.asynccontextmanager
async def _control_group(state: Path, limits: Limits) -> AsyncGenerator[tuple[list[str], Mapping[Controller, str]]]:
    """Make a control group for one build, with an owner of leases: a sweep of a sandbox runtime does not remove it."""
    owner = Owner(state)
    try:
        groups = await asyncio.to_thread(ControlGroups, owner.id)
        name = secrets.token_hex(6)
        directories = groups.directories(name)
        owner.describe([], groups.parents)
        owner.lease(name, [], directories)
        try:
            try:
                files = groups.create(name, limits)
            except OSError as error:
                raise StartFailed(f"The build sandbox did not come up: {error}") from error
            yield files, dict(groups.enforced)
        finally:
            if await remove_group(directories):
                owner.release(name)
            groups.close()
    finally:
        owner.close()
