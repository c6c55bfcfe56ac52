"""Failures during a rollout benchmark, and the messages for them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import tempfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from ors_benchmarks.harness.candidates import Candidate, PeerUnavailable
from ors_benchmarks.harness.processes import ServerProcess
from ors_benchmarks.rollout import benchmark as rollout_benchmark
from ors_benchmarks.rollout import command as rollout
from ors_benchmarks.rollout import runs as rollout_runs
from ors_benchmarks.rollout import servers as rollout_servers
from ors_benchmarks.rollout.engines.base import EngineFailed, UrlEngine
from ors_benchmarks.rollout.reports.report import RolloutReport
from ors_clients.samplers.engine_requests import EngineRequests

from ors_server.errors import OrsError
from tests.benchmarks.engine_stand_in import EngineStandIn, echo_policy
from tests.benchmarks.rollout_command import at, bench, run_bench

pytest.importorskip("transformers", reason="transformers is not installed")

#: An environment that fails in a third of its episodes with an infrastructure error.
FAILING = """
from ors_server import Environment, InfrastructureFailure, TextBlock, ToolOutput, tool
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
            raise InfrastructureFailure("the machine is on fire")
        hit = params.text == "hello"
        return ToolOutput(blocks=[TextBlock(text=f"{params.text} is not the word.")], reward=float(hit), finished=hit)
"""


#: Its only tool takes a recursive type without a base case.
ENDLESS = """
from __future__ import annotations
from ors_server import Environment, TextBlock, ToolOutput, tool
from pydantic import BaseModel

class Node(BaseModel):
    child: Node

class Endless(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return [TextBlock(text="Call descend.")]
    @tool
    async def descend(self, params: Node) -> ToolOutput:
        return ToolOutput(blocks=[], reward=0.0, finished=True)
"""


@pytest.mark.long
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
    monkeypatch.setattr(rollout_servers, "RETRIES", 0)
    code, report = bench(
        tmp_path, "--engine", "url", "--engine-url", engine.url, "--server", "http://127.0.0.1:9", "--no-charts"
    )
    assert code == 1
    assert report.ratio is None
    assert report.ended_early is not None
    assert "http://127.0.0.1:9" in report.ended_early


@pytest.mark.long
def test_a_server_that_dies_half_way(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollout_servers, "RETRIES", 0)
    monkeypatch.setattr(rollout_runs, "HOPELESS", 4)
    started: list[ServerProcess] = []
    begin = ServerProcess.start

    def start(*arguments: Any, **keywords: Any) -> ServerProcess:
        started.append(begin(*arguments, **keywords))
        return started[-1]

    def policy(prompt: str) -> str:
        if len(engine.live) == 20:
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
    # Its figures are reported without a ratio: the replay does not match half of a run.
    assert cell.figures["generated_per_second"].median > 0
    assert report.ratio is None


@pytest.mark.long
def test_an_engine_that_refuses_a_parameter(tmp_path: Path, engine: EngineStandIn) -> None:
    engine.failures.extend([400] * 100)
    code, report = bench(tmp_path, *at(engine), "--warm-up", "2")
    assert code == 1
    assert report.ratio is None
    assert report.ended_early is not None
    assert "refused the request" in report.ended_early
    assert len(engine.failures) == 98  # the warm-up detected it


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
        (["--engine", "vllm"], "needs torch and vllm, which are not installed here"),
    ],
)
def test_missing_requirements_are_reported_and_no_results_are_left(
    tmp_path: Path, arguments: list[str], reason: str
) -> None:
    with pytest.raises(OrsError, match=reason):
        rollout.main([*arguments, "--no-charts", "--output", str(tmp_path / "results")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("engine", "packages"),
    [
        ("vllm", "matplotlib, torch, transformers and vllm"),
        ("url", "matplotlib and transformers"),
    ],
)
def test_all_missing_packages_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, packages: str
) -> None:
    find_spec = importlib.util.find_spec
    hidden = {"matplotlib", "torch", "transformers", "vllm"}

    def find(name: str) -> ModuleSpec | None:
        return None if name in hidden else find_spec(name)

    monkeypatch.setattr("importlib.util.find_spec", find)
    url = ["--engine-url", "http://127.0.0.1:9"] if engine == "url" else []
    with pytest.raises(OrsError) as raised:
        rollout.main(["--engine", engine, *url, "--output", str(tmp_path / "results")])
    assert f"needs {packages}, which are not installed here" in raised.value.cause
    assert "pip install" in raised.value.remedy
    assert "--no-charts" in raised.value.remedy


class _Missing(Candidate):
    """A peer whose virtual environment cannot be made."""

    def prepare(self, without: str = "") -> str:
        raise PeerUnavailable("The virtual environment of openreward cannot be made", f"Measure with {without}.")

    def prepared(self) -> str | None:
        return None


def after(engine: EngineStandIn, count: int, what: Callable[[], object]) -> None:
    """Run ``what`` once this many generations of episodes have been requested."""

    def policy(prompt: str) -> str:
        if len(engine.live) == count:
            what()
        return echo_policy(prompt)

    engine.policy = policy


@pytest.mark.long
def test_an_engine_that_dies_in_the_second_round(
    tmp_path: Path, engine: EngineStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_runs, "HOPELESS", 2)
    monkeypatch.setattr(EngineRequests.__init__, "__kwdefaults__", {"headers": None, "attempts": 1})

    def die() -> None:
        engine.gone = True

    # Twelve in the first round.
    after(engine, 18, die)
    code, report = bench(tmp_path, *at(engine, episodes=6), "--rounds", "3")
    assert code == 1
    assert report.ended_early is not None
    assert "does not answer any more" in report.ended_early
    [cell] = report.cells
    assert cell.outcomes["finished"] >= 7
    assert cell.infrastructure_failures >= 2
    # The first round stands; the second is reported without a ratio.
    assert cell.ratio is not None
    assert len(cell.ratio.values) == 1
    assert len(cell.figures["generated_per_second"].values) == 2
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.long
def test_an_engine_that_dies_before_the_replay(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        engine.gone = len(engine.live) == 8

    monkeypatch.setattr("ors_benchmarks.rollout.reports.progress.Progress.episode", die)
    code, report = bench(tmp_path, *at(engine, concurrency=1, episodes=4))
    assert code == 1
    [cell] = report.cells
    assert cell.outcomes == {"finished": 4}
    assert report.ratio is None
    assert cell.figures["generated_per_second"].median > 0


@pytest.mark.long
def test_a_bug_does_not_lose_what_was_measured(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def tell(*_: object) -> None:
        nonlocal count
        count += 1
        if count == 3:  # the first round's run, its replay, the second's run
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(rollout_benchmark, "_spread_totals", tell)
    with pytest.raises(ZeroDivisionError):
        rollout.main([*at(engine), "--rounds", "2", "--warm-up", "0", "--output", str(tmp_path)])
    [path] = tmp_path.glob("*.json")
    report = RolloutReport.model_validate_json(path.read_text())
    assert report.ended_early == "ZeroDivisionError: a bug"
    assert report.cells[0].outcomes == {"finished": 8}
    assert report.ratio is not None


@pytest.mark.long
@pytest.mark.parametrize("warm_up", [True, False])
def test_an_engine_that_ignores_structured_output(tmp_path: Path, engine: EngineStandIn, warm_up: bool) -> None:
    engine.policy = lambda _: "I do not know what to say to this."
    code, report = bench(tmp_path, *at(engine), "--warm-up", "2" if warm_up else "0")
    assert code == 1
    assert report.ratio is None
    if warm_up:
        assert report.ended_early is not None
        assert "A turn that was held to a call has none" in report.ended_early
    else:
        [cell] = report.cells
        assert cell.infrastructure_failures == 4
        assert "no ratio" in cell.notes[0]
        assert not [made for made in engine.done if made[0] == "replay"]


@pytest.mark.long
def test_generations_that_the_engine_breaks_off(tmp_path: Path, engine: EngineStandIn) -> None:
    count = 0

    def alter(answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count in (2, 12):
            answer["choices"][0]["finish_reason"] = "abort"
        return answer

    engine.alter = alter
    code, report = bench(tmp_path, *at(engine, concurrency=1))
    assert code == 1
    [cell] = report.cells
    assert cell.outcomes == {"finished": 3, "aborted": 1}
    assert cell.failures == {"SamplerFailed: The engine broke a generation off": 1}
    # The twelfth is a request of the replay.
    assert report.ratio is None
    assert cell.notes == ["the engine broke a generation of the replay off"]


@pytest.mark.long
def test_a_replay_of_other_lengths(tmp_path: Path, engine: EngineStandIn) -> None:
    engine.exact = False
    code, report = bench(tmp_path, *at(engine))
    assert code == 1
    assert report.ratio is None
    assert "does not keep to min_tokens" in report.cells[0].notes[0]


@pytest.mark.long
@pytest.mark.parametrize("warm_up", ["2", "0"])
def test_an_engine_that_hangs(tmp_path: Path, engine: EngineStandIn, warm_up: str) -> None:
    engine.delay = 60.0
    code, report = bench(tmp_path, *at(engine), "--warm-up", warm_up, "--run-limit", "1")
    assert code == 1
    assert report.ended_early is not None
    assert "not done after 1 s (--run-limit)" in report.ended_early
    assert report.seconds < 30
    if warm_up == "0":
        [cell] = report.cells
        assert cell.outcomes == {"cut off": 2}
        assert cell.failures == {"InfrastructureFailure: It was not over when the run ended": 2}
    # Nothing was replayed, which would have taken as long again.
    assert engine.replayed == []


@pytest.mark.long
def test_a_prefix_cache_that_cannot_be_emptied(
    tmp_path: Path, engine: EngineStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.reset_status = 404
    code, report = bench(tmp_path, *at(engine))
    assert code == 0
    assert report.cache_emptied is False
    assert "was not emptied" in capsys.readouterr().out


@pytest.mark.long
def test_a_tool_that_raises_is_the_environments_failure(
    tmp_path: Path, engine: EngineStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = FAILING.replace('InfrastructureFailure("the machine is on fire")', 'KeyError("a bug")')
    (tmp_path / "raising.py").write_text(broken)
    code, report = bench(tmp_path, *at(engine, episodes=6), "--env", str(tmp_path / "raising.py"))
    assert code == 1
    [cell] = report.cells
    assert sum(cell.environment_errors.values()) == 4
    assert "a bug" in next(iter(cell.environment_errors))
    assert cell.problems == {}
    assert "4 calls in which the environment's tool raised" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_a_tool_without_a_possible_call(tmp_path: Path, engine: EngineStandIn) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    code, report = bench(tmp_path, *at(engine), "--env", str(tmp_path / "endless.py"), "--warm-up", "2")
    assert code == 1
    assert report.ended_early is not None
    assert "No call of the tool 'descend' can be constructed from its schema" in report.ended_early


@pytest.mark.long
def test_a_peer_that_cannot_be_installed_and_comes_first(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        rollout_servers.SERVERS, "openreward", _Missing("openreward", "openreward", "openreward", ("x",))
    )
    code, report = bench(tmp_path, *at(engine), "--servers", "openreward,ours", "--warm-up", "2")
    assert code == 1
    missing, ours = report.cells
    assert missing.ratio is None
    assert "Measure with --servers ours." in missing.notes[0]
    assert ours.outcomes == {"finished": 4}
    assert ours.ratio is not None
    assert report.ended_early is None


@pytest.mark.long
def test_ctrl_c_in_a_round(tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    # The process that started the tests may ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The benchmark must not try to make it now.
    never = _Missing("ors-sdk", "ors-sdk", "ors", ("x",))
    monkeypatch.setitem(rollout_servers.SERVERS, "ors-sdk", never)

    def would_run_pip(*_: object) -> None:
        pytest.fail("pip would run")

    monkeypatch.setattr(_Missing, "prepare", would_run_pip)
    engine.delay = 0.05
    after(engine, 10, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        code, report = bench(tmp_path, *at(engine, episodes=50), "--servers", "ours,ors-sdk")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 1
    assert report.ended_early == "It was interrupted"
    cell, _ = report.cells
    assert cell.outcomes["finished"] >= 3
    assert 1 <= cell.outcomes["cut off"] <= 2
    assert cell.figures["generated_per_second"].median > 0
    assert cell.figures["server_cpu"].median > 0
    assert cell.notes == ["it was interrupted"]
    assert report.timeline


@pytest.mark.long
def test_a_full_disk(
    tmp_path: Path, engine: EngineStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write = RolloutReport.write

    def full(report: RolloutReport, path: Path) -> None:
        if path.parent == results:
            path.write_text('{"ratio": 0.')
            raise OSError(28, "No space left on device")
        write(report, path)

    monkeypatch.setattr(RolloutReport, "write", full)
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    code = run_bench(results, *at(engine))
    said = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "No space left on device" in said
    assert "generated tokens" in said
    assert list(results.iterdir()) == []
    [path] = elsewhere.glob("*.json")
    assert RolloutReport.model_validate_json(path.read_text()).ratio is not None
    assert str(path) in said


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run_bench(tmp_path / "file" / "results", "--engine", "url", "--engine-url", "http://127.0.0.1:9") == 2
    assert "cannot be made" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_no_password_is_shown(tmp_path: Path, engine: EngineStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "http://someone:hunter2@127.0.0.1:9"
    bench(tmp_path / "engine", "--engine", "url", "--engine-url", secret, "--no-charts")
    bench(tmp_path / "server", *at(engine), "--server", secret)
    caught = capsys.readouterr()
    for text in (caught.out, caught.err, *(path.read_text() for path in tmp_path.glob("*/*.json"))):
        assert "hunter2" not in text
    assert "http://127.0.0.1:9" in caught.out
    written = json.loads(next((tmp_path / "server").glob("*.json")).read_text())
    assert written["options"]["server"] == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"models": {"data": [{"id": "other", "root": "/models/another"}]}}, "serves other, and not tiny"),
        ({"models": {"data": []}}, "serves nothing, and not tiny"),
        ({"models": [{"id": "tiny"}]}, "No engine answers"),
        ({"models": "<html>"}, "No engine answers"),
        ({"models": "no key", "models_status": 401}, "wants a key.*ORS_ENGINE_API_KEY"),
    ],
)
async def test_an_engine_of_another_model_is_refused(
    engine: EngineStandIn, changes: dict[str, Any], reason: str
) -> None:
    for name, value in changes.items():
        setattr(engine, name, value)
    with pytest.raises(EngineFailed, match=reason):
        await UrlEngine.open(engine.url, "tiny")


@pytest.mark.parametrize("url", ["http://[::1", "localhost:8000", "http://127.0.0.1:99999", "file:///x", ""])
async def test_an_invalid_address_of_an_engine_is_refused(url: str) -> None:
    with pytest.raises(EngineFailed):
        await UrlEngine.open(url, "tiny")


@pytest.mark.parametrize("version", ["<html>hello</html>", ["0.1"], {}])
async def test_a_version_is_not_needed(engine: EngineStandIn, version: Any) -> None:
    engine.version = version
    engine.models = {"data": [{"id": "other"}, {"id": "served-name", "root": "/models/Tiny/"}]}
    opened = await UrlEngine.open(engine.url, "tiny")
    await opened.close()
    assert opened.description() == {"url": engine.url, "model": "served-name"}
