"""The server's side of build sandboxes: run scripts over an image and make a layer of what they wrote.

``run_scripts`` starts the process of ``builds.worker``, reads its output, and makes a layer of its upper directory.

Invariant: whatever happens, no process of a build outlives the call, and no control group is left without a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_containers.builds.messages import OVER_LIMIT, SCRIPT_AT, BuildRequest, BuildScript, HomeOwner
from ors_containers.builds.scripts import Scratch, Script, ScriptOutput
from ors_containers.errors import StartFailed
from ors_containers.image import Image
from ors_containers.launcher.messages import Bind, RootDirectory
from ors_containers.launcher.records import to_json
from ors_containers.layers.ownership import LayerOwners, interpreter
from ors_containers.layers.tree import clean_layer
from ors_containers.layers.writer import too_large
from ors_containers.limits import Limits
from ors_containers.linux.host_support import IDS, likely_remedy
from ors_containers.linux.leases import Owner, make_state, state_directory
from ors_containers.linux.limits.cgroups import ControlGroups, Controller, remove_group
from ors_containers.linux.limits.open_files import OPEN_FILES
from ors_containers.linux.subprocesses import MOST_LINE, child_process, output_lines, pipe_file

__all__ = ["BuildLimits", "Built", "run_scripts"]

#: Host ids of build sandboxes as root: one range of those sandboxes are given, whichever.
_BASES = range(0x8000_0000, 0xFFFE_0000, IDS)
_MOST_ANSWER = 1 << 20
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """Limits of a build. The time is for all of its scripts together."""

    memory: int = 4 * 2**30
    pids: int = 4096
    #: Bytes of files; 0 for what the disk has.
    disk: int = 0
    seconds: float = 3600.0


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
    scratch: Sequence[Scratch] = (),
    own: tuple[str, int, str] | None = None,
    said: Callable[[str], None] | None = None,
    state: Path | None = None,
    where: Callable[[Script, int], str] | None = None,
) -> Built:
    """Run scripts one after the other over ``image``.

    ``folder`` is an empty directory of the caller's; afterwards it holds ``upper``, a layer of what the scripts wrote,
    and temporary files.

    ``temporary`` are directories in memory that are not kept, ``scratch`` are such directories on disk. ``own`` is a
    user's name, and the user's id and home for an image that does not know the name: files of root in that home are
    chowned to the user when the scripts have ended.
    ``said`` is called with each line of output. ``where`` names the place of a script's line in its file, for errors.

    Raises ``BuildFailed`` for a script that fails or times out (``BuildNeedsNetwork`` where it lacked a network),
    ``ImageTooLarge``, ``StartFailed`` where this machine cannot make a build sandbox, and ``OSError`` of the disk.
    """
    state = state or state_directory()
    make_state(state)
    mapping = owners.mapping.of_sandbox(secrets.choice(_BASES))
    shift = mapping.base if owners.mapping.by == "root" else 0
    own_places = {"upper": Scratch(""), "work": Scratch("")}
    own_places |= {f"scratch{number}": place for number, place in enumerate(scratch)}
    for name, about in own_places.items():
        place = folder / name
        place.mkdir()
        # Only as root can this process give a directory to another user.
        place.chmod(about.mode if shift or not about.user else 0o777)
        if shift:
            os.chown(place, shift + about.user, shift + about.group)
    mark = secrets.token_hex(16)
    # Writes go to a disk, not to memory; the process itself enforces their limit.
    machine_limits = Limits(memory=limits.memory, pids=limits.pids, cpu=float(os.cpu_count() or 1), disk=2**20)
    environment = _network_variables() if network else {}
    output = ScriptOutput(mark, scripts, said)
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
            scratch=[place.path for place in scratch],
            memory=limits.memory // 2,
            limit=limits.disk,
            resources=resources,
            own=None if own is None or owners.one_id else HomeOwner(*own),  # with one id, every file is the user's
            scripts=[
                BuildScript(
                    text=script.text if script.text.endswith("\n") else f"{script.text}\n",
                    arguments=list(script.arguments)
                    or [script.shell, *([] if script.capture else ["-ev"]), f"/proc/self/fd/{SCRIPT_AT}"],
                    user=script.user,
                    group=script.group,
                    environment={**environment, **script.environment},
                    directory=script.directory,
                    capture=script.capture,
                    others=list(script.groups),
                )
                for script in scripts
            ],
            answer=-1,
        )
        status, problem, captured = await _converse(request, output, limits.seconds)
    if problem == OVER_LIMIT:
        raise too_large(limits.disk)
    problem = problem or output.problem or ("it ended at once" if status and output.current < 0 else "")
    if problem:
        raise StartFailed(f"The build sandbox did not come up: {problem}", likely_remedy(problem))
    if status != 0:
        raise output.script_failure(status, limits.seconds, network=network, one_id=owners.one_id, where=where)
    size = await asyncio.to_thread(clean_layer, folder / "upper", shift=shift) if shift else output.size
    return Built(size, captured)


async def _converse(request: BuildRequest, output: ScriptOutput, seconds: float) -> tuple[int | None, str, bytes]:
    """Run the process; return its exit code (None after a time-out), its own error, and the captured output."""
    command = interpreter("builds.worker", platform.machine())
    answer, answer_there = os.pipe()
    request = request._replace(answer=answer_there)  # the process inherits it under the same number
    captured = asyncio.create_task(_read_pipe(answer))
    pipe = asyncio.subprocess.PIPE
    status: int | None = None
    problem = ""
    try:
        async with child_process(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=[answer_there], env={}, cwd="/", limit=MOST_LINE
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
                async for line in output_lines(process.stdout):
                    output.hear(line)
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


async def _read_pipe(descriptor: int) -> bytes:
    """Read a pipe to its end, and return the first ``_MOST_ANSWER`` bytes. No thread: a build may take an hour."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe_file(descriptor, "rb")
    )
    try:
        content = b""
        while len(content) < _MOST_ANSWER and (piece := await reader.read(MOST_LINE)):
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
