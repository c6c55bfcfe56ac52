"""Docker-like containers: commands, files, root's rights, mounts, sidecars and the end."""

from __future__ import annotations

import asyncio
import hashlib
import platform
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ors_containers import (
    Container,
    ContainerSettings,
    FileError,
    HostAlias,
    InvalidCommand,
    InvalidMount,
    Mount,
    NoSuchFile,
    NotAFile,
    SandboxDied,
    SandboxStopped,
    Sidecar,
)
from ors_containers.linux.leases import sweep
from ors_containers.linux.programs.pause_program import elf_file
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.support.processes import processes
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 2**20


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def container(runtime: NamespaceRuntime) -> AsyncIterator[Container]:
    async with await runtime.open_container(runtime.host_image(), ContainerSettings(disk=256 * MIB)) as container:
        yield container


async def output(container: Container, command: str) -> str:
    result = await container.run(command, timeout=30)
    assert result.exit_status == 0, result.text
    return result.text.strip()


# ── commands ──


async def test_a_command_has_a_shell_of_its_own(container: Container) -> None:
    assert await output(container, "cd /tmp; export X=1; f() { :; }; pwd") == "/tmp"
    assert await output(container, 'pwd; echo "${X-unset}"; type f 2>/dev/null || true') == "/\nunset"
    assert await output(container, "echo kept > /tmp/kept") == ""
    assert await output(container, "cat /tmp/kept; id -u") == "kept\n0"


async def test_both_streams_are_one_and_input_is_empty(container: Container) -> None:
    assert await output(container, "echo 1; echo 2 >&2; cat; echo 3") == "1\n2\n3"


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("nothing-like-it", 127), ("if", 2), ("false", 1)],
)
async def test_exit_status(container: Container, command: str, status: int) -> None:
    assert (await container.run(command, timeout=10)).exit_status == status


async def test_errors_name_the_shell(container: Container) -> None:
    result = await container.run("nothing-like-it", timeout=10)
    assert result.text == "/bin/bash: line 1: nothing-like-it: command not found\n"


async def test_another_shell(container: Container) -> None:
    assert (await container.run("echo $0", shell="/bin/sh")).text == "/bin/sh\n"
    missing = await container.run("echo", shell="/no/such/shell")
    assert (missing.exit_status, missing.truncated) == (127, False)
    assert (await container.run("echo", shell="/etc/passwd")).exit_status == 126


async def test_commands_overlap(container: Container) -> None:
    together = (
        "mkdir -p /tmp/met; : > /tmp/met/{0}; until [ $(ls /tmp/met | wc -l) = 20 ]; do sleep 0.1; done; echo {0}"
    )
    results = await asyncio.gather(*(container.run(together.format(n), timeout=60) for n in range(20)))
    assert [result.text for result in results] == [f"{n}\n" for n in range(20)]


async def test_background_processes_last(container: Container) -> None:
    writing = "(until [ -e /tmp/go ]; do echo on; sleep 0.1; done; echo end > /tmp/end) &"
    result = await container.run(writing, timeout=60)
    assert (result.exit_status, result.timed_out) == (0, False)
    waiting = ": > /tmp/go; until [ -s /tmp/end ]; do sleep 0.1; done; cat /tmp/end"
    assert await output(container, waiting) == "end"  # not killed by SIGPIPE


async def test_a_long_command_is_a_file(container: Container) -> None:
    content = "x" * 14_000_000
    result = await container.run(f"wc -c <<'END'\n{content}\nEND\necho $# $-; cat", timeout=60)
    assert result.exit_status == 0
    assert result.text.splitlines()[0].strip() == "14000001"
    assert await output(container, f": {'y' * 119_000}; echo short; cat") == "short"
    assert await output(container, f": {'y' * 125_000}; echo long; cat") == "long"


async def test_the_head_of_the_output_is_kept(container: Container) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await container.run("echo first; head -c 1000000000 /dev/zero; echo last; exit 5", max_bytes=50_000)
    assert (result.exit_status, len(result.output), result.truncated) == (5, 50_000, True)
    assert result.output.startswith(b"first\n\0")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024
    for size, limit in ((0, 0), (1, 1), (5, 5)):
        exact = await container.run(f"head -c {size} /dev/zero", max_bytes=limit)
        assert (len(exact.output), exact.truncated) == (size, False)
    assert (await container.run("echo x", max_bytes=0)).truncated
    assert len((await container.run("head -c 3000000 /dev/zero")).output) == 3_000_000


async def test_a_timeout_ends_the_commands_processes(container: Container) -> None:
    other = await container.run("sleep 77 & echo $!", timeout=10)
    started = time.monotonic()
    command = "trap '' TERM; echo begun; (sleep 78 & (setsid sleep 78; :) & wait); sleep 78"
    result = await container.run(command, timeout=0.5)
    assert (result.exit_status, result.timed_out, result.text) == (124, True, "begun\n")
    assert time.monotonic() - started < 40
    # Processes of another command go on.
    assert await output(container, "pgrep -f 'sleep 7[78]' | wc -l; kill -0 " + other.text) == "1"
    await container.run("pkill -f 'sleep 7[78]'")
    zero = await container.run("sleep 79", timeout=0)
    assert (zero.exit_status, zero.timed_out) == (124, True)
    assert await output(container, "pgrep -f 'sleep 7[9]' | wc -l") == "0"


async def test_a_cancelled_command_is_ended(container: Container) -> None:
    running = asyncio.create_task(container.run("sleep 81"))
    await asyncio.sleep(0.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await output(container, "pgrep -f 'sleep 8[1]' | wc -l") == "0"


@pytest.mark.parametrize("after", [0.0, 0.0005, 0.002, 0.005])
async def test_a_command_that_is_cancelled_as_it_starts_is_ended(container: Container, after: float) -> None:
    """The launcher has the request then, and would start the shell."""
    running = asyncio.create_task(container.run("sleep 0.4; echo > /tmp/started; sleep 82"))
    await asyncio.sleep(after)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.6)
    assert await output(container, "ls /tmp/started 2>/dev/null; pgrep -f 'sleep 8[2]' | wc -l") == "0"


#: A process that forks a child and ends, as its child does, 10,000 times a second.
_FORK_AND_EXIT = b"\xb8\x39\0\0\0\x0f\x05\x85\xc0\x74\xf5\xb8\xe7\0\0\0\x31\xff\x0f\x05"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for x86-64")
async def test_a_family_that_flees_is_ended_alone(runtime: NamespaceRuntime) -> None:
    settings = ContainerSettings(disk=64 * MIB, cpus=2)
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        await container.write("/tmp/flee", elf_file("x86_64", _FORK_AND_EXIT))
        await output(container, "chmod 755 /tmp/flee; sleep 83 & sleep 83 & echo")
        # On a busy machine a process can be in the middle of a fork for long when it is sent SIGSTOP.
        await output(container, "for n in 1 2 3 4; do timeout 60 sh -c 'while :; do :; done' & done; echo")
        for _ in range(4):
            result = await container.run("for n in $(seq 16); do /tmp/flee & done; sleep 60", timeout=0.5)
            assert result.timed_out
            ended = "for n in $(seq 200); do pgrep flee > /dev/null || break; sleep 0.1; done; pgrep flee | wc -l"
            assert await output(container, f"{ended}; pgrep -f 'sleep 8[3]' | wc -l") == "0\n2"


@pytest.mark.parametrize(
    "arguments", [{"command": "a\0b"}, {"command": "x", "timeout": -1}, {"command": "x", "shell": "bash"},
                  {"command": "x", "max_bytes": -1}, {"command": "\udc80"}, {"command": "x", "timeout": float("nan")}],
)  # fmt: skip
async def test_refused_commands(container: Container, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidCommand):
        await container.run(**arguments)  # pyright: ignore[reportArgumentType]


async def test_variables(runtime: NamespaceRuntime) -> None:
    environment = {"KEY": "a b", "HOME": "/tmp", "LANG": "C"}
    settings = ContainerSettings(disk=64 * MIB, environment=environment, host_name="box")
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        assert await output(container, 'echo "$KEY $HOME $USER $(hostname)"') == "a b /tmp root box"
        # A locale that is chosen by LANG is not overruled.
        assert await output(container, "x=\u00e9; echo ${#x}; LANG=C.UTF-8; echo ${#x}") == "2\n1"


# ── files ──


async def test_files(container: Container) -> None:
    content = bytes(range(256)) * 5000
    assert await container.write("/made/here/file", content, parents=True) == len(content)
    assert await container.write("/made/here/file", b"END", offset=len(content), truncate=False) == len(content) + 3
    assert await container.read("/made/here/file", offset=256, length=3) == (b"\0\1\2", len(content) + 3)
    assert await container.digest("/made/here/file") == (hashlib.sha256(content + b"END").hexdigest(), len(content) + 3)
    assert (await container.read("/made/here/file"))[0] == content + b"END"
    assert (await container.read("/made/here/file", offset=10**9, length=1))[0] == b""
    await output(container, "chmod 755 /made/here/file")
    await container.write("/made/here/file", content + b"END")
    assert (await container.stat("/made/here/file")).mode == 0o755
    await container.rename("/made/here/file", "/made/new")
    found = await container.stat("/made/new")
    assert (found.kind, found.size, found.user) == ("file", len(content) + 3, 0)
    with pytest.raises(NoSuchFile):
        await container.stat("/made/here/file")


async def test_links_and_special_files_are_refused(container: Container) -> None:
    await output(container, "mkdir -p /l; ln -sf /etc/passwd /l/link; mkfifo /l/pipe; mkdir -p /l/dir")
    assert (await container.stat("/l/link")).kind == "link"
    with pytest.raises(FileError, match="symlink"):
        await container.read("/l/link")
    with pytest.raises(FileError, match="symlink"):
        await container.write("/l/link", b"x")
    for path in ("/l/pipe", "/l/dir", "/dev/null"):
        with pytest.raises(NotAFile):
            await container.read(path)
    with pytest.raises(FileError):
        await container.read("l/link")


# ── mounts, sidecars, limits ──


async def test_a_mount_is_one_folder_read_only(runtime: NamespaceRuntime, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    (bucket / "inputs/deep").mkdir(parents=True)
    (bucket / "inputs/deep/a").write_text("a")
    (bucket / "answers").write_text("secret")
    (bucket / "inputs/deep/up").symlink_to("../../answers")
    (bucket / "link").symlink_to("inputs")
    settings = ContainerSettings(disk=64 * MIB, mounts=(Mount(bucket, "/orwd_data", "inputs/deep"),))
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        assert await output(container, "ls /orwd_data; cat /orwd_data/a; cat /orwd_data/up || true") == (
            "a\nup\nacat: /orwd_data/up: No such file or directory"
        )
        for attack in (
            "echo x > /orwd_data/new",
            "rm /orwd_data/a",
            "mv /orwd_data /elsewhere",
            "mount -o remount,rw,bind /orwd_data",
            "umount -l /orwd_data",
            "chmod 777 /orwd_data/a",
        ):
            assert (await container.run(attack)).exit_status != 0, attack
    assert (bucket / "inputs/deep/a").read_text() == "a"
    for only in ("../bucket/answers", "link", "inputs/../answers", "/etc", "missing", "answers"):
        broken = ContainerSettings(disk=64 * MIB, mounts=(Mount(bucket, "/orwd_data", only),))
        with pytest.raises(InvalidMount):
            await runtime.open_container(runtime.host_image(), broken)
    for target in ("data", "/a/../b", "/data\0"):
        with pytest.raises(InvalidMount):
            Mount(bucket, target)


@pytest.mark.parametrize(
    "target",
    [
        *(
            "/",
            "//",
            "/.",
            "/./",
            "/proc/x",
            "/dev",
            "/dev/shm/x",
            "/sys",
            "/etc",
            "/etc/ssl/certs",
            "//etc",
            "/./usr/bin",
        ),
        *(
            "/usr",
            "/usr/bin/",
            "/usr/local/bin",
            "/bin",
            "/sbin",
            "/lib",
            "/lib64/x",
            "/libx32",
            "/boot",
            "/.examination",
        ),
        *("/tmp", "/tmp/.", "/var", "/var/lib", "/var/tmp/", "/run", "/home", "/root"),
    ],
)
async def test_folders_of_the_system_are_no_places_of_a_mount(tmp_path: Path, target: str) -> None:
    with pytest.raises(InvalidMount, match="Choose a folder of its own"):
        Mount(tmp_path, target)


@pytest.mark.parametrize(
    "target",
    ["/data", "/orwd_data/", "/tmp/data", "/var/lib/task", "/root/data", "/home/user/x", "/mnt", "/opt/x", "/etcetera"],
)
async def test_other_folders_are(tmp_path: Path, target: str) -> None:
    assert Mount(tmp_path, target).target == target


async def test_sidecars_share_the_network_alone(runtime: NamespaceRuntime) -> None:
    server = (
        "import http.server, os; open('/side', 'w').write(os.environ['KEY']); "
        "http.server.test(http.server.SimpleHTTPRequestHandler, port=8080, bind='127.0.0.1')"
    )
    sidecar = Sidecar("web", runtime.host_image(), ("python3", "-c", server), {"KEY": "value"})
    settings = ContainerSettings(
        disk=64 * MIB, sidecars=(sidecar,), host_aliases=(HostAlias("127.0.0.1", ("web", "web.local")),)
    )
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        get = "import urllib.request; print(urllib.request.urlopen('http://web.local:8080/side').read())"
        wait = f'for n in $(seq 50); do /usr/bin/python3 -c "{get}" 2>/dev/null && break; sleep 0.1; done'
        assert await output(container, wait) == "b'value'"
        assert await output(container, "ls /side 2>/dev/null; pgrep python3 | wc -l") == "0"


async def test_limits(runtime: NamespaceRuntime) -> None:
    settings = ContainerSettings(memory=128 * MIB, pids=64, disk=64 * MIB)
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        full = await container.run("head -c 200000000 /dev/zero > /tmp/full; df --output=size -k / | tail -1")
        assert "No space left" in full.text
        assert (await container.run("rm /tmp/full; head -c 30000000 /dev/zero > /root/part")).exit_status == 0
        held = {enforcement.limit for enforcement in runtime.describe().enforcements if enforcement.holds}
        if "memory" in held:
            assert (await container.run("/usr/bin/python3 -c 'x = bytearray(400000000)'")).exit_status == 137
        if "pids" in held:
            assert (
                "Resource temporarily unavailable"
                in (await container.run("for n in $(seq 100); do sleep 1 & done", timeout=30)).text
            )
        await asyncio.sleep(1)
        assert await output(container, "echo alive") == "alive"


# ── the end ──


async def test_the_end(runtime: NamespaceRuntime) -> None:
    container = await runtime.open_container(runtime.host_image(), ContainerSettings(disk=64 * MIB))
    running = asyncio.create_task(container.run("sleep 100"))
    await asyncio.sleep(0.3)
    await container.close()
    await container.close()
    with pytest.raises(SandboxStopped):
        await running
    with pytest.raises(SandboxStopped):
        await container.run("true")
    with pytest.raises(SandboxStopped):
        await container.read("/etc/passwd")


async def test_the_disk_of_an_ended_container_is_freed(runtime: NamespaceRuntime) -> None:
    before = _attached()
    container = await runtime.open_container(runtime.host_image(), ContainerSettings(disk=64 * MIB))
    await container.run("head -c 30000000 /dev/urandom > /root/part")
    await container.close()
    await until(lambda: _attached() <= before, "a loop device is left", within=20)


async def test_a_container_that_dies(runtime: NamespaceRuntime) -> None:
    container = await runtime.open_container(runtime.host_image(), ContainerSettings(disk=64 * MIB))
    process_1 = next(iter(getattr(container, "_parts")))  # noqa: B009 - private: only the test kills it
    running = asyncio.create_task(container.run("sleep 100"))
    await asyncio.sleep(0.3)
    signal.pidfd_send_signal(process_1.process_1, signal.SIGKILL)
    with pytest.raises(SandboxDied):
        await running
    with pytest.raises(SandboxDied):
        await container.run("true")
    await container.close()


_VICTIM = """
import asyncio, os, signal, sys
from pathlib import Path
from ors_containers import BubblewrapRuntime, ContainerPolicy, ContainerSettings, Sidecar

async def main():
    runtime = BubblewrapRuntime(Path(sys.argv[1]))
    runtime.policy = ContainerPolicy(network="open")
    await runtime.start()
    image = runtime.host_image()
    side = Sidecar("side", image, ("/bin/sleep", "987654"))
    for _ in range(3):
        settings = ContainerSettings(disk=64 * 2**20, network="open", sidecars=(side,))
        container = await runtime.open_container(image, settings)
        await container.run("sleep 987654 & head -c 10000000 /dev/zero > /big")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_killed_server_leaves_nothing(state: Path, runtime: NamespaceRuntime) -> None:
    """No process, mount, loop device or control group, and no file of a disk; the next server removes the leases."""
    assert runtime  # it works here
    before = _attached()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _VICTIM, str(state))
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: not _running("987654") and not _running("slirp4netns"), "processes are left", within=20)
    await until(lambda: _attached() <= before, "a loop device is left", within=20)
    assert str(state) not in Path("/proc/self/mountinfo").read_text()
    assert len(await sweep(state)) == 3
    assert len(list((state / "owners").iterdir())) == 1  # this test's own runtime


def _running(word: str) -> list[int]:
    return processes(lambda arguments: word.encode() in arguments.split(b"\0"))


def _attached() -> set[str]:
    return {path.parent.parent.name for path in Path("/sys/block").glob("loop*/loop/backing_file")}
