"""Runs of ``ors-server eval`` against a real server and a scripted endpoint: their numbers, resumed, and attacked."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import re
import socket
from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ors_clients.errors import ConfigurationError, EvaluationError
from ors_clients.evaluation import command
from ors_clients.evaluation.compare import compare, read_compared
from ors_clients.evaluation.endpoint import ChatEndpoint, EndpointRefused, Usage
from ors_clients.evaluation.journal import JOURNAL, Journal, read_run
from ors_clients.evaluation.players import seed_of
from ors_clients.evaluation.report import markdown, write_report
from ors_clients.evaluation.run import Outcome, RunOptions, evaluate
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices
from ors_clients.evaluation.uploads import EPISODES

from ors_server.server import Server
from ors_server.settings import Settings
from tests.clients.chat_stand_in import ChatStandIn, call, said
from tests.clients.eval_environments import Exam
from tests.clients.scripted_engine import ScriptedEngine, serve_application
from tests.clients.tiny_tokenizer import tiny_tokenizer

Evaluate = Callable[..., Outcome]


@pytest.fixture(scope="module")
def exam_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Return the address of a server with the exam, which keeps rollouts."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    with serve_application(Server([Exam], settings=settings).app) as url:
        yield url


@pytest.fixture(scope="module")
def shared_endpoint() -> Generator[tuple[ChatStandIn, str]]:
    endpoint = ChatStandIn()
    with endpoint.serve() as url:
        yield endpoint, url


@pytest.fixture
def endpoint(shared_endpoint: tuple[ChatStandIn, str]) -> Iterator[ChatStandIn]:
    """Return an endpoint whose model answers right."""
    found = shared_endpoint[0]
    found.__init__(policy=lambda body: call("answer", {"text": "right"}))
    Exam.reset()
    yield found
    assert found.broken == []


@pytest.fixture
def play(exam_url: str, shared_endpoint: tuple[ChatStandIn, str], endpoint: ChatStandIn, tmp_path: Path) -> Evaluate:
    """Return a function that plays a run with these settings and options, quietly and without long pauses."""

    def run(*, options: dict[str, Any] | None = None, **settings: Any) -> Outcome:
        chosen: dict[str, Any] = {
            "target": exam_url,
            "model": "scripted",
            "base_url": shared_endpoint[1],
            "split": "train",
        }
        plan: dict[str, Any] = {"runs": tmp_path / "evals", "url": exam_url, "upload": "none", "first_pause": 0.001}
        return asyncio.run(
            evaluate(EvaluationSettings(**{**chosen, **settings}), RunOptions(**{**plan, **(options or {})}))
        )

    return run


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()[1]


def outcomes_by_seed(table: dict[tuple[int, int], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a model whose answer to a sample of a question is known, whatever happens around it."""
    answers = {seed_of(7, f"train:{question}", sample): text for (question, sample), text in table.items()}
    return lambda body: call("answer", {"text": answers[body["seed"]]})


def _with_success(samples: int, won: int, k: int) -> int:
    """Count the subsets of ``k`` samples that have one of the first ``won``."""
    subsets = list(itertools.combinations(range(samples), k))
    return sum(min(subset) < won for subset in subsets)


# --- honest numbers ------------------------------------------------------------------------------


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
    lost = report["infrastructure"]
    assert lost["lost"] / lost["attempts"] > 0.3
    assert {kind["side"] for kind in lost["kinds"]} == {"environment", "model endpoint"}
    # They could have hidden something, so the run fails all the same, and says so.
    assert outcome.failed
    assert "in which the model had taken a turn were lost" in report["failed"][0]
    # Losses before the model's first turn can hide nothing.
    assert lost["lost_after_a_turn"] < lost["lost"]


def test_a_server_that_loses_the_episodes_that_the_model_loses(play: Evaluate, endpoint: ChatStandIn) -> None:
    answers = itertools.cycle(("right", "wrong", "wrong"))
    endpoint.policy = lambda body: call("answer", {"text": next(answers)})
    Exam.loses = lambda question, answer: answer == "wrong"
    outcome = play(options={"retries": 10})
    assert outcome.report["pass_at_k"][0]["value"] == 1.0
    assert outcome.failed
    assert outcome.report["bounds"]["pass_at_1_if_lost_are_failures"] < 0.6
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


# --- endpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["completions", "sglang"])
def test_token_engines(play: Evaluate, tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same score over token ids as over messages, with the tokens of each turn in the rollouts."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")

    def policy(prompt: str) -> str:
        text = "wrong" if "Question 1" in prompt else "right"
        return f'<tool_call>{{"name": "answer", "arguments": {{"text": "{text}"}}}}</tool_call>'

    with ScriptedEngine(policy, tokenizer, failures=[503]).serve() as engine:
        base_url = f"{engine.url}/v1" if api == "completions" else engine.url
        token_ids: dict[str, Any] = {"api": api, "tokenizer": str(tmp_path / "tokenizer"), "base_url": base_url}
        outcome = play(samples=2, seed=7, temperature=0.5, max_tokens=300, **token_ids)
        cut = play(limit=1, max_tokens=5, **token_ids)
        too_long = play(limit=1, context=20, **token_ids)
        engine.failures = [401] * 100
        monkeypatch.setenv("ORS_MODEL_API_KEY", "sk-wrong-1234")
        with pytest.raises(EndpointRefused, match="401") as refused:
            play(**token_ids)
        assert "Bearer" in refused.value.text
        assert "sk-wrong" not in refused.value.text
    assert not outcome.failed
    assert outcome.report["pass_at_k"][0]["value"] == pytest.approx(5 / 6)
    assert outcome.report["infrastructure"]["lost"] == 0
    sent = [body.get("sampling_params", body) for _, body in engine.requests[:12]]
    assert {body["temperature"] for body in sent} == {0.5}
    assert len({body.get("seed", body.get("sampling_seed")) for body in sent}) == 12
    assert outcome.report["tokens"]["prompt"] == sum(len(ids) for ids, _ in engine.turns[:12])
    assert cut.report["model"]["mistakes"]["cut_turns"]["episodes"] == 1
    assert too_long.report["model"]["ends"] == {"context_overflow": 1}


def test_a_wrong_key_ends_the_run_and_is_in_no_message(
    play: Evaluate, endpoint: ChatStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    endpoint.key = "sk-right"
    monkeypatch.setenv("ORS_MODEL_API_KEY", "sk-wrong-1234")
    with pytest.raises(EndpointRefused, match="401") as refused:
        play()
    assert "sk-wrong" not in refused.value.text
    monkeypatch.setenv("MY_KEY", "sk-right")
    outcome = play(options={"key_variable": "MY_KEY"})
    write_report(tmp_path / "report", outcome.report, None)
    for file in [*outcome.folder.iterdir(), *(tmp_path / "report").iterdir()]:
        assert "sk-right" not in file.read_text()


def test_the_key_of_openai_goes_to_no_other_address(
    play: Evaluate, endpoint: ChatStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    endpoint.key = "sk-openai"
    with pytest.raises(EndpointRefused):
        play()


def test_an_endpoint_that_is_down_stops_the_run_which_goes_on_later(play: Evaluate, endpoint: ChatStandIn) -> None:
    endpoint.fault = lambda body, number: 418
    stopped = play(samples=4, options={"name": "run", "concurrency": 2})
    assert stopped.stopped is not None
    assert stopped.failed
    assert "418" in stopped.stopped.text
    assert stopped.report["samples"]["scored"] == 0
    assert stopped.report["pass_at_k"][0]["value"] is None
    assert "0 of 24" in markdown(stopped.report)
    endpoint.fault = lambda body, number: None
    outcome = play(samples=4, options={"resume": "run"})
    assert outcome.report["samples"]["missing"] == 0
    # Nothing was lost after the model had taken a turn, so nothing can be hidden.
    assert not outcome.failed


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_an_endpoint_that_is_not_there_ends_the_run_before_it_begins(
    play: Evaluate, tmp_path: Path, closed_port: int, api: str
) -> None:
    tokenizer = str(tmp_path / "tokenizer")
    if api != "chat":
        tiny_tokenizer().save_pretrained(tokenizer)
    url = f"http://127.0.0.1:{closed_port}/v1"
    with pytest.raises(EndpointRefused, match=re.escape(f"No endpoint answers at {url}: ")) as refused:
        play(base_url=url, api=api, tokenizer=tokenizer, options={"name": "run"})
    assert "Connection refused" in refused.value.cause
    assert "--base-url" in refused.value.text
    assert not (tmp_path / "evals" / "run").exists()
    assert Exam.answered.total() == 0


def test_an_endpoint_whose_name_is_unknown(play: Evaluate) -> None:
    with pytest.raises(EndpointRefused, match=r"http://endpoint.invalid/v1: .*([Nn]ame|resolution)"):
        play(base_url="http://endpoint.invalid/v1")


def test_a_run_is_shown_again_without_its_endpoint(
    play: Evaluate, shared_endpoint: tuple[ChatStandIn, str], closed_port: int
) -> None:
    """A run that lacks nothing asks no endpoint; one that lacks a sample ends as a new one does."""
    folder = play(limit=1, samples=2, options={"name": "run"}).folder
    journal = folder / JOURNAL
    text = journal.read_text().replace(shared_endpoint[1], f"http://127.0.0.1:{closed_port}/v1")
    journal.write_text(text)
    gone: dict[str, Any] = {"limit": 1, "samples": 2, "base_url": f"http://127.0.0.1:{closed_port}/v1"}
    assert play(**gone, options={"resume": "run"}).report["samples"]["missing"] == 0
    journal.write_text("".join(line for line in text.splitlines(keepends=True)[:-1]))
    (folder / EPISODES).unlink()
    with pytest.raises(EndpointRefused, match="No endpoint answers"):
        play(**gone, options={"resume": "run"})


@pytest.mark.parametrize("fault", [429, 500, "garbage", "drop", "error"])
def test_a_request_that_failed_is_sent_again_within_its_episode(
    play: Evaluate, endpoint: ChatStandIn, fault: int | str
) -> None:
    endpoint.fault = lambda body, number: fault if number <= 3 else None
    report = play(limit=2, options={"concurrency": 1, "retries": 0}).report
    kinds = {
        429: "status 429",
        500: "status 500",
        "garbage": "no JSON",
        "drop": "connection",
        "error": "error as answer",
    }
    assert report["infrastructure"]["requests_sent_again"] == {kinds[fault]: 3}
    assert report["infrastructure"]["lost"] == 0
    assert report["pass_at_k"][0]["value"] == 1.0


OVERFLOW = "This model's maximum context length is 8 tokens."


@pytest.mark.parametrize("status", [500, 503, 400])
def test_an_error_that_repeats_the_prompt_is_not_the_models(play: Evaluate, endpoint: ChatStandIn, status: int) -> None:
    """The prompt has the words of an overflow in it."""

    def fault(body: dict[str, Any], number: int) -> Response | None:
        text = f"worker crashed while handling {json.dumps(body['messages'])}"
        return JSONResponse({"error": {"message": text}}, status) if number % 3 == 1 else None

    endpoint.fault = fault
    report = play(limit=3, system_prompt=f"What does this mean? {OVERFLOW}", options={"concurrency": 1}).report
    assert report["model"]["ends"] == {"finished": 3}
    assert report["reward"]["mean"] == 1.0
    assert report["infrastructure"]["lost"] == (2 if status == 400 else 0)
    assert report["infrastructure"]["requests_sent_again"] == ({} if status == 400 else {f"status {status}": 2})


@pytest.mark.parametrize("limit", [None, 50])
def test_an_overflow_within_a_stream(play: Evaluate, endpoint: ChatStandIn, limit: int | None) -> None:
    """As SGLang sends it: the status is 200, and the error has its own."""
    error = json.dumps({"error": {"object": "error", "message": OVERFLOW, "type": "BadRequestError", "code": 400}})
    endpoint.fault = lambda body, number: StreamingResponse(
        iter([f"data: {error}\n\n", "data: [DONE]\n\n"]), media_type="text/event-stream"
    )
    report = play(limit=1, stream=True, max_tokens=limit).report
    assert report["model"]["ends"] == {"context_overflow": 1}
    assert report["infrastructure"]["requests_sent_again"] == ({} if limit is None else {"limit over the context": 1})


def _answer(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "answer",
    [_answer(content=["a", "b"]), _answer(content=[None]), _answer(tool_calls=[{"function": {"name": 5}}]), [], "x"],
)
def test_an_odd_answer_is_sent_again(play: Evaluate, endpoint: ChatStandIn, answer: Any) -> None:
    endpoint.fault = lambda body, number: JSONResponse(answer) if number == 1 else None
    report = play(limit=2, options={"concurrency": 1, "retries": 0}).report
    assert report["infrastructure"]["requests_sent_again"] == {"no completion": 1}
    assert report["reward"]["mean"] == 1.0


def test_a_count_that_no_report_can_add_is_not_counted(play: Evaluate, endpoint: ChatStandIn) -> None:
    usage = f'"usage": {{"prompt_tokens": {10**400}, "completion_tokens": 1}}'
    text = json.dumps(_answer(content="I do not know."))[:-1] + f", {usage}}}"
    endpoint.fault = lambda body, number: Response(text, media_type="application/json")
    report = play(limit=1, max_turns=1, options={"prices": Prices(1.0, 2.0)}).report
    assert report["tokens"]["answers_without_count"] == 1
    assert report["tokens"]["cost"] == 0


@pytest.mark.parametrize("heads", [{"id": True, "index": False}, {"id": True, "index": True}, {"id": False}])
def test_parallel_calls_of_a_stream_without_indices(
    play: Evaluate, endpoint: ChatStandIn, heads: dict[str, bool]
) -> None:
    """As Gemini sends them; the last call's answer counts."""
    pieces: list[dict[str, Any]] = []
    for number, name in enumerate(("think", "answer")):
        arguments = json.dumps({"text": "right"} if name == "answer" else {})
        found: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
        if heads["id"]:
            found["id"] = f"call-{number}"
        if heads.get("index"):
            found["index"] = 0
        pieces.append(found)
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"tool_calls": [found]}}]} for found in pieces]
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, end]]
    endpoint.fault = lambda body, number: StreamingResponse(iter(events), media_type="text/event-stream")
    report = play(limit=1, stream=True, success_at=1.25).report
    assert report["model"]["mistakes"] == {}
    assert report["pass_at_k"][0]["value"] == 1.0


@pytest.mark.parametrize("key", ["sk-secret-1234\n", "sk-secrèt-1234"])
def test_a_key_that_no_header_carries(play: Evaluate, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("ORS_MODEL_API_KEY", key)
    with pytest.raises(ConfigurationError, match="no header can carry") as refused:
        play()
    assert "1234" not in refused.value.text


def test_a_request_that_json_does_not_have(shared_endpoint: tuple[ChatStandIn, str]) -> None:
    tools = [{"function": {"name": "move", "parameters": {"maximum": math.inf}}}]

    async def ask() -> None:
        await ChatEndpoint(shared_endpoint[1], "m").complete([], tools, usage=Usage())

    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("status", "text", "ends"),
    [
        (400, OVERFLOW, {"context_overflow": 1}),
        (400, "no such parameter", {}),
        (501, OVERFLOW, {}),  # a 500 takes longer: it is sent again
    ],
)
def test_an_overflow_of_a_token_engine(
    play: Evaluate, tmp_path: Path, endpoint: ChatStandIn, status: int, text: str, ends: dict[str, int]
) -> None:
    """Its context is smaller than --context."""
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    engine = FastAPI()

    @engine.post("/generate")
    async def _refuse() -> Response:
        return JSONResponse({"object": "error", "message": text, "code": status}, status)

    tokens: dict[str, Any] = {"api": "sglang", "tokenizer": str(tmp_path / "tokenizer")}
    with serve_application(engine) as url:
        report = play(limit=1, base_url=url, **tokens, options={"retries": 0}).report
    assert report["model"]["ends"] == ends
    assert (report["infrastructure"]["lost"] == 0) is bool(ends)


# --- resumed -------------------------------------------------------------------------------------


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
    with pytest.raises(EvaluationError, match="no report"):
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
    with pytest.raises(EvaluationError, match="no name of a run"):
        play(options={"name": name})


@pytest.mark.parametrize(
    "settings", [{"samples": 0}, {"reward": "best"}, {"api": "sglang"}, {"tool_calls": "x"}, {"base_url": "host"}]
)
def test_settings_that_cannot_be_used(play: Evaluate, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        play(**settings)


# --- kept ----------------------------------------------------------------------------------------


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
    assert names["train-0-0-1"]["max_reward"] == 1.25  # the sum of both steps, as in the report


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
    options = {"runs": tmp_path / "evals", "name": "shown", "quiet": True}
    code = command.run(given, options, no_serving, as_json=True, report=None, data_dir=None)
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
