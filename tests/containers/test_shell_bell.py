"""The end of a command wakes the server once; a bash that cannot say so is heard all the same."""

from __future__ import annotations

import asyncio

import pytest
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.runtimes.shells import shell, time_limit
from ors_containers.runtimes.shells.shell import Shell
from ors_containers.runtimes.shells.shell_protocol import Frames
from ors_containers.sandbox import Sandbox

from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Puts another file in the place of the bell, which bash keeps elsewhere during a command: the last of its sockets.
REPLACE_BELL = """for number in /proc/$$/fd/*; do
    case $(readlink $number) in socket:*) last=${number##*/};; esac
done
eval "exec $last>/dev/null"; echo $last"""
#: Rings it as often as it can.
RING = REPLACE_BELL.replace('eval "exec $last>/dev/null"; echo $last', "(while :; do printf ringing >&$last; done) &")
#: Writes to the socket of frames without a pause, and rings the bell.
FLOOD = REPLACE_BELL.replace(
    'eval "exec $last>/dev/null"; echo $last',
    "(while :; do printf '%65536s' x; done) >&10 & (while :; do printf ringing; done) >&$last &",
)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of the pieces that shells have read."""
    pieces: list[int] = []
    original = Frames.add

    def add(self: Frames, data: bytes) -> bool:
        pieces.append(len(data))
        return original(self, data)

    monkeypatch.setattr(Frames, "add", add)
    return pieces


async def test_the_end_of_a_command_is_read_once(sandbox: Sandbox, read: list[int]) -> None:
    await sandbox.run("for i in {1..40}; do export V$i=value; done", timeout=20)
    for number in range(8):
        read.clear()
        assert (
            await sandbox.run(f"exit_with() {{ return $1; }}; exit_with {number}", timeout=20)
        ).exit_status == number
        assert len(read) == 1, number
        assert read[0] > 40 * len('declare -x V1="value"\n')


async def test_a_bell_that_is_silent_loses_no_command(sandbox: Sandbox, read: list[int]) -> None:
    await sandbox.run("export KEPT=1", timeout=20)
    assert int((await sandbox.run(REPLACE_BELL, timeout=20)).text) >= 10
    for number in range(3):
        result = await sandbox.run(f"echo {number} $KEPT; false", timeout=20)
        assert (result.text, result.exit_status, result.shell_restarted) == (f"{number} 1\n", 1, False)
    # Not only after a pause: from the second command on, the server waits for the frame itself.
    result = await sandbox.run("sleep 1000", timeout=0.5)
    assert (result.timed_out, result.shell_restarted) == (True, False)
    assert (await sandbox.run("exit 3", timeout=20)).shell_restarted
    read.clear()
    assert (await sandbox.run("echo $KEPT", timeout=20)).text == "1\n"
    assert len(read) == 1  # the next shell has a bell


async def test_a_bell_that_rings_all_the_time(runtime: NamespaceRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[Shell] = []
    original = Shell._on_bell  # pyright: ignore[reportPrivateUsage] - counted

    def on_bell(self: Shell) -> None:
        rung.append(self)
        original(self)

    monkeypatch.setattr(Shell, "_on_bell", on_bell)
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        await sandbox.run(RING, timeout=20)
        for number in range(4):
            result = await sandbox.run(f"sleep 0.1; echo {number}; false", timeout=20)
            assert (result.text, result.exit_status) == (f"{number}\n", 1)
        assert (await sandbox.run("sleep 1000", timeout=0.5)).timed_out
    assert len(rung) > 50


async def test_frames_that_a_socket_cannot_hold(sandbox: Sandbox) -> None:
    text = "for i in {1..10}; do export L$i=\"$(head -c 60000 /dev/zero | tr '\\0' x)\"; done"
    assert (await sandbox.run(text, timeout=20)).exit_status == 0
    for number in range(3):
        result = await sandbox.run(f"echo ${{#L10}}; exit_with() {{ return $1; }}; exit_with {number}", timeout=20)
        assert (result.text, result.exit_status) == ("60000\n", number)
    result = await sandbox.run("exit 1", timeout=20)
    assert result.shell_restarted
    assert (await sandbox.run("echo ${#L10}", timeout=20)).text.endswith("60000\n")


def wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shells wait for the bell, and for their first look at a limit, longer than any command here takes."""
    monkeypatch.setattr(shell, "_SILENCE", 900.0)
    monkeypatch.setattr(time_limit, "_LONGEST_STEP", 900.0)


@pytest.mark.parametrize("text", ["export V{1..300}=value", "export V2=$(seq 12000 | tr '\\n' x)"])
async def test_frames_that_may_not_fit_are_not_waited_for(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """300 short variables fill a socket, too: each write takes room of its own."""
    assert (await sandbox.run(text, timeout=20)).exit_status == 0
    wait_long(monkeypatch)
    async with asyncio.timeout(PATIENCE):
        for number in range(5):
            result = await sandbox.run(f"exit_with() {{ return $1; }}; exit_with {number}", timeout=9000)
            assert result.exit_status == number
        assert (await sandbox.run("exit 3", timeout=9000)).shell_restarted
        assert (await sandbox.run("echo $V2", timeout=9000)).output.strip()


async def test_what_was_not_read_before_a_shell_ended_counts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_long(monkeypatch)
    text = f"{REPLACE_BELL}\nexport NEW=1; cd /tmp; (sleep 0.5; kill -9 $$) & (exit 5)"
    async with asyncio.timeout(PATIENCE):
        assert (await sandbox.run(text, timeout=9000)).exit_status == 5
        assert (await sandbox.run("echo $NEW $PWD", timeout=9000)).text.endswith("1 /tmp\n")


async def test_a_flood_leaves_the_event_loop_its_turns(
    runtime: NamespaceRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = [0]
    original, original_bell = Shell._read, Shell._on_bell  # pyright: ignore[reportPrivateUsage] - counted

    def read(self: Shell) -> int:
        reads[-1] += 1
        return original(self)

    def on_bell(self: Shell) -> None:
        reads.append(0)
        original_bell(self)
        assert reads[-1] <= 8
        reads.append(0)

    monkeypatch.setattr(Shell, "_read", read)
    monkeypatch.setattr(Shell, "_on_bell", on_bell)
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        await sandbox.run(FLOOD, timeout=20)
        for number in range(3):
            result = await sandbox.run(f"sleep 0.3; echo {number}; false", timeout=200)
            assert (result.text, result.exit_status) == (f"{number}\n", 1)
    assert sum(reads) > 100
