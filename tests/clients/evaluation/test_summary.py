"""The figures of ``ors-server eval``, of journals that are made by hand, and its texts without secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.errors import EvaluationError, SessionLost
from ors_clients.evaluation.attempts import Attempt, Loss
from ors_clients.evaluation.compare import ComparedRun, compare
from ors_clients.evaluation.journal import RunRecord
from ors_clients.evaluation.redaction import Redaction
from ors_clients.evaluation.report import markdown
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices, failed_by, summarize
from ors_clients.evaluation.tasks import choose_tasks
from ors_clients.evaluation.uploads import EPISODES, Uploads
from ors_clients.models import ToolResult
from ors_clients.rollouts.trajectory import ToolStep, Trajectory
from ors_clients.rollouts.upload_events import summary
from ors_clients.tool_calls import ToolCall

from ors_server.rollouts.reports.estimators import permutation_p
from ors_server.rollouts.reports.figures import mean, p_value, percent

_LOSS = Loss("environment", "SessionLost", "gone")


def record_of(tasks: int, *attempts: Attempt, samples: int = 1) -> RunRecord:
    """Return a run of so many tasks."""
    settings = EvaluationSettings(target="t", model="m", base_url="http://e", samples=samples)
    described = [{"split": "train", "index": index, "hash": str(index)} for index in range(tasks)]
    return RunRecord("run", settings, described, "2026-01-01", attempts=list(attempts))


def attempt_of(task: int, reward: float | None, *, number: int = 0, turns: int = 1, **fields: Any) -> Attempt:
    """Return an attempt; one without a reward was lost."""
    made: Mapping[str, Any] = {
        "sample": 0, "rollout_id": "r", "stop": "finished" if reward is not None else "failed", "tool_calls": 1,
        "mistakes": {}, "requests": turns, "retried": {}, "prompt_tokens": 100, "completion_tokens": 10,
        "cached_tokens": 0, "uncounted": 0, "seconds": 1.0, "generation_seconds": 0.5, "tool_seconds": 0.5,
    }  # fmt: skip
    lost = _LOSS if reward is None else None
    return Attempt(task=task, attempt=number, reward=reward, lost=lost, turns=turns, **{**made, **fields})


@pytest.mark.parametrize("early", [0, 30, 3000])
def test_losses_before_the_first_turn_hide_no_later_ones(early: int) -> None:
    late = [attempt_of(task, None) for task in range(2)]
    scored = [attempt_of(task, 1.0, number=1) for task in range(10)]
    # One that had no room for its prompt took no turn either.
    scored.append(attempt_of(10, 0.0, turns=0, stop="context_overflow"))
    lost = [attempt_of(5, None, number=2 + number, turns=0) for number in range(early)]
    run = record_of(11, *late, *scored, *lost)
    assert failed_by(run, 0.05) == [
        "2 of the 12 attempts in which the model had taken a turn were lost (16.7%)",
    ]
    assert failed_by(record_of(11, *scored, *lost), 0.0) == []


def test_passes_that_are_marked_are_counted() -> None:
    marked = [attempt_of(task, float(task < 2), mark="code ran") for task in range(3)]
    run = record_of(6, *marked, *(attempt_of(task, 1.0) for task in range(3, 5)), attempt_of(5, None, mark="code ran"))
    report = summarize(run, max_failures=1.0, prices=Prices())
    assert report["marked"] == [{"mark": "code ran", "samples": 3, "passes": 2, "of_passes": 4}]
    assert "| passes that are marked | 2 of 4: code ran |" in markdown(report)
    without = summarize(record_of(1, attempt_of(0, 1.0)), max_failures=1.0, prices=Prices())
    assert (without["marked"], "marked" in markdown(without)) == ([], False)
    assert Attempt.from_json(marked[0].as_json()) == marked[0]


@pytest.mark.parametrize(
    ("metadata", "mark"), [({"verdict_mark": "code ran"}, "code ran"), ({"verdict_mark": 1}, ""), (None, "")]
)
def test_a_mark_goes_from_a_result_into_the_upload(metadata: Any, mark: str) -> None:
    step = ToolStep(0, ToolCall("done", {}, "", "c"), ToolResult(finished=True, reward=1.0, metadata=metadata))
    trajectory = Trajectory("r", steps=[step])
    assert (trajectory.verdict_mark, summary(trajectory).get("verdict_mark", "")) == (mark, mark)


def test_a_share_that_equals_the_limit_is_not_over_it() -> None:
    for count in range(1, 101):
        limit = float(f"{count / 100:.2f}")
        attempts = [attempt_of(task, None) for task in range(count)]
        attempts += [attempt_of(task, 1.0, number=1) for task in range(100 - count)]
        assert failed_by(record_of(100 - count, *attempts), limit) == []
        run = record_of(100, *(attempt_of(task, 1.0) for task in range(100 - count)))
        assert failed_by(run, limit) == []
        assert failed_by(run, limit - 0.001) == [f"{count} of 100 samples are missing ({count}.0%)"]


def test_the_bounds_are_over_all_tasks_also_those_never_begun() -> None:
    """10 tasks are scored, 20 are lost, and 10 were never begun."""
    scored = [attempt_of(task, 0.0) for task in range(10)]
    lost = [attempt_of(task, None, turns=task % 2) for task in range(10, 30)]
    report = summarize(record_of(40, *scored, *lost), max_failures=1.0, prices=Prices())
    assert report["bounds"] == {"pass_at_1_if_lost_are_failures": 0.0, "pass_at_1_if_missing_are_successes": 0.75}
    solved = [attempt_of(task, 1.0) for task in range(10)]
    report = summarize(record_of(40, *solved), max_failures=1.0, prices=Prices())
    assert report["bounds"] == {"pass_at_1_if_lost_are_failures": 0.25, "pass_at_1_if_missing_are_successes": 1.0}
    assert "pass@1 if what was lost or is missing had failed | 25.0 %" in markdown(report)


def test_attempts_that_were_cut_off_may_have_failed() -> None:
    """The model ended the server twice before it solved the first of four tasks."""
    run = record_of(4, *(attempt_of(task, 1.0) for task in range(4)))
    run.started.update({(0, 0): 3, **{(task, 0): 1 for task in range(1, 4)}})
    report = summarize(run, max_failures=0.05, prices=Prices())
    assert report["infrastructure"]["interrupted"] == 2
    assert report["bounds"]["pass_at_1_if_lost_are_failures"] == pytest.approx((1 / 3 + 3) / 4)
    assert "pass@1 if what was lost had failed | 83.3 %" in markdown(report)


def test_an_episode_that_is_being_written_is_sent_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(number: int) -> bytes:
        return b'{"attempt":{},"events":[{"n":%d,"pad":"%b"}]}\n' % (number, b"x" * 1000)

    episodes, sent, again = tmp_path / EPISODES, list[int](), threading.Event()
    episodes.write_bytes(line(0) + line(1)[:500])
    uploads = Uploads(tmp_path, "http://127.0.0.1:1", "")

    def upload(rollouts: list[list[bytes]]) -> Iterator[tuple[int, None]]:
        if not sent:
            with episodes.open("ab") as file:
                file.write(line(1)[500:] + line(2))
        sent.extend(json.loads(event)["n"] for events in rollouts for event in events)
        yield len(rollouts), None
        if len(sent) == 3:
            again.set()

    monkeypatch.setattr(uploads, "_sink", SimpleNamespace(upload=upload))
    uploads.start()
    assert again.wait(10)
    assert uploads.finish(10) is None
    assert sent == [0, 1, 2]


@pytest.mark.parametrize(
    ("scored", "lost", "cut_off", "shown"),
    [
        (0, 0, 0, "0.0004, of it lost 0.0002"),
        (0, 1, 0, "at least 0.0004, of it lost at least 0.0002"),
        (1, 0, 0, "at least 0.0004, of it lost 0.0002"),
        (0, 0, 1, "at least 0.0004, of it lost 0.0002"),
    ],
)
def test_a_cost_of_which_some_was_not_counted_is_at_least_so_much(
    scored: int, lost: int, cut_off: int, shown: str
) -> None:
    run = record_of(1, attempt_of(0, None, uncounted=lost), attempt_of(0, 1.0, number=1, uncounted=scored))
    run.started[0, 0] = 2 + cut_off
    report = summarize(run, max_failures=1.0, prices=Prices(1.0, 10.0))
    assert f"| cost, in the currency of the prices | {shown} |" in markdown(report)


def test_a_comparison_shows_an_interval_that_agrees_with_its_test_or_why_there_is_none() -> None:
    def shown(ours: list[float], theirs: list[float]) -> str:
        runs = [
            ComparedRun.of(record_of(len(rewards), *(attempt_of(task, reward) for task, reward in enumerate(rewards))))
            for rewards in (ours, theirs)
        ]
        report = summarize(record_of(1, attempt_of(0, 1.0)), max_failures=1.0, prices=Prices())
        return markdown(report, compare(*runs))

    text = shown([1.0] * 4 + [0.0] * 6, [0.0] * 10)
    assert r"| … difference | +40.0 % \[0.0 %, 76.9 %\] |" in text
    assert "p = 0.125: not significant" in text
    assert "+100.0 %, the same in all tasks |" in shown([1.0] * 6, [0.0] * 6)
    assert "+80.0 %, of too few tasks for an interval |" in shown([1.0] * 4 + [0.0], [0.0] * 5)
    # A difference of shares is one of at most 1.
    text = shown([1.0] * 7 + [0.0], [0.0] * 8)
    assert ", 100.0 %" in text
    assert "p = 0.0156: significant" in text


def test_a_text_is_cut_after_its_secrets_are_replaced() -> None:
    secret = "s3cret-" * 20
    failure = SessionLost("x" * 480 + secret, "Wait.")
    text = Loss.of(failure, Redaction([secret]).text).text
    assert "s3cret" not in text
    assert "s3cret" in Loss.of(failure).text


def test_a_mean_and_its_share_have_the_same_digits() -> None:
    for value, shown, shared in ((0.4525, "0.453", "45.3 %"), (0.59, "0.590", "59.0 %"), (1.0, "1.000", "100.0 %")):
        assert (mean(value), percent(value)) == (shown, shared)
    assert (mean(None), mean(-0.0001), mean(1e200), percent(-0.12)) == ("-", "-0.0001", "1e+200", "-12.0 %")


def test_a_p_value_is_not_shown_below_what_its_test_knows() -> None:
    drawn = permutation_p([1.0 + task / 100 for task in range(40)])
    assert p_value(drawn) == "p < 0.0002"
    shown = {1e-20: "p < 0.0001", 0.00013: "p = 0.0001", 0.04996: "p = 0.0500", 0.5: "p = 0.500"}
    assert {p: p_value(p) for p in shown} == shown


def test_settings_of_0_are_shown_and_seconds_that_were_not_measured_are_not() -> None:
    began = "2026-01-01T00:00:00+00:00"
    record = record_of(1, attempt_of(0, 1.0, generation_seconds=4e-7, ended="2026-01-01T00:20:34.500+00:00"))
    record = replace(record, begun=began, settings=replace(record.settings, temperature=0.0, thinking=False))
    text = markdown(summarize(record, max_failures=1.0, prices=Prices()))
    assert "| temperature | 0.0 |" in text
    assert "thinking" not in text
    assert "… for the model" not in text
    assert "| … for tools | mean 0.5, median 0.5, 95th percentile 0.5, highest 0.5 |" in text
    assert "| seconds of the whole run | 1,234 |" in text


def test_a_secret_is_replaced_within_json_and_breaks_none() -> None:
    redaction = Redaction(['pass"word', "1234", "abc"])
    nested = json.dumps({"said": json.dumps({"deep": 'pass"word'}), "number": 1234.5, "other": "12345"})
    redacted = redaction.value({"content": nested, 'a pass"word': [{"x": 'pass"word'}, 1234, None, True]})
    assert "word" not in json.dumps(redacted)
    assert redacted["a [redacted]"] == [{"x": "[redacted]"}, "[redacted]", None, True]
    # Too short to be told from other text.
    assert redaction.text("abc") == "abc"
    assert Redaction().value({"a": ("b",)}) == {"a": ("b",)}


@pytest.mark.parametrize("wanted", ["4", "0-4", "0-99999999999999", "2,999999999999999999"])
async def test_a_task_that_is_not_there_is_found_at_once(wanted: str) -> None:
    async def num_tasks(split: str) -> int:
        return 4

    environment: Any = SimpleNamespace(num_tasks=num_tasks)
    with pytest.raises(EvaluationError, match="'train' has no task"):
        await choose_tasks(environment, "train", wanted, None)
