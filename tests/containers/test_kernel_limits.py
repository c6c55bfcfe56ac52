"""Kernel resources that a sandbox could exhaust, facts about the machine, and ordinary work within the limits.

Every runtime limits inotify instances, queued signals, message queues, terminals and AIO contexts (``self_check``). The
tests in this module need a server that is root, or a control group.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from ors_containers import LIMIT_NAMES, Limits, Sandbox
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", "apptainer")


async def test_shared_memory_that_nobody_uses_leaves_the_disk_its_room(runtime: NamespaceRuntime) -> None:
    if not runtime.describe().enforcements[LIMIT_NAMES.index("memory")].holds:
        pytest.skip("memory is not enforced here")
    if any("System V" in note for note in runtime.describe().notes):
        pytest.skip("this kernel does not let System V IPC be bounded")
    limits = Limits(memory=48 * 2**20, disk=32 * 2**20)
    fill = (
        "my $size = 1 << 20; "
        "while (defined(my $id = shmget(0, $size, 0600))) { shmwrite($id, 'x' x $size, 0, $size) or last }"
    )
    async with runtime.sandbox(runtime.host_image(), limits) as sandbox:
        result = await sandbox.run(f'perl -e "{fill.replace("$", chr(92) + "$")}"', timeout=20)
        if result.exit_status == 127:
            pytest.skip("there is no perl here")
        assert result.exit_status == 0, result
        result = await sandbox.run("head -c 40000000 /dev/zero > filler; rm filler; echo alive", timeout=20)
        assert "No space left" in result.text, result
        assert (result.text.splitlines()[-1], result.shell_restarted) == ("alive", False)


async def test_a_sandboxs_use_is_not_counted_as_roots(runtime: NamespaceRuntime) -> None:
    if os.geteuid() != 0 or any("leave none" in note for note in runtime.describe().notes):
        pytest.skip("only a root with CAP_SYS_PTRACE gives each sandbox an account of its own")
    before = _queued()
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        stop = "my $c = fork; if (!$c) { sleep 100; exit } kill 'STOP', $c; waitpid $c, 2;"
        stop = f"{stop} my $i = pack('l3x116', 0, 0, -1);"
        count = {"x86_64": 129, "aarch64": 138}[os.uname().machine]
        script = f"{stop} syscall({count}, $c, 40, $i) for 1 .. 500; sleep 100".replace("$", "\\$")
        result = await sandbox.run(f'perl -e "{script}" & sleep 1; cat /proc/[0-9]*/status | grep SigQ', timeout=20)
        assert max(int(found) for found in re.findall(r"SigQ:\s*(\d+)/", result.text)) >= 500, result
        assert _queued() < before + 400


async def test_the_machine_is_not_described(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "cat /proc/cmdline /proc/interrupts /proc/keys; ls -A /proc/pressure /proc/acpi", timeout=5
    )
    assert "".join(line for line in result.text.splitlines() if not line.startswith(("/proc", "ls:", "cat:"))) == ""
    identifier = (await sandbox.run("cat /proc/sys/kernel/random/boot_id", timeout=5)).text
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", identifier)
    assert identifier != Path("/proc/sys/kernel/random/boot_id").read_text()


async def test_ordinary_work_goes_on(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "touch log; tail -n +1 -f log > said & for n in {1..100}; do echo line >> log; sleep 0.05; "
        "[ $(wc -l < said) -gt 2 ] && break; done; kill %1; cat said",
        timeout=20,
    )
    assert "line" in result.text, result
    terminals = (
        "import os, pty; pairs = [pty.openpty() for _ in range(8)]; print(os.ttyname(pairs[7][1]).rstrip('0123456789'))"
    )
    result = await sandbox.run(f'/usr/bin/python3 -c "{terminals}"', timeout=20)
    assert result.exit_status == 127 or result.text == "/dev/pts/\n", result


def _queued() -> int:
    """Return the number of signals queued for this process's user."""
    found = re.search(r"SigQ:\s*(\d+)/", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])
