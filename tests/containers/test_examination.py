"""An agent's attacks on its examination, beyond those that ``self_check`` tries on every runtime."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import json
import os
import tempfile
from pathlib import Path

import pytest
from ors_containers import (
    EXAMINATION,
    Image,
    InvalidCommand,
    Limits,
    Runtime,
    Sandbox,
    SandboxBusy,
    SandboxDied,
    SandboxExpired,
    SandboxStopped,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

LOOK = [
    "/bin/bash",
    "--norc",
    "-c",
    "cat /.examination/x && (echo forks) && echo w > /.examination/w && set -- /proc/[0-9]* && echo $#",
]
#: Process 1 and bash.
SEEN = b"xforks\n2\n"


def as_root(image: Image) -> Image:
    return dataclasses.replace(image, user=0, group=0, user_name="root", home="/root")


#: Left behind by an agent that has an ordinary user's rights, or root's inside.
LEFT = {
    "a fork bomb": "bomb() { bomb | bomb & }; bomb",
    "processes at their limit": "for n in {1..60}; do sleep 1000 & done",
    "a stopped everything": "sleep 1000 & kill -STOP -1; kill -STOP $$",
    "memory in shared segments": (
        "python3 -c 'import ctypes; c = ctypes.CDLL(None)\n"
        "for n in range(200):\n"
        "    i = c.shmget(0, 1 << 20, 0o1600); c.shmat.restype = ctypes.c_void_p\n"
        "    p = c.shmat(i, None, 0); p and p > 0 and ctypes.memset(p, 1, 1 << 20); c.shmdt(ctypes.c_void_p(p))'"
    ),
    "a full disk": "head -c 200000000 /dev/zero > /tmp/full; head -c 200000000 /dev/zero > /dev/shm/full",
    "no inodes": "cd /tmp; i=0; while : > e$i; do i=$((i + 1)); done 2>/dev/null",
    "a home that is gone": "cd /; rm -rf $HOME; ln -s /proc/self/fd $HOME",
    "a flood": "yes & yes >&2 &",
    "all signals ignored": "trap '' TERM INT HUP QUIT; (trap '' TERM INT HUP; while :; do sleep 1; done) &",
    "limits of its own": "ulimit -u 1; ulimit -n 3; ulimit -f 0; ulimit -v 10000",
    "variables": "export LD_PRELOAD=/none.so BASH_ENV=/none ENV=/none PATH=/none IFS=x; cat() { :; }; export -f cat",
}


@pytest.mark.parametrize("user", ["the user", pytest.param("root", marks=pytest.mark.long)])
@pytest.mark.parametrize("left", LEFT)
async def test_a_frozen_examination_is_not_prevented(runtime: Runtime, left: str, user: str) -> None:
    image = runtime.host_image() if user == "the user" else as_root(runtime.host_image())
    async with runtime.sandbox(image, Limits(pids=40, memory=96 * 2**20, disk=24 * 2**20)) as sandbox:
        await sandbox.run(LEFT[left], timeout=2)
        for _ in range(2):
            result = await sandbox.examine(LOOK, files={"x": b"x"}, timeout=30)
            assert (result.exit_status, result.output) == (0, SEEN)
        assert b"alive\n" in (await sandbox.run("echo alive", timeout=10)).output


@pytest.mark.parametrize(
    "attack",
    [
        f"mv {EXAMINATION} /gone",
        f"rmdir {EXAMINATION}",
        f"rm -rf {EXAMINATION}",
        f"mkdir /new; mv -T /new {EXAMINATION}",
        f"ln -sfn /tmp {EXAMINATION}",
        f"umount {EXAMINATION}",
        f"mount -t tmpfs tmpfs {EXAMINATION}",
        f"chmod 777 {EXAMINATION}",
        f"chown 1000 {EXAMINATION}",
        f"touch {EXAMINATION}/x",
        f"mkdir -p {EXAMINATION}/x",
        "python3 -c \"import os; os.rename('/.examination', '/elsewhere')\"",
        # renameat2 with RENAME_EXCHANGE
        "mkdir /other; python3 -c \"import ctypes; exit(-ctypes.CDLL(None).syscall(316, -100, b'/other', -100, "
        "b'/.examination', 2))\"",
    ],
)
async def test_root_inside_cannot_touch_the_examinations_directory(runtime: Runtime, attack: str) -> None:
    async with runtime.sandbox(as_root(runtime.host_image())) as sandbox:
        result = await sandbox.run(attack, timeout=5)
        assert result.exit_status != 0, result
        result = await sandbox.examine(LOOK, files={"x": b"x"}, timeout=30)
        assert (result.exit_status, result.output) == (0, SEEN)


async def test_the_path_of_a_bind_cannot_be_touched_either(runtime: Runtime, tmp_path: Path) -> None:
    for directory in (tmp_path, *list(tmp_path.parents)[:2]):
        directory.chmod(0o755)
    (tmp_path / "tool").write_text("the host's\n")
    host = as_root(runtime.host_image())
    binds = (*host.binds, (tmp_path, "/.grader"), (tmp_path / "tool", "/some/where/tool"))
    async with runtime.sandbox(dataclasses.replace(host, binds=binds)) as sandbox:
        for attack in (
            "mv /.grader /gone",
            "rm -rf /.grader",
            "echo x > /.grader/tool",
            "touch /.grader/new",
            "ln -sfn /tmp /.grader",
            "umount /.grader",
            "mount -o remount,rw,bind /.grader",
            "echo x > /some/where/tool",
            "rm -f /some/where/tool",
            "mkdir /n; mv -T /n /.grader",
        ):
            assert (await sandbox.run(attack, timeout=5)).exit_status != 0, attack
        await sandbox.run("mv /some /moved; mkdir -p /some/where; echo forged > /some/where/tool", timeout=5)
        # Therefore programs use a directory directly below the root.
        result = await sandbox.examine(["/bin/cat", "/.grader/tool"], timeout=10)
        assert result.output == b"the host's\n"
    assert (tmp_path / "tool").read_text() == "the host's\n"


#: Run by a background process during the examination. $P is the program's process id, $W its watcher's.
SPIES = {
    "memory": "head -c 1 /proc/$P/mem; dd if=/proc/$P/mem bs=1 count=1 skip=1 && echo SEEN",
    "environment": "cat /proc/$P/environ && echo SEEN",
    "root": "cat /proc/$P/root/.examination/secret /proc/$P/task/$P/root/.examination/secret && echo SEEN",
    "directory": "cat /proc/$P/cwd/secret && echo SEEN",
    "input": "timeout 0.2 head -c 1 /proc/$P/fd/0 && echo SEEN",
    "output": "echo forged > /proc/$P/fd/1 && echo SEEN",
    "a file it has open": "head -c 1 /proc/$P/fd/5 && echo SEEN",
    "maps": "[ $(head -c 1 /proc/$P/maps | wc -c) = 1 ] && echo SEEN",
    "namespace": "nsenter --mount=/proc/$P/ns/mnt true && echo SEEN",
    "descriptors": 'python3 -c "import os, ctypes; f = os.pidfd_open($P); '
    'exit(-ctypes.CDLL(None).syscall(438, f, 0, 0))" && echo SEEN',
    "trace": 'python3 -c "import ctypes; exit(-ctypes.CDLL(None).ptrace(16, $P, 0, 0))" && echo SEEN',
    "call of another's memory": 'python3 -c "import ctypes; b = ctypes.create_string_buffer(8); '
    'exit(-ctypes.CDLL(None).syscall(310, $P, b, 1, b, 1, 0))" && echo SEEN',
    "what its watcher has": "{ cat /proc/$W/root/.examination/secret || cat /proc/$W/environ || cat /proc/$W/maps; } "
    "&& echo SEEN",
    "paths of the host": "tr -d '\\0' < /proc/$W/cmdline | grep . && echo SEEN",
}


@pytest.mark.parametrize("user", ["the user", "root"])
async def test_a_live_examination_cannot_be_inspected(runtime: Runtime, user: str) -> None:
    image = runtime.host_image() if user == "the user" else as_root(runtime.host_image())
    async with runtime.sandbox(image, Limits(pids=200)) as sandbox:
        spying = "\n".join(f"{{ {command}; }} > seen-{n} 2>/dev/null" for n, command in enumerate(SPIES.values()))
        await sandbox.write_file("spy", f"P=$1 W=$2\n{spying}\ntouch all-done\n".encode())
        waiting = "until [ -s numbers ]; do :; done; bash spy $(cat numbers)"
        await sandbox.write_file("wait", waiting.encode())
        await sandbox.run("setsid bash wait </dev/null >/dev/null 2>&1 &", timeout=5)
        script = (
            f"exec 5< {EXAMINATION}/secret; cd {EXAMINATION}; export SECRET=x; n=0; echo $$ $PPID > ~/numbers; "
            "until [ -e ~/all-done ] || [ $((n += 1)) -gt 200 ]; do sleep 0.05; done; read -r x; echo $x"
        )
        result = await sandbox.examine(
            ["/bin/bash", "--norc", "-c", script],
            files={"secret": b"secret"},
            input=b"from the input\n",
            timeout=30,
            keep_processes=True,
        )
        assert (result.exit_status, result.output) == (0, b"from the input\n")
        assert (await sandbox.stat_file("all-done")).kind == "file", "the spies did not come to their end"
        seen = {name: await sandbox.read_file(f"seen-{n}") for n, name in enumerate(SPIES)}
        assert {name: content for name, content in seen.items() if b"SEEN" in content} == {}


@pytest.mark.parametrize(("user", "group", "other"), [(1000, 1000, 65534), (0, 0, 65534), (65534, 65534, 65533)])
async def test_no_other_process_is_in_the_examiners_group(runtime: Runtime, user: int, group: int, other: int) -> None:
    image = dataclasses.replace(runtime.host_image(), user=user, group=group)
    async with runtime.sandbox(image) as sandbox:
        await sandbox.run("(while :; do id -G >> groups; sleep 0.05; done) & sleep 0.2", timeout=5)
        for keep in (True, False):
            script = f"id -G; stat -c '%u %g %a' {EXAMINATION} {EXAMINATION}/x; sleep 0.2"
            result = await sandbox.examine(["/bin/sh", "-c", script], files={"x": b""}, timeout=5, keep_processes=keep)
            assert result.text == f"{group} {other}\n{other} {other} 771\n{user} {group} 644\n", result
        assert set((await sandbox.read_file("groups")).split()) == {str(group).encode()}


def _signals_are_scoped() -> bool:
    """Return whether this kernel has Landlock with scopes for signals; the launcher uses them as root."""
    create_ruleset, version = 444, 1
    return os.geteuid() == 0 and ctypes.CDLL(None).syscall(create_ruleset, None, 0, version) >= 6


@pytest.mark.skipif(not _signals_are_scoped(), reason="needs root and Landlock's scopes (Linux 6.12)")
@pytest.mark.parametrize("signal", ["KILL", pytest.param("STOP", marks=pytest.mark.long), "INT", "PIPE"])
@pytest.mark.parametrize("user", ["the user", "root"])
async def test_no_signal_reaches_a_live_examination(runtime: Runtime, user: str, signal: str) -> None:
    image = runtime.host_image() if user == "the user" else as_root(runtime.host_image())
    # Each in a session of its own, because the signal would end them all otherwise.
    killing = f"while :; do for p in {{2..1000}}; do [ $p != $$ ] && kill -{signal} $p; done; done"
    async with runtime.sandbox(image, Limits(pids=100)) as sandbox:
        await sandbox.write_file("killing", killing.encode())
        await sandbox.run("setsid bash killing > /dev/null 2>&1 < /dev/null & sleep 0.2", timeout=5)
        script = "for n in {1..40}; do (sleep 0.02; echo $n) | cat | grep -c . || echo missed; done | sort | uniq -c"
        result = await sandbox.examine(["/bin/bash", "--norc", "-c", script], timeout=30, keep_processes=True)
        assert (result.exit_status, result.text.split()) == (0, ["40", "1"]), result


async def test_the_agent_signals_and_moves_what_is_its_own(sandbox: Sandbox) -> None:
    """With scoped signals, too: shells after the first are in the same domain, and files are not affected."""
    await sandbox.run("sleep 1000 & echo $! > process; mkdir one two; touch one/file", timeout=5)
    assert (await sandbox.run("exit 0", timeout=5)).shell_restarted
    script = (
        "kill -TERM $(cat process) && sleep 0.1; kill -0 $(cat process) 2>/dev/null || echo ended;"
        "mv one/file two/ && ln two/file one/other && mv two /tmp/two && rm -r one && ls /tmp/two"
    )
    assert (await sandbox.run(script, timeout=5)).text.split() == ["ended", "file"]


async def test_the_spies_succeed_on_other_processes(sandbox: Sandbox) -> None:
    """Most spies that fail in an examination succeed elsewhere, so their failure means something."""
    await sandbox.run(
        "mkdir -p here; echo x > here/secret; (cd here; exec 5< secret; exec sleep 1000) & echo $! > p", timeout=5
    )
    able: list[str] = []
    expected = ["environment", "directory", "a file it has open", "maps"]
    for name in expected:
        result = await sandbox.run(f"P=$(cat p); {SPIES[name]}", timeout=5)
        if b"SEEN" in result.output:
            able.append(name)
    assert able == expected


async def test_background_processes_outlive_a_live_examination(sandbox: Sandbox) -> None:
    """They write to bash's output, which is still read: a service that logs is not ended by its grading."""
    serving = "while :; do echo log; echo log >&2; date +%s%N > beat; sleep 0.05; done"
    await sandbox.run(f"setsid bash -c '{serving}' & until [ -s beat ]; do sleep 0.01; done", timeout=10)
    checking = 'before=$(cat beat); sleep 0.4; [ "$(cat beat)" != "$before" ] && echo beats'
    for _ in range(3):
        result = await sandbox.examine(["/bin/bash", "-c", checking], timeout=10, keep_processes=True)
        assert result.output == b"beats\n"
        assert (await sandbox.run(f"{checking}", timeout=10)).output.endswith(b"beats\n")


async def test_a_flood_of_output_is_cut(sandbox: Sandbox) -> None:
    program = ["/bin/bash", "-c", "echo first; head -c 5000000 /dev/zero; echo last"]
    result = await sandbox.examine(program, timeout=30, output_limit=1000)
    assert result.truncated
    assert len(result.output) < 1100
    assert result.output.startswith(b"first\n")
    assert result.output.endswith(b"last\n")


async def test_a_private_output_cannot_be_opened_again(sandbox: Sandbox) -> None:
    script = (
        "echo begun; for path in /dev/stdout /proc/$$/fd/*; do { echo forged >$path; } 2>/dev/null; done; echo ended"
    )
    seen = [
        (await sandbox.examine(["/bin/bash", "-c", script], timeout=20, private_output=it)).text for it in (True, False)
    ]
    assert seen[0] == "begun\nended\n"
    assert "forged" in seen[1]


async def test_unread_input_does_no_harm(sandbox: Sandbox) -> None:
    result = await sandbox.examine(["/bin/true"], input=bytes(10**7), timeout=10)
    assert result.exit_status == 0


async def test_many_and_large_files(sandbox: Sandbox) -> None:
    files = {f"d{n % 7}/f{n}": bytes([n % 256]) * n for n in range(2000)} | {"big": bytes(80 * 2**20)}
    result = await sandbox.examine(
        ["/bin/bash", "-c", f"cat {EXAMINATION}/d*/* | wc -c; wc -c < {EXAMINATION}/big"], files=files, timeout=30
    )
    assert result.text.split() == [str(sum(range(2000))), str(80 * 2**20)]


@pytest.mark.long  # bash waits seconds before it exits
async def test_its_processes_are_limited(runtime: Runtime) -> None:
    async with runtime.sandbox(runtime.host_image(), Limits(pids=20)) as sandbox:
        program = ["/bin/bash", "-c", "for n in {1..60}; do sleep 5 & done"]
        assert b"temporarily unavailable" in (await sandbox.examine(program, timeout=20)).output


async def test_its_memory_is_limited(runtime: Runtime) -> None:
    async with runtime.sandbox(runtime.host_image(), Limits(memory=64 * 2**20, disk=8 * 2**20)) as sandbox:
        program = ["/bin/bash", "-c", "head -c 500000000 /dev/zero | tail | wc -c"]
        assert (await sandbox.examine(program, timeout=20)).text.split()[-1:] != ["500000000"]


async def test_one_at_a_time(sandbox: Sandbox) -> None:
    first = asyncio.create_task(sandbox.examine(["/bin/sleep", "0.5"], timeout=5))
    await asyncio.sleep(0.1)
    with pytest.raises(SandboxBusy):
        await sandbox.run("true", timeout=5)
    with pytest.raises(SandboxBusy):
        await sandbox.examine(["/bin/true"], timeout=5)
    assert (await first).exit_status == 0


async def test_a_cancelled_examination_is_ended(sandbox: Sandbox) -> None:
    """Together with the processes it started; the agent's processes beside it go on."""
    await sandbox.run("setsid tail -f /dev/null &", timeout=5)
    running = asyncio.create_task(
        sandbox.examine(["/bin/bash", "-c", "setsid sleep 1000 & sleep 1000"], timeout=100, keep_processes=True)
    )
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    programs = (await sandbox.run("cat /proc/[0-9]*/comm", timeout=5)).text.split()
    assert "sleep" not in programs
    assert "tail" in programs


async def test_a_cancelled_command_comes_to_its_end_first(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("sleep 1000", timeout=100))
    await asyncio.sleep(0.2)
    running.cancel()
    await asyncio.wait([running])
    result = await sandbox.examine(LOOK, files={"x": b"x"}, timeout=10, keep_processes=True)
    assert result.output == b"xforks\n3\n"  # and the watcher of a live one


async def test_a_sandbox_that_ends_says_how(runtime: Runtime) -> None:
    sandbox = runtime.sandbox(runtime.host_image(), Limits(wall=1.0))
    with pytest.raises(SandboxStopped):
        await sandbox.examine(["/bin/true"], timeout=5)
    await sandbox.start()
    with pytest.raises(SandboxExpired):
        await sandbox.examine(["/bin/sleep", "100"], timeout=50)
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        running = asyncio.create_task(sandbox.examine(["/bin/sleep", "100"], timeout=50))
        await asyncio.sleep(0.3)
        os.kill(_process_1(sandbox), 9)
        with pytest.raises(SandboxDied):
            await running
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        running = asyncio.create_task(sandbox.examine(["/bin/sleep", "100"], timeout=50))
        await asyncio.sleep(0.3)
        await sandbox.stop()
        with pytest.raises(SandboxStopped):
            await running


@pytest.mark.parametrize("name", ["", ".", "a/../b", "/a", "a//b", "a/", "..", "a\0b", "\ud800"])
async def test_names_of_files_outside_of_the_directory_are_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(InvalidCommand):
        await sandbox.examine(["/bin/true"], files={name: b""}, timeout=5)


def _process_1(sandbox: Sandbox) -> int:
    """Return process 1 of a sandbox, from its lease."""
    (lease,) = Path(tempfile.gettempdir()).glob(f"ors-test-*/owners/*/{sandbox.id}.lease")
    return json.loads(lease.read_text().splitlines()[-1])["processes"][-1][0]
