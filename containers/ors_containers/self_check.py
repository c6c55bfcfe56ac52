"""Whether a runtime keeps what ``Sandbox`` promises: one set of checks for every runtime, ours or yours.

    async with MyRuntime() as runtime:
        async for check in self_check(runtime):
            print(check.outcome, check.name, check.detail)

Each check gets a fresh sandbox of the runtime's host image. Checks of limits are skipped where ``describe`` says that
the limit does not hold: a runtime may keep less, but not claim more. Invariant: a check fails with an explanation,
never with an exception, and leaves nothing running.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ors_containers.errors import (
    DiskFull,
    FileTooLarge,
    InvalidCommand,
    NoSuchFile,
    NotAFile,
    SandboxBusy,
    SandboxError,
    SandboxExpired,
    SandboxStopped,
)
from ors_containers.hidden import hidden_in
from ors_containers.limits import MIB, LimitName, Limits
from ors_containers.runtime import Runtime
from ors_containers.sandbox import CommandResult, Sandbox

__all__ = ["CHECKS", "Check", "Outcome", "run_check", "self_check"]

Outcome = Literal["passed", "failed", "skipped"]

_SMALL = Limits(memory=96 * MIB, pids=48, disk=32 * MIB, output=2000)


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and whether it was kept."""

    name: str
    outcome: Outcome
    #: Why it failed or was skipped.
    detail: str
    seconds: float


class _Failed(Exception):
    """A promise that was not kept."""


@dataclass(frozen=True, slots=True)
class _Definition:
    body: Callable[[Runtime, Sandbox], Awaitable[None]]
    #: The limit it is about; skipped where that does not hold.
    limit: LimitName | None


#: Every check by name; the name says what is promised.
CHECKS: dict[str, _Definition] = {}


def _promise(name: str, limit: LimitName | None = None) -> Callable[[Callable[..., Awaitable[None]]], None]:
    def register(body: Callable[[Runtime, Sandbox], Awaitable[None]]) -> None:
        CHECKS[name] = _Definition(body, limit)

    return register


async def self_check(runtime: Runtime) -> AsyncIterator[Check]:
    """Run every check on a started runtime, in order, and yield each as it is done."""
    for name in CHECKS:
        yield await run_check(runtime, name)


async def run_check(runtime: Runtime, name: str) -> Check:
    """Run one of ``CHECKS``."""
    definition = CHECKS[name]
    started = time.monotonic()
    for enforcement in runtime.describe().enforcements:
        if enforcement.limit == definition.limit and not enforcement.holds:
            return Check(name, "skipped", f"{enforcement.limit} is not enforced here", 0.0)
    try:
        async with runtime.sandbox(runtime.host_image(), _SMALL) as sandbox:
            await definition.body(runtime, sandbox)
    except (_Failed, SandboxError, TimeoutError) as error:
        return Check(name, "failed", str(error) or type(error).__name__, time.monotonic() - started)
    return Check(name, "passed", "", time.monotonic() - started)


def _expect(condition: bool, explanation: object) -> None:
    if not condition:
        raise _Failed(str(explanation))


async def _says(sandbox: Sandbox, command: str, expected: str, status: int = 0) -> CommandResult:
    result = await sandbox.run(command, timeout=20)
    _expect(
        result.text == expected and result.exit_status == status,
        f"{command!r} gave {result.exit_status} and {result.text!r}, not {status} and {expected!r}",
    )
    return result


async def _refused(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.run(command, timeout=20)
    _expect(result.exit_status != 0, f"{command!r} was allowed: {result.text!r}")


# ── the shell ──


@_promise("a command's output and exit status come back")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await _says(sandbox, "echo out; echo err >&2; (exit 3)", "out\nerr\n", 3)
    await _says(sandbox, "for (", "bash: syntax error near unexpected token `('\n", 2)


@_promise("directory, variables and functions last from command to command")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("cd /var; export KEPT='a b'; local_too=c; say() { echo \"said $1\"; }; alias e=echo", timeout=20)
    await _says(sandbox, 'pwd; echo "$KEPT $local_too"; say it; e "hi!"', "/var\na b c\nsaid it\nhi!\n")


@_promise("a command has its own descriptors only, and may open its output again")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    listing = "for n in /proc/self/fd/*; do [ -e $n ] && echo ${n##*/}; done"
    result = await sandbox.run(f"bash -c '{listing}'", timeout=20)
    _expect(result.text.split() in (["0", "1", "2"], ["0", "1", "2", "3"]), f"a program has {result.text.split()}")
    await _says(sandbox, "echo out > /dev/stdout; echo err > /dev/stderr; echo fd > /dev/fd/1", "out\nerr\nfd\n")
    result = await _examine(sandbox, f"{listing}; echo out > /dev/stdout; echo err > /dev/stderr")
    descriptors, said = result.text.split()[:-2], result.text.split()[-2:]
    _expect(descriptors in (["0", "1", "2"], ["0", "1", "2", "3"]), f"an examination has {descriptors}")
    _expect(said == ["out", "err"], result.text)


@_promise("standard input is empty")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await _says(sandbox, "cat; read line; echo $?", "1\n")


@_promise("binary output is unchanged")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run(r"printf '\0\1\377\036end\n\r\200'", timeout=20)
    _expect(result.output == b"\0\1\xff\x1eend\n\r\x80", result.output)


@_promise("a command that closes or redirects its output leaves the next one's alone")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    for command in ("exec >&- 2>&-", "exec >/tmp/elsewhere 2>&1", "exec </dev/zero", "exec 0<&- 1>&- 2>&-; set -x"):
        await sandbox.run(command, timeout=20)
        result = await sandbox.run("{ set +x; } 2>/dev/null; echo here", timeout=20)
        _expect(result.output.endswith(b"here\n"), f"after {command!r}: {result.output!r}")


@_promise("a flood of output keeps its head and its tail")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("echo first; head -c 20000000 /dev/zero; echo last", timeout=60)
    _expect(result.truncated and len(result.output) < 2100, f"{len(result.output)} bytes were kept")
    _expect(result.output.startswith(b"first\n") and result.output.endswith(b"last\n"), "head or tail is missing")


@_promise("background processes do not hold a command up, and last")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("(sleep 0.3; echo late) & echo now", timeout=20)
    _expect(result.text.endswith("now\n") and result.seconds < 0.3, f"{result.seconds:.2f} s, {result.text!r}")
    await asyncio.sleep(0.6)
    await _says(sandbox, "echo next", "late\nnext\n")


@_promise("a command past its time is killed with its children, and the shell stays")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("kept=yes; sleep 1001 & (setsid sleep 1002 &) ; true", timeout=20)
    result = await sandbox.run(
        "setsid sleep 1003 & (sleep 1004 & sleep 1005); echo not reached; sleep 1006", timeout=0.5
    )
    _expect(result.timed_out and result.exit_status == 124, result)
    _expect(b"not reached" not in result.output, result.output)
    _expect(not result.shell_restarted, "the shell was lost")
    result = await sandbox.run('for s in /proc/[0-9]*/cmdline; do tr "\\0" " " <$s; done; echo $kept', timeout=20)
    alive = [number for number in range(1001, 1007) if f"sleep {number}" in result.text]
    _expect(alive == [1001, 1002], f"of sleep 1001 … 1006 these are alive: {alive}")
    _expect(result.text.endswith("yes\n"), "a variable was lost")


@_promise("a shell that is busy itself is interrupted, or replaced when it refuses")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("kept=yes; while :; do :; done", timeout=0.3)
    _expect(result.timed_out and not result.shell_restarted, result)
    await _says(sandbox, "echo $kept", "yes\n")
    result = await sandbox.run("cd /var; export A=1", timeout=20)
    result = await sandbox.run("trap '' INT; while :; do :; done", timeout=0.3)
    _expect(result.timed_out and result.shell_restarted, result)
    await _says(sandbox, "echo $PWD $A", "/var 1\n")


@_promise("a shell that ends is replaced with its directory and its exported variables")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("cd /var; export A=$'x \\' \\n$(false)'; unset LANG; f() { :; }", timeout=20)
    for command, status in (("exit 7", 7), ("kill -KILL $$", 137), ("exec true", 0), ("set -e; false", 1)):
        result = await sandbox.run(command, timeout=20)
        _expect(result.shell_restarted and result.exit_status == status, f"{command!r}: {result}")
        _expect("new one was started in /var" in result.text, f"it is not said: {result.text!r}")
        await _says(sandbox, 'echo "$PWD $A ${LANG-unset}"; type f 2>/dev/null', "/var x ' \n$(false) unset\n", 1)


@_promise("a cancelled command is ended, and the sandbox can be used")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("sleep 1000", timeout=100))
    await asyncio.sleep(0.2)
    running.cancel()
    await asyncio.wait([running])
    result = await sandbox.run("pgrep sleep || grep -l sleep /proc/[0-9]*/comm; echo done", timeout=20)
    _expect(result.text == "done\n", result.text)


# ── files ──


@_promise("files are written, read and described")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 1000
    await sandbox.write_file("new/deep/file", content, mode=0o750)
    _expect(await sandbox.read_file("new/deep/file") == content, "the content differs")
    found = await sandbox.stat_file("new/deep/file")
    _expect((found.kind, found.size, found.mode) == ("file", 256_000, 0o750), found)
    await _says(sandbox, "wc -c < new/deep/file; test -O new/deep/file && echo mine", "256000\nmine\n")
    await sandbox.write_file("new/deep/file", b"short")
    _expect(await sandbox.read_file("new/deep/file") == b"short", "an old end was left")


@_promise("what is no regular file is refused at once")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("mkfifo pipe; mkdir directory; head -c 3000 /dev/zero > big", timeout=20)
    cases: list[tuple[str, type[SandboxError]]] = [
        ("pipe", NotAFile),
        ("directory", NotAFile),
        ("/dev/zero", NotAFile),
        ("absent", NoSuchFile),
        ("big", FileTooLarge),
    ]
    for path, expected in cases:
        try:
            await asyncio.wait_for(sandbox.read_file(path, limit=2000), 10)
        except expected:
            continue
        raise _Failed(f"{path} was read")


@_promise("no link and no .. leads out of the sandbox")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(prefix="canary") as file:
        file.write(b"the host's")
        file.flush()
        canary = file.name
        up = "../" * 40
        await sandbox.run(
            f"ln -s {canary} one; ln -s {up}{canary} two; ln -s / three; ln -s /proc/1/root four", timeout=20
        )
        for path in (
            canary,
            f"{up}{canary}",
            "one",
            "two",
            f"three{canary}",
            f"four{canary}",
            f"/proc/1/cwd{canary}",
        ):
            # Whether a name leads somewhere inside is the sandbox's affair.
            with contextlib.suppress(SandboxError):
                content = await sandbox.read_file(path)
                _expect(content != b"the host's", f"{path} was read from the host")
            with contextlib.suppress(SandboxError):
                await sandbox.write_file(path, b"the agent's", parents=True)
            file.seek(0)
            _expect(file.read() == b"the host's", f"{path} was written on the host")


# ── examinations ──


async def _examine(sandbox: Sandbox, script: str, *, timeout: float = 20, **options: Any) -> CommandResult:
    program = [sandbox.image.shell, "--noprofile", "--norc", "-c", script]
    return await sandbox.examine(program, timeout=timeout, **options)


@_promise("an examination sees what was left, with files and input of its own")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("echo left > left; cd /var; export HOME=/var PS4=agents; PATH=/var", timeout=20)
    files = {"one": b"1\n", "in/a/folder": bytes(range(256)) * 1000}
    script = (
        "cat; cat left /.examination/one; wc -c < /.examination/in/a/folder; pwd; id -u; echo $HOME $PS4; "
        "echo w > /.examination/w; echo err >&2; exit 3"
    )
    result = await _examine(sandbox, script, files=files, input=b"the input\n" * 20_000, output_limit=10**6)
    expected = "the input\n" * 20_000 + "left\n1\n256000\n/home/user\n1000\n/home/user +\nerr\n"
    _expect((result.exit_status, result.text) == (3, expected), f"{result.exit_status}, {result.text[-200:]!r}")
    result = await sandbox.run("ls -A /.examination; pwd; echo $PATH", timeout=20)
    _expect(result.shell_restarted and result.text.endswith("/var\n/var\n"), f"afterwards: {result.text!r}")
    for program, status in (("/none", 127), ("/etc/passwd", 126)):
        result = await sandbox.examine([program], timeout=20)
        _expect(result.exit_status == status, f"{program} gave {result.exit_status}, not {status}")


@_promise("a frozen examination is alone, a live one among the background processes")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("sleep 1001 & setsid sleep 1002 & (setsid sleep 1003 &); trap '' TERM INT", timeout=20)
    counting = 'for s in /proc/[0-9]*/cmdline; do tr "\\0" " " <$s; echo; done'
    result = await _examine(sandbox, counting, keep_processes=True)
    alive = [number for number in range(1001, 1004) if f"sleep {number}" in result.text]
    _expect(alive == [1001, 1002, 1003], f"live: of sleep 1001 … 1003 these are alive: {alive}")
    await sandbox.run("sleep 1004 &", timeout=20)
    result = await _examine(sandbox, counting)
    _expect("sleep" not in result.text, f"frozen: {result.text}")


@_promise("an examination past its time is ended with all it started")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    for keep in (True, False):
        script = "echo begun; setsid sleep 1001 & (sleep 1002 &); sleep 1003"
        result = await _examine(sandbox, script, timeout=0.5, keep_processes=keep)
        found = (result.timed_out, result.exit_status, result.text)
        _expect(found == (True, 124, "begun\n"), found)
        result = await _examine(sandbox, "(setsid sleep 1004 &); echo ended", keep_processes=keep)
        _expect(result.text == "ended\n" and result.exit_status == 0, result)
        result = await sandbox.run("grep -l sleep /proc/[0-9]*/comm", timeout=20)
        _expect("/proc/" not in result.text, f"{result.text} went on")


@_promise("a frozen examination cannot be prevented")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    attacks = (
        "bomb() { bomb | bomb & }; bomb",
        "for n in 1 2 3 4; do (trap '' TERM INT; while :; do kill -STOP -1; done) & done",
        "for n in 1 2 3 4; do (while :; do (kill -KILL -1; :) & done) & done",
        "head -c 100000000 /dev/zero > /tmp/filler; head -c 100000000 /dev/zero > ~/filler",
        "chmod 0 ~ ; rm -rf ~; ln -s /nowhere ~; kill -STOP $$",
    )
    for attack in attacks:
        await sandbox.run(attack, timeout=1)
        result = await _examine(sandbox, "cat /.examination/x; (echo forks); echo > /.examination/y", files={"x": b"x"})
        _expect((result.exit_status, result.text) == (0, "xforks\n"), f"after {attack!r}: {result}")


@_promise("background processes cannot look into a live examination")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    spy = (
        "while :; do for p in /proc/[0-9]*; do [ ${p#/proc/} -gt $BASHPID ] || continue; "
        "cat $p/environ $p/root/.examination/* $p/cwd/secret; "
        "for f in $p/fd/[0-5]; do timeout 0.02 head -c 99 $f; echo forged | timeout 0.02 tee $f; done; done; "
        "cat /.examination/*; done > seen 2>/dev/null"
    )
    await sandbox.run(f"(trap '' INT TERM; {spy}) </dev/null &", timeout=20)
    # What it finds of a process that is not protected shows that it would find the other's.
    await sandbox.run("X=of-this-one-the-secret sleep 1000 </dev/null >/dev/null 2>&1 &", timeout=20)
    script = "exec 5< /.examination/secret; cd /.examination; sleep 1; read -r x; echo $x"
    result = await _examine(
        sandbox, script, files={"secret": b"the-secret"}, input=b"the-secret\n", keep_processes=True
    )
    _expect(result.text == "the-secret\n", result)
    seen = await sandbox.read_file("seen")
    _expect(seen.count(b"of-this-one-the-secret") > 1, "the one who looks saw nothing at all")
    _expect(seen.count(b"the-secret") == seen.count(b"of-this-one-the-secret"), "the secret was seen")


@_promise("background processes cannot read the arguments of what a live examination starts")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    ids = await sandbox.run("cat /proc/self/uid_map", timeout=20)
    if ids.text.split()[2:] == ["1"]:
        return  # there is no group to keep them out by
    spy = "while :; do cat /proc/[0-9]*/cmdline; echo; done > seen 2>/dev/null"
    await sandbox.run(f"({spy}) </dev/null & sleep 1001 </dev/null >/dev/null 2>&1 &", timeout=20)
    result = await _examine(sandbox, "cd /proc; sleep 1.002; cat [0-9]*/cmdline | tr '\\0' ' '", keep_processes=True)
    _expect("sleep 1001" in result.text, f"the examination saw {result.text!r}")
    seen = await sandbox.read_file("seen")
    _expect(b"1001" in seen, "the one who looks saw nothing at all")
    _expect(b"1.002" not in seen and b"cd /proc" not in seen, "arguments of the examination were seen")
    result = await sandbox.run("cd /proc/1 && pwd", timeout=20)
    _expect(result.text.splitlines()[-1] == "/proc/1", "the sandbox's processes stay hidden afterwards")


@_promise("what an examination is given is checked")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    wrong: tuple[tuple[list[str], str, float], ...] = (
        ([], "x", 20),
        (["relative"], "x", 20),
        (["/bin/a\0b"], "x", 20),
        (["/bin/true"], "../x", 20),
        (["/bin/true"], "/x", 20),
        (["/bin/true"], "x", 0),
    )
    for program, name, timeout in wrong:
        try:
            await sandbox.examine(program, files={name: b""}, timeout=timeout)
        except InvalidCommand:
            continue
        raise _Failed(f"{program} with {name} in {timeout} s was taken")
    running = asyncio.create_task(sandbox.run("sleep 0.5; echo over", timeout=20))
    await asyncio.sleep(0.2)
    try:
        await _examine(sandbox, "true")
    except SandboxBusy:
        _expect((await running).text == "over\n", "the command was disturbed")
        return
    raise _Failed("it began while a command ran")


# ── isolation ──


@_promise("files of the host are not there")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(prefix="canary") as canary:
        await _refused(sandbox, f"cat {canary.name}")
    result = await sandbox.run(
        "cat /etc/shadow /proc/1/environ /proc/kcore /proc/kmsg; ls /sys /root /home", timeout=20
    )
    _expect("root:x:" not in result.text and "root:*:" not in result.text, result.text)
    await _says(sandbox, "uname -n", "sandbox\n")


@_promise("processes of the host are not there")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("ls -d /proc/[0-9]*", timeout=20)
    _expect(len(result.text.split()) < 10, f"it sees {result.text.split()}")
    await _refused(sandbox, f"kill -0 {os.getpid()} || kill -0 {os.getppid()}")


@_promise("the network and the host's loopback are out of reach", "network")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    name = "\0ors-" + secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "localhost", "0.0.0.0"):  # noqa: S104 - an address to connect to
            await _refused(sandbox, f"exec 3<>/dev/tcp/{address}/{port}")
        await _says(sandbox, f"grep -c {name[1:]} /proc/net/unix", "0\n", 1)
    result = await sandbox.run("cat /proc/net/dev", timeout=20)
    interfaces = [line.split(":")[0].strip() for line in result.text.splitlines() if ":" in line]
    _expect(interfaces == ["lo"], f"it has {interfaces}")


@_promise("its processes are nobody special and cannot become so")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await _says(sandbox, "id -u", "1000\n")
    result = await sandbox.run("cat /proc/self/status", timeout=20)
    fields = dict(line.split(":\t", 1) for line in result.text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        _expect(int(fields[name], 16) == 0, f"{name} is {fields[name]}")
    _expect(fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", f"{fields['NoNewPrivs']} {fields['Seccomp']}")
    result = await sandbox.run("grep -vw nosuid /proc/self/mounts", timeout=20)
    _expect(result.exit_status == 1, f"mounted with setuid programs: {result.text}")
    result = await sandbox.run("grep -vw nodev /proc/self/mounts | grep -v '^[^ ]* /dev'", timeout=20)
    _expect(result.exit_status == 1, f"mounted with devices: {result.text}")


@_promise("system calls that reach beyond a sandbox are refused")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    for command in (
        "mknod /tmp/device b 8 0",
        "mount -t tmpfs tmpfs /tmp",
        "unshare --user true",
        "unshare --net true",
        "chroot / true",
        "hostname other",
        "nsenter --net=/proc/1/ns/net true",
    ):
        await _refused(sandbox, command)
    ptrace = {"x86_64": 101, "aarch64": 117}.get(platform.machine())
    result = await sandbox.run(f"perl -e 'print syscall({ptrace}, 16, getppid, 0, 0)'", timeout=20)
    _expect(result.text in ("-1", "") or result.exit_status == 127, f"ptrace gave {result.text!r}")


@_promise("/proc and /sys of the host cannot be written")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    for path in (
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
    ):
        await _refused(sandbox, f"echo x > {path}")
    await _says(sandbox, "find /sys -mindepth 1 -maxdepth 1 | wc -l", "0\n")


@_promise("two sandboxes share nothing")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("echo mine > /tmp/file; echo mine > /dev/shm/file; echo mine > file", timeout=20)
    async with runtime.sandbox(runtime.host_image(), _SMALL) as other:
        await _refused(other, "cat /tmp/file /dev/shm/file /home/user/file")


#: By ``platform.machine()``: inotify_init1, inotify_add_watch.
_WATCHING = {"x86_64": (294, 254), "aarch64": (26, 27)}
_LOCK = r"""
my @kept; for my $path (@PATHS@) {
    next unless open(my $file, "<", $path);
    my ($found, $mine) = (pack("s2x4q2lx4", 1, 0, 0, 0, 0), pack("s2x4q2lx4", 0, 0, 0, 0, 0));
    my $free = fcntl($file, 5, $found) && unpack("s", $found) == 2 && flock($file, 6) && fcntl($file, 6, $mine);
    print(($free ? "free" : "taken") . " $path\n"); push @kept, $file;
}
$| = 1; print "done\n"; sleep @SECONDS@;
"""
_WATCH = r"""
my $watch = syscall(@CREATE@, 04000); open(my $events, "<&=", $watch);
for my $path (@PATHS@) { my $name = "$path\0"; syscall(@ADD@, $watch, $name, 0xfff) }
$| = 1; print "done\n";
while (1) { print "seen\n" while sysread($events, my $some, 65536); select(undef, undef, undef, 0.05) }
"""


@_promise("locks and watches do not reach from a sandbox to another or to the host")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    targets = [target for _, target in sandbox.image.binds]
    candidates = ["/", sandbox.image.shell, "/usr/bin/env", "/etc/passwd", *targets, "/dev/null", "/dev/zero"]
    candidates += ["/proc/self/exe", "/proc/1/exe", "/proc/self/ns/time", "/proc/self/ns/user"]
    shared = tuple(f"{place}/" for place in runtime.describe().shared)
    common = [path for path in candidates if f"{path}/".startswith(shared)]
    if any(path in common for path in (sandbox.image.shell, "/usr/bin/env")):
        common.append("/proc/self/exe")
    paths = [path for path in candidates if path not in common]

    def program(text: str, seconds: int = 0) -> str:
        create, add = _WATCHING[platform.machine()]
        words = {"@PATHS@": ", ".join(f'"{path}"' for path in paths), "@SECONDS@": str(seconds)}
        for name, value in {**words, "@CREATE@": str(create), "@ADD@": str(add)}.items():
            text = text.replace(name, value)
        return f"perl -e '{text}'"

    async def start(name: str, text: str) -> None:
        await sandbox.run(
            f"({program(text, 1000)}) >/tmp/{name} 2>&1 & until grep -q done /tmp/{name}; do sleep 0.05; done",
            timeout=60,
        )

    result = await sandbox.run(f"{program(_LOCK)} 2>&1", timeout=60)
    if result.exit_status == 127:
        return  # nothing here makes system calls of one's choice
    _expect("taken" not in result.text and "free /etc/passwd\n" in result.text, f"alone: {result.text}")
    await start("locks", _LOCK)
    result = await sandbox.run(f"{program(_LOCK)} 2>&1", timeout=60)
    _expect("taken /etc/passwd" in result.text, f"a lock of its own is not seen: {result.text}")
    await start("watches", _WATCH)
    said = "/tmp/watches"  # noqa: S108 - inside
    await asyncio.sleep(0.5)  # what started it is told, too
    before = (await sandbox.read_file(said)).count(b"seen")
    async with runtime.sandbox(runtime.host_image(), _SMALL) as other:
        result = await other.run(f"{program(_LOCK)} 2>&1", timeout=60)
        _expect("taken" not in result.text and "free" in result.text, f"locked in another: {result.text}")
        await other.run(f"head -c 1 {' '.join(paths)}; env; echo >/dev/null", timeout=20)
    for source, target in sandbox.image.binds:
        if target in paths:
            await asyncio.to_thread(_take_lock, source)
    await asyncio.sleep(0.3)
    seen = (await sandbox.read_file(said)).count(b"seen") - before
    _expect(seen == 0, f"{seen} times it was told what others opened")
    await sandbox.run("cat /etc/passwd; env; sleep 0.3", timeout=20)
    seen = (await sandbox.read_file(said)).count(b"seen") - before
    _expect(seen > 0, "what it opens itself is not seen")


def _take_lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _Failed(f"{path} is locked on the host") from error
    finally:
        os.close(descriptor)


@_promise("nothing names a path of the host")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("cat /proc/self/mountinfo /proc/self/mountstats /proc/1/mountinfo", timeout=20)
    names = [str(path) for path in sandbox.image.layers]
    names += [str(source) for source, target in sandbox.image.binds if str(source) != target]
    for name in names:
        _expect(name not in result.text, f"{name} is in the mount table: {result.text}")


@_promise("the server's own code is not there")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    places = {"": sandbox.image.layers, **{target: (source,) for source, target in sandbox.image.binds}}
    for target, sources in places.items():
        for hidden in (await hidden_in([str(source) for source in sources])).values():
            for path in hidden:
                await _refused(sandbox, f"ls -d {shlex.quote(f'{target}/{path}')}")
    for name in ("ors_server.app", "ors_containers.sandbox"):
        await _refused(sandbox, f"python3 -c 'import {name}'")


# ── limits ──


@_promise("a fork bomb stops at the limit, and the sandbox survives it", "pids")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("kept=1; bomb() { bomb | bomb & }; bomb; sleep 1000", timeout=2)
    _expect(result.timed_out, result)
    result = await sandbox.run("ls -d /proc/[0-9]* | wc -l", timeout=30)
    _expect(result.exit_status == 0 and int(result.text.split()[-1]) < 10, f"afterwards: {result}")


@_promise("a process that takes too much memory is killed, and the sandbox survives it", "memory")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    # tail keeps what it cannot tell to be the end: all of a stream without a newline.
    result = await sandbox.run("head -c 1000000000 /dev/zero | tail | wc -c", timeout=60)
    _expect(result.text.strip().splitlines()[-1] != "1000000000", "a gigabyte was kept in 96 MiB")
    await _says(sandbox, "echo alive", "alive\n")


@_promise("a full disk is an error, and the sandbox survives it", "disk")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    for place in ("/tmp", "/home/user", "/dev/shm"):  # noqa: S108 - inside
        result = await sandbox.run(f"head -c 100000000 /dev/zero > {place}/filler", timeout=60)
        _expect(result.exit_status != 0, f"100 MB fit into {place}")
        try:
            await sandbox.write_file("more", bytes(10**6))
        except DiskFull:
            pass
        else:
            raise _Failed(f"with {place} full, a file could be written")
        await _says(sandbox, f"rm {place}/filler; echo alive", "alive\n")
    result = await sandbox.run("i=0; while : > /tmp/empty$i; do i=$((i + 1)); done 2>/dev/null; echo $i", timeout=60)
    _expect(result.exit_status == 0 and int(result.text) < _SMALL.inodes, f"{result.text} files")


#: By ``platform.machine()``: inotify_init1, io_setup, mq_open, rt_sigqueueinfo.
_CALLS = {"x86_64": (294, 206, 240, 129), "aarch64": (26, 0, 180, 138)}
_TAKE = """
my ($watch, $aio, $queue, $signal) = (@CALLS@);
my ($most, $name, $attributes) = (5000, "", pack("q8", 0, 10, 8192));
sub take { my ($what, $once) = @_; my $n = 0; $n++ while $n < $most && $once->($n); print "$what $n\\n" }
take("watches", sub { syscall($watch, 0) >= 0 });
take("contexts", sub { my $context = pack("Q", 0); syscall($aio, 64, $context) == 0 });
take("queues", sub { $name = "q$_[0]\\0"; syscall($queue, $name, 0102, 0600, $attributes) >= 0 });
my $child = fork; if (!$child) { sleep 1000; exit }
kill "STOP", $child; waitpid $child, 2; my $information = pack("l3x116", 0, 0, -1);
take("signals", sub { syscall($signal, $child, 40, $information) == 0 });
my @terminals; take("terminals", sub { open(my $one, "+<", "/dev/ptmx") or return 0; push @terminals, $one });
$| = 1; print "taken\\n"; sleep @SECONDS@;
"""


@_promise("what is counted by user or for the machine is not used up by one sandbox")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    def program(seconds: int) -> str:
        calls = ", ".join(str(number) for number in _CALLS[platform.machine()])
        text = _TAKE.replace("@CALLS@", calls).replace("@SECONDS@", str(seconds))
        return f"perl -e '{text}'"

    result = await sandbox.run(f"{program(0)} 2>&1", timeout=60)
    if result.exit_status == 127:
        return  # nothing here makes system calls of one's choice
    taken = {words[0]: int(words[1]) for line in result.text.splitlines() if len(words := line.split()) == 2}
    most = {"watches": 32, "contexts": 0, "queues": 8, "signals": 1024, "terminals": 64}
    _expect(taken.keys() >= most.keys(), result.text)
    for what, count in most.items():
        _expect(taken[what] <= count, f"it has {taken[what]} {what}, not {count}")
    for what in ("watches", "queues", "signals", "terminals"):
        _expect(taken[what] > 0, f"it has no {what} at all")
    await sandbox.run(
        f"({program(1000)}) >/tmp/said 2>&1 & until grep -q taken /tmp/said; do sleep 0.05; done", timeout=60
    )
    async with runtime.sandbox(runtime.host_image(), _SMALL) as other:
        result = await other.run(f"{program(0)} 2>&1", timeout=60)
        for what in ("watches", "queues", "signals", "terminals"):
            _expect(f"{what} 0\n" not in result.text, f"another sandbox has none left: {result.text}")


@_promise("a sandbox past its wall time is stopped", "wall")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    async with runtime.sandbox(runtime.host_image(), Limits(wall=0.3)) as short:
        try:
            await asyncio.wait_for(short.run("sleep 1000", timeout=100), 20)
        except SandboxExpired:
            return
    raise _Failed("it went on")


@_promise("a stopped sandbox says so")
async def _(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.stop()
    await sandbox.stop()
    try:
        await sandbox.run("true", timeout=1)
    except SandboxStopped:
        return
    raise _Failed("it ran a command")
