"""Processes that die slowly or never: a delay that only an agent can cause is never an infrastructure failure."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import time
from typing import Any

import pytest
from ors_containers import ExaminationFailed, Limits, ProcessesRemain, Sandbox, ShellFailed
from ors_containers.launcher.client import LauncherClient, OperationFailed
from ors_containers.launcher.messages import Examine
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Ten processes with 4,000 locks each: the kernel takes a minute to create the locks and half a minute to release them.
_LOCKS = """
import fcntl, os, sys, time
open("/tmp/lock", "w").close()
for number in range(10):
    if os.fork() == 0:
        kept = []
        for _ in range(4000):
            kept.append(os.open("/tmp/lock", os.O_RDONLY))
            fcntl.flock(kept[-1], fcntl.LOCK_SH)
        open(f"/tmp/done{number}", "w").close()
        time.sleep(1000)
time.sleep(1000)
"""


@pytest.mark.long
async def test_thousands_of_locks_hold_up_no_examination(runtime: NamespaceRuntime) -> None:
    async with runtime.sandbox(runtime.host_image(), Limits(cpu=2)) as sandbox:
        await sandbox.write_file("/tmp/locks.py", _LOCKS.encode())
        result = await sandbox.run(
            "/usr/bin/python3 /tmp/locks.py & until [ -e /tmp/done9 ] || ! kill -0 $!; do sleep 0.1; done; ls /tmp",
            timeout=300,
        )
        if "done9" not in result.text:
            pytest.skip(f"there is no Python in /usr/bin: {result.text}")
        started = time.monotonic()
        result = await sandbox.examine(["/bin/bash", "-c", "echo alone"], timeout=60)
        assert (result.exit_status, result.text) == (0, "alone\n")
        assert time.monotonic() - started < 30
        # Otherwise they would outlast the test, and the janitor is not part of it.
        await sandbox.run("while grep -q python /proc/[0-9]*/comm 2>/dev/null; do sleep 1; done", timeout=300)


@pytest.mark.long
async def test_processes_that_do_not_end_are_distinguished_from_other_failures(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = LauncherClient.request
    numbers = iter((errno.ETIMEDOUT, errno.EIO))

    async def failing(client: LauncherClient, message: Any, *arguments: Any) -> Any:
        if isinstance(message, Examine):
            raise OperationFailed(next(numbers), "the sandbox's processes do not end")
        return await request(client, message, *arguments)

    monkeypatch.setattr(LauncherClient, "request", failing)
    for kind in (ProcessesRemain, ExaminationFailed):
        with pytest.raises(ExaminationFailed) as caught:
            await sandbox.examine(["/bin/true"], timeout=5)
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    "holding",
    [
        "for n in {1..50}; do (trap '' TERM INT HUP; sleep 1000) & kill -STOP $!; done",
        pytest.param(
            "mkdir deep; cd deep; for n in {1..1500}; do mkdir -p d/d/d/d/d/d/d/d; cd d/d/d/d/d/d/d/d; done; "
            "sleep 1000 &",
            marks=pytest.mark.long,
        ),
        "for n in {1..20000}; do : > $'name\\n\\377'$n; done; sleep 1000 &",
        "head -c 300000000 /dev/zero > filler; exec 9< filler; rm filler; sleep 1000 &",
        "while :; do sync; done & while :; do sync; done & while :; do sync -f /usr; done & sleep 0.5",
        "mkfifo pipe; for n in {1..40}; do cat < pipe & done; sleep 0.2",
    ],
    ids=["stopped", "deep", "names", "disk", "sync", "pipes"],
)
async def test_files_that_an_agent_holds_open_prevent_nothing(runtime: NamespaceRuntime, holding: str) -> None:
    async with runtime.sandbox(runtime.host_image(), Limits(disk=256 * 2**20)) as sandbox:
        await sandbox.run(holding, timeout=10)
        result = await sandbox.examine(["/bin/bash", "-c", "echo alone"], timeout=30)
        assert (result.exit_status, result.text) == (0, "alone\n")
        await asyncio.wait_for(sandbox.stop(), 30)


@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"], indirect=True, scope="module")
async def test_permissions_that_root_inside_sets_do_not_stop_an_examination(runtime: NamespaceRuntime) -> None:
    image = dataclasses.replace(runtime.host_image(), user=0, group=0, user_name="root", home="/root")
    look = ["/bin/bash", "-c", "read -r x < /.examination/x; echo $x < /dev/null; head -c 1 /dev/zero | wc -c"]
    async with runtime.sandbox(image) as sandbox:
        await sandbox.run("chmod 000 /dev/null /dev/zero /dev /.examination / 2>/dev/null", timeout=10)
        for live in (True, False):
            result = await sandbox.examine(look, files={"x": b"x\n"}, timeout=20, keep_processes=live)
            assert (result.exit_status, result.text) == (0, "x\n1\n"), result
            with contextlib.suppress(ShellFailed):
                await sandbox.run("chmod 000 /", timeout=10)
        closing = 'chmod 000 /; perl -e "while (1) { chmod 0, q(/) }" & sleep 0.2'
        if (await sandbox.run(closing, timeout=10)).exit_status != 127:
            result = await sandbox.examine(look, files={"x": b"x\n"}, timeout=20, keep_processes=True)
            assert result.exit_status == 0 or result.exit_status > 128, result
        result = await sandbox.examine(look, files={"x": b"x\n"}, timeout=20)
        assert (result.exit_status, result.text) == (0, "x\n1\n"), result
