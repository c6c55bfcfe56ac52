"""A shell that is replaced while its sandbox is stopped, its caller is cancelled, or a command has just ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from ors_containers.errors import SandboxStopped
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.runtimes.shells.shell import Shell
from ors_containers.runtimes.shells.shell_protocol import Frames
from ors_containers.sandbox import Sandbox

from tests.support.processes import open_descriptors

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: More than a socket takes at once, so that the next shell is given it piece by piece.
MUCH = "for i in {1..30}; do export V$i=\"$(head -c 60000 /dev/zero | tr '\\0' x)\"; done"


def notice(monkeypatch: pytest.MonkeyPatch, method: str) -> asyncio.Event:
    """Set an event when a shell calls a method of its own."""
    begun, original = asyncio.Event(), getattr(Shell, method)

    async def called(self: Shell, *arguments: Any) -> Any:
        begun.set()
        return await original(self, *arguments)

    monkeypatch.setattr(Shell, method, called)
    return begun


async def ending_shell(sandbox: Sandbox, begun: asyncio.Event, pause: float) -> asyncio.Task[Any]:
    """Run a command that ends the shell, until a moment after the next shell is being started."""
    begun.clear()
    running = asyncio.create_task(sandbox.run("exit 1", timeout=30))
    await begun.wait()
    await asyncio.sleep(pause)
    return running


@pytest.mark.parametrize("much", [False, True])
async def test_a_stop_meanwhile_leaves_nothing(
    runtime: NamespaceRuntime, monkeypatch: pytest.MonkeyPatch, much: bool
) -> None:
    begun = notice(monkeypatch, "_send" if much else "_respawn")
    found: Counter[str] = Counter()
    for number in range(8):
        before = len(open_descriptors())
        sandbox = runtime.sandbox(runtime.host_image())
        await sandbox.start()
        if much:
            assert (await sandbox.run(MUCH, timeout=30)).exit_status == 0
        running = await ending_shell(sandbox, begun, 0.001 * number)
        await sandbox.stop()
        async with asyncio.timeout(30):
            try:
                found[f"ended with {(await running).exit_status}"] += 1
            except SandboxStopped:
                found["stopped"] += 1
        assert len(open_descriptors()) == before, number
    assert found.keys() <= {"stopped", "ended with 1"}


async def test_the_next_command_after_a_cancelled_one_is_whole(
    runtime: NamespaceRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = notice(monkeypatch, "_send")
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        for number in range(4):
            assert (await sandbox.run(MUCH, timeout=30)).exit_status == 0
            running = await ending_shell(sandbox, begun, 0.002 * number)
            running.cancel()
            await asyncio.wait([running])
            result = await sandbox.run("echo hello; echo ${#V30}", timeout=30)
            assert (result.exit_status, result.text.split("]")[-1].split()) == (0, ["hello", "60000"]), number
            assert running.cancelled() == result.shell_restarted, number  # said once, to a caller that is there


async def test_what_an_ended_command_left_outlives_a_cancellation(
    runtime: NamespaceRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller is cancelled in the turn of the loop in which its end is read."""
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        running: asyncio.Task[Any] | None = None
        original = Frames.add

        def add(self: Frames, data: bytes) -> bool:
            is_whole = original(self, data)
            if is_whole and running is not None:
                asyncio.get_running_loop().call_soon(running.cancel)
            return is_whole

        monkeypatch.setattr(Frames, "add", add)
        running = asyncio.create_task(sandbox.run("sleep 1000 & echo $! > left", timeout=30))
        await asyncio.wait([running])
        assert running.cancelled()
        running = None
        assert (await sandbox.run("kill -0 $(cat left)", timeout=30)).exit_status == 0
