"""Endpoints of a run: of several kinds, faulty, refusing and gone."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ors_clients.errors import ConfigurationError
from ors_clients.evaluation.endpoints.endpoint import ChatEndpoint, EndpointRefused, Usage
from ors_clients.evaluation.journal import JOURNAL
from ors_clients.evaluation.report import markdown, write_report
from ors_clients.evaluation.summary import Prices
from ors_clients.evaluation.uploads import EPISODES

from tests.clients.chat_stand_in import ChatStandIn
from tests.clients.evaluation.conftest import Evaluate
from tests.clients.evaluation.environments import Exam
from tests.clients.scripted_engine import ScriptedEngine, serve_application
from tests.clients.tiny_tokenizer import tiny_tokenizer


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()[1]


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
