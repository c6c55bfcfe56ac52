"""``Container.execute``: arguments, input, users, directories, separate outputs, and attacks on the caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ors_containers import Container, ContainerSettings, ExecutionResult, InvalidCommand, SandboxStopped
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.support.processes import open_descriptors
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 2**20
ACCOUNTS = "solver:x:1234:1234::/home/solver:/bin/sh\nfar:x:70000:1::/:/bin/sh\nbad:x:y:z::/:\n"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def container(runtime: NamespaceRuntime) -> AsyncIterator[Container]:
    settings = ContainerSettings(disk=256 * MIB, environment={"KEPT": "yes"})
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        await container.run(f"printf '{ACCOUNTS}' >> /etc/passwd; echo 'tools:x:77:a,solver' >> /etc/group")
        yield container


async def sh(container: Container, script: str, **more: Any) -> ExecutionResult:
    return await container.execute(["sh", "-c", script], timeout=60, **more)


async def descriptors(count: int) -> None:
    await until(lambda: len(open_descriptors()) <= count)


# ── arguments, variables, input and output ──


async def test_arguments_are_not_a_shells(container: Container) -> None:
    found = await container.execute(["printf", "<%s>", "$HOME", "a b", "", "é\n", "\udcff'"])
    assert found.stdout == "<$HOME><a b><><é\n>".encode() + b"<\xff'>"
    assert (found.exit_status, found.stderr, found.started, found.truncated) == (0, b"", True, False)


async def test_outputs_are_apart_and_streamed(container: Container) -> None:
    pieces: list[tuple[str, bytes]] = []
    first = asyncio.Event()

    def keep(stream: str, piece: bytes) -> None:
        pieces.append((stream, piece))
        first.set()

    script = "echo 1; until [ -e /tmp/next ]; do sleep 0.1; done; echo 2 >&2; echo 3 > /dev/stdout"
    running = asyncio.create_task(sh(container, script, on_output=keep))
    await first.wait()
    assert (pieces, running.done()) == ([("stdout", b"1\n")], False)
    await container.write("/tmp/next", b"")
    found = await running
    assert (found.stdout, found.stderr) == (b"1\n3\n", b"2\n")
    for stream, whole in (("stdout", found.stdout), ("stderr", found.stderr)):
        assert b"".join(piece for name, piece in pieces if name == stream) == whole


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 30_000_000])
async def test_the_input_arrives_whole(container: Container, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"\n" * (size % 256)
    assert int((await container.execute(["wc", "-c"], stdin=content)).stdout) == size
    digest = await sh(container, "cat /dev/stdin | cksum", stdin=content)
    assert digest.stdout == (await sh(container, "cksum", stdin=content)).stdout


async def test_an_input_that_is_not_read_keeps_no_caller_waiting(container: Container) -> None:
    content = b"x" * 5_000_000
    for script in ("exit 7", "exec 0<&-; exit 7", "head -c 10 > /dev/null; exit 7"):
        assert (await sh(container, script, stdin=content)).exit_status == 7
    timed_out = await container.execute(["sleep", "77"], stdin=content, timeout=0.3)
    assert (timed_out.exit_status, timed_out.timed_out) == (124, True)


async def test_variables(container: Container) -> None:
    odd = {"a-b": "1", "BASH_FUNC_x%%": "() { :; }", "É": "ü", "N\nL": "v\nw", "LD_PRELOAD": "/nothing", "0": ""}
    found = await container.execute(["/usr/bin/env", "-0"], env=odd)
    variables = dict(line.split("=", 1) for line in found.stdout.decode().split("\0") if line)
    assert odd.items() <= variables.items()
    assert variables["KEPT"] == "yes"
    assert (await sh(container, "echo $KEPT", env={"KEPT": "no"})).stdout == b"no\n"
    assert (await sh(container, "echo ${KEPT}")).stdout == b"yes\n"


async def test_a_program_is_looked_for_in_the_commands_own_path(container: Container) -> None:
    await container.run("mkdir -p /tmp/bin; printf '#!/bin/sh\\necho mine' > /tmp/bin/mine; chmod 755 /tmp/bin/mine")
    assert (await container.execute(["mine"], env={"PATH": "/tmp/bin:/usr/bin"})).stdout == b"mine\n"
    assert (await container.execute(["./mine"], cwd="/tmp/bin")).stdout == b"mine\n"
    assert (await container.execute(["mine"])).exit_status == 127


async def test_directories(container: Container) -> None:
    await container.run("mkdir -p /tmp/here/there; echo > /tmp/file; mkdir /tmp/closed; chmod 700 /tmp/closed")
    assert (await container.execute(["pwd"], cwd="/tmp/here")).stdout == b"/tmp/here\n"
    assert (await container.execute(["pwd"], cwd="tmp/here/there")).stdout == b"/tmp/here/there\n"
    for cwd, user in (("/nothing", None), ("/tmp/file", None), ("/tmp/closed", 1234), ("/\udcff\n", None)):
        found = await container.execute(["pwd"], cwd=cwd, user=user)
        assert (found.exit_status, found.started, found.stdout) == (126, False, b"")
        assert b"cannot be entered" in found.stderr


async def test_programs_that_cannot_be_executed(container: Container) -> None:
    links = "ln -sf /tmp/loop /tmp/loop; printf '#!/no/interpreter' > /tmp/script; chmod 755 /tmp/script"
    binary = "printf '\\177ELF' > /tmp/damaged; chmod 755 /tmp/damaged; cp /bin/sleep /tmp/busy"
    await container.run(f"{links}; {binary}; (exec 9>>/tmp/busy; sleep 76) &")
    for name, status in {
        "no-such-program": 127,
        "/no/such/program": 127,
        "/tmp/script": 127,
        "": 127,
        "/etc/passwd": 126,
        "/tmp": 126,
        "/tmp/loop": 126,
        "/tmp/damaged": 126,
        "/tmp/busy": 126,
        "/" + "x" * 5000: 126,
    }.items():
        found = await container.execute([name], timeout=60)
        assert (found.exit_status, found.started) == (status, False), name[:40]
        assert found.stderr.startswith(name[:100].encode() + b"") and found.stderr.endswith(b"\n")
    assert (await container.run("x", shell="/tmp/loop")).exit_status == 126
    assert (await container.execute(["sh", "-c", "exit 126"])).started


async def test_long_vectors(container: Container) -> None:
    piece = "x" * 64 * 1024
    found = await container.execute(["printf", "%s", *[piece] * 16], env={"LONG": "y" * 100_000})
    assert (found.exit_status, found.stdout) == (0, (piece * 16).encode())
    many = await container.execute(["sh", "-c", "echo $#", "sh", *["a"] * 100_000])
    assert many.stdout == b"100000\n"
    for refused, status in ((["echo", "x" * 200_000], 126), (["echo", *[piece] * 200], 126), (["y" * 200_000], 127)):
        found = await container.execute(refused)
        assert (found.exit_status, found.started) == (status, False)
        assert len(found.stderr) < 1000


async def test_exit_by_signal(container: Container) -> None:
    for name, status in (("TERM", 143), ("KILL", 137), ("SEGV", 139)):
        assert (await sh(container, f"kill -{name} $$")).exit_status == status


@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": []},
        {"argv": "echo"},
        {"argv": ["a\0b"]},
        {"argv": ["\ud800"]},
        {"argv": ["x"], "env": {"": "1"}},
        {"argv": ["x"], "env": {"A=B": "1"}},
        {"argv": ["x"], "env": {"A": "\0"}},
        {"argv": ["x"], "cwd": "/a\0"},
        {"argv": ["x"], "timeout": -1},
        {"argv": ["x"], "timeout": float("nan")},
        {"argv": ["x"], "max_bytes": -1},
    ],
)
async def test_refused_arguments(container: Container, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidCommand):
        await container.execute(**arguments)


# ── users ──


async def test_users(container: Container) -> None:
    def show(found: ExecutionResult) -> list[str]:
        return found.stdout.decode().split()

    script = "id -u; id -g; id -G; echo $HOME $USER; grep CapEff /proc/self/status | cut -f 2"
    own = show(await sh(container, script))
    assert own == ["0", "0", "0", "/root", "root", "00000000a80425fb"]
    assert show(await sh(container, script, user="root")) == own
    solver = ["1234", "1234", "1234", "77", "/home/solver", "solver", "0" * 16]
    assert show(await sh(container, script, user="solver")) == solver
    assert show(await sh(container, script, user=1234)) == show(await sh(container, script, user="1234")) == solver
    assert show(await sh(container, script, user=4321)) == ["4321", "0", "0", "/", "4321", "0" * 16]
    assert (await sh(container, "echo $HOME", user="solver", env={"HOME": "/x"})).stdout == b"/x\n"
    assert (await sh(container, "cat /etc/shadow", user="solver")).exit_status == 1


@pytest.mark.parametrize("user", ["nobody-here", "far", "bad", 70000, -1, "", "root:root", "a\nb", "\udcff", "9" * 999])
async def test_a_user_that_does_not_exist(container: Container, user: str | int) -> None:
    found = await container.execute(["id"], user=user)
    assert (found.exit_status, found.started, found.stdout) == (126, False, b"")
    assert b"unable to find user" in found.stderr


async def test_a_hostile_list_of_users_is_data(runtime: NamespaceRuntime) -> None:
    """Root inside decides who its users are; it can neither stop a caller nor get a right by it."""
    async with await runtime.open_container(runtime.host_image(), ContainerSettings(disk=64 * MIB)) as container:
        for attack in (
            "rm /etc/passwd; mkfifo /etc/passwd",
            "rm /etc/passwd; ln -s /dev/zero /etc/passwd",
            "rm /etc/passwd; head -c 60000000 /dev/zero > /etc/passwd",
            "rm /etc/passwd; printf 'eve:x:-1:0::/:\\neve:x:4294967295:0::/:\\neve:x:99999999999:0::/:' > /etc/passwd",
        ):
            await container.run(attack, timeout=60)
            assert (await container.execute(["id"], user="eve", timeout=60)).exit_status == 126
            assert (await container.execute(["id", "-u"], user=5, timeout=60)).stdout == b"5\n"
        await container.run("printf 'eve:x:0:0::/:' > /etc/passwd")
        found = await container.execute(["grep", "CapBnd", "/proc/self/status"], user="eve")
        assert found.stdout == b"CapBnd:\t00000000a80425fb\n"


# ── attacks on the caller ──


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_a_flood_of_one_output(container: Container, stream: str) -> None:
    taken = 0

    def count(_: str, piece: bytes) -> None:
        nonlocal taken
        taken += len(piece)

    found = await sh(container, f"head -c 300000000 /dev/zero >&{stream}; exit 3", max_bytes=5000, on_output=count)
    assert (found.exit_status, found.truncated, taken) == (3, True, 5000)
    assert sorted(map(len, (found.stdout, found.stderr))) == [0, 5000]


async def test_a_child_that_keeps_the_pipes(container: Container) -> None:
    before = len(open_descriptors())
    started = time.monotonic()
    found = await sh(container, "sleep 75 & cat & echo begun; echo apart >&2", stdin=b"x" * 1_000_000)
    assert (found.stdout[-6:], found.stderr) == (b"begun\n", b"apart\n")
    assert time.monotonic() - started < 40
    await container.run("pkill -f 'sleep 7[5]'")
    await descriptors(before)


async def test_a_time_limit_ends_the_tree(container: Container) -> None:
    script = "trap '' TERM; echo begun; echo apart >&2; (sleep 74 & (setsid sleep 74; :) & wait); sleep 74"
    found = await container.execute(["sh", "-c", script], timeout=1, stdin=b"x" * 1_000_000)
    assert (found.exit_status, found.timed_out, found.stdout, found.stderr) == (124, True, b"begun\n", b"apart\n")
    assert (await sh(container, "pgrep -f 'sleep 7[4]' | wc -l")).stdout.strip() == b"0"


@pytest.mark.parametrize("after", [0.0, 0.001, 0.5])
async def test_a_cancelled_program_is_ended(container: Container, after: float) -> None:
    before = len(open_descriptors())
    running = asyncio.create_task(sh(container, "sleep 73 & sleep 73", stdin=b"x" * 1_000_000))
    await asyncio.sleep(after)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sh(container, "pgrep -f 'sleep 7[3]' | wc -l")).stdout.strip() == b"0"
    await descriptors(before)


@pytest.mark.parametrize("each", [40, pytest.param(200, marks=pytest.mark.long)])
async def test_many_short_programs_leave_no_descriptor(container: Container, each: int) -> None:
    before = len(open_descriptors())

    async def some(number: int) -> None:
        for n in range(each):
            name = ("true", "false", "no-such-program", "/etc/passwd")[n % 4]
            user = "solver" if n % 20 == 0 else None
            assert (await container.execute([name], stdin=b"x" * (n % 3), user=user)).exit_status in (0, 1, 126, 127)

    await asyncio.gather(*map(some, range(16)))
    await descriptors(before)
    assert int((await sh(container, "ls /proc/self/fd | wc -l")).stdout) <= 5


async def test_a_program_has_no_descriptor_of_the_server(container: Container) -> None:
    found = await container.execute(["ls", "/proc/self/fd"], stdin=b"x")
    assert set(found.stdout.split()) <= {b"0", b"1", b"2", b"3"}
    entered = await container.execute(["/proc/self/exe", "-c", "print(1)"], timeout=60)
    assert (entered.exit_status, entered.stdout) == (70, b"")


async def test_a_closed_container(runtime: NamespaceRuntime, tmp_path: Path) -> None:
    container = await runtime.open_container(runtime.host_image(), ContainerSettings(disk=64 * MIB))
    running = asyncio.create_task(container.execute(["sleep", "72"]))
    await asyncio.sleep(0.3)
    await container.close()
    with pytest.raises(SandboxStopped):
        await running
    with pytest.raises(SandboxStopped):
        await container.execute(["true"], user="root")
