"""One table of reservations for all processes of a node."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ors_containers import Limits, Overloaded, RuntimeUnavailable
from ors_containers.scheduling import pool as pool_module
from ors_containers.scheduling.admission import Admission
from ors_containers.scheduling.pool import SandboxPool
from ors_containers.scheduling.reservations import Reservations, reservations_of_node

from tests.server.sandbox_service.fake import GIB, FakeMachine, FakeRuntime, image
from tests.support.paths import ROOT
from tests.support.waiting import until

MIB = 2**20
#: Seconds. Reservations do not shrink while a test runs: the part of it after which they begin to is many years.
LIFETIME = 1e10


class Promiser:
    """A process of ``reserving_process``."""

    def __init__(self, table: Path, free: int, reserve: int, lifetime: float) -> None:
        arguments = map(str, (table, free, reserve, lifetime))
        command = [sys.executable, "-m", "tests.server.sandbox_service.reserving_process", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.open = 0

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def reply(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.reply()

    def totals(self) -> list[int]:
        return [int(word) for word in self.ask("totals").split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Promiser]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes that share a table."""
    started: list[Promiser] = []

    def start(free: int, reserve: int, lifetime: float = LIFETIME) -> Promiser:
        started.append(Promiser(tmp_path / "table", free, reserve, lifetime))
        return started[-1]

    yield start
    for reserving_process in started:
        if reserving_process.process.returncode is None:
            reserving_process.kill()


def test_two_processes_that_ask_for_more_than_half_at_once_get_it_once(start: Start) -> None:
    both = [start(100 * MIB, 60 * MIB) for _ in range(2)]
    assert [each.reply() for each in both] == ["ready", "ready"]
    winners = set[int]()
    for number in range(100):
        for each in (both[number % 2], both[1 - number % 2]):
            each.send("start")
            time.sleep(random.uniform(0, 0.002))  # so that one is not always first, whatever else the machine does
        replies = [each.reply().split()[0] for each in both]
        assert sorted(replies) == ["admitted", "refused"]
        winner = replies.index("admitted")
        winners.add(winner)
        assert both[winner].ask("fail") == "ended"
    assert both[0].totals() == [0, 0, 0, 1]
    assert winners == {0, 1}, "one process was always first: the test showed little"


def test_the_promises_of_a_killed_process_are_free_at_once(start: Start) -> None:
    first, second = start(100 * MIB, 60 * MIB), start(100 * MIB, 60 * MIB)
    assert first.reply() == second.reply() == "ready"
    assert first.ask("start") == "admitted"
    refusal = second.ask("start")
    assert "60 are reserved" in refusal.replace(" MiB", ""), refusal
    assert second.totals() == [60 * MIB, 16, 1, 2]
    first.kill()
    assert second.totals() == [0, 0, 0, 1]
    assert second.ask("start") == "admitted"
    # The next process takes the row of the dead one, and does not inherit its reservations.
    third = start(100 * MIB, 60 * MIB)
    assert third.reply() == "ready"
    assert third.ask("start").startswith("refused")
    assert third.totals() == [60 * MIB, 16, 1, 2]


def test_never_more_is_promised_than_there_is(start: Start) -> None:
    """Processes start, end, fail and are killed at random, several at the same time."""
    room, reserve, size = 5, 10 * MIB, 4
    made = 0

    def new() -> Promiser:
        nonlocal made
        made += 1
        reserving_process = start(room * reserve + MIB, reserve)
        assert reserving_process.reply() == "ready"
        return reserving_process

    living = [new() for _ in range(size)]
    # An ended start is still reserved: its sandbox grows. Only a failure or a death frees a reservation.
    reserved = [0] * size
    admitted = refused = 0
    generator = random.Random(15)
    for step in range(200):
        asked: list[tuple[int, str]] = []
        for index in range(size):
            options = ["start", "start", "none"] + (["fail", "end"] if living[index].open else [])
            action = generator.choice(options)
            if action != "none":
                living[index].send(action)
                asked.append((index, action))
        before = sum(reserved)
        freed = contended = 0
        for index, action in asked:
            reply = living[index].reply()
            if action == "start" and reply == "admitted":
                reserved[index] += 1
                living[index].open += 1
                admitted += 1
            elif action == "start":
                refused += 1
                contended += "of memory" not in reply  # a process that holds the lock got no processor for a while
            else:
                living[index].open -= 1
                reserved[index] -= action == "fail"
                freed += action == "fail"
        assert sum(reserved) <= room, step
        starts = sum(action == "start" for _, action in asked)
        least = min(room - freed, before - freed + starts) - contended
        assert sum(reserved) >= least, f"step {step}: free room was refused"
        if generator.random() < 0.05:
            victim = generator.randrange(size)
            living[victim].kill()
            reserved[victim] = 0
            living[victim] = new()
        memory, pids, starting, _ = living[generator.randrange(size)].totals()
        assert (memory, pids) == (sum(reserved) * reserve, sum(reserved) * 16)
        assert starting == sum(each.open for each in living)
    assert admitted > 15
    assert refused > 50
    assert made > 10


def test_a_process_that_is_killed_at_any_moment_leaves_no_promise_and_no_lock(start: Start) -> None:
    watching = start(100 * MIB, 60 * MIB)
    assert watching.reply() == "ready"
    generator = random.Random(15)
    for _ in range(10):
        busy = start(100 * MIB, 60 * MIB)
        assert busy.reply() == "ready"
        for _ in range(200):
            busy.send("start")
            busy.send("fail")
        time.sleep(generator.random() * 0.03)
        busy.kill()
        assert watching.totals() == [0, 0, 0, 1]
        assert watching.ask("start") == "admitted"
        assert watching.ask("fail") == "ended"


def test_a_stopped_process_keeps_its_promises_for_their_lifetime_only(start: Start) -> None:
    first, second = start(100 * MIB, 60 * MIB, 2.0), start(100 * MIB, 60 * MIB, 2.0)
    assert first.reply() == second.reply() == "ready"
    assert first.ask("start") == "admitted"
    os.kill(first.process.pid, signal.SIGSTOP)
    assert second.ask("start").startswith("refused")
    time.sleep(2.3)
    assert second.totals()[:2] == [0, 0]
    assert second.ask("start") == "admitted"


def test_a_process_that_hangs_with_the_lock_delays_nobody_for_long(start: Start) -> None:
    first, second = start(GIB, MIB), start(GIB, MIB)
    assert first.reply() == second.reply() == "ready"
    assert first.ask("hang") == "hangs"
    time.sleep(0.1)
    began = time.monotonic()
    assert second.ask("start").startswith("refused")
    assert time.monotonic() - began < 20
    first.kill()
    assert second.ask("start") == "admitted"


def test_a_reservation_shrinks_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("ors_containers.scheduling.reservations.time", clock)
    reservations = Reservations(lifetime=0.5)
    reservation = reservations.add(1000 * MIB, 16)
    assert reservations.totals()[:2] == (1000 * MIB, 16)
    now[0] += 0.3
    assert 300 * MIB < reservations.totals().memory < 700 * MIB
    now[0] += 0.3
    assert reservations.totals()[:2] == (0, 0)
    reservations.add(MIB, 16)
    reservations.withdraw(reservation)  # of a part of the clock that is long over
    assert reservations.totals()[:2] == (MIB, 16)


async def test_starts_are_those_of_the_node_and_each_process_has_its_share(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    machine = FakeMachine()
    machine.pressure = 99.0
    other = start(10 * GIB, MIB)
    assert other.reply() == "ready"
    for _ in range(2):
        assert other.ask("start") == "admitted"
    admission = Admission(machine, queue=0, reservations=Reservations(tmp_path / "table", lifetime=LIFETIME))
    assert not admission.has_spare()
    async with admission.starts(Limits()):  # its share of two, although there are two already
        with pytest.raises(Overloaded, match="99 % of the time"):
            async with admission.starts(Limits()):
                pass
        other.kill()
        assert admission.starting == 1
        async with admission.starts(Limits()):
            assert admission.starting == 2
    assert admission.starting == 0


def test_threads_of_a_process_share_its_row(tmp_path: Path) -> None:
    reservations = reservations_of_node(tmp_path / "table")
    assert reservations_of_node(tmp_path / "." / "table") is reservations

    def work() -> None:
        for _ in range(200):
            with reservations.exclusive():
                reservation = reservations.add(MIB, 16)
                reservations.begin_start()
            reservations.end_start()
            reservations.withdraw(reservation)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reservations.totals() == (0, 0, 0, 0, 1, 0)


async def test_a_server_that_waits_makes_another_stop_warm_sandboxes_and_start_no_more(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_QUIET_TIME", 0.0)
    full = start(0, MIB)
    assert full.reply() == "ready"
    admission = Admission(FakeMachine(), reservations=Reservations(tmp_path / "table", lifetime=LIFETIME))
    pool = SandboxPool(FakeRuntime(), admission, warm=3)
    try:
        for _ in range(2):
            await (await pool.acquire(image())).stop()
        await until(lambda: pool.warm == 3)
        assert full.ask("start").startswith("refused")
        assert not admission.has_spare()
        await until(lambda: pool.warm == 2)
        for _ in range(10):
            assert full.ask("start").startswith("refused")
            await asyncio.sleep(0.1)
        assert (pool.warm, admission.has_spare()) == (0, False)
        await until(lambda: pool.warm == 3)  # once the other has its room
        assert full.ask("start").startswith("refused")
        full.kill()
        await asyncio.sleep(0.3)
        assert pool.warm >= 2
    finally:
        await pool.close()


def test_a_table_that_cannot_be_used_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"table of reservations .*ORS_NODE_TABLE"):
        Reservations(tmp_path / "missing" / "table")
    with pytest.raises(RuntimeUnavailable, match="ORS_NODE_TABLE"):
        Reservations(tmp_path)
