"""Figures of the machine below /proc and /sys: nothing that one sandbox moves can be read in another.

The test reads every file of a sandbox's /proc and /sys, lets a second sandbox work, and reads again. A counter that
this package does not know yet is found by its change.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ors_containers import CommandResult, ContainerSettings
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", "apptainer")

Run = Callable[[str], Awaitable[CommandResult]]

#: Reads each file at most once a name, without processes, except the reader's network, and prints path and digest.
_READ = """
import base64, hashlib, json, os, zlib
found = {}
for top in ("/proc", "/proc/self/net", "/sys"):
    for folder, folders, files in os.walk(top):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit()]
        for name in files:
            path = os.path.join(folder, name)
            if path in ("/proc/kmsg", "/proc/kcore"):
                continue
            try:
                with open(path, "rb") as file:
                    os.set_blocking(file.fileno(), False)
                    found[path] = hashlib.sha256(file.read(1 << 20) or b"").hexdigest()[:8]
            except (OSError, ValueError):
                pass
print(base64.b64encode(zlib.compress(json.dumps(found).encode())).decode())
"""
#: Moves what the kernel counts: open files, inodes, names, terminals, processes, memory, packets, locks.
_WORK = """
import fcntl, os, socket, subprocess, tempfile
kept = [open("/dev/null") for _ in range(1500)]
for place in ("/tmp", "/dev/shm"):
    folder = tempfile.mkdtemp(dir=place)
    for number in range(1500):
        open(f"{folder}/{number}", "w").write("x" * 5000)
pipes = [os.pipe() for _ in range(300)]
terminals = [os.openpty() for _ in range(20)]
for _ in range(30):
    subprocess.run(["/bin/true"])
sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.send(b"x")
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
for _ in range(100):
    udp.sendto(b"x" * 1000, udp.getsockname())
fcntl.flock(kept[0], fcntl.LOCK_SH)
os.getrandom(10_000)
os.sync()
"""
#: What sysinfo(2) tells everybody; of the reader's own namespaces, or drawn for each reader; a processor's frequency.
_ALLOWED = re.compile(r"/proc/(meminfo|loadavg|uptime|cpuinfo|sys/kernel/(random/uuid|ns_last_pid))$")
#: Each process has them, so no mount covers them (SECURITY.md).
_NOT_CLOSED = re.compile(r"/proc/self/net/(softnet_stat|sockstat6?|protocols|stat/\w+)$")


@asynccontextmanager
async def _open(runtime: NamespaceRuntime, profile: str) -> AsyncGenerator[Run]:
    if profile == "container":
        async with await runtime.open_container(
            runtime.host_image(), ContainerSettings(disk=64 * 2**20, memory=256 * 2**20)
        ) as container:
            yield lambda command: container.run(command, timeout=60)
    else:
        async with runtime.sandbox(runtime.host_image()) as sandbox:
            yield lambda command: sandbox.run(command, timeout=60)


async def _python(run: Run, program: str) -> str:
    result = await run(f"/usr/bin/python3 - <<'END'\n{program}\nEND\n")
    if result.exit_status == 127:
        pytest.skip("there is no Python here")
    assert result.exit_status == 0, result
    return result.text


async def _digests(run: Run) -> dict[str, str]:
    return json.loads(zlib.decompress(base64.b64decode(await _python(run, _READ))))


@pytest.mark.parametrize("profile", ["strict", "container"])
async def test_nothing_that_another_sandbox_moves_can_be_read(runtime: NamespaceRuntime, profile: str) -> None:
    async with _open(runtime, profile) as run, _open(runtime, profile) as other:
        before = await _digests(run)
        assert len(before) > 300, "few files were read"
        assert "/proc/sys/fs/file-nr" in before
        await _python(other, _WORK)
        after = await _digests(run)
    moved = sorted(path for path in before if after.get(path) != before[path])
    assert [path for path in moved if not _ALLOWED.match(path) and not _NOT_CLOSED.match(path)] == []


async def test_the_figures_move_on_the_machine(runtime: NamespaceRuntime) -> None:
    """The work of the other test is noticed where nothing is covered."""
    paths = ("/proc/sys/fs/inode-nr", "/proc/sys/fs/dentry-state", "/proc/stat", "/proc/vmstat")

    def read() -> list[str]:
        return [Path(path).read_text() for path in paths]

    async with _open(runtime, "strict") as run:
        before = read()
        await _python(run, _WORK)
        assert all(one != other for one, other in zip(before, read(), strict=True))


@pytest.mark.parametrize("profile", ["strict", "container"])
async def test_programs_that_parse_the_covered_files_work(runtime: NamespaceRuntime, profile: str) -> None:
    async with _open(runtime, profile) as run:
        for command, text in {
            "nproc": "",
            "ps -ef": "PID",
            "uptime": "load average",
            "free": "Mem:",
            "vmstat": "swpd",
            "top -b -n 1": "PID",
            "cat /proc/sys/fs/file-max": "",
            "cat /proc/sys/fs/file-nr": "0\t0\t0",
            "cat /proc/sys/fs/inotify/max_user_watches": "",
            "grep btime /proc/stat": "btime 1",
        }.items():
            result = await run(command)
            assert result.exit_status in (0, 127), (command, result)
            assert result.exit_status == 127 or text in result.text, (command, result)
