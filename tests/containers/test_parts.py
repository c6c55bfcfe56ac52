"""Parts that need no sandbox: the output buffer, limits, the system call filter, process 1's program."""

from __future__ import annotations

import errno
import os
import platform
import signal
import struct
import subprocess
import sys
from pathlib import Path

import ors_containers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ors_containers import FileError, InvalidLimits, Limits, SandboxError, UnknownRuntime, find_runtime, runtime_names
from ors_containers.errors import RuntimeUnavailable, file_error
from ors_containers.linux.confinement.seccomp import ARCHITECTURES, seccomp_filter
from ors_containers.linux.confinement.user_namespaces import IdMap, mapped_namespace
from ors_containers.linux.host_support import find_bubblewrap
from ors_containers.linux.programs.pause_program import MACHINES, pause_program
from ors_containers.runtimes.shells.output_buffer import HeadAndTail
from ors_containers.runtimes.shells.shell_protocol import Frames

from tests.support.processes import children


@given(limit=st.integers(2, 50), pieces=st.lists(st.binary(max_size=40), max_size=20))
def test_both_ends_are_kept(limit: int, pieces: list[bytes]) -> None:
    kept, everything = HeadAndTail(limit), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    if len(everything) <= limit:
        assert (kept.content(), kept.omitted) == (everything, 0)
        return
    head, tail = everything[: limit - limit // 2], everything[-(limit // 2) :]
    omitted = len(everything) - limit
    assert kept.omitted == omitted
    assert kept.content() == head + b"\n[... %d bytes omitted ...]\n" % omitted + tail


def test_the_output_buffer_is_bounded() -> None:
    kept = HeadAndTail(1000)
    for _ in range(1000):
        kept.add(bytes(100_000))
    assert kept.total == 100_000_000
    assert len(kept.content()) < 1100


@pytest.mark.parametrize("wrong", [{"memory": 1}, {"pids": 0}, {"cpu": 0.0}, {"disk": 0}, {"wall": 0.0}, {"output": 1}])
def test_limits_nothing_can_run_in_are_refused(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidLimits, match=name):
        Limits(**wrong)


def test_every_name_of_the_package_is_there() -> None:
    for name in ors_containers.__all__:
        assert getattr(ors_containers, name) is getattr(ors_containers, name)
    with pytest.raises(AttributeError):
        _ = ors_containers.nothing


def test_runtimes_are_found_by_name() -> None:
    assert runtime_names()[0] == "bubblewrap"
    assert find_runtime("bubblewrap") is ors_containers.BubblewrapRuntime
    with pytest.raises(UnknownRuntime, match="Installed: bubblewrap"):
        find_runtime("none")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_errors_of_files_are_errors_of_the_system_too(number: int) -> None:
    error = file_error("/a", number)
    assert isinstance(error, FileError)
    assert isinstance(error, OSError)
    assert isinstance(error, SandboxError)
    assert (error.errno, str(error)) == (number, f"/a: {os.strerror(number)}")


def _answer(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Run a filter as the kernel's interpreter does. Return 0 for allowed, else the errno."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(value & 0xFFFFFFFFFFFFFFFF for value in padded))
    place = accumulator = 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * place)
        place += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x15:
                place += if_true if accumulator == value else if_false
            case 0x35:
                place += if_true if accumulator >= value else if_false
            case 0x45:
                place += if_true if accumulator & value else if_false
            case 0x06:
                return 0 if value == 0x7FFF0000 else value & 0xFFFF
            case _:
                raise AssertionError(f"instruction {code:#x}")


# From the kernel's tables, by other means than the filter's own.
_NUMBERS = {
    "x86_64": {
        "read": 0,
        "clone": 56,
        "clone3": 435,
        "ioctl": 16,
        "socket": 41,
        "ptrace": 101,
        "mount": 165,
        "bpf": 321,
    },
    "aarch64": {
        "read": 63,
        "clone": 220,
        "clone3": 435,
        "ioctl": 29,
        "socket": 198,
        "ptrace": 117,
        "mount": 40,
        "bpf": 280,
    },
}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter(machine: str) -> None:
    program, own, numbers = seccomp_filter(machine), ARCHITECTURES[machine], _NUMBERS[machine]
    assert len(program) // 8 < 4096  # the kernel's maximum

    def answer(name: str, *arguments: int) -> int:
        return _answer(program, own, numbers[name], *arguments)

    assert answer("read") == 0
    for name in ("ptrace", "mount", "bpf"):
        assert answer(name) == errno.EPERM
    assert answer("clone3") == errno.ENOSYS
    assert answer("clone", signal.SIGCHLD) == 0
    for bit in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer("clone", signal.SIGCHLD | bit) == errno.EPERM
    threads = 0x3D0F00  # the flags of pthread_create
    assert answer("clone", threads) == 0
    assert answer("ioctl", 1, 0x5412) == errno.EPERM  # TIOCSTI
    assert answer("ioctl", 1, 0x1_0000_5412) == errno.EPERM  # the kernel reads 32 bits of it
    assert answer("ioctl", 1, 0x5401) == 0
    for family in (1, 2, 10, 16):
        assert answer("socket", family) == 0
    for family in (17, 38, 40, 0, 45):
        assert answer("socket", family) == errno.EAFNOSUPPORT
    for foreign in (0x40000003, 0xC000003E, 0xC00000B7, 0):
        if foreign != own:
            assert _answer(program, foreign, 0) == errno.ENOSYS
    assert _answer(program, own, numbers["read"] | 0x40000000) == (errno.ENOSYS if machine == "x86_64" else 0)


def test_the_launcher_imports_little() -> None:
    """Each of its children has a copy of what it has imported, an episode has several."""
    script = "import sys; sys.path.append(sys.argv[1]); import ors_containers.launcher.process; print(*sys.modules)"
    sources = str(Path(ors_containers.__file__).parents[1])
    said = subprocess.run([sys.executable, "-I", "-S", "-c", script, sources], capture_output=True, check=True).stdout
    unwanted = {"asyncio", "dataclasses", "inspect", "logging", "mmap", "random", "subprocess", "tempfile", "threading"}
    assert unwanted.isdisjoint(said.decode().split())


def test_processes_are_signalled_where_written_memory_is_never_executed() -> None:
    """As under systemd's MemoryDenyWriteExecute. Signal 0 is received by no process."""
    script = (
        "import ctypes, os, sys; sys.path.append(sys.argv[1]); ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)\n"
        "from ors_containers.linux.programs.machine_code_children import signal_all_by_child\n"
        "for _ in range(2): print(os.waitpid(signal_all_by_child(0), 0)[1])"
    )
    sources = str(Path(ors_containers.__file__).parents[1])
    said = subprocess.run([sys.executable, "-I", "-S", "-c", script, sources], capture_output=True, check=False)
    assert (said.stdout, said.stderr) == (b"0\n0\n", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root maps ids of others")
@pytest.mark.parametrize("own_account", [True, False])
def test_a_user_namespace_is_mapped_without_changing_this_process(own_account: bool) -> None:
    def own() -> tuple[object, ...]:
        words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return words["Uid"], words["CapEff"], words["CapPrm"], len(list(Path("/proc/self/fd").iterdir()))

    before, others = own(), children(os.getpid())
    namespace = mapped_namespace(IdMap("root", base=2_000_000_000, size=10, own_account=own_account))
    inside = ["nsenter", f"--user=/proc/self/fd/{namespace}", "--setuid=3", "--setgid=0", "cat", "/proc/self/uid_map"]
    said = subprocess.run(inside, pass_fds=[namespace], capture_output=True, text=True, check=True).stdout
    os.close(namespace)
    assert (said.split(), own()) == (["0", "2000000000", "10"], before)
    assert set(children(os.getpid())) <= set(others)


def test_a_waiting_child_ends_with_its_parent() -> None:
    script = (
        "import os, sys; sys.path.append(sys.argv[1])\n"
        "from ors_containers.linux.programs.machine_code_children import waiting_child\n"
        "print(waiting_child(0, *os.pipe()), flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(Path(ors_containers.__file__).parents[1])]
    # It has the output open: this waits for its end.
    assert int(subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False).stdout) > 0


def test_the_first_process_waits_and_reaps(tmp_path: Path) -> None:
    machine = platform.machine()
    if machine not in MACHINES:
        pytest.skip(f"there is no program for {machine}")
    program = tmp_path / "pause"
    program.write_bytes(pause_program(machine))
    program.chmod(0o755)
    # Its child, forked before the exec, ends and must not stay a zombie.
    process = subprocess.Popen(["sh", "-c", f"sleep 0.1 & exec {program}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.read(1) == b"\n"
        deadline = 100
        while children(process.pid) and deadline:
            deadline -= 1
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            signal.sigtimedwait([], 0.02)
        assert children(process.pid) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("machine", MACHINES)
def test_the_first_process_is_a_small_program(machine: str) -> None:
    program = pause_program(machine)
    assert program.startswith(b"\x7fELF")
    assert len(program) < 300
    assert program.endswith(b"\n")


def test_no_remedy_in_a_space_is_one_that_it_cannot_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hugging Face Space has neither apt nor options of its container."""
    monkeypatch.setenv("SPACE_ID", "owner/name")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeUnavailable) as caught:
        find_bubblewrap()
    assert "apt" not in str(caught.value)
    assert "A Hugging Face Space has no sandboxes" in str(caught.value)


def test_a_status_is_looked_for_when_its_frame_may_be_complete() -> None:
    frames = Frames()
    variables = (b'declare -x A="1"\n', b'declare -x B="2"\n')
    written = (b"\x1etoken 3 /tmp\x1e", *variables, b"\x1eend tok", b"en\x1e", b"more")
    assert [frames.add(piece) for piece in written] == [False, False, False, True, True, True]
    status = frames.read_status(b"token")
    assert status is not None
    assert (status.exit_status, status.directory) == (3, "/tmp")
    assert status.exported == b"".join(variables)


def test_a_status_before_a_large_environment_is_looked_for() -> None:
    frames = Frames()
    frames.add(b"\x1etoken 0 /\x1e")
    assert not frames.add(b"x" * (2**22 - 50))
    assert frames.add(b"x" * 100)
    status = frames.read_status(b"token")
    assert status is not None
    assert status.exported == b""
