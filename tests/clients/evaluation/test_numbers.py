"""The numbers of a run are the truth, whatever fails around it."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from ors_clients.evaluation.report import markdown
from ors_clients.evaluation.summary import Prices

from tests.clients.chat_stand_in import ChatStandIn, call, said
from tests.clients.evaluation.conftest import Evaluate, outcomes_by_seed
from tests.clients.evaluation.environments import Exam
from tests.clients.lost_rollout_table import expected


def _with_success(samples: int, won: int, k: int) -> int:
    """Count the subsets of ``k`` samples that have one of the first ``won``."""
    subsets = list(itertools.combinations(range(samples), k))
    return sum(min(subset) < won for subset in subsets)


def test_the_rate_is_the_truth_with_thirty_percent_of_the_infrastructure_failing(
    play: Evaluate, endpoint: ChatStandIn
) -> None:
    samples, questions = 4, 6
    drawn = random.Random(11)
    table = {
        (question, sample): drawn.choice(("right", "wrong", "half"))
        for question in range(questions)
        for sample in range(samples)
    }
    answers, setups = itertools.count(1), itertools.count(1)
    endpoint.policy = outcomes_by_seed(table)
    # Of three kinds, over 30 % of all attempts, in any order of them.
    endpoint.fault = lambda body, number: 400 if number % 5 == 0 else None  # which is not sent again
    Exam.loses = lambda question, answer: next(answers) % 5 == 0
    Exam.loses_setup = lambda question: next(setups) % 8 == 0
    outcome = play(samples=samples, seed=7, options={"retries": 50})

    report = outcome.report
    wins = [sum(table[question, sample] == "right" for sample in range(samples)) for question in range(questions)]
    for entry in report["pass_at_k"]:
        k = entry["k"]
        chances = [
            Fraction(
                _with_success(samples, won, k),
                math.comb(samples, k),
            )
            for won in wins
        ]
        assert entry["value"] == float(sum(chances) / questions)
        assert (entry["tasks"], entry["left_out"]) == (questions, 0)
    worth = {"right": Fraction(1), "half": Fraction(1, 2), "wrong": Fraction(0)}
    assert report["reward"]["mean"] == float(sum(worth[text] for text in table.values()) / (samples * questions))
    assert report["samples"] == {"planned": 24, "scored": 24, "missing": 0}
    assert expected("`ors-server eval`", "none") == "uncounted"
    lost = report["infrastructure"]
    assert lost["lost"] / lost["attempts"] > 0.3
    assert {kind["side"] for kind in lost["kinds"]} == {"environment", "model endpoint"}
    # Episodes that were lost late may have been failures of the model: the run fails and gives the reason.
    assert outcome.failed
    assert "in which the model had taken a turn were lost" in report["failed"][0]
    # Losses before the model's first turn can hide nothing.
    assert lost["lost_after_a_turn"] < lost["lost"]


def test_a_server_that_loses_the_episodes_that_the_model_loses(play: Evaluate, endpoint: ChatStandIn) -> None:
    asked: Counter[str] = Counter()

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        # By question, so that it does not matter which episodes are played beside each other.
        question = str(body["messages"][0]["content"])
        asked[question] += 1
        return call("answer", {"text": "wrong" if asked[question] % 3 else "right"})

    endpoint.policy = answer
    Exam.loses = lambda question, answer: answer == "wrong"
    outcome = play(options={"retries": 10})
    assert outcome.report["pass_at_k"][0]["value"] == 1.0
    assert outcome.failed
    assert outcome.report["bounds"]["pass_at_1_if_lost_are_failures"] == pytest.approx(1 / 3)
    assert "pass@1 if what was lost had failed" in markdown(outcome.report)


def test_tasks_that_fail_more_often_do_not_drop_out_unseen(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.policy = lambda body: call(
        "answer", {"text": "wrong" if "Question 0" in body["messages"][0]["content"] else "right"}
    )
    Exam.loses = lambda question, answer: question == 0
    outcome = play(samples=2, options={"retries": 1})
    report = outcome.report
    assert report["pass_at_k"][0] == {
        "k": 1, "value": 1.0, "interval": report["pass_at_k"][0]["interval"], "tasks": 5, "left_out": 0
    }  # fmt: skip
    assert report["tasks"]["with_fewer_samples"] == [{"split": "train", "index": 0, "samples": 0}]
    assert report["tasks"]["scored"] == 5
    assert report["samples"]["missing"] == 2
    assert report["bounds"]["pass_at_1_if_lost_are_failures"] == pytest.approx(5 / 6)
    assert outcome.failed
    text = markdown(report)
    assert "The run fails" in text
    assert "train:0 (0)" in text


def test_a_task_with_fewer_samples_weighs_as_much_and_has_no_larger_k(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.policy = outcomes_by_seed({(q, s): "wrong" if q == 0 else "right" for q in range(6) for s in range(4)})
    lost: list[int] = []

    def loses(question: int, answer: str) -> bool:
        lost.append(question)
        return question == 0 and lost.count(0) in (1, 3, 5)

    Exam.loses = loses
    report = play(samples=4, seed=7, options={"retries": 0, "max_failures": 1.0}).report
    entries = {entry["k"]: entry for entry in report["pass_at_k"]}
    assert entries[1]["value"] == pytest.approx(5 / 6)
    assert (entries[4]["tasks"], entries[4]["left_out"]) == (5, 1)
    assert report["failed"] == []
    assert not report["complete"]


def test_what_the_model_does_wrong_counts_and_is_shown_by_kind(play: Evaluate, endpoint: ChatStandIn) -> None:
    script = {
        "Question 0": [call("answer", '{"text": "rig'), call("answer", {"text": "right"})],  # no JSON
        "Question 1": [call("aswer", {"text": "right"}), call("answer", {"text": "right"})],  # no such tool
        "Question 2": [call("answer", {"txt": "right"}), call("answer", {"text": "wrong"})],
        "Question 3": [said("I think it is right.")] * 3,
        "Question 4": [call("fail"), call("think"), call("answer", {"text": "half"})],
        "Question 5": [call("answer", "[1]"), said(""), call("answer", {"text": "half"})],
    }

    def policy(body: dict[str, Any]) -> dict[str, Any]:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return json.loads(json.dumps(script[body["messages"][0]["content"]][turn]))

    endpoint.policy = policy
    outcome = play(max_turns=3)
    report = outcome.report
    assert not outcome.failed
    assert report["samples"]["scored"] == 6
    assert report["infrastructure"]["lost"] == 0
    assert report["model"]["ends"] == {"finished": 5, "max_turns": 1}
    assert report["model"]["mistakes"] == {
        "malformed_calls": {"episodes": 2, "times": 2},
        "unknown_tools": {"episodes": 1, "times": 1},
        "invalid_inputs": {"episodes": 1, "times": 1},
        "failed_tools": {"episodes": 1, "times": 1},
        "turns_without_call": {"episodes": 2, "times": 4},
    }
    assert report["pass_at_k"][0]["value"] == pytest.approx(2 / 6)
    assert report["reward"]["mean"] == pytest.approx((1 + 1 + 0 + 0 + 0.75 + 0.5) / 6)
    # What is not JSON goes back to the model inside of JSON: endpoints fail at it otherwise.
    histories = [json.dumps(body["messages"]) for body in endpoint.requests]
    assert any("arguments_that_are_no_json" in history and "rig" in history for history in histories)


def test_a_reward_that_cannot_be_added_is_the_environments_fault(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.policy = outcomes_by_seed({(q, s): "huge" if q < 2 else "right" for q in range(6) for s in range(2)})
    report = play(samples=2, seed=7, options={"retries": 0, "name": "run"}).report
    assert report["reward"]["mean"] == 1.0
    assert report["samples"]["missing"] == 4
    assert report["failed"]
    assert [kind["side"] for kind in report["infrastructure"]["kinds"]] == ["environment"]


def test_a_conversation_over_the_context_is_the_models(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.policy = lambda body: call("think")
    endpoint.context = 200
    outcome = play(limit=2, max_tokens=50)
    report = outcome.report
    assert report["model"]["ends"] == {"context_overflow": 2}
    assert report["infrastructure"]["lost"] == 0
    assert report["reward"]["mean"] > 0
    assert report["model"]["without_room_for_prompt"] == 0
    assert not outcome.failed


def test_the_endpoint_streams(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.policy = lambda body: call("answer", {"text": "right"}, reasoning_content="it must be right")
    faults = itertools.chain(["half", "half", None, "error"], itertools.repeat(None))
    endpoint.fault = lambda body, number: next(faults)
    report = play(stream=True, options={"prices": Prices(1.0, 2.0), "concurrency": 1}).report
    assert report["pass_at_k"][0]["value"] == 1.0
    assert report["infrastructure"]["requests_sent_again"] == {"half a stream": 2, "error as answer": 1}
    assert report["tokens"]["completion"] == 60
    assert report["tokens"]["cost"] == pytest.approx((report["tokens"]["prompt"] + 120) / 1e6)


def test_unknown_tokens_are_not_none(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.counts = False
    report = play(limit=2, options={"prices": Prices(1.0, 2.0)}).report
    assert report["tokens"]["answers_without_count"] == 2
    assert "at least" in markdown(report)


def test_calls_in_the_text(play: Evaluate, endpoint: ChatStandIn) -> None:
    text = '<tool_call>{"name": "answer", "arguments": {"text": "right"}}</tool_call>'
    endpoint.policy = lambda body: said(text)
    assert play(tool_calls="hermes").report["pass_at_k"][0]["value"] == 1.0
    assert "tools" not in endpoint.requests[0]
    assert "answer" in endpoint.requests[0]["messages"][0]["content"]
    # An endpoint that reads calls itself has read none here.
    assert play(max_turns=1).report["pass_at_k"][0]["value"] == 0.0
