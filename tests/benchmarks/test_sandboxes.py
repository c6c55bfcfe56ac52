"""The benchmark of sandboxes as a command: a small run with real sandboxes, and its failures."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.http11 import Address, Connection, Failure
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.results import Gathered, Summary
from ors_benchmarks.harness.reports.table import met
from ors_benchmarks.sandboxes import candidates as sandbox_candidates
from ors_benchmarks.sandboxes.by_hand import ByHand, candidates
from ors_benchmarks.sandboxes.candidates import Box, Candidate, Ours
from ors_benchmarks.sandboxes.command import BENCHMARK, NothingToMeasure, main
from ors_benchmarks.sandboxes.docker_like import ServiceBox
from ors_benchmarks.sandboxes.scenarios import FIGURES, QUICK, ROWS

from tests.benchmarks.bench import ended, only_report

SMALL = dataclasses.replace(QUICK, starts=2, commands=5, crowds=(4,))


@pytest.fixture(scope="module", autouse=True)
def _machine() -> None:  # pyright: ignore[reportUnusedFunction] - a fixture
    from ors_server.sandboxes import sandboxes_unavailable

    if reason := asyncio.run(sandboxes_unavailable()):
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - a fixture
    monkeypatch.setattr(BENCHMARK, "quick", SMALL)


def bench(*arguments: str | Path) -> int:
    return ended(main, "--quick", *arguments)


@pytest.mark.long
def test_a_small_run_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = bench("--candidates", "bubblewrap,bwrap", "--output", tmp_path)
    said = capsys.readouterr().out
    assert code == 0, said
    for part in ("cold start to first output, p50", "≤ 40.0", "bwrap + overlay by hand", "written: "):
        assert part in said
    [picture] = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = next(tmp_path.glob("*.json")).read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text

    report = only_report(tmp_path)
    assert report.failures == {}
    assert report.rows == [row.name for row in ROWS]
    figures = {key: {name: found.median for name, found in each.items()} for key, each in report.figures.items()}
    ours, by_hand = figures["cold_p50"]["bubblewrap"], figures["cold_p50"]["bwrap"]
    assert 1 < ours < 5000
    assert 1 < by_hand < 5000
    assert 0 < figures["command_p50"]["bubblewrap"] < ours
    assert figures["command_p50"]["bubblewrap"] < figures["http_p50"]["bubblewrap"] < 1000
    assert 0 < figures["warm_p50"]["bubblewrap"] < 5000
    assert figures["crowd_4_failures"] == {"bubblewrap": 0, "bwrap": 0}
    assert figures["group_one"]["bubblewrap"] >= 0.5  # the set-up itself
    assert 0.5 <= figures["group_wall"]["bubblewrap"] < 16 * 0.5  # once for all sixteen
    assert figures["examine_p50"]["bubblewrap"] > 0
    assert re.fullmatch(r"\d+(\.\d+)+", report.packages["bubblewrap"]["bubblewrap"])
    assert report.packages["bwrap"]["bwrap"] == report.packages["bubblewrap"]["bubblewrap"]
    assert list(report.titles) == ["bubblewrap", "bwrap"]
    left = [entry.name for entry in Path("/run/ors-containers/stage").glob("*")] if os.geteuid() == 0 else []
    assert left == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["apptainer", "apptainer-exec", "podman"])
def test_other_candidates(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(name.partition("-")[0]) is None:
        pytest.skip(f"{name.partition('-')[0]} is not installed")
    if name not in [candidate.name for candidate in candidates()]:
        pytest.skip(f"no runtime {name} is registered")
    code = bench("--candidates", f"bubblewrap,{name}", "--rows", "cold,command", "--output", tmp_path, "--no-charts")
    said = capsys.readouterr().out
    report = only_report(tmp_path)
    if name not in report.titles:
        pytest.skip(report.notes[name][0])
    assert code == 0, said
    assert {"bubblewrap", name} <= set(report.figures["command_p50"])
    assert list(tmp_path.glob("*.png")) == []


@pytest.mark.long
def test_docker_like_sandboxes_in_process_and_through_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "bubblewrap,docker-like,service"
    code = bench("--candidates", names, "--rows", "cold,command,http", "--output", tmp_path, "--no-charts")
    said = capsys.readouterr().out
    report = only_report(tmp_path)
    if missing := {"docker-like", "service"} - set(report.titles):
        pytest.skip(report.notes[missing.pop()][0])
    assert code == 0, said
    figures = {key: {name: found.median for name, found in each.items()} for key, each in report.figures.items()}
    for key in ("cold_p50", "create_p50", "command_p50", "stop_p50"):
        assert set(figures[key]) == {"bubblewrap", "docker-like", "service"}
        assert all(0 < value < 10_000 for value in figures[key].values())
    assert set(figures["http_p50"]) == {"bubblewrap"}
    creations = figures["create_p50"]
    assert figures["create_strict"] == {"bubblewrap": pytest.approx(creations["service"] / creations["bubblewrap"])}
    assert "command_podman" not in figures
    assert re.fullmatch(r"\d+(\.\d+)+", report.packages["service"]["bubblewrap"])


def test_a_ratio_over_another_candidate_is_that_candidates() -> None:
    gathered = Gathered(FIGURES)
    for seconds in ({"bubblewrap": 0.5, "service": 2.0, "podman": 100.0}, {"service": 4.0, "podman": 200.0}):
        for name, value in seconds.items():
            gathered.add(name, "command", Measured({"command_p50": value}), {})
        gathered.end_round()
    found = gathered.figures()["command_podman"]
    assert {name: summary.values for name, summary in found.items()} == {"service": [50, 50]}
    [figure] = [figure for figure in FIGURES if figure.key == "command_podman"]
    assert met(figure, found["service"])
    assert not met(figure, Summary.of([2.9]))


async def test_wrong_results_of_the_sandbox_service_fail() -> None:
    class Service(asyncio.Protocol):
        def __init__(self, body: bytes) -> None:
            self.body = body

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.body)
            assert isinstance(self.transport, asyncio.Transport)
            self.transport.write(head + self.body)

    results = (
        b'{"return_code":0,"output":"MQo=","timed_out":false}',
        b'{"return_code":3,"output":"","timed_out":false}',
        b'{"return_code":0,"output":"","timed_out":true}',
        b"{}",
        b"no JSON",
    )
    for body in (*(b"event: task_id\ndata: t\n\nevent: end\ndata: %b\n\n" % result for result in results), b""):
        listener = await asyncio.get_running_loop().create_server(functools.partial(Service, body), "127.0.0.1", 0)
        async with listener:
            host, port = listener.sockets[0].getsockname()
            connection = await Connection.to(Address(host, port))
            with pytest.raises(WrongAnswer):
                await ServiceBox(connection, host, "s").check()
            connection.close()


class Liar(ByHand):
    """Starts nothing and returns wrong results."""

    name = title = program = "liar"
    answer = b"1\n"

    def version(self) -> str:
        return "0"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Liar]:
        yield self

    async def start(self) -> Box:
        return LiarsBox()


class LiarsBox(Box):
    async def run(self, command: str) -> bytes:
        return Liar.answer

    async def stop(self) -> None:
        pass


class Absent(Liar):
    name = title = program = "absent"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Liar]:
        raise NotHere("it is not installed")
        yield self


class Unsteady(Liar):
    """Fails to start from time to time."""

    name = title = program = "unsteady"

    async def start(self) -> Box:
        raise Failure("it did not start")


def test_a_wrong_answer_fails_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BENCHMARK, "candidates", [Ours("bubblewrap"), Liar(), Unsteady(), Absent()])
    assert bench("--rows", "cold,crowd", "--output", tmp_path, "--no-charts") == 1
    said = capsys.readouterr().out
    assert "liar failed 1 times: cold: a command answered b'1\\n'" in said
    assert "absent: not measured: it is not installed" in said
    report = only_report(tmp_path)
    assert set(report.failures) == {"liar", "unsteady"}
    assert report.failures["unsteady"] == {"cold: it did not start": 1, "crowd: it did not start": 1}
    assert set(report.figures["cold_p50"]) == {"bubblewrap"}
    assert "absent" not in report.titles


def test_without_any_candidate_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BENCHMARK, "candidates", [Absent()])
    with pytest.raises(NothingToMeasure, match="doctor"):
        main(["--quick", "--output", str(tmp_path), "--no-charts"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--candidates", "docker"], ["--rows", "everything"], ["--rounds", "0"]])
def test_unknown_candidates_and_rows_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    assert arguments[0] in capsys.readouterr().err


async def test_a_box_is_checked_by_what_only_it_can_answer() -> None:
    class Parrot(LiarsBox):
        async def run(self, command: str) -> bytes:
            return command.encode()

    with pytest.raises(WrongAnswer):
        await Parrot().check()
    with pytest.raises(WrongAnswer):
        await LiarsBox().check()


def test_every_figure_has_a_row_and_every_row_figures() -> None:
    assert {figure.row for figure in FIGURES} == {row.name for row in ROWS}
    keys = [figure.key for figure in FIGURES]
    assert len(keys) == len(set(keys))


def test_a_missed_budget_is_marked_and_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hard = [dataclasses.replace(figure, budget=1e-6) for figure in FIGURES]
    monkeypatch.setattr(BENCHMARK, "figures", hard)
    assert bench("--candidates", "bubblewrap", "--rows", "command", "--output", tmp_path, "--no-charts") == 0
    assert "✗" in capsys.readouterr().out


def test_candidates_by_hand_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bench("--candidates", "bwrap", "--rows", "command,crowd", "--output", tmp_path / "results", "--no-charts")
    assert [entry.name for entry in tmp_path.iterdir()] == ["results"]


def test_names_are_unique() -> None:
    found: list[Candidate] = candidates()
    assert len({candidate.name for candidate in found}) == len(found)
    assert sandbox_candidates.user() in ("root", "an ordinary user")
