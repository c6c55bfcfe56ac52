"""Separation of sandboxes and host: locks, leases and watches of files, and names in mount tables."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import fcntl
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from ors_containers import Image, Sandbox
from ors_containers.launcher.mounts.overlays import mount_overlay
from ors_containers.linux import syscalls
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", "apptainer")

_HOLD = """
import fcntl, os, struct, sys, time
for path in sys.argv[2:]:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other = os.open(path, os.O_RDONLY)
    fcntl.fcntl(other, 37, struct.pack("hhlli4x", fcntl.F_RDLCK, 0, 0, 1, 0))  # F_OFD_SETLK
    for start in range(2, 2 * int(sys.argv[1]), 2):
        fcntl.lockf(descriptor, fcntl.LOCK_SH, 1, start)
    if os.geteuid() == 0:
        fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("held", flush=True)
time.sleep(1000)
"""
_TRY = """
import fcntl, os, struct, sys
for path in sys.argv[1:]:
    descriptor = os.open(path, os.O_RDONLY)
    found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack("hhlli4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(path, struct.unpack("h", found[:2])[0] == fcntl.F_UNLCK)
"""


@pytest.fixture
def image(runtime: NamespaceRuntime, state: Path) -> Iterator[Image]:
    """Return the host image with a folder and a file bound, whose host paths must stay unknown inside."""
    if shutil.which("python3", path="/usr/bin") is None:
        pytest.skip("there is no Python in /usr/bin")
    folder = state / "cache-of-the-host"
    folder.mkdir()
    (folder / "inner").mkdir()
    (folder / "inner/program").write_text("x")
    (folder / "alone").write_text("y")
    (folder / "sibling").write_text("z")
    host = runtime.host_image()
    binds = (*host.binds, (folder / "inner", "/.grader"), (folder / "alone", "/opt/alone"))
    yield dataclasses.replace(host, binds=binds, user=0, group=0, user_name="root", home="/root")
    shutil.rmtree(folder)


def _paths(runtime: NamespaceRuntime) -> dict[str, Path | None]:
    """Return paths inside, and the host's path of each."""
    found: dict[str, Path | None] = {path: Path(path) for path in ("/usr/bin/env", "/usr/bin/python3", "/usr/lib")}
    found |= {"/.grader": None, "/.grader/program": None, "/opt/alone": None, "/etc/passwd": None, "/proc/1/exe": None}
    found |= {"/proc/self/ns/time": Path("/proc/self/ns/time")}
    if "/dev" not in runtime.describe().shared:
        found |= {"/dev": None, "/dev/null": Path("/dev/null"), "/dev/urandom": Path("/dev/urandom")}
    return found


async def _inside(sandbox: Sandbox, program: str, *arguments: str) -> str:
    await sandbox.write_file("/tmp/program.py", program.encode())
    result = await sandbox.run(f"/usr/bin/python3 /tmp/program.py {' '.join(arguments)}", timeout=60)
    assert result.exit_status == 0, result.text
    return result.text


async def _begin(sandbox: Sandbox, program: str, *arguments: str) -> None:
    await sandbox.write_file("/tmp/begun.py", program.encode())
    started = f"/usr/bin/python3 /tmp/begun.py {' '.join(arguments)} >/tmp/said 2>&1 &"
    result = await sandbox.run(f"{started} until [ -s /tmp/said ]; do sleep 0.05; done; cat /tmp/said", timeout=60)
    assert "held" in result.text, result.text


async def test_locks_and_leases_are_a_sandboxs_own(runtime: NamespaceRuntime, image: Image) -> None:
    paths = _paths(runtime)
    async with runtime.sandbox(image) as one, runtime.sandbox(image) as other:
        await _begin(one, _HOLD, "20", *(path for path in paths if path.startswith(("/usr/bin", "/opt", "/.grader/"))))
        rest = [path for path in paths if not path.startswith(("/usr/bin", "/opt", "/.grader/"))]
        await _inside(one, _TRY, *rest)
        assert "False" not in await _inside(other, _TRY, *paths)
        with pytest.raises(AssertionError, match="Resource temporarily unavailable"):
            await _inside(one, _TRY, "/usr/bin/env")
        for path in (path for path in paths.values() if path is not None):
            descriptor = os.open(path, os.O_RDONLY)
            found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack("hhlli4x", fcntl.F_WRLCK, 0, 0, 0, 0))
            assert struct.unpack("h", found[:2])[0] == fcntl.F_UNLCK, path
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(descriptor)


async def test_watches_do_not_see_files_that_others_open(runtime: NamespaceRuntime, image: Image) -> None:
    watch = """
import ctypes, os, select, struct, sys
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(0o4000)
names = {libc.inotify_add_watch(watch, path.encode(), 0xFFF): path for path in sys.argv[1:]}
assert -1 not in names
print("held", flush=True)
while True:
    select.select([watch], [], [])
    events = os.read(watch, 65536)
    while events:
        number, mask, _, size = struct.unpack("iIII", events[:16])
        print(names[number], hex(mask), events[16 : 16 + size].rstrip(bytes(1)).decode(), flush=True)
        events = events[16 + size :]
"""
    paths = _paths(runtime)
    async with runtime.sandbox(image) as one, runtime.sandbox(image) as other:
        await _begin(one, watch, *paths, "/usr/bin")
        await asyncio.sleep(0.3)
        before = await one.read_file("/tmp/said")
        await other.run(
            f"head -c 1 {' '.join(paths)}; ls /.grader /usr /usr/bin >/dev/null; env; touch /etc/x", timeout=20
        )
        await other.examine(["/usr/bin/env"], timeout=20)
        for path in (path for path in paths.values() if path is not None):
            os.close(os.open(path, os.O_RDONLY))
        process = await asyncio.create_subprocess_exec("/usr/bin/env", stdout=asyncio.subprocess.DEVNULL)
        await process.wait()
        await asyncio.sleep(0.3)
        assert (await one.read_file("/tmp/said")).removeprefix(before) == b""
        await one.run("cat /.grader/program", timeout=20)
        assert b"/.grader 0x20 program" in await one.read_file("/tmp/said")


async def test_many_locks_do_not_slow_others_down(runtime: NamespaceRuntime, image: Image) -> None:
    """20,000 locks once made every opening of the program, by any process, a thousand times slower."""
    path = Path("/usr/bin/env")

    def opened() -> float:
        times: list[float] = []
        for _ in range(200):
            started = os.times().system
            for _ in range(20):
                descriptor = os.open(path, os.O_RDONLY)
                fcntl.lockf(descriptor, fcntl.LOCK_SH)
                os.close(descriptor)
            times.append(os.times().system - started)
        return sum(times)

    async with runtime.sandbox(image) as one:
        before = opened()
        await _begin(one, _HOLD, "4000", str(path))
        assert opened() < 5 * before + 0.2


async def test_mount_tables_name_nothing_of_the_host(runtime: NamespaceRuntime, image: Image, state: Path) -> None:
    async with runtime.sandbox(image) as sandbox:
        said = (await sandbox.run("cat /proc/self/mountinfo /proc/mounts /proc/1/mountstats", timeout=5)).text
        result = await sandbox.run(
            "cat /.grader/program /opt/alone; ls -A /opt /.grader; echo x > /opt/alone", timeout=5
        )
    assert result.text.startswith("xy/.grader:\nprogram\n\n/opt:\nalone\n"), result.text
    assert "Read-only file system" in result.text
    for name in ("cache-of-the-host", str(state), state.name, "images/", "/dev/vd", "/dev/sd", "ext4", "btrfs", "xfs"):
        assert name not in said
    kinds = set(re.findall(r" - (\w+) ", said))
    assert kinds <= {"overlay", "tmpfs", "proc", "devpts", "devtmpfs"}
    assert ("devtmpfs" in kinds) == ("/dev" in runtime.describe().shared)


async def test_devices_work(runtime: NamespaceRuntime, image: Image) -> None:
    for user in (0, 1000):
        async with runtime.sandbox(dataclasses.replace(image, user=user, group=user)) as sandbox:
            result = await sandbox.run(
                "echo x > /dev/null && head -c 4 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c && "
                "! echo x > /dev/full; ls /dev; rm -f /dev/null; mv /dev/zero /dev/null; touch /dev/x; echo /dev/null",
                timeout=5,
            )
            text = result.text
            assert text.startswith("4\n3\n"), text
            names = text.partition("No space left on device\n")[2].split()
            assert set(names) >= {"full", "null", "ptmx", "pts", "random", "shm", "tty", "urandom", "zero"}
            assert text.count("Read-only file system") == 3, text


async def test_a_layer_into_which_a_build_still_writes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [OSError(errno.EINVAL, "refused"), OSError(errno.EBUSY, "busy"), OSError(errno.EBUSY, "busy")]
    mounted: list[tuple[object, ...]] = []

    def mount(*arguments: object) -> None:
        if refusals:
            raise refusals.pop()
        mounted.append(arguments)

    monkeypatch.setattr(syscalls, "mount", mount)
    with pytest.raises(OSError, match="refused") as refused:
        mount_overlay("root", 0, "options")
    assert (refused.value.errno, refusals) == (errno.EINVAL, [])
    mount_overlay("root", 0, "options")
    assert mounted == [("overlay", "root", "overlay", 0, "options")]
