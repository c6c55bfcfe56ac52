"""A run goes on where it was, is compared with another, and plays the tasks that are wanted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, EvaluationError
from ors_clients.evaluation.compare import compare, read_compared
from ors_clients.evaluation.journal import JOURNAL, Journal, read_run
from ors_clients.evaluation.report import markdown, write_report
from ors_clients.evaluation.uploads import EPISODES

from ors_server.server import Server
from ors_server.settings import Settings
from tests.clients.chat_stand_in import ChatStandIn, call
from tests.clients.evaluation.conftest import Evaluate, outcomes_by_seed
from tests.clients.evaluation.environments import Exam
from tests.clients.scripted_engine import serve_application
from tests.support.waiting import PATIENCE


def test_a_run_goes_on_where_it_was(play: Evaluate, endpoint: ChatStandIn) -> None:
    first = play(samples=2, options={"name": "run"})
    path = first.folder / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    ended = [place for place, line in enumerate(lines) if line.startswith(b'{"task"')]
    # As a kill leaves it: 5 ended, the line of the sixth is torn.
    kept = lines[: ended[5]]
    path.write_bytes(b"".join(kept) + lines[ended[5]][:40])
    (first.folder / EPISODES).unlink()
    before = Exam.answered.total()
    outcome = play(samples=2, options={"resume": "run"})
    assert Exam.answered.total() - before == 12 - 5
    assert outcome.report["samples"] == {"planned": 12, "scored": 12, "missing": 0}
    begun = sum(line.startswith(b'{"begun"') for line in kept)
    assert outcome.report["infrastructure"]["interrupted"] == begun - 5
    assert play(samples=2, options={"resume": "run"}).report == outcome.report
    assert Exam.answered.total() - before == 12 - 5


def test_a_prefetch_larger_than_the_server_admits_loses_no_sample(
    play: Evaluate, endpoint: ChatStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        # Both places of the server are taken until a session could not be opened ahead.
        end = time.monotonic() + PATIENCE
        while "of 12 sessions could be opened ahead" not in caplog.text:
            assert time.monotonic() < end, "no session was refused"
            time.sleep(0.005)
        return call("answer", {"text": "right"})

    endpoint.policy = answer
    with serve_application(Server([Exam], settings=Settings(max_sessions=2)).app) as url:
        options = {"name": "run", "url": url, "concurrency": 2, "prefetch": 12}
        outcome = play(target=url, samples=2, options=options)
    assert outcome.report["samples"] == {"planned": 12, "scored": 12, "missing": 0}
    assert outcome.report["infrastructure"]["lost"] == 0
    assert [record.levelname for record in caplog.records if "of 12 sessions could be opened" in record.message]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"samples": 1}, "samples: 2 → 1"),
        ({"temperature": 0.5}, r"temperature: \(not set\) → 0.5"),
        ({"model": "other"}, 'model: "scripted" → "other"'),
        ({"limit": 2}, r"limit: \(not set\) → 2"),
        ({"success_at": 0.1, "max_turns": 3}, "max_turns: 20 → 3; success_at: 1.0 → 0.1"),
    ],
)
def test_other_settings_are_refused_with_the_difference(play: Evaluate, changed: dict[str, Any], said: str) -> None:
    play(samples=2, options={"name": "run"})
    with pytest.raises(EvaluationError, match=said):
        play(**{"samples": 2, **changed}, options={"resume": "run"})


def test_other_tasks_are_refused(play: Evaluate) -> None:
    play(options={"name": "run"})
    Exam.questions = 7
    with pytest.raises(EvaluationError, match=r"1 only there: train:6"):
        play(options={"resume": "run"})


def test_two_processes_do_not_play_one_run(play: Evaluate) -> None:
    folder = play(options={"name": "run"}).folder
    journal = Journal.resume(folder)
    with pytest.raises(EvaluationError, match="Another process"):
        play(options={"resume": "run"})
    journal.close()
    with pytest.raises(EvaluationError, match="The run run exists"):
        play(options={"name": "run"})


def test_a_closed_journal_writes_into_no_other_file(play: Evaluate, tmp_path: Path) -> None:
    """A run that is ended twice leaves a thread that notes an attempt."""
    folder = play(options={"name": "run"}).folder
    before = (folder / JOURNAL).read_bytes()
    journal = Journal.resume(folder)
    journal.close()
    with (tmp_path / "other").open("wb") as other:
        with pytest.raises(EvaluationError, match="closed"):
            journal.begin(0, 0)
        assert (tmp_path / "other").stat().st_size == other.tell() == 0
    assert (folder / JOURNAL).read_bytes() == before


def test_an_episode_that_ended_twice_is_refused(play: Evaluate) -> None:
    folder = play(options={"name": "run"}).folder
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join([*lines, lines[-1]]))
    with pytest.raises(EvaluationError, match=rf"Line {len(lines) + 1} .* ended twice"):
        read_run(folder)


@pytest.mark.parametrize("line", ["{}", "[]", "no JSON", '{"begun": 3}', '{"task": 99}'])
def test_a_damaged_line_is_refused(play: Evaluate, line: str) -> None:
    folder = play(options={"name": "run"}).folder
    with (folder / JOURNAL).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(EvaluationError, match="cannot be read"):
        play(options={"resume": "run"})


def test_there_is_no_such_run(play: Evaluate) -> None:
    play(options={"name": "one"})
    with pytest.raises(EvaluationError, match=r"No run two in .*There are one"):
        play(options={"resume": "two"})


# --- compared ------------------------------------------------------------------------------------


def test_runs_are_compared_by_task(play: Evaluate, endpoint: ChatStandIn, tmp_path: Path) -> None:
    Exam.questions = 12
    endpoint.policy = outcomes_by_seed({(q, s): "wrong" if q < 8 else "right" for q in range(12) for s in range(2)})
    older = play(samples=2, seed=7, options={"name": "older"})
    write_report(tmp_path / "report", older.report, None)
    endpoint.policy = lambda body: call("answer", {"text": "right"})
    for other in ("older", str(tmp_path / "report" / "report.json"), str(older.folder)):
        newer = play(samples=2, seed=7, temperature=0.5, options={"compare": other})
        found = newer.comparison
        assert found is not None
        assert found["settings"] == ["temperature: (not set) → 0.5"]
        assert found["pass_at_1"]["difference"] == pytest.approx(8 / 12)
        assert (found["pass_at_1"]["better"], found["pass_at_1"]["worse"]) == (8, 0)
        assert found["pass_at_1"]["p"] == pytest.approx(2 / 2**8)
        assert found["pass_at_1"]["significant"]
    text = markdown(newer.report, newer.comparison)
    assert "Compared with older" in text
    assert "significant" in text
    # A run beside itself.
    run = read_compared(tmp_path / "evals", "older")
    same = compare(run, run)
    assert (same["pass_at_1"]["p"], same["pass_at_1"]["significant"]) == (1.0, False)


def test_runs_of_other_tasks_or_rules_are_not_compared(play: Evaluate, tmp_path: Path) -> None:
    play(options={"name": "older"})
    with pytest.raises(EvaluationError, match="3 only there: train:3"):
        play(limit=3, options={"compare": "older", "name": "newer"})
    with pytest.raises(EvaluationError, match="success_at"):
        play(success_at=0.5, options={"compare": "older", "name": "newer"})
    assert not (tmp_path / "evals" / "newer").exists()
    (tmp_path / "report.json").write_text('{"run": "x"}')
    with pytest.raises(EvaluationError, match="not a report"):
        play(options={"compare": str(tmp_path / "report.json")})


# --- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "limit", "indices"), [("1-2,5", None, [1, 2, 5]), ("4,0-3", 2, [4, 0]), ("q3,q1", None, [3, 1])]
)
def test_tasks_are_chosen(play: Evaluate, wanted: str, limit: int | None, indices: list[int]) -> None:
    report = play(tasks=wanted, limit=limit).report
    assert [row["index"] for row in report["per_task"]] == indices
    assert report["settings"]["environment"] == "exam"


@pytest.mark.parametrize(
    ("wanted", "problem"), [("6", "no task 6"), ("1,0-2", "names 1 twice"), ("q9", "no task 'q9'")]
)
def test_tasks_that_are_not_there(play: Evaluate, wanted: str, problem: str) -> None:
    with pytest.raises(EvaluationError, match=problem):
        play(tasks=wanted)


def test_the_test_split_is_what_is_evaluated(play: Evaluate) -> None:
    assert play(split=None).report["settings"]["split"] == "test"
    with pytest.raises(EvaluationError, match="no split 'dev'"):
        play(split="dev")


@pytest.mark.parametrize("name", ["a/b", "..", "", "-x"])
def test_names_of_runs(play: Evaluate, name: str) -> None:
    with pytest.raises(EvaluationError, match="not a name of a run"):
        play(options={"name": name})


@pytest.mark.parametrize(
    "settings", [{"samples": 0}, {"reward": "best"}, {"api": "sglang"}, {"tool_calls": "x"}, {"base_url": "host"}]
)
def test_settings_that_cannot_be_used(play: Evaluate, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        play(**settings)
