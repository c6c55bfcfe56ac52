"""Build sandboxes, seen from the server: scripts run over an image, and what they wrote becomes a layer.

``run_scripts`` starts the process of ``build_process``, listens to it, and turns what it left in its upper directory
into a layer.

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

from ors_containers.builds.worker import OVER_LIMIT, SCRIPT_AT
from ors_containers.errors import BuildFailed, StartFailed
from ors_containers.image import Image
from ors_containers.layers.ownership import LayerOwners, interpreter
from ors_containers.layers.tree import clean_layer
from ors_containers.layers.writer import too_large
from ors_containers.limits import Limits
from ors_containers.linux.cgroups import ControlGroups, Controller, remove_group
from ors_containers.linux.host_support import IDS, likely_remedy
from ors_containers.linux.leases import Owner, make_state, state_directory
from ors_containers.linux.subprocesses import child_process

__all__ = ["NEEDS_NETWORK", "BuildLimits", "Built", "Script", "run_scripts"]

#: The remedy of a ``BuildFailed`` whose last words are those of a program without a network.
NEEDS_NETWORK = "It seems to need a network, which a build has only when it is given one (--network)"

#: Host ids of build sandboxes as root: one range of those sandboxes are given, whichever.
_BASES = range(0x8000_0000, 0xFFFE_0000, IDS)
_TAIL_LINES, _TAIL_LETTERS = 40, 4000
_MOST_LINE = 1 << 16
_MOST_ANSWER = 1 << 20
_OPEN_FILES = 4096
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """What a build may use. Time is for all of its scripts together."""

    memory: int = 4 * 2**30
    pids: int = 4096
    #: Bytes of files; 0 for what the disk has.
    disk: int = 0
    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Script:
    """Shell text that is run in a build sandbox."""

    #: What errors call it, a section of a definition or "the script"; lines count from its first.
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
    """What scripts have left: bytes of files, and what captured scripts said."""

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
    """Run scripts one after the other over ``image``; ``folder``, an empty directory of the caller's, then holds
    ``upper``, a layer of what they wrote, and whatever else was needed.

    ``temporary`` are directories of which nothing is kept. ``own`` is a user's name, and his id and home where the
    image does not know the name: what is root's in that home when the scripts have ended becomes his. ``said`` is told
    each line of output. ``where`` names the place of a script's line in its file, for errors.

    Raises ``BuildFailed`` for a script that fails or is out of time, ``ImageTooLarge``, ``StartFailed`` where this
    machine cannot make a build sandbox, and ``OSError`` for the disk's own troubles.
    """
    state = state or state_directory()
    make_state(state)
    mapping = owners.mapping.message(secrets.choice(_BASES))
    shift = mapping["base"] if owners.mapping.by == "root" else 0
    for name in ("upper", "work"):
        place = folder / name
        place.mkdir()
        place.chmod(0o755)
        if shift:
            os.chown(place, shift, shift)
    mark = secrets.token_hex(16)
    # What is written goes to a disk, not to memory: that limit is kept by the process itself.
    machine_limits = Limits(memory=limits.memory, pids=limits.pids, cpu=float(os.cpu_count() or 1), disk=2**20)
    environment = _network_variables() if network else {}
    listener = _Listener(mark, scripts, said)
    async with _control_group(state, machine_limits) as (groups, enforced):
        resources = {"CORE": 0, "NOFILE": _OPEN_FILES}
        if limits.disk:
            resources["FSIZE"] = limits.disk
        if "pids" not in enforced:
            resources["NPROC"] = limits.pids
        request = {
            "server": os.getpid(),
            "mark": mark,
            "groups": groups,
            "stage": str(state / "stage"),
            "disk": str(folder),
            "layers": [str(layer) for layer in image.layers],
            "binds": [[str(source), target] for source, target in image.binds],
            "directories": [
                [place.path, place.mode, *((image.user, image.group) if place.owned else (0, 0))]
                for place in image.directories
            ],
            "mapping": mapping,
            "network": network,
            "network_files": [[name, name] for name in _network_files() if network],
            "temporary": list(temporary),
            "memory": limits.memory // 2,
            "limit": limits.disk,
            "resources": resources,
            # Where there is one user, all of it is his.
            "own": None if owners.one_id else own,
            "scripts": [
                {
                    "text": script.text if script.text.endswith("\n") else f"{script.text}\n",
                    "arguments": [script.shell, *([] if script.capture else ["-ev"]), f"/proc/self/fd/{SCRIPT_AT}"],
                    "user": script.user,
                    "group": script.group,
                    "environment": {**environment, **script.environment},
                    "directory": script.directory,
                    "capture": script.capture,
                }
                for script in scripts
            ],
        }
        status, problem, captured = await _converse(request, listener, limits.seconds)
    if problem == OVER_LIMIT:
        raise too_large(limits.disk)
    problem = problem or listener.failure or ("it ended at once" if status and listener.current < 0 else "")
    if problem:
        raise StartFailed(f"The build sandbox did not come up: {problem}", likely_remedy(problem))
    if status != 0:
        raise _failure(scripts, listener, status, limits, _remedy(listener.tail, network, owners), where)
    size = await asyncio.to_thread(clean_layer, folder / "upper", shift=shift) if shift else listener.size
    return Built(size, captured)


def _failure(
    scripts: Sequence[Script],
    listener: _Listener,
    status: int | None,
    limits: BuildLimits,
    remedy: str,
    where: Callable[[Script, int], str] | None,
) -> Exception:
    script = scripts[max(listener.current, 0)]
    line = _start_of_command(script, listener.line)
    place = where(script, line) if where is not None else f"{script.label}, line {line}" if line else script.label
    how = f"failed with {status}" if status is not None else f"was not done after {limits.seconds:g} s"
    if status == 128 + signal.SIGKILL:
        how = "was killed, most likely for using more memory than a build may"
    source = script.text.splitlines()
    command = f": {source[line - 1].strip()[:200]}" if 0 < line <= len(source) else ""
    return BuildFailed(f"{place} {how}{command}", remedy, output=listener.tail)


_NO_SPACE = re.compile(r"no space left on device|file too large|file size limit exceeded", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"temporary failure (in name resolution|resolving)|could not resolve|name or service not known|"
    r"network is unreachable|no matching distribution found|failed to establish a new connection|bad address|"
    r"unable to locate package|has no installation candidate|failed to fetch|could not connect",
    re.IGNORECASE,
)
_NO_OWNERS = re.compile(r"invalid argument|seteuid|setgroups|setegid|chown|changing ownership", re.IGNORECASE)


def _remedy(said: str, network: bool, owners: LayerOwners) -> str:
    """What a failed script most likely lacked, going by its last words."""
    if _NO_SPACE.search(said):
        return "The disk is full, or the limit of the image is reached (--max-size)"
    if not network and _NO_NETWORK.search(said):
        return NEEDS_NETWORK
    if owners.one_id and _NO_OWNERS.search(said):
        return (
            "This user has one id only, so files can have no other owner: install uidmap and give it a range of 65536 "
            "in /etc/subuid and /etc/subgid"
        )
    return ""


def _start_of_command(script: Script, last: int) -> int:
    """The first line of the command that ends in line ``last``: the shortest piece a shell can read."""
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
    """Follows what scripts say, and how far their shell has read: with ``-v`` it says each line before it runs it."""

    def __init__(self, mark: str, scripts: Sequence[Script], said: Said | None) -> None:
        #: Index of the script that runs, and its line that was read last, from 1.
        self.current = -1
        self.line = 0
        self.failure = ""
        #: Bytes of what was written, once it is a layer.
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
        """Take a line without its end."""
        if self._mark in line:
            self._blank = False  # the mark's own line end, for scripts that leave theirs out
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
        # Of a line that was written over and over, what was left of it.
        line = line.rstrip("\r").rpartition("\r")[2]
        line = line.replace(f"/proc/self/fd/{SCRIPT_AT}", self._scripts[self.current].label)
        self._tail.append(line)
        if self._said is not None:
            self._said(line)


async def _converse(
    request: Mapping[str, object], listener: _Listener, seconds: float
) -> tuple[int | None, str, bytes]:
    """Run the process; its exit code (None when it was out of time), what it says of itself, what scripts answered."""
    answer, answer_there = os.pipe()
    number = answer_there  # the same there
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
                    process.stdin.write(json.dumps({**request, "answer": number}).encode())
                    await process.stdin.drain()
                    process.stdin.close()
                # The problem is one line, so it fits the pipe while the other is read.
                async for line in _lines(process.stdout):
                    listener.hear(line)
                problem = (await process.stderr.read()).decode(errors="replace").strip()
                status = await process.wait()
    except TimeoutError:
        pass
    finally:
        if answer_there != -1:
            os.close(answer_there)
        # Every process of the sandbox is killed with the first; the pipe's end says that they are gone.
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
    """What is written to a pipe until its end, or the beginning of it. Takes no thread: a build may last an hour."""
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
    """A group for one build, under a lease of an owner of its own: a janitor of a sandbox runtime leaves it alone."""
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
