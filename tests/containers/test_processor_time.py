"""The measure of waiting for others, on counters of a made-up machine of two processors, of both versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from ors_containers.errors import MachineOverloaded
from ors_containers.linux.limits import processor_time
from ors_containers.linux.limits.processor_time import GroupAccount, Machine, Quota, WaitMeter
from ors_containers.runtimes.shells import time_limit
from ors_containers.runtimes.shells.time_limit import LEAST, MOST, TimeLimit

_TICKS = os.sysconf("SC_CLK_TCK")


class FakeMachine:
    """Counters in files, and the time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now = 1000.0
        self.others = 0.0
        self.groups: dict[str, dict[str, float]] = {}
        (folder / "proc").mkdir()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(processor_time, "time", clock)
        monkeypatch.setattr(time_limit, "time", clock)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        self.group("sandbox")

    def group(self, name: str, version: Literal[1, 2] = 2) -> GroupAccount:
        (self.folder / name).mkdir(exist_ok=True)
        self.groups.setdefault(name, {"used": 0.0, "stopped": 0.0, "stalled": 0.0})
        self.write()
        return GroupAccount(version, self.folder / name, self.folder / name)

    def write(self) -> None:
        """Write all counters; the machine has used what the groups and others have."""
        busy = self.others + sum(group["used"] for group in self.groups.values())
        idle = 2 * self.now - busy
        ticks = [round(seconds / 2 * _TICKS) for seconds in (busy, 0, 0, idle)]
        lines = [f"cpu{number} {' '.join(map(str, ticks))} 0 0 0 0 0 0" for number in range(3)]
        (self.folder / "proc/stat").write_text("\n".join(["cpu  1 1 1 1 1 1 1 1 1 1", *lines, "intr 1 2 3"]))
        for name, group in self.groups.items():
            folder = self.folder / name
            used, stopped, stalled = (round(group[key] * 1e6) for key in ("used", "stopped", "stalled"))
            (folder / "cpu.stat").write_text(
                f"usage_usec {used}\nnr_throttled 3\nthrottled_usec {stopped}\nthrottled_time {stopped * 1000}\n"
            )
            (folder / "cpuacct.usage").write_text(f"{used * 1000}\n")
            (folder / "cpu.pressure").write_text(
                f"some avg10=0.00 avg60=0.00 avg300=0.00 total=999999999\n"
                f"full avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\n"
            )

    def spend(self, seconds: float, others: float = 0.0, **counters: float) -> None:
        """Let so many seconds pass: others use so much of both processors, and the sandbox's counters grow."""
        self.now += seconds
        self.others += others
        self.grow("sandbox", **counters)

    def grow(self, name: str, **counters: float) -> None:
        for key, grown in counters.items():
            self.groups[name][key] += grown
        self.write()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(tmp_path, monkeypatch)


def _meter(machine: FakeMachine, *beside: str, **options: bool) -> WaitMeter:
    return WaitMeter(
        Machine(system=machine.folder), machine.group("sandbox"), [machine.group(name) for name in beside], **options
    )


@pytest.mark.parametrize(
    ("counters", "waited"),
    [
        pytest.param({"others": 19.0, "used": 1.0, "stalled": 9.0}, 9.0, id="one process beside a full machine"),
        pytest.param({"others": 19.0, "used": 0.5, "stalled": 0.4}, 0.4, id="a sleeping one beside a full machine"),
        pytest.param({"others": 0.0, "used": 10.0, "stalled": 10.0}, 0.0, id="a fork storm alone"),
        pytest.param({"others": 10.0, "used": 10.0, "stalled": 10.0}, 0.0, id="a fork storm beside a process"),
        pytest.param({"others": 1.0, "used": 1.0, "stopped": 9.0, "stalled": 9.0}, 0.0, id="its own limit"),
        pytest.param({"others": 19.0, "used": 1.0, "stopped": 6.0, "stalled": 9.0}, 3.0, id="its limit, then others"),
        pytest.param({"others": 1.0, "used": 1.0, "stalled": 9.0}, 0.5, id="all on one processor of an idle machine"),
        pytest.param({"others": 10.0, "used": 1.0, "stalled": 9.0}, 5.0, id="all on the processor of another"),
    ],
)
def test_waiting(machine: FakeMachine, counters: dict[str, float], waited: float) -> None:
    meter = _meter(machine)
    machine.spend(10.0, **counters)
    assert meter.step() == pytest.approx(waited, abs=0.02)
    assert meter.used() == pytest.approx(counters["used"])


def test_services_of_the_agent_are_not_others(machine: FakeMachine) -> None:
    """A live examination waits for them, and they are the same sandbox."""
    machine.group("services")
    meter = _meter(machine, "services")
    machine.spend(10.0, others=1.0, used=1.0, stalled=9.0)
    machine.grow("services", used=18.0)
    assert meter.step() == 0.0


def test_a_step_counts_from_the_last(machine: FakeMachine) -> None:
    meter = _meter(machine)
    machine.spend(10.0, others=19.0, used=1.0, stalled=9.0)
    meter.step()
    machine.spend(1.0, others=0.0, used=1.0)
    assert meter.step() == 0.0
    machine.spend(1.0, others=1.9, used=0.1, stalled=0.9)
    assert meter.step() == pytest.approx(0.9, abs=0.02)


def test_a_start_waits_as_long_as_others_use_the_machine(machine: FakeMachine) -> None:
    meter = _meter(machine, starting=True)
    machine.spend(10.0, others=16.0)
    assert meter.step() == pytest.approx(8.0, abs=0.02)


def test_a_quota_above_is_a_machine(machine: FakeMachine) -> None:
    """A pod of one processor on an idle machine: its other sandboxes use it up."""
    pod = machine.group("pod")
    meter = WaitMeter(Machine([Quota(pod, 1.0)], machine.folder), machine.group("sandbox"))
    machine.spend(10.0, used=0.5, stalled=9.0)
    machine.grow("pod", used=9.5)
    assert meter.step() == pytest.approx(9.0, abs=0.02)


@pytest.mark.parametrize("version", [1, 2])
def test_counters_that_cannot_be_read_are_no_waiting(machine: FakeMachine, version: Literal[1, 2]) -> None:
    account = machine.group("sandbox", version)
    meter = WaitMeter(Machine(system=machine.folder), account)
    machine.spend(10.0, others=19.0, used=1.0, stalled=9.0)
    (account.usage / ("cpuacct.usage" if version == 1 else "cpu.stat")).unlink()
    assert meter.step() == 0.0


def test_without_pressure_threads_are_looked_at(machine: FakeMachine) -> None:
    """In the group is first the test's process, which can run, and then one that sleeps."""
    account = machine.group("sandbox", 1)
    (account.usage / "tasks").write_text(f"{os.getpid()}\n")
    meter = WaitMeter(Machine(system=machine.folder), account)
    machine.spend(10.0, others=19.0, used=1.0)
    assert meter.step() == pytest.approx(9.0, abs=0.02)
    child = os.fork()
    if child == 0:
        os.execvp("sleep", ["sleep", "60"])
    try:
        while b"(sleep) S " not in _stat(child):
            os.sched_yield()
        (account.usage / "tasks").write_text(f"{child}\n")
        machine.spend(10.0, others=19.0, used=1.0)
        meter.step()
        machine.spend(10.0, others=19.0, used=1.0)
        assert meter.step() == pytest.approx(0.0, abs=0.1)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def _stat(process: int) -> bytes:
    return Path(f"/proc/{process}/stat").read_bytes()


# ── limits ──


def _limit(machine: FakeMachine, new_meter: Callable[[], Any] | None = None) -> TimeLimit:
    return TimeLimit("The command", 10.0, new_meter or (lambda: _meter(machine)))


def _pass(machine: FakeMachine, limit: TimeLimit, **each: float) -> float:
    """Let time pass as the limit says until it has passed; return the seconds. ``each`` second grows the counters."""
    started = machine.now
    while machine.now - started < 2000 and (pause := limit.remaining()) > 0:
        machine.spend(pause, **{key: grown * pause for key, grown in each.items()})
    return machine.now - started


def test_a_limit_of_a_sandbox_that_has_the_machine_is_wall_time(machine: FakeMachine) -> None:
    assert _pass(machine, _limit(machine), used=1.0, others=0.5, stalled=1.0) == pytest.approx(10.0, abs=0.1)


def test_a_limit_without_counters_is_wall_time(machine: FakeMachine) -> None:
    assert _pass(machine, _limit(machine, lambda: None), used=0.1, others=1.9, stalled=0.9) == pytest.approx(10.0)


def test_waiting_extends_a_limit(machine: FakeMachine) -> None:
    """Half of the time from the first look on."""
    limit = _limit(machine)
    assert _pass(machine, limit, used=0.5, others=1.5, stalled=0.5) == pytest.approx(1.0 + 2 * 9.0, abs=0.1)
    assert limit.waited() == pytest.approx(9.0, abs=0.1)


@pytest.mark.parametrize(("seconds", "bound"), [(10.0, LEAST), (120.0, 120.0 * MOST)])
def test_waiting_beyond_the_bound_is_the_machines(machine: FakeMachine, seconds: float, bound: float) -> None:
    limit = TimeLimit("The command", seconds, lambda: _meter(machine))
    machine.spend(limit.remaining())
    limit.remaining()
    machine.spend(bound - 2, others=1.99 * (bound - 2), used=0.01 * bound, stalled=bound)
    assert limit.remaining() > 0
    machine.spend(1.5, others=3.0, stalled=1.5)
    with pytest.raises(MachineOverloaded, match=rf"waited [\d.]+ s .* used {0.01 * bound:.2f} s of processor"):
        limit.remaining()
    with pytest.raises(MachineOverloaded):
        limit.require_processors()


def test_a_failure_on_a_machine_with_room_is_no_overload(machine: FakeMachine) -> None:
    limit = _limit(machine)
    for _ in range(5):
        machine.spend(limit.remaining(), others=1.0, used=0.1, stalled=1.0)
    limit.require_processors()


def test_nothing_is_read_in_the_first_tenth(machine: FakeMachine) -> None:
    def new_meter() -> None:
        raise AssertionError

    limit = _limit(machine, new_meter)
    assert limit.remaining() == pytest.approx(1.0)
    machine.spend(0.99)
    assert limit.remaining() == pytest.approx(0.01)
    assert limit.waited() == 0.0


def test_a_late_first_look_is_the_servers(machine: FakeMachine) -> None:
    limit = _limit(machine)
    machine.spend(15.0, others=30.0)
    assert limit.remaining() > 0
    assert limit.waited() == pytest.approx(14.0)
