"""The rollout benchmark as a command: real servers and clients, an engine in wire format, and what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from ors_benchmarks import rollout, rollout_places, rollout_runs, tiny_model
from ors_benchmarks.candidates import CANDIDATES
from ors_benchmarks.processes import ServerProcess
from ors_benchmarks.rollout_report import RolloutReport

from tests.benchmarks.engine_stand_in import EngineStandIn, echo_policy

pytest.importorskip("transformers", reason="transformers is not installed")

#: Sets a third of its episodes' machines on fire.
FAILING = """
from ors_server import Environment, InfrastructureError, TextBlock, ToolOutput, tool
from pydantic import BaseModel

class Text(BaseModel):
    text: str

class Failing(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{"target": "hello", "broken": number % 3 == 0} for number in range(6)]
    def get_prompt(self): return [TextBlock(text="Call echo with the text hello to finish the task.")]
    @tool
    async def echo(self, params: Text) -> ToolOutput:
        if self.task_spec["broken"]:
            raise InfrastructureError("the machine is on fire")
        hit = params.text == "hello"
        return ToolOutput(blocks=[TextBlock(text=f"{params.text} is not the word.")], reward=float(hit), finished=hit)
"""


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def engine(_cache: None) -> Generator[EngineStandIn]:
    from transformers import AutoTokenizer

    folder = tiny_model.cached("tiny", weights=False)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    with EngineStandIn(echo_policy, tokenizer).serve() as engine:
        assert isinstance(engine, EngineStandIn)
        yield engine


@pytest.fixture(autouse=True)
def _fresh(engine: EngineStandIn) -> None:  # pyright: ignore[reportUnusedFunction]
    engine.requests.clear()
    engine.failures.clear()
    engine.policy = echo_policy


def bench(folder: Path, *arguments: str) -> tuple[int, RolloutReport]:
    """The exit code of ``ors-server bench rollout``, run here, and its report."""
    with pytest.raises(SystemExit) as end:
        rollout.main(["--rounds", "1", "--warm-up", "2", *arguments, "--output", str(folder)])
    assert isinstance(end.value.code, int)
    [path] = folder.glob("*.json")
    return end.value.code, RolloutReport.model_validate_json(path.read_text())


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
        assert set(cell.breakdown) == {"engine", "queue", "handover", "environment", "http", "client"}
        assert cell.latencies["generation"].count == 16
        # Two calls, each of which the environment thinks about.
        assert cell.breakdown["environment"] >= 0.04
        assert cell.latencies["tool call"].p50 >= 20
        assert set(cell.memory_mib) == {"client", "server"}
        assert cell.figures["prefix_hits"].median == pytest.approx(0.5, abs=0.02)
    assert report.options["env"] == "echo"
    assert report.engine_description == {"url": engine.url, "model": "stand-in", "version": "0.0"}
    assert len(report.timeline) == 8
    assert {path.name.rpartition("-")[2] for path in tmp_path.glob("*.png")} == {
        "throughput.png",
        "breakdown.png",
        "timeline.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))


def test_a_replay_is_the_same_generations(tmp_path: Path, engine: EngineStandIn) -> None:
    code, report = bench(
        tmp_path,
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", "4", "--episodes", "6"),
        *("--no-charts", "--temperature", "0.7"),
    )
    assert code == 0, report
    live, replayed = engine.live, engine.replayed
    assert len(live) == len(replayed) == 16  # two of them are the warm-up's
    assert all("tool_call" in body["structured_outputs"]["regex"] for body in live)
    assert {body["temperature"] for body in live + replayed} == {0.7}
    # The first turns have the very prompts; the second turns have as many tokens, but the engine's own in between.
    assert Counter(len(body["prompt"]) for body in live) == Counter(len(body["prompt"]) for body in replayed)
    prompts = {tuple(body["prompt"]) for body in live}
    assert len([body for body in replayed if tuple(body["prompt"]) in prompts]) == 8
    assert len([body for body in replayed if 300 in body["prompt"]]) == 8


@pytest.mark.long
def test_two_servers_and_two_clients(tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    # The SDKs are installed here: their servers need no environment of their own.
    for candidate in CANDIDATES:
        if candidate.module:
            monkeypatch.setitem(rollout_places.SERVERS, candidate.name, dataclasses.replace(candidate, requirements=()))
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


def test_an_environment_that_fails_for_a_third_of_its_episodes(tmp_path: Path, engine: EngineStandIn) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    code, report = bench(
        tmp_path,
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", "3", "--episodes", "12"),
        *("--env", str(tmp_path / "failing.py"), "--no-charts"),
    )
    assert code == 1
    [cell] = report.cells
    assert cell.outcomes == {"finished": 8, "infrastructure": 4}
    assert cell.infrastructure_failures == 4
    [text] = cell.failures
    assert "the machine is on fire" in text
    assert report.ended_early is None
    assert report.ratio is not None


def test_a_server_that_is_away(tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_places, "RETRIES", 0)
    code, report = bench(
        tmp_path, "--engine", "url", "--engine-url", engine.url, "--server", "http://127.0.0.1:9", "--no-charts"
    )
    assert code == 1
    assert report.ratio is None
    assert report.ended_early is not None
    assert "http://127.0.0.1:9" in report.ended_early


def test_a_server_that_dies_half_way(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollout_places, "RETRIES", 0)
    monkeypatch.setattr(rollout_runs, "HOPELESS", 4)
    started: list[ServerProcess] = []
    begin = ServerProcess.start

    def start(*arguments: Any, **keywords: Any) -> ServerProcess:
        started.append(begin(*arguments, **keywords))
        return started[-1]

    def policy(prompt: str) -> str:
        if len(engine.live) == 20:  # behind the warm-up's four
            os.kill(started[-1].pid, signal.SIGKILL)
        return echo_policy(prompt)

    monkeypatch.setattr(ServerProcess, "start", start)
    engine.policy = policy
    code, report = bench(
        tmp_path,
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", "2", "--episodes", "40"),
        "--no-charts",
    )
    assert code == 1
    assert "the server ended during the run" in capsys.readouterr().out
    [cell] = report.cells
    assert cell.outcomes["finished"] >= 6
    assert cell.infrastructure_failures >= 4
    assert sum(cell.outcomes.values()) < 40
    assert report.ended_early is not None
    # What it has is reported.
    assert cell.figures["generated_per_second"].median > 0


def test_an_engine_that_refuses_a_parameter(tmp_path: Path, engine: EngineStandIn) -> None:
    engine.failures.extend([400] * 100)
    code, report = bench(tmp_path, "--engine", "url", "--engine-url", engine.url, "--no-charts")
    assert code == 1
    assert report.ratio is None
    assert report.ended_early is not None
    assert "refused the request" in report.ended_early
    assert len(engine.failures) == 98  # the warm-up found out


def test_an_engine_that_is_away(tmp_path: Path) -> None:
    code, report = bench(tmp_path, "--engine", "url", "--engine-url", "http://127.0.0.1:9", "--no-charts")
    assert code == 1
    assert report.ended_early is not None
    assert "No engine answers at http://127.0.0.1:9" in report.ended_early


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--engine", "url", "--engine-url", "http://127.0.0.1:9", "--model", "no-such-model"],
            "neither a folder with a config.json nor a shape",
        ),
        (["--engine", "vllm"], "needs vllm, which is not installed here"),
        (["--engine", "transformers", "--model", "qwen3-8b-random"], "needs torch, which is not installed here"),
    ],
)
def test_what_cannot_be_had_is_said(tmp_path: Path, arguments: list[str], reason: str) -> None:
    code, report = bench(tmp_path, *arguments, "--no-charts")
    assert code == 1
    assert report.ended_early is not None
    assert reason in report.ended_early


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--engine", "magic"], "is none of vllm, transformers, url"),
        (["--engine", "url"], "--engine-url belong together"),
        (["--servers", "theirs"], "is none of ours"),
        (["--concurrency", "a lot"], "is no list of numbers"),
        (["--concurrency", "0"], "At least one episode"),
        (["--think-time", "-1"], "None may be negative"),
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


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        rollout.main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for text in ("qwen3-0.6b-random", "scripts/vllm-venv", "--think-time", "terminal --turns 4", "The headline is"):
        assert text in said
