"""The files, uploads and pages that a run leaves."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from ors_cli.measuring import eval_run as command
from ors_clients.errors import EvaluationError
from ors_clients.evaluation.journal import JOURNAL, read_run
from ors_clients.evaluation.report import markdown, write_report
from ors_clients.evaluation.run import Outcome, RunOptions
from ors_clients.evaluation.uploads import EPISODES
from rich.console import Console

from ors_server.rollouts.reports.sections import report_sections
from tests.clients.chat_stand_in import ChatStandIn, call, said
from tests.clients.evaluation.conftest import Evaluate, outcomes_by_seed
from tests.clients.evaluation.environments import Exam


def stored(url: str, outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rollouts that the store has of a run."""
    answer = httpx.get(f"{url}/v1/runs/{outcome.report['id']}/rollouts", params={"limit": 100})
    assert answer.status_code == 200
    return answer.json()["rollouts"]


def page_of(url: str, outcome: Outcome) -> str:
    """Return the page of a run, without tags."""
    answer = httpx.get(f"{url}/ui/run", params={"run": outcome.report["id"]})
    assert answer.status_code == 200
    return " ".join(re.sub(r"<[^>]*>", " ", answer.text).split())


def test_episodes_are_in_the_rollout_store_once_and_lost_ones_without_rewards(
    play: Evaluate, endpoint: ChatStandIn, exam_url: str
) -> None:
    seen: list[int] = []

    def loses(question: int, answer: str) -> bool:
        seen.append(question)
        return question == 0 and seen.count(0) == 1

    Exam.loses = loses
    endpoint.policy = lambda body: call("answer", {"text": "right"}) if len(body["messages"]) > 2 else call("think")
    outcome = play(options={"name": "stored", "upload": None})
    assert outcome.store == exam_url
    assert outcome.store_problem is None
    (outcome.folder / "episodes.sent").unlink()  # as if the run had been killed before it was written
    play(options={"resume": "stored", "upload": exam_url})
    rollouts = stored(exam_url, outcome)
    assert len(rollouts) == 7
    names = {rollout["rollout_name"]: rollout for rollout in rollouts}
    assert names["train-0-0-0"].get("max_reward") is None
    assert names["train-0-0-1"]["reward"] == 1.25  # the sum of both steps, as in the report


def test_the_store_has_the_numbers_of_the_report(play: Evaluate, endpoint: ChatStandIn, exam_url: str) -> None:
    """Also of episodes that no step rewards, and of those whose reward is that of several steps."""
    script = {
        "Question 0": [call("answer", {"text": "right"})],
        "Question 1": [call("answer", {"text": "wrong"})],
        "Question 2": [call("think"), call("answer", {"text": "half"})],
        "Question 3": [call("think"), call("think"), call("think")],
    }

    def policy(body: dict[str, Any]) -> dict[str, Any]:
        turns = script.get(body["messages"][0]["content"], [said("I do not know.")] * 3)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return json.loads(json.dumps(turns[turn]))

    endpoint.policy = policy
    outcome = play(max_turns=3, options={"name": "same", "upload": None})
    [run] = httpx.get(f"{exam_url}/v1/runs", params={"search": "same"}).json()["runs"]
    assert run["num_rollouts"] == 6
    assert run["avg_rollout_reward"] == pytest.approx(outcome.report["reward"]["mean"]) == pytest.approx(2.5 / 6)
    page = page_of(exam_url, outcome)
    assert outcome.report["pass_at_k"][0]["value"] == pytest.approx(1 / 6)
    assert "passed (reward ≥ 1) 16.7 %" in page
    assert outcome.report_problem is None
    for section in report_sections(outcome.report):
        for label, value in section.rows:
            assert " ".join(f"{label} {value}".split()) in page


def test_a_store_that_takes_no_report_has_the_episodes(
    play: Evaluate, exam_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ors_server.rollouts.uploads.LARGEST", 10)
    outcome = play(options={"name": "refused", "upload": None})
    assert outcome.store_problem is None
    assert outcome.report_problem is not None
    assert outcome.report_problem.startswith("the server answered 422: ")
    assert "This evaluation has sent no report" in page_of(exam_url, outcome)
    output = StringIO()
    command._print_end(Console(file=output, width=200), outcome, None, "", remote=True)  # pyright: ignore[reportPrivateUsage]
    assert "It did not take the report: the server answered 422" in output.getvalue()


def test_the_page_counts_successes_as_the_report_does(play: Evaluate, endpoint: ChatStandIn, exam_url: str) -> None:
    endpoint.policy = outcomes_by_seed({(q, s): "half" if q < 2 else "wrong" for q in range(6) for s in range(2)})
    outcome = play(samples=2, seed=7, success_at=0.5, options={"name": "half", "upload": exam_url})
    assert outcome.report["pass_at_k"][0]["value"] == pytest.approx(2 / 6)
    assert "passed (reward ≥ 0.5) 33.3 %" in page_of(exam_url, outcome)


@pytest.mark.parametrize("sent", [True, False])
def test_an_episode_whose_end_the_journal_lacks_is_not_played_again(
    play: Evaluate, endpoint: ChatStandIn, exam_url: str, sent: bool
) -> None:
    """As a kill leaves it between the two lines: the store has the episode, and another try could end otherwise."""
    outcome = play(options={"name": "torn", "upload": exam_url})
    journal = outcome.folder / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    ended = [place for place, line in enumerate(lines) if line.startswith(b'{"task"')]
    journal.write_bytes(b"".join(line for place, line in enumerate(lines) if place not in ended[2:]))
    if not sent:
        (outcome.folder / "episodes.sent").write_text("0")
    with (outcome.folder / EPISODES).open("ab") as file:
        file.write(b'{"attempt":{"task":3')  # torn, too
    endpoint.policy = lambda body: call("answer", {"text": "wrong"})
    before = Exam.answered.total()
    again = play(options={"resume": "torn", "upload": exam_url})
    assert Exam.answered.total() == before
    assert again.report["pass_at_k"][0]["value"] == 1.0
    assert again.report["infrastructure"]["interrupted"] == 0
    assert [rollout["max_reward"] for rollout in stored(exam_url, again)] == [1.0] * 6
    assert read_run(outcome.folder).scored.keys() == {(task, 0) for task in range(6)}


def test_an_attempt_that_is_played_twice_has_one_id(play: Evaluate) -> None:
    """The folder has lost its episodes, and the journal an end, as in a power cut."""
    outcome = play(limit=1, options={"name": "cut"})
    [attempt] = read_run(outcome.folder).attempts
    lines = (outcome.folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (outcome.folder / JOURNAL).write_bytes(b"".join(lines[:-1]))
    (outcome.folder / EPISODES).unlink()
    play(limit=1, options={"resume": "cut"})
    assert [again.rollout_id for again in read_run(outcome.folder).attempts] == [attempt.rollout_id]
    [other] = read_run(play(limit=1, options={"name": "other"}).folder).attempts
    assert other.rollout_id != attempt.rollout_id


def test_damaged_episodes_are_refused(play: Evaluate) -> None:
    outcome = play(limit=1, options={"name": "run"})
    with (outcome.folder / EPISODES).open("ab") as file:
        file.write(b'{"attempt":{"task":3}}\n')
    with pytest.raises(EvaluationError, match=r"Line 2 of .*episodes.jsonl cannot be read"):
        play(limit=1, options={"resume": "run"})


def test_runs_of_one_name_from_two_places_are_two_runs_of_the_store(
    play: Evaluate, endpoint: ChatStandIn, exam_url: str, tmp_path: Path
) -> None:
    first = play(options={"name": "baseline", "upload": exam_url})
    endpoint.policy = lambda body: call("answer", {"text": "wrong"})
    second = play(options={"name": "baseline", "upload": exam_url, "runs": tmp_path / "elsewhere"})
    assert [rollout["max_reward"] for rollout in stored(exam_url, first)] == [1.0] * 6
    assert [rollout["max_reward"] for rollout in stored(exam_url, second)] == [0.0] * 6
    again = play(options={"resume": str(second.folder), "upload": exam_url})
    assert again.report == second.report
    assert all(outcome.report["id"].startswith("baseline-") for outcome in (first, second))


def test_the_page_of_the_run_is_printed(
    exam_url: str,
    shared_endpoint: tuple[ChatStandIn, str],
    endpoint: ChatStandIn,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"target": exam_url, "model": "scripted", "base_url": shared_endpoint[1], "split": "train", "limit": 1}
    plan = RunOptions(runs=tmp_path / "evals", name="shown", quiet=True)
    code = command.run(given, plan, no_serving, as_json=True, report=None, data_dir=None)
    printed = capsys.readouterr()
    assert code == 0
    [address] = re.findall(r"http\S+/ui/run\?run=\S+", printed.err)
    assert address.endswith(json.loads(printed.out)["id"])
    assert "passed (reward ≥ 1)" in httpx.get(address).text


def no_serving(target: str) -> NoReturn:
    raise AssertionError(target)


def test_lost_attempts_are_lost_on_the_page(play: Evaluate, endpoint: ChatStandIn, exam_url: str) -> None:
    Exam.loses = lambda question, answer: question < 2
    outcome = play(options={"name": "partly", "upload": exam_url, "retries": 2})
    assert outcome.report["infrastructure"]["lost"] == 6
    page = page_of(exam_url, outcome)
    assert "rollouts 10 with a reward 4 " in page
    assert " lost 6 " in page
    [rollout] = [each for each in stored(exam_url, outcome) if each["rollout_name"] == "train-0-0-0"]
    whole = httpx.get(f"{exam_url}/ui/rollout", params={"id": rollout["id"]}).text
    assert '<p class="notice">environment: ' in whole
    assert "the machine burned down" in whole


def test_secrets_are_in_no_file_and_no_upload(
    play: Evaluate, endpoint: ChatStandIn, exam_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = 'hunter2 "quoted" ü'
    monkeypatch.setenv("EXAM_TOKEN", secret)
    endpoint.policy = lambda body: call("reveal") if len(body["messages"]) < 3 else call("answer", {"text": secret})
    Exam.loses = lambda question, answer: question == 0
    outcome = play(limit=2, secrets=("EXAM_TOKEN",), options={"name": "secret", "upload": exam_url, "retries": 0})
    # The environment has it, and the model sees what the tool says.
    assert secret in endpoint.requests[-1]["messages"][-1]["content"]
    kept = "".join(path.read_text() for path in outcome.folder.iterdir()) + json.dumps(outcome.report)
    for rollout in stored(exam_url, outcome):
        found = httpx.get(f"{exam_url}/ui/rollout", params={"id": rollout["id"]})
        assert "[redacted]" in found.text
        kept += found.text
    assert "hunter2" not in kept
    episodes = [json.loads(line) for line in (outcome.folder / EPISODES).read_text().splitlines()]
    assert {event["eventType"] for episode in episodes for event in episode["events"]} == {"rollout", "message"}
    assert outcome.report["samples"] == {"planned": 2, "scored": 1, "missing": 1}


def test_what_a_run_keeps_is_its_owners_alone(play: Evaluate) -> None:
    folder = play(limit=1, options={"name": "run"}).folder
    assert [(folder / name).stat().st_mode & 0o777 for name in (JOURNAL, EPISODES)] == [0o600, 0o600]
    (folder / EPISODES).chmod(0o644)
    play(limit=1, options={"resume": "run"})
    assert (folder / EPISODES).stat().st_mode & 0o777 == 0o600


def test_reports_show_text_as_text(play: Evaluate, tmp_path: Path) -> None:
    outcome = play(model="<script>|x|\x1b[31m", options={"name": "run"})
    text = markdown(outcome.report)
    assert "<script>" not in text
    assert "\x1b" not in text
    assert re.search(r"\| model \| &lt;script", text)
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match="cannot be written"):
        write_report(tmp_path / "file", outcome.report, None)
