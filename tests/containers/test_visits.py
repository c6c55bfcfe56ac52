"""Frozen examinations whose program is forked into the sandbox: nothing watches it there.

What holds for a program that another process starts and watches (``test_examination``) holds for it as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from ors_containers import EXAMINATION, ExaminationFailed, Limits, Sandbox, SandboxDied, SandboxStopped
from ors_containers.graders.portable_python import Toolset
from ors_containers.linux.limits.cgroups import remove_group
from ors_containers.runtimes import namespace_sandbox
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.sandbox import TIMED_OUT_STATUS

from tests.containers.test_examination import LEFT, as_root
from tests.containers.warm_programs import examine, image_of, start_warm, warm_pythons
from tests.support.processes import processes

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a server that is an ordinary user starts no warm Python"),
]

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

#: Does what its input says, and tells how many processes there are.
PROGRAM = f"""
import json, os, signal, subprocess, sys, time

def main():
    print(sum(name.isdigit() for name in os.listdir("/proc")), os.getppid(), flush=True)
    open("{EXAMINATION}/w", "w").write("w")
    if subprocess.run(["/bin/true"]).returncode:
        return 9
    exec(sys.stdin.read())
    sys.stdout.flush()
    return 0

if __name__ == "__main__":
    print("executed")
    sys.exit(main())
"""
#: Process 1 and the program, whose parent is outside.
ALONE = "2 0\n"
LEAVING = "subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)"


@pytest_asyncio.fixture(loop_scope="module")
async def prepared(runtime: NamespaceRuntime, toolset: Toolset) -> AsyncIterator[Sandbox]:
    """Start a sandbox, and the warm Python of the program."""
    async with runtime.sandbox(image_of(runtime, toolset, {})) as sandbox:
        await start_warm(sandbox, toolset, PROGRAM)
        yield sandbox


async def names(sandbox: Sandbox) -> set[str]:
    lines = (await sandbox.run("sed 's/^/is /' /proc/[0-9]*/comm", timeout=10)).text.splitlines()
    return {line.removeprefix("is ") for line in lines if line.startswith("is ")}


def signal_warm(number: signal.Signals) -> None:
    found = warm_pythons()
    assert found
    for warm in found:
        os.kill(warm, number)


async def hides(sandbox: Sandbox) -> bool:
    """Return whether processes are hidden from one another."""
    shown = (await sandbox.run("grep ' /proc proc' /proc/mounts", timeout=5)).text
    assert shown
    return "hidepid" in shown


@pytest.mark.parametrize("user", ["the user", pytest.param("root", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "left",
    [
        *LEFT.values(),
        "for n in 1 2 3 4; do (trap '' TERM INT; while :; do kill -STOP -1; done) & done",
        "for n in 1 2 3 4; do (while :; do (kill -KILL -1; :) & done) & done",
        "chmod 000 / /dev /dev/null",
    ],
    ids=[*LEFT, "stops all", "kills all", "closed folders"],
)
@pytest.mark.usefixtures("prepared")
async def test_nothing_that_is_left_prevents_it(
    runtime: NamespaceRuntime, toolset: Toolset, left: str, user: str
) -> None:
    image = image_of(runtime, toolset, {})
    image = image if user == "the user" else as_root(image)
    async with runtime.sandbox(image, Limits(pids=40, memory=96 * 2**20, disk=24 * 2**20)) as sandbox:
        await sandbox.run(left, timeout=2)
        for _ in range(2):
            result = await examine(sandbox, toolset, PROGRAM, warm=True)
            assert (result.exit_status, result.text) == (0, ALONE)


@pytest.fixture
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that no process is left in the group of an examination, where what is left is killed when it is removed."""
    members: list[str] = []

    async def look_and_remove(directories: Sequence[str]) -> bool:
        files = [Path(directory, "cgroup.procs") for directory in directories]
        members.extend(file.read_text() for file in files if file.exists())  # none at the sandbox's own end
        return await remove_group(directories)

    monkeypatch.setattr(namespace_sandbox, "remove_group", look_and_remove)
    yield
    assert len(members) > 0
    assert not any(members)


@pytest.mark.usefixtures("leaves_nothing")
async def test_what_it_leaves_is_ended_before_the_next_command(prepared: Sandbox, toolset: Toolset) -> None:
    before = await names(prepared)
    for _ in range(3):
        result = await examine(prepared, toolset, PROGRAM, warm=True, input=LEAVING.encode())
        assert (result.exit_status, result.text) == (0, ALONE)
        assert await names(prepared) == before
        assert not await hides(prepared)
        assert (await prepared.run("ls /.examination", timeout=5)).text == ""


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("leaving", ["", LEAVING])
async def test_one_that_takes_too_long_is_ended(prepared: Sandbox, toolset: Toolset, leaving: str) -> None:
    before = await names(prepared)
    given = f"{leaving}\nprint('begun', flush=True)\ntime.sleep(1000)".encode()
    result = await examine(prepared, toolset, PROGRAM, warm=True, input=given, timeout=0.5)
    assert (result.exit_status, result.timed_out, result.text) == (TIMED_OUT_STATUS, True, f"{ALONE}begun\n")
    assert await names(prepared) == before
    assert not await hides(prepared)


@pytest.mark.usefixtures("leaves_nothing")
async def test_one_that_is_cancelled_is_ended(prepared: Sandbox, toolset: Toolset) -> None:
    """Whenever that is: before it is forked, as it starts, and later."""
    before = await names(prepared)
    given = f"{LEAVING}\ntime.sleep(1000)".encode()
    for pause in (*(n * 0.0003 for n in range(40)), 0.03, 0.3):
        running = asyncio.create_task(examine(prepared, toolset, PROGRAM, warm=True, input=given))
        await asyncio.sleep(pause)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert await names(prepared) == before
    assert not await hides(prepared)


async def test_a_cancellation_is_one_when_the_sandbox_ends(
    runtime: NamespaceRuntime, toolset: Toolset, prepared: Sandbox
) -> None:
    for pause in (0.0, 0.0, 0.0005, 0.001, 0.002, 0.004):
        async with runtime.sandbox(prepared.image) as sandbox:
            running = asyncio.create_task(examine(sandbox, toolset, PROGRAM, warm=True, input=b"time.sleep(1000)"))
            await asyncio.sleep(0.1)
            stopping = asyncio.create_task(sandbox.stop())
            await asyncio.sleep(pause)
            if running.cancel():
                await asyncio.wait([running])
                assert running.cancelled()
            await stopping


async def test_the_end_of_the_warm_python_ends_no_program(prepared: Sandbox, toolset: Toolset) -> None:
    before = await names(prepared)
    given = f"{LEAVING}; open('/tmp/begun', 'w'); time.sleep(0.5); print('verdict'); sys.stdout.flush(); os._exit(3)"
    running = asyncio.create_task(examine(prepared, toolset, PROGRAM, warm=True, input=given.encode()))
    await asyncio.sleep(0.2)
    signal_warm(signal.SIGKILL)
    result = await running
    assert (result.exit_status, result.text) == (3, f"{ALONE}verdict\n")
    assert await names(prepared) == before
    assert not await hides(prepared)


async def test_one_whose_warm_python_ends_before_it_begins_fails(prepared: Sandbox, toolset: Toolset) -> None:
    signal_warm(signal.SIGSTOP)
    running = asyncio.create_task(examine(prepared, toolset, PROGRAM, warm=True))
    await asyncio.sleep(0.1)
    signal_warm(signal.SIGKILL)
    with pytest.raises(ExaminationFailed, match="the process that examines has ended"):
        await running
    assert (await examine(prepared, toolset, PROGRAM, warm=True)).exit_status == 0


async def test_a_module_with_a_thread_is_no_obstacle(prepared: Sandbox, toolset: Toolset) -> None:
    """The kernel lets no process with threads return to its own mounts: its copies enter in the other way."""
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n" + PROGRAM
    await start_warm(prepared, toolset, text)
    for _ in range(3):
        result = await examine(prepared, toolset, text, warm=True, input=LEAVING.encode())
        assert (result.exit_status, result.text) == (0, ALONE)
        assert not await hides(prepared)


async def test_one_that_was_given_up_never_begins(prepared: Sandbox, toolset: Toolset) -> None:
    """However late it is forked, and the sandbox may be in use again then."""
    signal_warm(signal.SIGSTOP)
    try:
        running = asyncio.create_task(examine(prepared, toolset, PROGRAM, warm=True, input=b"time.sleep(1000)"))
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        await prepared.run("sleep 1000 &", timeout=10)
        before = await names(prepared)
    finally:
        signal_warm(signal.SIGCONT)
    await examine(prepared, toolset, PROGRAM, warm=True, keep_processes=True)  # it is forked after the other
    assert await names(prepared) == before >= {"sleep"}


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("sys.exit(3)", 3),
        ("os._exit(200)", 200),
        ("raise KeyError", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 7'])", 7),
        (f"{LEAVING}; os.kill(-1, signal.SIGKILL)", 0),
        (f"{LEAVING}; os.fork() and os._exit(5); time.sleep(1000)", 5),
    ],
)
@pytest.mark.usefixtures("leaves_nothing")
async def test_its_end_is_the_examinations(prepared: Sandbox, toolset: Toolset, given: str, status: int) -> None:
    before = await names(prepared)
    result = await examine(prepared, toolset, PROGRAM, warm=True, input=given.encode())
    assert (result.exit_status, result.text.startswith(ALONE)) == (status, True), result.text
    assert (await examine(prepared, toolset, PROGRAM, warm=True)).text == ALONE
    assert await names(prepared) == before
    assert not await hides(prepared)


#: Reads, as fast as it can, what any process may read of one that enters, and keeps what is not the sandbox's.
SPY = """
import os
names = ("mountinfo", "net/tcp", "mounts", "net/dev")
def content(process, name):
    with open(f"/proc/{process}/{name}", "rb") as file:
        return file.read()
own = {name: content("self", name) for name in names}
seen = open("/tmp/seen", "ab", 0)
open("/tmp/spying", "w").close()
while True:
    for process in range(os.getpid() + 1, os.getpid() + 12):
        for name in names:
            try:
                if content(process, name) != own[name]:
                    seen.write(f"{name} ".encode())
                if b"launcher" in content(process, "cmdline"):
                    seen.write(b"cmdline ")
            except OSError:
                break
"""


@pytest.mark.parametrize("user", ["the user", "root"])
@pytest.mark.usefixtures("prepared")
async def test_the_agent_sees_nothing_of_the_machine_in_it(
    runtime: NamespaceRuntime, toolset: Toolset, user: str
) -> None:
    image = image_of(runtime, toolset, {})
    with socket.create_server(("127.0.0.1", 0)):  # which is in the machine's list of TCP sockets
        async with runtime.sandbox(image if user == "the user" else as_root(image)) as sandbox:
            await sandbox.write_file("/tmp/spy.py", SPY.encode())
            for _ in range(12):
                begun = await sandbox.run(
                    "rm -f /tmp/spying; for n in 1 2 3; do /usr/bin/python3 /tmp/spy.py & done; "
                    "until [ -e /tmp/spying ]; do sleep 0.01; done",
                    timeout=10,
                )
                if "not found" in begun.text:
                    pytest.skip(f"there is no Python in /usr/bin: {begun.text}")
                assert (await examine(sandbox, toolset, PROGRAM, warm=True)).text == ALONE
            assert await sandbox.read_file("/tmp/seen") == b""


def namespace(process: int) -> str:
    """Return a process's pid namespace, or nothing for one that may not be inspected."""
    try:
        return str(Path(f"/proc/{process}/ns/pid").readlink())
    except OSError:
        return ""


def state_of(process: int) -> dict[str, object]:
    """Return a process's namespaces, root, directory and number of open files."""
    folder = Path(f"/proc/{process}")
    links = [*(f"ns/{each.name}" for each in (folder / "ns").iterdir()), "root", "cwd"]
    found: dict[str, object] = {name: (folder / name).stat().st_ino for name in links}
    return found | {"files": len(list((folder / "fd").iterdir()))}


@pytest.mark.usefixtures("prepared")
async def test_sandboxes_that_end_do_it_no_harm(runtime: NamespaceRuntime, toolset: Toolset) -> None:
    """The warm Python is back in its own namespaces, whether a sandbox ended before, during or after."""
    image = image_of(runtime, toolset, {})
    before = {warm: state_of(warm) for warm in warm_pythons()}
    assert before
    for pause in (0.0, 0.001, 0.003, 0.01, 0.03, 0.1):
        sandbox = runtime.sandbox(image)
        await sandbox.start()
        running = asyncio.create_task(examine(sandbox, toolset, PROGRAM, warm=True, input=b"time.sleep(5)"))
        await asyncio.sleep(pause)
        await sandbox.stop()
        with pytest.raises(SandboxStopped):
            await running
    async with runtime.sandbox(image) as sandbox:
        await sandbox.run('sleep 1234.5 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done', timeout=5)
        (inside,) = processes(lambda arguments: arguments == b"sleep\0" + b"1234.5\0")
        os.kill(min(each for each in processes(bool) if namespace(each) == namespace(inside)), signal.SIGKILL)
        with pytest.raises(SandboxDied):
            await examine(sandbox, toolset, PROGRAM, warm=True)
    assert {warm: state_of(warm) for warm in before} == before


@pytest.mark.usefixtures("prepared")
async def test_each_is_in_its_own_sandbox(runtime: NamespaceRuntime, toolset: Toolset) -> None:
    image = image_of(runtime, toolset, {})

    async def play(number: int) -> None:
        async with runtime.sandbox(image) as sandbox:
            await sandbox.write_file("/tmp/number", str(number).encode())
            for live in (False, True, False):
                said = f"print(json.dumps([open('/tmp/number').read(), {number}]))".encode()
                result = await examine(sandbox, toolset, PROGRAM, warm=True, input=said, keep_processes=live)
                assert json.loads(result.text.splitlines()[-1]) == [str(number), number]

    await asyncio.gather(*map(play, range(12)))
