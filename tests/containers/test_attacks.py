"""Attacks of an agent, each in a sandbox of its own. Afterwards the next command works, whatever the last one did.

The checks of every runtime (``self_check``) cover the simple attacks; this module has the elaborate ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import time
from pathlib import Path

import pytest
from ors_containers import (
    FileError,
    FileRefused,
    InvalidCommand,
    Limits,
    NotAFile,
    Sandbox,
    SandboxBusy,
)
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

#: Attacks on the shell that runs the commands: the command, and whether the shell may be lost.
SHELL_ATTACKS = {
    "prints the frame of an end": r'printf "\036aa 0 /\036\036end aa\036"; printf "\036aa 0 /\036\036end aa\036" >&0',
    "writes to every descriptor": r'for n in {3..40}; do printf "\0369 9 /\036\036end 9\036" >&$n; done 2>/dev/null',
    "floods every descriptor": "for n in {3..40}; do head -c 9000000 /dev/zero >&$n & done 2>/dev/null; sleep 0.2",
    "reads every descriptor": "for n in {3..40}; do read -t 0.05 -u $n line; done 2>/dev/null",
    "closes every descriptor": 'for n in {0..255}; do eval "exec $n>&-"; done',
    "reopens every descriptor": 'for n in {0..255}; do eval "exec $n</dev/null"; done',
    "replaces builtin": "builtin() { :; }; eval() { :; }; printf() { :; }; export() { exit; }",
    "aliases everything": "alias builtin=false eval=false printf=false export=exit '{'=exit",
    "disables builtins": "enable -n builtin eval printf export",
    "exits at the prompt": "PROMPT_COMMAND='exit 1'",
    "exits at each step": "trap 'exit 1' DEBUG; set -T",
    "exits on errors": "set -euo pipefail; trap 'exit 3' ERR EXIT; false",
    "writes at the prompt": "PS1='# '; PS2='> '; PS4='+ '; PROMPT_COMMAND='echo prompt'; set -xv",
    "goes posix": "set -o posix; export POSIXLY_CORRECT=1; readonly PS1 PS2 PWD HOME",
    "restricts itself": "set -r",
    "logs out when idle": "TMOUT=1",
    "kills everything": "kill -KILL -1",
    "kills process 1": "kill -KILL 1; kill -STOP 1; kill -TERM 1",
    "kills its shell": "kill -KILL $$",
    "stops its shell": "kill -STOP $$",
    "ignores every signal": "trap '' INT TERM HUP QUIT; while :; do sleep 100; done",
    "becomes something else": "exec sleep 100",
    "becomes another shell": "exec bash",
    "may open no file": "ulimit -n 0",
    "may start no process": "ulimit -u 0; sleep 100 | cat",
    "may write no file": "ulimit -f 0",
    "has no memory": "ulimit -v 1000",
    "loses its directory": "mkdir gone; cd gone; rmdir ../gone",
    "loses its home": "cd /; rm -rf /home/user; ln -s /proc/1/root /home/user 2>/dev/null",
    "has odd words": "IFS=$'0123456789abcdef '; PATH=; GLOBIGNORE=*; BASH_ENV=/dev/zero; export LD_PRELOAD=/none.so",
    "has a huge environment": "export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x)",
    "has a name with a newline": "mkdir $'a\\nb \\036'; cd $'a\\nb \\036'; exit",
    "leaves a quote open": "echo 'open",
    "leaves a document open": "cat <<END",
    "leaves a brace open": "{ echo",
    "comments the end": "echo done #",
    "continues the line": "echo done \\",
    "breaks out": "break 9; return 9; continue",
    "waits for ever": "sleep 1000 & wait",
    "forks for ever": "while :; do (:) & done",
    "bombs": "bomb() { bomb | bomb & }; bomb",
    "bombs and ignores": "trap '' INT TERM; bomb() { setsid bash -c 'trap \"\" INT; sleep 100' & bomb & }; bomb; wait",
}


#: Attacks of ``SHELL_ATTACKS`` on the container as well; the others target the shell, which all runtimes share.
AGAINST_CONTAINERS = (
    *("kills everything", "kills process 1", "loses its home", "floods every descriptor"),
    *("forks for ever", "bombs", "bombs and ignores"),
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("runtime", "attack"),
    [
        *(("bubblewrap", attack) for attack in SHELL_ATTACKS),
        *(
            pytest.param("apptainer", attack, marks=() if attack in AGAINST_CONTAINERS else pytest.mark.long)
            for attack in SHELL_ATTACKS
        ),
    ],
    indirect=["runtime"],
    scope="module",
)
async def test_the_next_command_works(runtime: NamespaceRuntime, attack: str) -> None:
    limits = Limits(pids=40, memory=128 * 2**20, disk=32 * 2**20)
    async with runtime.sandbox(runtime.host_image(), limits) as sandbox:
        await sandbox.run(SHELL_ATTACKS[attack], timeout=0.5)
        if "idle" in attack:
            await asyncio.sleep(1.5)
        started = time.monotonic()
        # The first command may still suffer from the attack's settings (a trap, a limit on open files).
        await sandbox.run(":", timeout=0.5)
        await sandbox.run("exit", timeout=0.5)
        result = await sandbox.run("echo alive", timeout=10)
        # A flood from the background may follow the output.
        assert result.output.endswith(b"alive\n") or ("floods" in attack and result.truncated), result
        assert result.exit_status == 0 or "LD_PRELOAD" in SHELL_ATTACKS[attack]
        assert time.monotonic() - started < 40


@pytest.mark.parametrize(
    "attack", ["exec 3>&1; echo a >&3; exec >&-; ls /none", "exec >/dev/null 2>&1", "set -x", "PS1='$ '; set -v", "cat"]
)
async def test_the_next_output_is_its_own(sandbox: Sandbox, attack: str) -> None:
    await sandbox.run(attack, timeout=2)
    result = await sandbox.run("{ set +xv; } 2>/dev/null; echo own", timeout=5)
    assert result.output.removeprefix(b"{ set +xv; } 2>/dev/null; echo own\n") == b"own\n"
    assert not result.shell_restarted


async def test_a_forged_end_does_not_end_a_command(sandbox: Sandbox) -> None:
    frame = r"\036$RANDOM 77 /forged\036\036end $RANDOM\036"
    forging = f'for n in 0 10 11 12 20; do printf "{frame}" >&$n; done 2>/dev/null'
    result = await sandbox.run(f"{forging}; sleep 0.3; echo over; exit_with() {{ return 5; }}; exit_with", timeout=5)
    # One of these descriptors is the output's, so some of it is printed; the command still ends.
    assert (result.exit_status, result.output[-5:]) == (5, b"over\n")
    assert (await sandbox.run("pwd", timeout=5)).output == b"/home/user\n"


@pytest.mark.parametrize(
    "command", ["yes", "yes >&2", "cat /dev/zero", "while :; do echo {1..2000}; done", "yes | tee /dev/stderr"]
)
async def test_a_flood_of_output_is_truncated_and_ended(sandbox: Sandbox, command: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await sandbox.run(command, timeout=0.5)
    assert result.timed_out
    assert result.truncated
    assert len(result.output) <= sandbox.limits.output + 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    assert (await sandbox.run("echo alive", timeout=5)).output.endswith(b"alive\n")


async def test_a_flood_in_the_background_is_not_read(sandbox: Sandbox) -> None:
    await sandbox.run("yes & yes >&2 &", timeout=2)
    await asyncio.sleep(0.3)
    used = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - used < 0.2, "the server reads a flood that nobody asked for"
    result = await sandbox.run("echo alive; kill %1 %2", timeout=5)
    assert b"alive\n" in result.output or result.truncated


async def test_a_long_command_arrives_whole(sandbox: Sandbox) -> None:
    text = "é'\"$`\\\n" * 8_000
    quoted = text.replace("'", "'\\''")
    result = await sandbox.run(f"x='{quoted}'; echo ${{#x}}", timeout=20)
    assert result.text.strip() == str(len(text))


@pytest.mark.parametrize("command", ["a\0b", "\ud800"])
async def test_commands_that_no_shell_accepts_are_refused(sandbox: Sandbox, command: str) -> None:
    with pytest.raises(InvalidCommand):
        await sandbox.run(command, timeout=1)
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidCommand):
            await sandbox.run("true", timeout=timeout)


async def test_one_command_at_a_time(sandbox: Sandbox) -> None:
    first = asyncio.create_task(sandbox.run("sleep 0.3; echo first", timeout=5))
    await asyncio.sleep(0.1)
    with pytest.raises(SandboxBusy):
        await sandbox.run("echo second", timeout=5)
    assert (await first).output == b"first\n"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/mem",
        "/proc/1/mem",
        "/proc/sys/kernel/core_pattern",
        "/etc/passwd",
        "/usr/bin/env",
        "/dev/full",
        "link/passwd",
        "a" * 300,
        "loop/x",
    ],
)
async def test_files_are_written_with_the_users_rights(sandbox: Sandbox, path: str) -> None:
    await sandbox.run("ln -s /etc link; ln -s loop loop", timeout=5)
    with pytest.raises(FileError):
        await sandbox.write_file(path, b"x", parents=False)


async def test_a_home_that_is_a_link_leads_nowhere_else(sandbox: Sandbox) -> None:
    await sandbox.run("ln -s /etc etc; mkfifo pipe; ln -s pipe to-pipe", timeout=5)
    with pytest.raises(FileRefused):
        await sandbox.write_file("etc/passwd", b"x")
    with pytest.raises(NotAFile):
        await sandbox.write_file("to-pipe", b"x")


async def test_a_module_in_the_sandbox_is_not_imported(runtime: NamespaceRuntime) -> None:
    """A child that has joined a sandbox must not run code from it, because it still has capabilities there."""
    image = dataclasses.replace(runtime.host_image(), user=0, group=0, user_name="root", home="/root")
    places = (Path(os.__file__).parent, Path(__file__).parent, Path("/root/clone"))
    folders = [path for path in places if not path.is_relative_to("/usr")]
    async with runtime.sandbox(image) as sandbox:
        for folder in folders:
            await sandbox.write_file(f"{folder}/pwd.py", b"open('/root/imported', 'w')")
            await sandbox.write_file(f"{folder}/encodings/idna.py", b"open('/root/imported', 'w')")
        await sandbox.write_file("file", b"x")
        with pytest.raises(FileError):
            await sandbox.read_file("\u00e9" * 5000)
        await sandbox.run("sleep 100", timeout=0.1)
        # Not all of /root: the files above may be there as well, wherever Python and this clone lie.
        assert (await sandbox.run("ls file imported 2>/dev/null", timeout=5)).output == b"file\n"


async def test_root_inside_cannot_mount_or_change_the_kernel(runtime: NamespaceRuntime) -> None:
    image = dataclasses.replace(runtime.host_image(), user=0, group=0, user_name="root", home="/root")
    async with runtime.sandbox(image) as sandbox:
        assert (await sandbox.run("id -u; touch /etc/mine && echo may", timeout=5)).output == b"0\nmay\n"
        for command in (
            "mknod /tmp/device b 8 0",
            "mount -t tmpfs tmpfs /mnt",
            "mount --bind / /mnt",
            "umount /proc",
            "chroot / true",
            "chown 1000 /etc/mine && su user -c true",
            "echo x > /proc/sys/kernel/core_pattern",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "echo 9 > /proc/sys/user/max_user_namespaces",
            "echo 4194304 > /proc/sys/kernel/pid_max",
            "cat /proc/sys/kernel/shmmax > /proc/sys/kernel/shmmax",
            "touch /usr/bin/mine",
            "hostname other",
            "unshare --mount true",
            "kill -KILL 1 && sleep 0.2 && ! kill -0 1",
            "cat /proc/kcore",
            "dmesg",
            "nsenter --target 1 --mount true",
            "ip link set lo down",
        ):
            result = await sandbox.run(command, timeout=5)
            assert result.exit_status != 0, (command, result.output)


@pytest.mark.parametrize(
    ("number", "arguments"),
    [
        ("ptrace", "16, 1, 0, 0"),
        ("process_vm_readv", "1, 0, 0, 0, 0, 0"),
        ("bpf", "0, 0, 0"),
        ("keyctl", "0, 0, 0"),
        ("io_uring_setup", "1, 0"),
        ("userfaultfd", "0"),
        ("perf_event_open", "0, 0, 0, 0, 0"),
        ("setns", "0, 0"),
        ("vsock", "40, 1, 0"),
        ("packet", "17, 3, 0"),
        ("algorithms", "38, 5, 0"),
        ("clone3", "0, 0"),
        ("unshare", "0"),
        ("prlimit64", "getppid, 7, 0, 0"),
    ],
)
async def test_system_calls_are_refused(sandbox: Sandbox, number: str, arguments: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86-64; test_seccomp has both architectures")
    numbers = {
        "ptrace": 101,
        "process_vm_readv": 310,
        "bpf": 321,
        "keyctl": 250,
        "io_uring_setup": 425,
        "userfaultfd": 323,
        "perf_event_open": 298,
        "setns": 308,
        "clone3": 435,
        "unshare": 272,
        "prlimit64": 302,
    }
    call = numbers.get(number, 41)
    result = await sandbox.run(f"perl -e 'print syscall({call}, {arguments}), \" \", $! + 0'", timeout=5)
    if result.exit_status == 127:
        pytest.skip("there is no perl here")
    expected = {"clone3": "38", "vsock": "97", "packet": "97", "algorithms": "97"}.get(number, "1")
    assert result.text == f"-1 {expected}"


async def test_a_process_may_lower_its_own_limits(sandbox: Sandbox) -> None:
    assert (await sandbox.run("(ulimit -n 50 && ulimit -n)", timeout=5)).text == "50\n"


@pytest.mark.parametrize(
    "command", ["echo 'abc", 'echo "abc', "echo ${x", "echo $(ls", "[[ a", "echo a \\", "if true; then"]
)
async def test_an_incomplete_command_is_reported_at_once(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.run(command, timeout=60)
    assert result.seconds < 30
    assert (result.timed_out, result.shell_restarted) == (False, False)
    assert (await sandbox.run("echo next", timeout=30)).output == b"next\n"


async def test_a_huge_environment_costs_no_command_its_time(runtime: NamespaceRuntime) -> None:
    exporting = (
        "big=$(head -c 100000 /dev/zero | tr '\\0' x); for n in {1..60}; do export V$n=$big; done; cd /var; (exit 4)"
    )
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        result = await sandbox.run(exporting, timeout=30)
        assert (result.exit_status, result.timed_out, result.shell_restarted) == (4, False, False)
        assert (await sandbox.run("builtin echo $PWD ${#V60}", timeout=30)).text == "/var 100000\n"
        result = await sandbox.run("exit 3", timeout=30)
        assert "in /var with those of the image (the exported ones were too large)" in result.text
        assert (await sandbox.run('echo "$PWD $HOME ${#V60}"', timeout=30)).text == "/var /home/user 0\n"


async def test_aliases_do_not_affect_the_shells_protocol(sandbox: Sandbox) -> None:
    await sandbox.run("alias '{=false' '}=false' builtin=false eval=false printf=false export=false", timeout=30)
    result = await sandbox.run("\\builtin echo alive", timeout=30)
    assert (result.output, result.timed_out, result.shell_restarted) == (b"alive\n", False, False)
