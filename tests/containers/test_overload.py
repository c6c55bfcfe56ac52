"""Time limits on this machine while processes outside of the sandbox use its processors, and while they do not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from ors_containers import MachineOverloaded, Sandbox
from ors_containers.container import ContainerSettings
from ors_containers.limits import Limits
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.runtimes.shells import time_limit

from tests.support.sampling import sample

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A program that needs so many seconds of processor time.
BUSY = "import time\nwhile time.process_time() < {}: pass"
#: Commands whose processes wait for each other.
STORMS = {
    "200 processes": "for i in $(seq 200); do (while :; do :; done) & done; wait",
    "on one processor": "for i in $(seq 40); do taskset -c 0 sh -c 'while :; do :; done' & done; wait",
    "processes that end": "while :; do (exec /bin/true) & done",
    "of low priority": "for i in 1 2 3; do nice -n 19 sh -c 'while :; do :; done' & done; wait",
}


@pytest.fixture(autouse=True)
def _measured(runtime: NamespaceRuntime) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    if any("it cannot be measured" in note for note in runtime.describe().notes):
        pytest.skip("processor time cannot be measured here")


@contextlib.contextmanager
def others(each: int) -> Generator[None]:
    """Keep every processor busy with so many processes that are in no sandbox.

    Each has a session of its own: the kernel gives those of one session the weight of one process.
    """
    command = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(command, start_new_session=True) for _ in range(each * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


def taken() -> tuple[float, float]:
    """Return the seconds in which processors were not idle, and the time."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = (fields[3] + fields[4]) / os.sysconf("SC_CLK_TCK")
    return sum(fields) / os.sysconf("SC_CLK_TCK") - idle, time.monotonic()


@pytest.mark.long  # it keeps every processor busy for seconds
async def test_others_extend_a_command(sandbox: Sandbox) -> None:
    """It gets a ninth of a processor, and needs a fifth of its time-out: then it is not timed out."""
    with others(8):
        result = await sandbox.run(f"python3 -S -c '{BUSY.format(0.4)}'", timeout=1.5)
    assert (result.exit_status, result.timed_out) == (0, False)
    assert result.waited <= result.seconds <= result.waited + 1.5 * 2


@pytest.mark.long
async def test_others_extend_an_examination(sandbox: Sandbox) -> None:
    with others(8):
        program = ["/usr/bin/python3", "-S", "-c", BUSY.format(0.4)]
        result = await sandbox.examine(program, timeout=1.5, keep_processes=True)
    assert (result.exit_status, result.timed_out) == (0, False), result
    assert result.seconds > 1.5


@pytest.fixture
def short_bound(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(time_limit, "LEAST", 5.0)
    return 5.0


@pytest.mark.long
async def test_beyond_the_bound_it_is_the_machine(sandbox: Sandbox, short_bound: float) -> None:
    with others(20):
        started = time.monotonic()
        with pytest.raises(MachineOverloaded, match=r"waited [\d.]+ s for processors that others used"):
            await sandbox.run("while :; do :; done", timeout=1)
        assert time.monotonic() - started >= short_bound
    assert (await sandbox.run("echo on", timeout=60)).output.endswith(b"on\n")


@pytest.mark.long
async def test_one_that_sleeps_is_not_extended(sandbox: Sandbox) -> None:
    with others(8):
        result = await sandbox.run("sleep 60", timeout=2)
    assert result.timed_out
    assert result.waited < result.seconds / 2


@pytest.mark.parametrize("storm", sample(STORMS, 4))
async def test_a_sandbox_that_waits_for_itself_is_timed_out(runtime: NamespaceRuntime, storm: str) -> None:
    """Its waiting is at most the part of the machine that others take; there may be some."""
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        busy, began = taken()
        result = await sandbox.run(STORMS[storm], timeout=2)
        now_busy, now = taken()
        used = int(Path(_usage(runtime, sandbox)).read_text()) / 1e9 if _usage(runtime, sandbox) else 0.0
        processors = len(os.sched_getaffinity(0))
        assert result.timed_out
        assert result.waited <= max(0.0, now_busy - busy - used) / processors + 0.1 * (now - began), result


def _usage(runtime: NamespaceRuntime, sandbox: Sandbox) -> str:
    account = runtime._require().groups.account(sandbox.id)  # pyright: ignore[reportPrivateUsage]
    return f"{account.usage}/cpuacct.usage" if account is not None and account.version == 1 else ""


async def test_its_own_limit_is_its_own(runtime: NamespaceRuntime) -> None:
    """It may use a twentieth of a processor: it waits most of the time, and not for others."""
    async with runtime.sandbox(runtime.host_image(), Limits(cpu=0.05)) as sandbox:
        result = await sandbox.run("while :; do :; done", timeout=3)
        assert result.timed_out
        assert result.seconds < 20


@pytest.mark.long
@pytest.mark.usefixtures("short_bound")
async def test_others_extend_a_command_of_a_container(runtime: NamespaceRuntime) -> None:
    async with await runtime.open_container(runtime.host_image(), ContainerSettings()) as container:
        with others(8):
            result = await container.run(f"python3 -S -c '{BUSY.format(0.4)}'", timeout=1.5)
            assert (result.exit_status, result.timed_out) == (0, False)
            assert result.seconds > 1.5
        with others(20), pytest.raises(MachineOverloaded):
            await container.run("while :; do :; done", timeout=1)


async def test_an_end_that_is_noticed_late_is_no_time_out(runtime: NamespaceRuntime, sandbox: Sandbox) -> None:
    """The event loop stands still from before the end of each until after its time."""

    def stand_still() -> None:
        time.sleep(1.5)

    loop = asyncio.get_running_loop()
    loop.call_later(0.1, stand_still)
    assert not (await sandbox.run("sleep 0.3", timeout=1)).timed_out
    async with await runtime.open_container(runtime.host_image(), ContainerSettings()) as container:
        loop.call_later(0.1, stand_still)
        assert not (await container.run("sleep 0.3", timeout=1)).timed_out
    loop.call_later(0.3, stand_still)
    assert not (await sandbox.examine(["/bin/sleep", "0.4"], timeout=1)).timed_out
