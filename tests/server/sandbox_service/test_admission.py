"""The capacity of a machine, and the order in which requests get it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from ors_containers import Limits, Overloaded
from ors_containers.scheduling.admission import Admission
from ors_containers.scheduling.capacity import CapacityReader

from tests.server.sandbox_service.fake import GIB, FakeMachine
from tests.support.waiting import until

MIB = 2**20
LIMITS = Limits()


class Machines:
    """A file system with the figures of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n")
        self.write("proc/loadavg", "0.1 0.2 0.3 2/500 12345\n")
        self.write("proc/sys/kernel/pid_max", "32768\n")
        self.write("proc/sys/kernel/threads-max", "60000\n")
        self.write("proc/pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=1.00 total=1\nfull avg10=0.00\n")
        self.write("proc/self/cgroup", "")
        self.write("proc/self/mountinfo", "")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def machine_files(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_the_capacity_of_the_machine(machine_files: Machines) -> None:
    capacity = CapacityReader(machine_files.root).read()
    assert (capacity.memory, capacity.memory_total) == (4 * GIB, 8 * GIB)
    assert (capacity.pids, capacity.pids_total) == (32768 - 500, 32768)
    assert capacity.pressure == 12.5


def test_a_version_2_group_and_its_parents_limit_it(machine_files: Machines) -> None:
    files = machine_files
    files.write("proc/self/cgroup", "0::/pod/server\n")
    files.write("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
    files.write("sys/fs/cgroup/pod/memory.max", f"{2 * GIB}\n")
    files.write("sys/fs/cgroup/pod/memory.current", f"{GIB}\n")
    files.write("sys/fs/cgroup/pod/memory.stat", f"anon 1\ninactive_file {GIB // 2}\nactive_file 1\n")
    files.write("sys/fs/cgroup/pod/server/memory.max", "max\n")
    files.write("sys/fs/cgroup/pod/server/pids.max", "1000\n")
    files.write("sys/fs/cgroup/pod/server/pids.current", "400\n")
    capacity = CapacityReader(files.root).read()
    assert (capacity.memory, capacity.memory_total) == (GIB + GIB // 2, 2 * GIB)
    assert (capacity.pids, capacity.pids_total) == (600, 1000)


def test_version_1_groups_limit_it(machine_files: Machines) -> None:
    files = machine_files
    files.write("proc/self/cgroup", "5:memory:/service\n4:pids:/service\n0::/\n")
    files.write(
        "proc/self/mountinfo",
        "32 31 0:31 / /cg/memory rw - cgroup cgroup rw,memory\n33 31 0:32 / /cg/pids rw - cgroup cgroup rw,pids\n",
    )
    files.write("cg/memory/service/memory.limit_in_bytes", f"{GIB}\n")
    files.write("cg/memory/service/memory.usage_in_bytes", f"{GIB // 4}\n")
    files.write("cg/memory/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    files.write("cg/pids/service/pids.max", "max\n")
    capacity = CapacityReader(files.root).read()
    assert (capacity.memory, capacity.memory_total) == (GIB - GIB // 4, GIB)
    assert capacity.pids_total == 32768


@pytest.mark.parametrize("group", ["job", "job/ors-server"])
def test_the_memory_of_sandboxes_limits_it(machine_files: Machines, group: str) -> None:
    """Sandboxes of all servers of the group count, the servers themselves do not."""
    files = machine_files
    files.write("proc/self/cgroup", f"0::/{group}\n")
    files.write("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
    files.write("sys/fs/cgroup/job/ors-server/memory.current", f"{3 * GIB}\n")
    assert not CapacityReader(files.root, sandbox_memory=2 * GIB).measures_sandboxes
    for server, used in (("ors-a", GIB), ("ors-b", GIB // 2)):
        files.write(f"sys/fs/cgroup/job/{server}/memory.current", f"{used}\n")
    reader = CapacityReader(files.root, sandbox_memory=2 * GIB)
    assert reader.measures_sandboxes
    capacity = reader.read()
    assert (capacity.memory, capacity.memory_total) == (GIB // 2, 2 * GIB)
    assert CapacityReader(files.root, sandbox_memory=100 * GIB).read().memory == 4 * GIB


def test_figures_that_cannot_be_read_do_not_limit(tmp_path: Path) -> None:
    capacity = CapacityReader(tmp_path).read()
    assert capacity.memory >= 2**50
    assert capacity.pids >= 2**50
    assert capacity.pressure == 0


def test_this_machine_has_figures() -> None:
    capacity = CapacityReader().read()
    assert 0 < capacity.memory <= capacity.memory_total < 2**50
    assert 0 < capacity.pids <= capacity.pids_total < 2**50


async def test_memory_is_reserved_for_sandboxes_that_have_just_started() -> None:
    machine = FakeMachine()
    machine.memory = round(64 * GIB * 0.05) + 100 * MIB
    admission = Admission(machine, queue=0, reserve=30 * MIB)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(admission.starts(LIMITS))
        with pytest.raises(Overloaded) as error:
            async with admission.starts(LIMITS):
                pass
    assert "of memory" in str(error.value)
    assert "ORS_SANDBOX_RESERVE" in str(error.value)
    assert "ORS_SANDBOX_QUEUE" in str(error.value)
    with pytest.raises(Overloaded):  # they have started, and may still grow
        async with admission.starts(LIMITS):
            pass


async def test_a_failed_start_keeps_no_reservation() -> None:
    machine = FakeMachine()
    machine.memory = round(64 * GIB * 0.05) + 40 * MIB
    admission = Admission(machine, queue=0, reserve=30 * MIB)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with admission.starts(LIMITS):
                raise ZeroDivisionError
    async with admission.starts(LIMITS):
        assert admission.starting == 1
    assert admission.starting == 0


async def test_the_error_names_process_ids_that_are_short() -> None:
    machine = FakeMachine()
    machine.pids = 100
    with pytest.raises(Overloaded, match="of process ids, 100 are left"):
        async with Admission(machine, queue=0).starts(LIMITS):
            pass


async def test_requests_are_admitted_in_order() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine)
    served: list[int] = []

    async def ask(number: int) -> None:
        async with admission.starts(LIMITS):
            served.append(number)

    asking = [asyncio.create_task(ask(number)) for number in range(20)]
    await until(lambda: admission.waiting == 20)
    assert served == []
    machine.memory = 64 * GIB
    await asyncio.gather(*asking)
    assert served == list(range(20))
    assert (admission.waiting, admission.starting) == (0, 0)


async def test_a_start_that_gives_way_comes_after_all_others() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine, queue=8)
    served: list[str] = []
    begun: set[str] = set()

    async def ask(name: str) -> None:
        async with admission.starts(LIMITS, gives_way=lambda: name.startswith("ahead") and name not in begun):
            served.append(name)

    asking = [asyncio.create_task(ask(name)) for name in ("ahead 1", "ahead 2", "one", "ahead 3", "two")]
    await until(lambda: admission.waiting == 5)
    begun.add("ahead 2")  # its episode waits for it now
    machine.memory = 64 * GIB
    await asyncio.gather(*asking)
    assert served == ["ahead 2", "one", "two", "ahead 1", "ahead 3"]


async def test_a_start_that_gives_way_neither_fills_the_queue_nor_all_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine, queue=4)
    release = asyncio.Event()
    running: list[bool] = []

    async def ask(last: bool) -> None:
        async with admission.starts(LIMITS, gives_way=lambda: last):
            running.append(last)
            await release.wait()

    asking = [asyncio.create_task(ask(True)) for _ in range(2)]
    await until(lambda: admission.waiting == 2)
    with pytest.raises(Overloaded, match="ORS_SANDBOX_QUEUE"):
        await ask(True)
    asking += [asyncio.create_task(ask(False)) for _ in range(2)]
    await until(lambda: admission.waiting == 4)
    machine.memory = 64 * GIB
    await until(lambda: len(running) == 2)
    await asyncio.sleep(0.15)
    # Both processors start what an episode waits for; a third such start goes on, what gives way does not.
    assert running == [False, False]
    asking.append(asyncio.create_task(ask(False)))
    await until(lambda: len(running) == 3)
    assert running == [False, False, False]
    release.set()
    await asyncio.gather(*asking)


async def test_capacity_for_one_admits_one() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine, reserve=30 * MIB)
    inside = 0
    leave = asyncio.Event()

    async def ask() -> None:
        nonlocal inside
        async with admission.starts(LIMITS):
            inside += 1
            await leave.wait()

    asking = [asyncio.create_task(ask()) for _ in range(5)]
    await until(lambda: admission.waiting == 5)
    machine.memory = round(64 * GIB * 0.05) + 45 * MIB
    await until(lambda: inside == 1)
    await asyncio.sleep(0.3)
    assert (inside, admission.waiting) == (1, 4)
    machine.memory = 64 * GIB
    await until(lambda: inside == 5)
    leave.set()
    await asyncio.gather(*asking)


async def test_the_queue_is_bounded() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine, queue=2)

    async def ask() -> None:
        async with admission.starts(LIMITS):
            pass

    waiting = [asyncio.create_task(ask()) for _ in range(2)]
    await until(lambda: admission.waiting == 2)
    with pytest.raises(Overloaded, match="2 wait for it already"):
        await ask()
    machine.memory = 64 * GIB
    await asyncio.gather(*waiting)


async def test_the_waiting_time_is_bounded() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine, timeout=0.2)
    with pytest.raises(Overloaded, match=r"0\.2 s were waited .*ORS_SANDBOX_QUEUE_TIMEOUT") as error:
        async with admission.starts(LIMITS):
            pass
    assert error.value.retry_after > 0
    assert admission.waiting == 0


async def test_a_cancelled_request_leaves_the_queue() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine)

    async def ask() -> str:
        async with admission.starts(LIMITS):
            return "in"

    first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
    await until(lambda: admission.waiting == 2)
    first.cancel()
    machine.memory = 64 * GIB
    assert await second == "in"
    assert first.cancelled()
    assert (admission.waiting, admission.starting) == (0, 0)


async def test_pressure_limits_simultaneous_starts_and_refuses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    machine = FakeMachine()
    machine.pressure = 99.0
    admission = Admission(machine)
    most = 0

    async def ask() -> None:
        nonlocal most
        async with admission.starts(LIMITS):
            most = max(most, admission.starting)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(ask() for _ in range(10)))
    assert most == 2
    assert admission.cpu_saturated
    machine.pressure = 10.0
    await asyncio.sleep(0.05)
    most = 0
    await asyncio.gather(*(ask() for _ in range(10)))
    assert most == 10
    assert not admission.cpu_saturated


async def test_a_request_that_has_to_wait_evicts() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine)

    def give_up() -> bool:
        machine.memory = 64 * GIB
        return True

    admission.evict = give_up
    async with admission.starts(LIMITS):
        assert machine.memory


async def test_close_refuses_waiting_requests() -> None:
    machine = FakeMachine()
    machine.memory = 0
    admission = Admission(machine)

    async def ask() -> None:
        async with admission.starts(LIMITS):
            pass

    waiting = asyncio.create_task(ask())
    await until(lambda: admission.waiting == 1)
    await admission.close()
    with pytest.raises(Overloaded, match="being stopped"):
        await waiting
