"""Promises about isolation from the host, from other sandboxes and from the server's own code."""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import secrets
import shlex
import socket
import tempfile
from pathlib import Path

from ors_containers.linux.confinement.hidden_paths import hidden_in
from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.self_check.promises import SMALL, PromiseBroken, Promises, expect, expect_failure, expect_output

promise = Promises()


@promise("files of the host are absent")
async def host_files_are_absent(runtime: Runtime, sandbox: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(prefix="canary") as canary:
        await expect_failure(sandbox, f"cat {canary.name}")
    result = await sandbox.run(
        "cat /etc/shadow /proc/1/environ /proc/kcore /proc/kmsg; ls /sys /root /home", timeout=20
    )
    expect("root:x:" not in result.text and "root:*:" not in result.text, result.text)
    await expect_output(sandbox, "uname -n", "sandbox\n")


@promise("processes of the host are absent")
async def host_processes_are_absent(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("ls -d /proc/[0-9]*", timeout=20)
    expect(len(result.text.split()) < 10, f"it sees {result.text.split()}")
    await expect_failure(sandbox, f"kill -0 {os.getpid()} || kill -0 {os.getppid()}")


@promise("the network and the host's loopback are out of reach", "network")
async def the_network_is_out_of_reach(runtime: Runtime, sandbox: Sandbox) -> None:
    name = "\0ors-" + secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "localhost", "0.0.0.0"):  # noqa: S104 - an address to connect to
            await expect_failure(sandbox, f"exec 3<>/dev/tcp/{address}/{port}")
        await expect_output(sandbox, f"grep -c {name[1:]} /proc/net/unix", "0\n", 1)
    result = await sandbox.run("cat /proc/net/dev", timeout=20)
    interfaces = [line.split(":")[0].strip() for line in result.text.splitlines() if ":" in line]
    expect(interfaces == ["lo"], f"it has {interfaces}")


@promise("processes have no privileges and cannot gain any")
async def processes_have_no_privileges(runtime: Runtime, sandbox: Sandbox) -> None:
    await expect_output(sandbox, "id -u", "1000\n")
    result = await sandbox.run("cat /proc/self/status", timeout=20)
    fields = dict(line.split(":\t", 1) for line in result.text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect(int(fields[name], 16) == 0, f"{name} is {fields[name]}")
    expect(fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", f"{fields['NoNewPrivs']} {fields['Seccomp']}")
    result = await sandbox.run("grep -vw nosuid /proc/self/mounts", timeout=20)
    expect(result.exit_status == 1, f"mounted with setuid programs: {result.text}")
    result = await sandbox.run("grep -vw nodev /proc/self/mounts | grep -v '^[^ ]* /dev'", timeout=20)
    expect(result.exit_status == 1, f"mounted with devices: {result.text}")


@promise("system calls that reach beyond a sandbox are refused")
async def dangerous_system_calls_are_refused(runtime: Runtime, sandbox: Sandbox) -> None:
    for command in (
        "mknod /tmp/device b 8 0",
        "mount -t tmpfs tmpfs /tmp",
        "unshare --user true",
        "unshare --net true",
        "chroot / true",
        "hostname other",
        "nsenter --net=/proc/1/ns/net true",
    ):
        await expect_failure(sandbox, command)
    ptrace = {"x86_64": 101, "aarch64": 117}.get(platform.machine())
    result = await sandbox.run(f"perl -e 'print syscall({ptrace}, 16, getppid, 0, 0)'", timeout=20)
    expect(result.text in ("-1", "") or result.exit_status == 127, f"ptrace gave {result.text!r}")


@promise("/proc and /sys of the host cannot be written")
async def host_kernel_settings_cannot_be_written(runtime: Runtime, sandbox: Sandbox) -> None:
    for path in (
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
    ):
        await expect_failure(sandbox, f"echo x > {path}")
    await expect_output(sandbox, "find /sys -mindepth 1 -maxdepth 1 | wc -l", "0\n")


@promise("two sandboxes share nothing")
async def two_sandboxes_share_no_files(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("echo mine > /tmp/file; echo mine > /dev/shm/file; echo mine > file", timeout=20)
    async with runtime.sandbox(runtime.host_image(), SMALL) as other:
        await expect_failure(other, "cat /tmp/file /dev/shm/file /home/user/file")


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


@promise("locks and watches do not reach from a sandbox to another or to the host")
async def locks_and_watches_stay_inside(runtime: Runtime, sandbox: Sandbox) -> None:
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
        return  # no perl, so no way to make a chosen system call
    expect("taken" not in result.text and "free /etc/passwd\n" in result.text, f"alone: {result.text}")
    await start("locks", _LOCK)
    result = await sandbox.run(f"{program(_LOCK)} 2>&1", timeout=60)
    expect("taken /etc/passwd" in result.text, f"the sandbox does not see its own lock: {result.text}")
    await start("watches", _WATCH)
    said = "/tmp/watches"  # noqa: S108 - inside
    await asyncio.sleep(0.5)  # events of the start itself arrive, too
    before = (await sandbox.read_file(said)).count(b"seen")
    async with runtime.sandbox(runtime.host_image(), SMALL) as other:
        result = await other.run(f"{program(_LOCK)} 2>&1", timeout=60)
        expect("taken" not in result.text and "free" in result.text, f"another sandbox's lock is seen: {result.text}")
        await other.run(f"head -c 1 {' '.join(paths)}; env; echo >/dev/null", timeout=20)
    for source, target in sandbox.image.binds:
        if target in paths:
            await asyncio.to_thread(_take_lock, source)
    await asyncio.sleep(0.3)
    seen = (await sandbox.read_file(said)).count(b"seen") - before
    expect(seen == 0, f"it got {seen} events of files that others opened")
    await sandbox.run("cat /etc/passwd; env; sleep 0.3", timeout=20)
    seen = (await sandbox.read_file(said)).count(b"seen") - before
    expect(seen > 0, "it got no event of files that it opened itself")


def _take_lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PromiseBroken(f"{path} is locked on the host") from error
    finally:
        os.close(descriptor)


@promise("nothing names a path of the host")
async def host_paths_are_not_named(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("cat /proc/self/mountinfo /proc/self/mountstats /proc/1/mountinfo", timeout=20)
    names = [str(path) for path in sandbox.image.layers]
    names += [str(source) for source, target in sandbox.image.binds if str(source) != target]
    for name in names:
        expect(name not in result.text, f"{name} is in the mount table: {result.text}")


@promise("the server's own code is absent")
async def server_code_is_absent(runtime: Runtime, sandbox: Sandbox) -> None:
    places = {"": sandbox.image.layers, **{target: (source,) for source, target in sandbox.image.binds}}
    for target, sources in places.items():
        for hidden in (await hidden_in([str(source) for source in sources])).values():
            for path in hidden:
                await expect_failure(sandbox, f"ls -d {shlex.quote(f'{target}/{path}')}")
    for name in ("ors_server.http.app", "ors_containers.sandbox"):
        await expect_failure(sandbox, f"python3 -c 'import {name}'")
