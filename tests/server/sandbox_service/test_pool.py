"""Warm sandboxes: which ones are kept, handed out and evicted."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from ors_containers import Limits, StartFailed
from ors_containers.scheduling import pool as pool_module
from ors_containers.scheduling.admission import Admission
from ors_containers.scheduling.pool import SandboxPool

from ors_server.sandboxes import SandboxService
from tests.server.sandbox_service.fake import FakeMachine, FakeRuntime, image
from tests.support.waiting import until

Make = Callable[..., SandboxPool]


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
async def make(runtime: FakeRuntime, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Return a starter of pools with short intervals. Afterwards, close them; only acquired sandboxes may still run."""
    monkeypatch.setattr(pool_module, "_SPARE_INTERVAL", 0.002)
    monkeypatch.setattr(pool_module, "_QUIET_TIME", 0.0)
    pools: list[SandboxPool] = []

    def build(**options: int) -> SandboxPool:
        pools.append(SandboxPool(runtime, Admission(machine), **options))
        return pools[-1]

    yield build
    for pool in pools:
        await pool.close()
        assert pool.warm == 0


async def acquire_until_warm(pool: SandboxPool, name: str, warm: int) -> None:
    """Acquire an image twice, and wait for its warm sandboxes."""
    before = pool.warm
    for _ in range(2):
        await (await pool.acquire(image(name))).stop()
    await until(lambda: pool.warm == before + warm, f"{pool.warm} warm")


async def test_an_image_is_kept_warm_from_the_second_time_on(make: Make, runtime: FakeRuntime) -> None:
    pool = make(warm=2)
    await pool.acquire(image())
    await asyncio.sleep(0.05)
    assert (pool.warm, len(runtime.made)) == (0, 1)
    await pool.acquire(image())
    await until(lambda: pool.warm == 2)
    assert (pool.counts.cold, pool.counts.warm, len(runtime.made)) == (2, 0, 4)
    third = await pool.acquire(image())
    assert third in runtime.made[:4]
    assert pool.counts.warm == 1
    await until(lambda: pool.warm == 2)
    assert len(runtime.made) == 5


async def test_a_warm_sandbox_is_handed_out_once(make: Make) -> None:
    pool = make(warm=3)
    await acquire_until_warm(pool, "a", 3)
    handed_out = await asyncio.gather(*(pool.acquire(image("a")) for _ in range(20)))
    assert len({sandbox.id for sandbox in handed_out}) == 20
    assert pool.counts.warm >= 3
    assert all(sandbox.image.name == "a" for sandbox in handed_out)
    await pool.close()
    for sandbox in handed_out:
        assert (await sandbox.run(":", timeout=1)).exit_status == 0


async def test_other_limits_are_another_stock(make: Make) -> None:
    pool = make(warm=1)
    await acquire_until_warm(pool, "a", 1)
    other = await pool.acquire(image("a"), Limits(pids=64))
    assert other.limits.pids == 64
    assert pool.counts.warm == 0


async def test_a_dead_sandbox_is_never_handed_out(make: Make, runtime: FakeRuntime) -> None:
    pool = make(warm=2)
    await acquire_until_warm(pool, "a", 2)
    for sandbox in runtime.running:
        sandbox.state = "dead"
    sandbox = await pool.acquire(image("a"))
    assert (await sandbox.run(":", timeout=1)).exit_status == 0
    assert pool.counts.dead == 2
    await until(lambda: not any(sandbox.state == "dead" for sandbox in runtime.made))


async def test_the_least_recently_requested_image_is_evicted(make: Make) -> None:
    pool = make(warm=2, warm_total=4)
    await acquire_until_warm(pool, "a", 2)
    await acquire_until_warm(pool, "b", 2)
    await (await pool.acquire(image("a"))).stop()  # b is now the least recently used
    await until(lambda: pool.warm == 4)
    for _ in range(2):
        await (await pool.acquire(image("c"))).stop()
    await until(lambda: pool.counts.unused == 2 and pool.warm == 4)
    counts = pool.counts
    before = counts.warm
    await pool.acquire(image("a"))
    await pool.acquire(image("c"))
    assert counts.warm == before + 2
    await pool.acquire(image("b"))
    assert counts.warm == before + 2


async def test_warm_sandboxes_are_evicted_for_a_waiting_request(make: Make, machine: FakeMachine) -> None:
    pool = make(warm=2)
    await acquire_until_warm(pool, "a", 2)
    machine.memory = 0
    await asyncio.sleep(0.05)  # the cached figures have expired
    asking = asyncio.create_task(pool.acquire(image("b")))
    await until(lambda: pool.warm == 0)
    assert pool.counts.unused == 2
    assert not asking.done()
    machine.memory = 2**40
    await asking
    await until(lambda: pool.warm == 2)


async def test_the_pool_is_not_refilled_without_spare_capacity(make: Make, machine: FakeMachine) -> None:
    pool = make(warm=2)
    machine.memory = round(64 * 2**30 * 0.08)  # enough for one start, but not for two
    for _ in range(3):
        await pool.acquire(image())
    await asyncio.sleep(0.05)
    assert pool.warm == 0
    machine.memory = 64 * 2**30
    await until(lambda: pool.warm == 2)


async def test_refilling_waits_for_all_other_starts(make: Make, runtime: FakeRuntime) -> None:
    runtime.start_seconds = 0.02
    pool = make(warm=5)
    handed_out = await asyncio.gather(*(pool.acquire(image()) for _ in range(10)))
    assert {sandbox.id for sandbox in handed_out} == {sandbox.id for sandbox in runtime.made[:10]}
    await until(lambda: pool.warm == 5)
    runtime.most_starting = 0
    for sandbox in list(runtime.running):
        sandbox.state = "dead"
    await pool.acquire(image())
    await until(lambda: pool.warm == 5)
    assert runtime.most_starting == 1  # one after another


async def test_refilling_waits_until_requests_pause(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make(warm=2)
    monkeypatch.setattr(pool_module, "_QUIET_TIME", 0.2)
    for _ in range(20):
        await pool.acquire(image())
        await asyncio.sleep(0.02)
        assert pool.warm == 0
    await until(lambda: pool.warm == 2)


async def test_a_pool_that_is_busy_reads_nothing_of_the_machine(
    make: Make, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make(warm=2)
    monkeypatch.setattr(pool_module, "_QUIET_TIME", 100.0)
    await pool.acquire(image())
    await pool.acquire(image())
    monkeypatch.setattr(pool.admission, "_reading", None)
    await asyncio.sleep(0.01)  # five looks at whether to refill
    assert pool.admission._reading is None  # pyright: ignore[reportPrivateUsage]


async def test_a_broken_image_fails_its_requests_and_not_the_pool(make: Make, runtime: FakeRuntime) -> None:
    pool = make(warm=2)
    await acquire_until_warm(pool, "a", 2)
    runtime.broken = True
    await pool.acquire(image("a"))
    await pool.acquire(image("a"))
    with pytest.raises(StartFailed):
        await pool.acquire(image("a"))
    made = len(runtime.made)
    await asyncio.sleep(0.05)
    assert len(runtime.made) <= made + 1  # the start is not retried at once
    runtime.broken = False
    assert (await (await pool.acquire(image("a"))).run(":", timeout=1)).exit_status == 0


async def test_warm_sandboxes_without_demand_are_stopped(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make(warm=2)
    await acquire_until_warm(pool, "a", 2)
    monkeypatch.setattr(pool_module, "_IDLE_TIME", 0.0)
    await until(lambda: pool.warm == 0)
    assert pool.counts.unused == 2


async def test_a_warm_sandbox_that_spent_wall_time_is_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_WALL_SHARE", 0.001)
    pool = make(warm=1)
    limits = Limits(wall=50.0)
    for _ in range(2):
        await pool.acquire(image(), limits)
    await until(lambda: pool.counts.unused >= 1)
    assert pool.counts.warm == 0


async def test_no_sandbox_is_kept_warm_where_the_setting_is_zero(make: Make, runtime: FakeRuntime) -> None:
    pool = make(warm=0)
    for _ in range(5):
        await pool.acquire(image())
    await asyncio.sleep(0.02)
    assert len(runtime.made) == 5


async def filled(service: SandboxService) -> None:
    """Wait for two warm sandboxes, however busy the machine is."""
    for _ in range(6000):
        if service.pool.warm >= 2:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the pool is not filled")


async def test_real_warm_sandboxes(service: SandboxService) -> None:
    image = service.runtime.host_image()
    for _ in range(2):
        sandbox = await service.open(image)
        assert (await sandbox.run("echo cold", timeout=10)).text == "cold\n"
        await sandbox.stop()
    await filled(service)
    first, second = await service.open(image), await service.open(image)
    assert service.pool.counts.warm == 2
    await first.run("echo mine > note; cd /tmp; export LEFT=over", timeout=10)
    assert (await second.run('ls; pwd; echo "$LEFT"', timeout=10)).text == "/home/user\n\n"
    assert (await first.run("cat ~/note", timeout=10)).text == "mine\n"
    await first.stop()
    await second.stop()


async def test_real_warm_sandboxes_that_died(service: SandboxService) -> None:
    image = service.runtime.host_image()
    for _ in range(2):
        await (await service.open(image)).stop()
    await filled(service)
    waiting = [sandbox for stock in service.pool._stocks.values() for sandbox, _ in stock.warm]  # pyright: ignore[reportPrivateUsage]
    for sandbox in waiting:
        await sandbox.stop()  # to the pool, it looks as if it died
    sandbox = await service.open(image)
    assert (await sandbox.run("echo alive", timeout=10)).text == "alive\n"
    assert service.pool.counts.dead == 2
    await sandbox.stop()
