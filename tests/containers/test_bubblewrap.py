"""The bubblewrap runtime beyond the contract: images, owners, failures of the machine, many sandboxes at once."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ors_containers import (
    LIMIT_NAMES,
    BubblewrapRuntime,
    FileTooLarge,
    Image,
    InvalidImage,
    Limits,
    RuntimeUnavailable,
    Sandbox,
    SandboxDied,
    SandboxStopped,
    ShellFailed,
    StartFailed,
    folder_image,
)
from ors_containers.launcher.client import LauncherClient
from ors_containers.linux.limits.proc_stat import process_status
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.support.processes import children, command_line

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Create a root file system: bash and a few programs with their libraries, with an image's owners."""
    root = tmp_path / "image"
    for name in ("bin", "etc", "data/inner", "home/user"):
        (root / name).mkdir(parents=True)
    for program in ("bash", "ls", "rm", "mkdir", "cat", "stat", "touch", "chmod"):
        found = shutil.which(program)
        assert found is not None
        shutil.copy(found, root / "bin" / program)
        for library in _libraries(found):
            target = root / str(library).removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n")
    (root / "data/file").write_text("the image's\n")
    (root / "data/inner/deep").write_text("the image's\n")
    if os.geteuid() == 0:
        for path in (root / "data", *(root / "data").rglob("*"), root / "home/user"):
            os.chown(path, 1000, 1000)
    yield root
    assert (root / "data/file").read_text() == "the image's\n", "an image was written"


def _libraries(program: str) -> list[Path]:
    import subprocess

    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
    return [Path(word) for word in words]


async def test_a_folder_is_copied_on_write(runtime: NamespaceRuntime, folder: Path) -> None:
    async with runtime.sandbox(folder_image(folder)) as sandbox:
        result = await sandbox.run("cat /data/file; echo mine > /data/file; cat /data/file", timeout=5)
        assert result.output == b"the image's\nmine\n"
        # A directory that replaces an image's directory must not show the image's files again.
        result = await sandbox.run("rm -r /data/inner && mkdir /data/inner && ls -A /data/inner", timeout=5)
        assert (result.exit_status, result.output) == (0, b"")
        result = await sandbox.run("rm /data/file; ls /data; chmod 700 /data; touch /data/new", timeout=5)
        assert (result.exit_status, result.output) == (0, b"inner\n")
    async with runtime.sandbox(folder_image(folder)) as sandbox:
        assert await sandbox.read_file("/data/inner/deep") == b"the image's\n"


async def test_an_images_files_keep_their_owners(runtime: NamespaceRuntime, folder: Path) -> None:
    async with runtime.sandbox(folder_image(folder)) as sandbox:
        result = await sandbox.run("stat -c %u:%g /etc/passwd /data/file /home/user /tmp", timeout=5)
        assert result.output == b"0:0\n1000:1000\n1000:1000\n0:0\n"
        assert (await sandbox.run("touch /etc/mine", timeout=5)).exit_status != 0


async def test_nothing_of_the_host_is_in_a_folder(runtime: NamespaceRuntime, folder: Path) -> None:
    async with runtime.sandbox(folder_image(folder)) as sandbox:
        listed = (await sandbox.run("ls -A /", timeout=5)).text.split()
        ours = {"dev", "home", "proc", "run", "tmp", "var", ".examination"}
        assert set(listed) <= {"bin", "data", "etc", "lib", "lib64", "usr", *ours}
        mounts = (await sandbox.run("cat /proc/self/mountinfo", timeout=5)).text
        assert str(folder) not in mounts


async def test_images_are_checked_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidImage, match="is not a directory"):
        folder_image(tmp_path / "none")
    with pytest.raises(InvalidImage, match="Install bash"):
        folder_image(tmp_path)
    # leads to the host's bash unless `..` is resolved within the folder
    (tmp_path / "bin").symlink_to("/usr/../../bin")
    with pytest.raises(InvalidImage, match="Install bash"):
        folder_image(tmp_path)
    for wrong in ({"layers": ()}, {"user": -1}, {"home": "relative"}, {"home": "/a/../.."}):
        with pytest.raises(InvalidImage):
            Image(**{"name": "wrong", "layers": (tmp_path,), **wrong})  # pyright: ignore[reportArgumentType] - on purpose


async def test_a_later_shell_is_as_the_first(runtime: NamespaceRuntime) -> None:
    """They are started in two ways."""
    look = (
        "cd /proc/$$; cat limits oom_score_adj cgroup; readlink ns/*; ls fd; tr '\\0' '\\n' < environ | sort;"
        "grep -E '^(Umask|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' status;"
        "grep SigIgn ../self/status; [ $(cut -d' ' -f6 stat) = $$ ]"  # bash itself ignores others at times
    )
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        first = await sandbox.run(look, timeout=10)
        await sandbox.run("kill -KILL $$", timeout=10)
        await sandbox.run("true", timeout=10)  # says that the shell is a new one
        later = await sandbox.run(look, timeout=10)

    def lasting(text: str) -> list[str]:
        # Without libc's own two signals: posix_spawn leaves them ignored, and each libc sets them before it uses them.
        ignored = re.search(r"(?<=SigIgn:\t)\w+", text)
        assert ignored is not None
        return text.replace(ignored[0], f"{int(ignored[0], 16) & ~0x180000000:016x}").splitlines()

    assert lasting(first.text) == lasting(later.text)
    assert (first.exit_status, later.exit_status) == (0, 0)


async def test_a_shell_that_cannot_start_is_reported(runtime: NamespaceRuntime, folder: Path) -> None:
    image = folder_image(folder)
    (folder / "bin/bash").write_text("not a program")
    with pytest.raises(ShellFailed, match="/bin/bash"):
        async with runtime.sandbox(image):
            pass


async def test_a_layer_that_vanished_is_reported(runtime: NamespaceRuntime, folder: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    image = Image(name="two", layers=(layer, folder))
    layer.rmdir()
    with pytest.raises(StartFailed, match="layer"):
        async with runtime.sandbox(image):
            pass


async def test_a_sandbox_that_dies_is_an_infrastructure_failure(runtime: NamespaceRuntime) -> None:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        running = asyncio.create_task(sandbox.run("sleep 100", timeout=50))
        await asyncio.sleep(0.2)
        os.kill(_process_1(sandbox), signal.SIGKILL)
        with pytest.raises(SandboxDied):
            await running
        with pytest.raises(SandboxDied):
            await sandbox.run("true", timeout=5)
        with pytest.raises(SandboxDied):
            await sandbox.read_file("/etc/passwd")


async def test_a_launcher_that_dies_takes_its_sandboxes_and_is_replaced(state: Path) -> None:
    async with _started(state) as runtime:
        async with runtime.sandbox(runtime.host_image()) as sandbox:
            launcher = _launcher()
            os.kill(launcher, signal.SIGKILL)
            with pytest.raises(SandboxDied):
                await sandbox.run("sleep 100", timeout=50)
        async with runtime.sandbox(runtime.host_image()) as sandbox:
            assert (await sandbox.run("echo again", timeout=50)).output == b"again\n"
            assert _launcher() != launcher


async def test_a_terminals_signals_do_not_end_the_launcher(state: Path) -> None:
    """A terminal's signals reach every process of the server's group; only the server ends the launcher."""
    async with _started(state) as runtime, runtime.sandbox(runtime.host_image()) as sandbox:
        launcher = _launcher()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(launcher, number)
        async with runtime.sandbox(runtime.host_image()) as another:
            assert (await another.run("echo started", timeout=5)).output == b"started\n"
        assert (await sandbox.run("echo on", timeout=5)).output == b"on\n"
        assert _launcher() == launcher


async def test_a_launcher_is_ended_also_if_its_end_is_not_awaited() -> None:
    """As at the end of an event loop: an unreaped process is a ResourceWarning in any later test."""
    client = LauncherClient()
    client.start()
    process = client.process
    os.kill(process, signal.SIGSTOP)  # so that it does not end by itself
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.wait([closing])
    assert not Path(f"/proc/{process}").exists()


async def test_a_cancelled_start_leaves_nothing(runtime: NamespaceRuntime, state: Path) -> None:
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04):
        sandbox = runtime.sandbox(runtime.host_image())
        starting = asyncio.create_task(sandbox.start())
        await asyncio.sleep(delay)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await sandbox.stop()
        with pytest.raises(SandboxStopped):
            await sandbox.run("true", timeout=1)
    assert list(state.glob("owners/*/*.lease")) == []


async def test_only_a_commands_own_processes_end_with_it(runtime: NamespaceRuntime) -> None:
    """The ids in its control group tell where there are no others, and a list otherwise."""

    async def in_the_background() -> None:
        async with runtime.sandbox(runtime.host_image()) as sandbox:
            await sandbox.run("sleep 1000 & echo $! > first", timeout=30)  # when its shell has just been started
            assert (await sandbox.run("sleep 1002", timeout=0.3)).timed_out
            assert (await sandbox.run("kill -0 $(cat first)", timeout=30)).exit_status == 0

    await asyncio.gather(*(in_the_background() for _ in range(16)))
    async with runtime.sandbox(runtime.host_image()) as sandbox:

        async def is_running(seconds: int) -> bool:
            return (await sandbox.run(f"pgrep -f 'sleep {seconds}' | grep -q .", timeout=30)).exit_status == 0

        for round_ in range(2):
            for _ in range(2):
                assert (await sandbox.run("true", timeout=30)).exit_status == 0
            await sandbox.run("sleep 1001 &", timeout=30)
            assert (await sandbox.run("sleep 1002", timeout=0.3)).timed_out
            assert (await is_running(1001), await is_running(1002)) == (True, False), round_
            running = asyncio.create_task(sandbox.run("sleep 1003", timeout=30))
            await asyncio.sleep(0.1)
            running.cancel()
            await asyncio.wait([running])
            assert (await is_running(1001), await is_running(1003)) == (True, False), round_
            await sandbox.run("kill %1; wait", timeout=30)
            assert not await is_running(1001)
        await sandbox.run("sleep 1004 & exec true", timeout=30)  # the next shell finds it
        assert (await sandbox.run("sleep 1005", timeout=0.3)).timed_out
        assert (await is_running(1004), await is_running(1005)) == (True, False)


async def test_stop_ends_a_running_command(runtime: NamespaceRuntime) -> None:
    sandbox = runtime.sandbox(runtime.host_image())
    await sandbox.start()
    running = asyncio.create_task(sandbox.run("sleep 100", timeout=50))
    await asyncio.sleep(0.1)
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    with pytest.raises(SandboxStopped):
        await running
    with pytest.raises(SandboxStopped):
        await sandbox.start()


async def test_many_at_once(runtime: NamespaceRuntime) -> None:
    sandboxes = [runtime.sandbox(runtime.host_image(), Limits(disk=8 * 2**20)) for _ in range(64)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    commands = (sandbox.run(f"echo {n} > n; sleep 0.1; cat n", timeout=30) for n, sandbox in enumerate(sandboxes))
    results = await asyncio.gather(*commands)
    assert [result.text for result in results] == [f"{n}\n" for n in range(64)]
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))


async def test_every_limit_is_described(runtime: NamespaceRuntime) -> None:
    description = runtime.describe()
    assert tuple(enforcement.limit for enforcement in description.enforcements) == LIMIT_NAMES
    assert all(enforcement.holds or enforcement.remedy for enforcement in description.enforcements)


async def test_cpu_is_limited_where_it_is_said_to_be(runtime: NamespaceRuntime) -> None:
    if not runtime.describe().enforcements[LIMIT_NAMES.index("cpu")].holds:
        pytest.skip("cpu is not enforced here")
    async with runtime.sandbox(runtime.host_image(), Limits(cpu=0.2)) as sandbox:
        burnt = await sandbox.run(
            "for n in 1 2 3 4; do timeout 1 bash -c 'while :; do :; done' & done; wait", timeout=10
        )
        result = await sandbox.run("times", timeout=10)
        minutes, seconds = result.text.splitlines()[1].split()[0].rstrip("s").split("m")
        assert 0.05 < float(minutes) * 60 + float(seconds) < 0.2 * burnt.seconds + 0.6


async def test_a_file_that_is_too_large_is_not_read(sandbox: Sandbox) -> None:
    await sandbox.write_file("big", bytes(5000))
    assert len(await sandbox.read_file("big", limit=5000)) == 5000
    with pytest.raises(FileTooLarge, match="5000 bytes"):
        await sandbox.read_file("big", limit=4999)


async def test_missing_requirements_are_named(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    tmp_path = state / "programs"  # every user may pass through it, unlike pytest's own directories
    tmp_path.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeUnavailable, match="apt install bubblewrap"):
        await BubblewrapRuntime(state).start()
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    old.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match=r"0\.4\.1 is too old"):
        await BubblewrapRuntime(state).start()
    old.write_text("#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.9.0 || { echo 'not permitted' >&2; exit 1; }\n")
    with pytest.raises(RuntimeUnavailable, match="not permitted"):
        await BubblewrapRuntime(state).start()
    assert not list(state.glob("owners/*/*.lease")), "a runtime that could not start left something"


def _started(state: Path) -> BubblewrapRuntime:
    return BubblewrapRuntime(state)


def _launcher() -> int:
    """Return the newest launcher of this process."""
    found = [child for child in children(os.getpid()) if b"ors_containers.launcher.process" in command_line(child)]
    return max(found, key=_started_at)  # not by id: ids wrap around


def _process_1(sandbox: Sandbox) -> int:
    """Return the newest process 1 of a sandbox of this process."""
    monitors = [child for child in children(_launcher()) if b"bwrap" in command_line(child)]
    return children(max(monitors, key=_started_at))[0]


def _started_at(process: int) -> int:
    return process_status(process).started


#: Its first thread ends, so that it looks like a zombie; the second thread goes on.
_HEADLESS = """
import ctypes, platform, threading, time
def go_on():
    while True:
        with open("/tmp/beat", "a") as file:
            file.write("x")
        time.sleep(0.01)
threading.Thread(target=go_on).start()
time.sleep(0.1)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


async def test_a_command_ends_with_processes_whose_first_thread_has_ended(runtime: NamespaceRuntime) -> None:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        await sandbox.write_file("/tmp/headless.py", _HEADLESS.encode())
        result = await sandbox.run("python3 /tmp/headless.py; sleep 100", timeout=2)
        assert result.timed_out
        beats = len(await sandbox.read_file("/tmp/beat"))
        assert beats > 0
        await asyncio.sleep(0.3)
        assert len(await sandbox.read_file("/tmp/beat")) == beats
