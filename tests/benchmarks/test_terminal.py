"""The benchmark of terminal episodes: what it counts, the verdicts that it checks, and a small run with sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.control_groups import NoControlGroups, ProcessorTime, processor_time
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.results import Gathered
from ors_benchmarks.terminal import scenarios
from ors_benchmarks.terminal.candidates import Candidate, Stage, check_verdict
from ors_benchmarks.terminal.command import BENCHMARK, main
from ors_benchmarks.terminal.scenarios import FIGURES, QUICK, ROWS, Beside
from ors_benchmarks.terminal.task import fill, write_folder

from tests.benchmarks.bench import ended, only_report
from tests.support.processes import children, command_line
from tests.support.waiting import PATIENCE, until

SMALL = dataclasses.replace(QUICK, episodes=(2, 8, 16), burst=8)


class Counter(ProcessorTime):
    """Processor time that only episodes add to."""

    def __init__(self) -> None:
        self.used = 0.0

    def seconds(self, *, beside: bool) -> float:
        return self.used + 100 * beside


class Imagined(Candidate):
    """Episodes that take a second of processor time a stage, half of it in a server."""

    name = "ours"
    title = "imagined"

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.solved: list[bool] = []
        self.running = self.most = 0
        self.failing = False

    def open(self, folder: Path) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    def version(self) -> dict[str, str]:
        return {}

    async def play(self, solved: bool, stage: Stage) -> float:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        self.solved.append(solved)
        self.counter.used += 1.0 + stage
        if self.failing and not solved:
            raise WrongAnswer("an episode that was not solved was graded 1")
        return 0.25

    def processes(self) -> dict[str, float]:
        return {"server": self.counter.used / 2}


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> Imagined:
    monkeypatch.setattr(scenarios, "_RESTING", 0.0001)
    return Imagined(Counter())


def beside(candidate: Imagined) -> Beside:
    return Beside(SMALL, candidate.counter)


async def test_episodes_are_counted_whole_and_by_part(imagined: Imagined) -> None:
    found = (await scenarios.at_once(imagined, beside(imagined), place=2)).figures
    assert found["cpu_64"] == pytest.approx(3000)
    assert found["rate_64"] == pytest.approx(20)
    assert found["server_64"] == pytest.approx(1500)
    assert found["sandboxes_64"] + found["player_64"] == pytest.approx(1500)
    assert (imagined.most, len(imagined.solved), imagined.solved.count(False)) == (16, 16, 2)
    found = (await scenarios.parts(imagined, beside(imagined))).figures
    assert found == {key: pytest.approx(1000) for key in ("started_cpu", "commanded_cpu", "graded_cpu")}


async def test_a_wrong_verdict_fails_the_row_once_all_have_ended(imagined: Imagined) -> None:
    imagined.failing = True
    with pytest.raises(Failure, match="2 of 16 episodes failed, the first: an episode that was not solved"):
        await scenarios.at_once(imagined, beside(imagined), place=2)
    assert len(imagined.solved) == 16


async def test_all_episodes_of_a_burst_begin_together(imagined: Imagined) -> None:
    found = (await scenarios.burst(imagined, beside(imagined))).figures
    assert imagined.most == found["burst"] == 8 * (os.cpu_count() or 1)
    assert found["burst_prompt_p50"] == 0.25


def test_a_verdict_is_right_or_wrong() -> None:
    check_verdict(True, True)
    check_verdict(False, False)
    with pytest.raises(WrongAnswer, match="that was not solved was graded 1"):
        check_verdict(True, False)
    with pytest.raises(WrongAnswer, match="that was solved was graded 0"):
        check_verdict(False, True)


def test_budgets_are_ratios_of_one_round() -> None:
    gathered = Gathered(FIGURES)
    for name, value in {"ours": 75.0, "plain": 60.0, "pytest": 150.0, "podman": 1500.0}.items():
        gathered.add(name, "eight", Measured({"cpu_8": value}), {})
    gathered.end_round()
    found = {key: each["ours"].median for key, each in gathered.figures().items() if key != "cpu_8"}
    assert found == {"floor_8": 1.25, "pytest_8": 2.0, "podman_8": 20.0}
    budgets = {figure.key: figure.budget for figure in FIGURES if figure.budget is not None}
    assert budgets == {"floor_8": 1.25, "floor_64": 1.25, "podman_8": 14.0}


def test_both_ways_get_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    write_folder(tmp_path / "tasks")
    fill(tmp_path / "root", tmp_path / "tests")
    folder = tmp_path / "tasks" / "report"
    assert (folder / "access.log").read_text() == (tmp_path / "root/home/user/access.log").read_text()
    assert (folder / "test_final_state.py").read_text() == (tmp_path / "tests/test_final_state.py").read_text()


@pytest.fixture
def counted() -> Iterator[ProcessorTime]:
    try:
        with processor_time() as group:
            yield group
    except NoControlGroups as error:
        pytest.skip(str(error))


def test_a_process_returns_to_its_group(counted: ProcessorTime) -> None:
    before = Path("/proc/self/cgroup").read_text()
    with counted.entered():
        within = Path("/proc/self/cgroup").read_text()
        assert within != before
        child = subprocess.run(["cat", "/proc/self/cgroup"], capture_output=True, text=True, check=True)
        assert child.stdout == within
    assert Path("/proc/self/cgroup").read_text() == before
    assert counted.seconds(beside=False) > 0


@pytest.mark.long
def test_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], counted: ProcessorTime
) -> None:
    monkeypatch.setattr(BENCHMARK, "quick", SMALL)
    rows = ",".join(row.name for row in ROWS)
    code = ended(main, "--quick", "--rows", rows, "--candidates", "ours,plain,pytest", "--output", tmp_path)
    shown = capsys.readouterr().out
    report = only_report(tmp_path)
    if missing := {"ours", "plain", "pytest"} - set(report.titles):
        pytest.skip(report.notes[missing.pop()][0])
    assert code == 0, shown
    assert report.failures == {}
    figures = {key: {name: found.median for name, found in each.items()} for key, each in report.figures.items()}
    for number in (1, 8, 64):
        assert 0 < figures[f"cpu_{number}"]["plain"] < figures[f"cpu_{number}"]["pytest"]
        assert 0 < figures[f"server_{number}"]["ours"] < figures[f"cpu_{number}"]["ours"]
    assert figures["launcher_8"]["ours"] > 0
    assert figures["graded_cpu"].keys() == {"ours", "plain", "pytest"}
    assert figures["burst"]["ours"] == 8 * (os.cpu_count() or 1)
    assert list(tmp_path.glob("*.png")) == []


@pytest.mark.long
async def test_sigterm_ends_its_server(tmp_path: Path, counted: ProcessorTime) -> None:
    command = [sys.executable, "-m", "ors_benchmarks.terminal", "--candidates", "ours", "--output", str(tmp_path)]
    null = subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=null, stderr=null)

    def servers() -> list[int]:
        return [each for each in children(process.pid) if b"script_server" in command_line(each)]

    try:
        await until(lambda: servers() != [])
        [server] = servers()
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() != 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not Path(f"/proc/{server}").exists()


def test_no_control_groups_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_benchmarks.harness.control_groups._HIERARCHIES", ())
    with pytest.raises(NoControlGroups, match="Run it as root"):
        main(["--quick", "--output", str(tmp_path)])
