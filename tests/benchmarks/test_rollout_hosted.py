"""An engine in the process of its front-end, and the processor time of an episode's requests."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from ors_benchmarks.harness.processes import cpu_seconds
from ors_benchmarks.rollout.engines.base import EngineFailed, EngineTotals, ModelFiles
from ors_benchmarks.rollout.engines.hosted.engine import FRONT_END, HostedEngine
from ors_benchmarks.rollout.engines.hosted.frames import Start
from ors_benchmarks.rollout.recording import EngineTimes, Metered, times
from ors_benchmarks.rollout.steering import Turn
from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import SamplingParameters

from tests.benchmarks.test_rollout_emulated import CALL, profile
from tests.support.waiting import until


def starting(files: ModelFiles, **changed: object) -> Start:
    return Start(files, profile(**changed), {}, True, 2, None, None)


async def test_the_processor_time_of_requests_is_that_of_their_stretches() -> None:
    taken: list[float] = []

    async def request(fails: bool, seconds: float = 0.05) -> str:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            taken.append(-1.0)
            raise
        if fails:
            raise KeyError("a failure")
        return "done"

    assert await Metered(request(False), taken.append) == "done"
    assert len(taken) == 2
    assert 0.02 <= sum(taken) < 0.05  # the waiting is not in it
    with pytest.raises(KeyError, match="a failure"):
        await Metered(request(True), taken.append)
    task = asyncio.ensure_future(_awaiting(Metered(request(False, 3600), taken.append)))
    await until(lambda: len(taken) == 5)  # its first stretch
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert -1.0 in taken


async def _awaiting(metered: Metered[str]) -> str:
    return await metered


@pytest.mark.long
async def test_the_front_end_is_in_a_process_of_its_own(tiny_files: ModelFiles) -> None:
    costs = {"request_seconds": 0.2, "token_seconds": 0.0}
    engine = await HostedEngine.open("emulated", starting(tiny_files, front_end=costs))
    try:
        process = engine.processes()[FRONT_END]
        assert set(engine.processes()) == {FRONT_END, "engine core"}
        assert engine.description()["device"] == "emulated"
        told = EngineTimes()
        times.set(told)
        steered = engine.steered(SamplingParameters(), Turn("", CALL))
        used = cpu_seconds(process), time.process_time()
        made = await engine.sampler.generate([1, 2, 3], steered, rollout_id="a")
        assert cpu_seconds(process) - used[0] >= 0.2
        assert time.process_time() - used[1] < 0.1
        assert made.finish == "stop"
        assert told.engine is not None
        assert told.engine > 0
        exact = engine.exact(SamplingParameters(), made.ids, steered=True)
        again = await engine.sampler.generate([1, 2, 3], exact, rollout_id="a")
        assert len(again.ids) == len(made.ids)
        with pytest.raises(SamplerFailed, match="no weights"):
            await engine.sampler.generate([1], SamplingParameters(), rollout_id="b")
        assert await engine.totals() == EngineTotals()
        assert await engine.forget()
        os.kill(process, signal.SIGKILL)
        with pytest.raises(SamplerFailed, match="front-end has ended"):
            await engine.sampler.generate([1], steered, rollout_id="c")
        with pytest.raises(EngineFailed, match="front-end has ended"):
            await engine.forget()
    finally:
        await engine.close()


@pytest.mark.long
async def test_a_generation_that_is_cancelled_is_cancelled_in_the_engine(tiny_files: ModelFiles) -> None:
    engine = await HostedEngine.open("emulated", starting(tiny_files, steps=[[1, 0.05]]))
    try:
        exact = engine.exact(SamplingParameters(), [0] * 1000, steered=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.sampler.generate([1], exact, rollout_id="a"), 0.2)
        brief = engine.exact(SamplingParameters(), [0], steered=True)
        assert len((await engine.sampler.generate([1], brief, rollout_id="b")).ids) == 1
    finally:
        begun = time.monotonic()
        await engine.close()
    assert time.monotonic() - begun < 20


@pytest.mark.long
async def test_an_engine_that_does_not_open_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="no tokenizer that can be read"):
        await HostedEngine.open("emulated", starting(ModelFiles("none", tmp_path, weights=False)))
