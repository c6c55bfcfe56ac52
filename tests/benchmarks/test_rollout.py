"""The rollout benchmark as a command: real servers and clients, and an engine that has only the wire format."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ors_benchmarks.harness.candidates import SDKS
from ors_benchmarks.harness.processes import ServerProcess
from ors_benchmarks.rollout import benchmark as rollout_benchmark
from ors_benchmarks.rollout import command as rollout
from ors_benchmarks.rollout import servers as rollout_servers
from ors_benchmarks.rollout import tiny_model
from ors_benchmarks.rollout.engines.base import UrlEngine
from ors_benchmarks.rollout.engines.hosted.frames import Start
from ors_benchmarks.rollout.figures import PARTS
from ors_benchmarks.rollout.opening import ENGINES

from tests.benchmarks.engine_stand_in import EngineStandIn, echo_policy
from tests.benchmarks.rollout_command import at, bench

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.long
def test_progress_in_a_pipe(
    tmp_path: Path, engine: EngineStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar is drawn on a terminal only; without lines a log shows nothing for minutes."""
    monkeypatch.setattr("ors_benchmarks.rollout.reports.progress.EVERY", 0.0)
    code, _ = bench(tmp_path, *at(engine, concurrency=2, episodes=4))
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.partition(" (")[0] for line in lines[:2]] == ["preparing the model tiny", "starting url with tiny"]
    run = "round 1 of 1: ors-server, 2 at once"
    assert [line.partition(" (")[0] for line in lines if line.startswith(run)] == [
        run,
        *(f"{run}: {number} of 4 episodes" for number in range(1, 5)),
        f"{run}, replay",
    ]


def test_a_small_run(tmp_path: Path, engine: EngineStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--engine", "url", "--engine-url", engine.url, "--turns", "2"]
    code, report = bench(tmp_path, *arguments, "--concurrency", "4,2", "--think-time", "0.02", "--episodes", "8")
    said = capsys.readouterr().out
    assert code == 0, said

    written = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert isinstance(written["ratio"], float)
    assert written["ratio"] > 0
    for text in ("ratio", "tool call p50 / p95 / p99", "environment, ms an episode", "written: "):
        assert text in said
    assert str(Path.home()) not in json.dumps(written)
    assert os.uname().nodename not in json.dumps(written)

    first, second = report.cells
    assert (first.concurrency, second.concurrency) == (4, 2)
    for cell in report.cells:
        assert cell.outcomes == {"finished": 8}
        assert cell.failures == {}
        assert set(cell.breakdown) == set(PARTS) - {"http"}
        assert cell.latencies["generation"].count == 16
        # Two calls, each with the environment's delay.
        assert cell.breakdown["environment"] >= 0.037  # timers may be early
        assert cell.latencies["tool call"].p50 >= 19  # as above
        assert set(cell.memory_mib) == {"client", "server"}
        assert cell.figures["prefix_hits"].median == pytest.approx(0.5, abs=0.02)
    assert report.options["env"] == "echo"
    assert report.engine_description == {"url": engine.url, "model": "tiny", "version": "0.0"}
    assert len(report.timeline) == 8
    assert {path.name.rpartition("-")[2] for path in tmp_path.glob("*.png")} == {
        "throughput.png",
        "breakdown.png",
        "timeline.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


@pytest.mark.long
def test_a_replay_is_the_same_generations(tmp_path: Path, engine: EngineStandIn) -> None:
    code, report = bench(
        tmp_path,
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", "4", "--episodes", "6"),
        *("--no-charts", "--temperature", "0.7", "--warm-up", "2"),
    )
    assert code == 0, report
    live, replayed = engine.live, engine.replayed
    assert len(live) == len(replayed) == 16  # two of them are the warm-up's
    assert all("tool_call" in body["structured_outputs"]["regex"] for body in live)
    assert {body["temperature"] for body in live + replayed} == {0.7}
    # The first turns have the same prompts; the second turns have as many tokens, but contain the engine's own text.
    assert Counter(len(body["prompt"]) for body in live) == Counter(len(body["prompt"]) for body in replayed)
    prompts = {tuple(body["prompt"]) for body in live}
    assert len([body for body in replayed if tuple(body["prompt"]) in prompts]) == 8
    assert len([body for body in replayed if 300 in body["prompt"]]) == 8


@pytest.mark.long
def test_each_round_is_held_against_its_own_replay_from_an_empty_cache(tmp_path: Path, engine: EngineStandIn) -> None:
    def policy(prompt: str) -> str:
        # Each run is longer than the one before, so another run's replay would have other lengths.
        return "word " * engine.done.count("forget") + echo_policy(prompt)

    engine.policy = policy
    code, report = bench(tmp_path, *at(engine), "--rounds", "3")
    assert code == 0
    assert report.cache_emptied is True
    [cell] = report.cells
    assert cell.ratio is not None
    assert len(cell.ratio.values) == 3
    stretches: list[list[tuple[str, int]]] = []
    for done in engine.done:
        if done == "forget":
            stretches.append([])
        else:
            stretches[-1].append(done)
    assert [{kind for kind, _ in stretch} for stretch in stretches] == [{"live"}, {"replay"}] * 3
    lengths = [sorted(made for _, made in stretch) for stretch in stretches]
    assert lengths[0] == lengths[1]
    assert lengths[2] == lengths[3]
    assert lengths[4] == lengths[5]
    assert sum(lengths[0]) < sum(lengths[2]) < sum(lengths[4])


@pytest.mark.long
def test_processor_time_is_that_of_the_run(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rollout_servers.played_environment

    @asynccontextmanager
    async def played_environment(*arguments: Any, **keywords: Any) -> AsyncGenerator[Any]:
        async with original(*arguments, **keywords) as environment:
            until = time.process_time() + 1.0
            while time.process_time() < until:  # the cost of listing tasks
                pass
            yield environment

    monkeypatch.setattr(rollout_benchmark, "played_environment", played_environment)
    _, report = bench(tmp_path, *at(engine))
    [cell] = report.cells
    # One thread of Python, plus the engine's thread, which shares the lock; with some allowance for uvloop's thread.
    assert 0 < cell.figures["client_cpu"].median < 1.5


class _Bound(UrlEngine):
    """Stand-in for an engine in this process: reports its cores and its GPU."""

    seen: ClassVar[dict[str, Any]] = {}
    url_of_it: ClassVar[str] = ""

    @classmethod
    async def open(cls, *_: Any) -> UrlEngine:  # pyright: ignore[reportIncompatibleMethodOverride]
        [cls.seen["start"]] = [part for part in _ if isinstance(part, Start)]
        return await super().open(cls.url_of_it, "tiny")

    def gpus(self) -> list[str]:
        """Return one of the machine's GPUs."""
        return ["3"]


@pytest.mark.long
def test_an_engine_of_this_machine_has_cores_of_its_own(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one core cannot be divided")
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\nwhile :; do echo \"$1\" | grep -q -- --id=3 && echo '3, 40, 500'; sleep 0.02; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(ENGINES, "vllm", ())
    monkeypatch.setattr("ors_benchmarks.rollout.opening.HostedEngine", _Bound)
    order: list[str] = []
    monkeypatch.setattr(rollout, "set_environment", lambda: order.append("environment"))
    monkeypatch.setattr(rollout, "_has_gpu", lambda: False)
    monkeypatch.setattr(_Bound, "url_of_it", engine.url)
    cached = tiny_model.cached

    def without_weights(name: str, *, weights: bool) -> Path:
        assert weights
        order.append("torch makes the model")
        return cached(name, weights=False)

    monkeypatch.setattr(tiny_model, "cached", without_weights)
    servers: list[set[int]] = []
    begin = ServerProcess.start

    def start(*arguments: Any, **keywords: Any) -> ServerProcess:
        process = begin(*arguments, **keywords)
        servers.append(os.sched_getaffinity(process.pid))
        return process

    monkeypatch.setattr(ServerProcess, "start", start)
    engine.delay = 0.05
    code, report = bench(tmp_path / "results", *at(engine)[4:])
    assert code == 0
    assert order == ["environment", "torch makes the model"]
    half = len(allowed) // 2
    asked: Start = _Bound.seen["start"]
    assert (asked.cores, asked.front_end_cores, asked.concurrency) == (allowed[:half], allowed[half:], 2)
    assert servers == [set(allowed[half:])]
    assert sorted(os.sched_getaffinity(0)) == allowed
    assert report.machine.pinned
    [cell] = report.cells
    assert cell.figures["gpu_utilisation"].median == pytest.approx(0.4)
    assert cell.figures["gpu_memory_mib"].median == 500


@pytest.mark.long
def test_two_servers_and_two_clients(tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    # The SDKs are installed here: their servers need no virtual environment of their own.
    for candidate in SDKS:
        monkeypatch.setitem(rollout_servers.SERVERS, candidate.name, dataclasses.replace(candidate, requirements=()))
    code, report = bench(
        tmp_path,
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", "4", "--episodes", "8"),
        *("--servers", "ours,ors-sdk", "--clients", "ours,openreward", "--warm-up", "0"),
    )
    assert [(cell.server, cell.client) for cell in report.cells] == [
        ("ors-server", "ors_clients"),
        ("ors-server", "openreward"),
        ("ors-sdk", "ors_clients"),
        ("ors-sdk", "openreward"),
    ]
    assert code == 0, report
    for cell in report.cells:
        assert cell.outcomes == {"finished": 8}, cell
        assert cell.ratio is not None
        assert cell.breakdown["environment"] > 0
    assert [path.name for path in tmp_path.glob("*-breakdown.png")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--engine", "magic"], "is none of vllm, url, emulated"),
        (["--engine", "url"], "--engine-url belong together"),
        (["--servers", "theirs"], "is none of ours"),
        (["--concurrency", "a lot"], "is not a list of numbers"),
        (["--concurrency", "0"], "At least one episode"),
        (["--concurrency", "1.5"], "whole ones"),
        (["--concurrency", "inf"], "infinite or no number"),
        (["--concurrency", "nan"], "infinite or no number"),
        (["--think-time", "-1"], "None may be negative"),
        (["--think-time", "nan"], "infinite or no number"),
        (["--run-limit", "inf"], "needs a limit"),
        (["--run-limit", "0"], "greater than or equal to 1"),
        (["--server", "http://127.0.0.1:9", "--think-time", "1"], "no --servers or --think-time"),
        (["--env", "terminal", "--servers", "openreward"], "host echo only"),
        (["--engine-option", "x"], "is not NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_refused(
    tmp_path: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        rollout.main([*arguments, "--output", str(tmp_path)])
    assert end.value.code == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert reason in said
    assert list(tmp_path.iterdir()) == []
