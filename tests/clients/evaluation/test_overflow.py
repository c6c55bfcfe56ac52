"""Errors that say that a conversation is longer than the context, and errors that only look so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ors_clients.evaluation.endpoints.overflow import error_text, is_overflow

VLLM = (
    "This model's maximum context length is 4096 tokens. However, you requested 4472 tokens (376 in the messages, 4096 "
    "in the completion). Please reduce the length of the messages or completion."
)
LLAMA = {"code": 400, "message": "the request is too long", "type": "exceed_context_size_error", "n_ctx": 4096}
PROMPT = "What does context_length_exceeded mean?\nExplain the model's maximum context length, and how an API says it."
REQUEST: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        pytest.param(400, {"object": "error", "message": VLLM, "type": "BadRequestError", "code": 400}, id="vLLM"),
        pytest.param(
            400,
            {
                "error": {
                    "message": "You passed 1015 input tokens and requested 10 output tokens. However, the model's "
                    "context length is only 1024 tokens, resulting in a maximum input length of 1014 tokens.",
                    "type": "BadRequestError",
                    "param": "input_tokens",
                    "code": 400,
                }
            },
            id="vLLM 0.16",
        ),
        pytest.param(
            400,
            {"message": "The decoder prompt (length 10127) is longer than the maximum model length of 8192."},
            id="vLLM, images",
        ),
        pytest.param(
            400,
            {"message": "The input (61709 tokens) is longer than the model's context length (40960 tokens)."},
            id="SGLang",
        ),
        pytest.param(
            400,
            {"error": {"message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens)."}},
            id="SGLang, memory",
        ),
        pytest.param(
            422,
            {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"},
            id="TGI",
        ),
        pytest.param(400, {"error": {"code": "context_length_exceeded", "message": "Too much."}}, id="OpenAI"),
        pytest.param(
            400, {"error": {"message": "Your input exceeds the context window of this model."}}, id="OpenAI, in words"
        ),
        pytest.param(400, {"error": LLAMA}, id="llama.cpp"),
        pytest.param(500, {"error": {**LLAMA, "code": 500}}, id="llama.cpp, 500"),
        pytest.param(400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, id="Anthropic"),
        pytest.param(
            400,
            {"error": {"message": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"}},
            id="Anthropic, limit",
        ),
        pytest.param(
            400,
            {"error": {"message": "The input token count (40) exceeds the maximum number of tokens allowed (8)."}},
            id="Gemini",
        ),
        pytest.param(
            400,
            {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."},
            id="xAI",
        ),
        pytest.param(
            400,
            {"error": "The number of tokens to keep from the initial prompt is greater than the context length"},
            id="LM Studio",
        ),
        pytest.param(413, "prompt too long; exceeded max context length by 5 tokens", id="text"),
        pytest.param(200, {"error": {"object": "error", "message": VLLM, "code": 400}}, id="in a stream"),
        pytest.param(200, {"error": {"message": VLLM, "code": "400"}}, id="in an answer"),
        pytest.param(200, {"error": {"message": "", "code": "context_length_exceeded"}}, id="in an answer, as a code"),
    ],
)
def test_errors_of_endpoints(status: int, error: Any) -> None:
    """They count as well where the conversation is about the same subject."""
    assert is_overflow(status, error)
    assert is_overflow(status, error, REQUEST)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 418, 429, 500, 502, 503])
def test_the_words_count_only_where_the_request_was_refused(status: int) -> None:
    for error in ({"error": {"message": VLLM}}, {"error": VLLM}, VLLM, {"detail": VLLM}):
        assert not is_overflow(status, error)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_a_code_beside_a_status_about_the_key_or_load(status: int) -> None:
    assert not is_overflow(status, {"error": {"code": "context_length_exceeded"}})


@pytest.mark.parametrize("code", [None, 429, 500, "503", "rate_limit", True, [400], {"a": 400}, 10**400])
def test_an_error_in_an_answer_without_such_a_status(code: Any) -> None:
    assert not is_overflow(200, {"error": {"message": VLLM, "code": code}})


def quotes() -> list[Any]:
    """Return errors that repeat the request, in the ways of gateways."""
    messages = REQUEST["messages"]
    texts = [
        f"worker crashed: {PROMPT}",
        f"worker crashed: {json.dumps(messages)}",
        f"worker crashed: {json.dumps(json.dumps(messages))[:120]}",
        f"worker crashed: {messages!r}"[:100],
        f"cannot parse {json.dumps(messages)[40:90]}",
        f"1 validation error for Request: {json.dumps({'input': REQUEST})}",
    ]
    return [
        *({"error": {"message": text, "code": 400}} for text in texts),
        *({"error": text} for text in texts),
        *texts,
        {"detail": [{"loc": ["body", "tools"], "msg": "Field required", "input": REQUEST}]},
    ]


@pytest.mark.parametrize("error", quotes())
def test_an_error_that_repeats_the_prompt(error: Any) -> None:
    for status in (400, 413, 422, 500):
        assert not is_overflow(status, error, REQUEST)


def test_an_error_that_repeats_a_call_or_a_tool() -> None:
    call = {"function": {"name": "say", "arguments": '{"text": "max_model_len"}'}}
    tools = [{"function": {"name": "say", "description": "Say that the input is too long."}}]
    request = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}], "tools": tools}
    assert not is_overflow(400, {"error": {"message": f"Invalid call: {json.dumps(call)}"}}, request)
    assert not is_overflow(400, {"error": {"message": f"Invalid tools: {tools}"}}, request)
    assert is_overflow(400, {"error": {"message": f"{VLLM} In: {json.dumps(call)}"}}, request)


@pytest.mark.parametrize("error", [None, 5, [], {}, "", {"error": None}, {"error": [1]}, {"error": {"message": [1]}}])
def test_errors_of_any_shape(error: Any) -> None:
    assert isinstance(error_text(error), str)
    assert not is_overflow(400, error, REQUEST)
