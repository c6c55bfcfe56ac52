"""Promises about limits and about the end of a sandbox."""

from __future__ import annotations

import asyncio
import platform

from ors_containers.errors import DiskFull, SandboxExpired, SandboxStopped
from ors_containers.limits import Limits
from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.self_check.promises import SMALL, PromiseBroken, Promises, expect, expect_output

promise = Promises()


@promise("a fork bomb stops at the limit, and the sandbox survives it", "pids")
async def a_fork_bomb_is_survived(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("kept=1; bomb() { bomb | bomb & }; bomb; sleep 1000", timeout=2)
    expect(result.timed_out, result)
    # On a busy machine processes that were killed take a moment to exit.
    counted = "for try in {1..100}; do set -- /proc/[0-9]*; [ $# -ge 10 ] || break; sleep 0.1; done; echo $#"
    result = await sandbox.run(counted, timeout=60)
    expect(result.exit_status == 0 and int(result.text) < 10, f"afterwards: {result}")


@promise("a process that takes too much memory is killed, and the sandbox survives it", "memory")
async def too_much_memory_is_survived(runtime: Runtime, sandbox: Sandbox) -> None:
    # Without a newline in its input, tail keeps the whole stream in memory.
    result = await sandbox.run("head -c 1000000000 /dev/zero | tail | wc -c", timeout=60)
    expect(result.text.strip().splitlines()[-1] != "1000000000", "a gigabyte was kept in 96 MiB")
    await expect_output(sandbox, "echo alive", "alive\n")


@promise("a full disk is an error, and the sandbox survives it", "disk")
async def a_full_disk_is_survived(runtime: Runtime, sandbox: Sandbox) -> None:
    for place in ("/tmp", "/home/user", "/dev/shm"):  # noqa: S108 - inside
        result = await sandbox.run(f"head -c 100000000 /dev/zero > {place}/filler", timeout=60)
        expect(result.exit_status != 0, f"100 MB fit into {place}")
        try:
            await sandbox.write_file("more", bytes(10**6))
        except DiskFull:
            pass
        else:
            raise PromiseBroken(f"with {place} full, a file could be written")
        await expect_output(sandbox, f"rm {place}/filler; echo alive", "alive\n")
    result = await sandbox.run("i=0; while : > /tmp/empty$i; do i=$((i + 1)); done 2>/dev/null; echo $i", timeout=60)
    expect(result.exit_status == 0 and int(result.text) < SMALL.inodes, f"{result.text} files")


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


@promise("one sandbox cannot use up what the kernel counts by user or for the machine")
async def kernel_objects_are_bounded(runtime: Runtime, sandbox: Sandbox) -> None:
    def program(seconds: int) -> str:
        calls = ", ".join(str(number) for number in _CALLS[platform.machine()])
        text = _TAKE.replace("@CALLS@", calls).replace("@SECONDS@", str(seconds))
        return f"perl -e '{text}'"

    result = await sandbox.run(f"{program(0)} 2>&1", timeout=60)
    if result.exit_status == 127:
        return  # no perl, so no way to make a chosen system call
    taken = {words[0]: int(words[1]) for line in result.text.splitlines() if len(words := line.split()) == 2}
    most = {"watches": 32, "contexts": 0, "queues": 8, "signals": 1024, "terminals": 64}
    expect(taken.keys() >= most.keys(), result.text)
    for what, count in most.items():
        expect(taken[what] <= count, f"it has {taken[what]} {what}, not {count}")
    for what in ("watches", "queues", "signals", "terminals"):
        expect(taken[what] > 0, f"it has no {what} at all")
    await sandbox.run(
        f"({program(1000)}) >/tmp/said 2>&1 & until grep -q taken /tmp/said; do sleep 0.05; done", timeout=60
    )
    async with runtime.sandbox(runtime.host_image(), SMALL) as other:
        result = await other.run(f"{program(0)} 2>&1", timeout=60)
        for what in ("watches", "queues", "signals", "terminals"):
            expect(f"{what} 0\n" not in result.text, f"another sandbox has none left: {result.text}")


@promise("a sandbox past its wall time is stopped", "wall")
async def an_expired_sandbox_is_stopped(runtime: Runtime, sandbox: Sandbox) -> None:
    async with runtime.sandbox(runtime.host_image(), Limits(wall=0.3)) as short:
        try:
            await asyncio.wait_for(short.run("sleep 1000", timeout=100), 20)
        except SandboxExpired:
            return
    raise PromiseBroken("it went on")


@promise("a stopped sandbox raises SandboxStopped")
async def a_stopped_sandbox_says_so(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.stop()
    await sandbox.stop()
    try:
        await sandbox.run("true", timeout=1)
    except SandboxStopped:
        return
    raise PromiseBroken("it ran a command")
