"""Answers of endpoints of chat completions, whole and streamed: read right, or refused."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from ors_clients.evaluation.endpoints.completions import BadAnswer, Completion, StreamedAnswer, read_completion
from ors_clients.evaluation.endpoints.endpoint import Usage
from ors_clients.transport.json_codec import read_json

WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "I look.",
                "refusal": None,
                "reasoning_content": "It must be there.",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"where": "here"}'}},
                    {"id": "b", "type": "function", "function": {"name": "take", "arguments": {"what": "it"}}},
                ],
            },
            "logprobs": {"content": [{"token": "I", "logprob": -0.5, "top_logprobs": []}]},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}},
}


def piece(arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Return a piece of a call; ``name`` stands in its function."""
    function: dict[str, Any] = {} if arguments is None else {"arguments": arguments}
    if "name" in more:
        function["name"] = more.pop("name")
    return {"function": function, **more}


def chunk(finish: Any = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}


STREAM: list[dict[str, Any]] = [
    chunk(role="assistant", content=""),
    chunk(reasoning_content="It must be there."),
    chunk(content="I "),
    chunk(content="look."),
    chunk(tool_calls=[piece("", index=0, id="a", type="function", name="look")]),
    chunk(tool_calls=[piece('{"where": ', index=0)]),
    chunk(tool_calls=[piece('"here"}', index=0)]),
    chunk(tool_calls=[piece('{"what": "it"}', index=1, id="b", type="function", name="take")]),
    chunk("tool_calls"),
    {"choices": [], "usage": WHOLE["usage"]},
]


def streamed(chunks: Sequence[Any]) -> Completion:
    answer = StreamedAnswer()
    for value in chunks:
        answer.feed(b"data: " + json.dumps(value).encode() + b"\n\n")
    answer.feed(b"data: [DONE]\n\n")
    return answer.completion()


def calls(*pieces: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return names and arguments of calls whose pieces arrive one by one."""
    read = streamed([*(chunk(tool_calls=[part]) for part in pieces), chunk("tool_calls")])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in read.tool_calls]


@pytest.mark.parametrize(("first", "second"), [("", '{"x": 1}'), ("", ""), ('{"x"', "")])
def test_a_call_of_another_name_is_no_part_of_one_that_is_not_whole(first: str, second: str) -> None:
    pieces = [piece(first, index=0, name="take"), piece(second, index=0, name="use")]
    with pytest.raises(BadAnswer):
        streamed([*(chunk(tool_calls=[part]) for part in pieces), chunk("tool_calls")])


@pytest.mark.parametrize("read", [lambda: read_completion(WHOLE), lambda: streamed(STREAM)])
def test_an_answer_is_read(read: Any) -> None:
    found: Completion = read()
    assert (found.text, found.reasoning, found.reasoning_name) == ("I look.", "It must be there.", "reasoning_content")
    assert [(call["id"], call["function"]["name"]) for call in found.tool_calls] == [("a", "look"), ("b", "take")]
    assert found.tool_calls[1]["function"]["arguments"] == '{"what": "it"}'
    assert (found.finish, found.prompt_tokens, found.completion_tokens, found.cached_tokens) == ("tool_calls", 7, 5, 3)


# --- calls in pieces -----------------------------------------------------------------------------

TWO = [("act", {"x": 1}), ("act", {"x": 2})]
FIRST, SECOND = '{"x": 1}', '{"x": 2}'


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([piece(FIRST, id="a", name="act"), piece(SECOND, id="b", name="act")], id="no index"),
        pytest.param(
            [piece(FIRST, id="a", name="act", index=None), piece(SECOND, id="b", name="act", index=None)],
            id="index null",
        ),
        pytest.param(
            [piece(FIRST, id="a", name="act", index=0), piece(SECOND, id="b", name="act", index=0)],
            id="one index for all",
        ),
        pytest.param(
            [piece(FIRST, id="", name="act", index=0), piece(SECOND, id="", name="act", index=0)],
            id="one index and no ids",
        ),
        pytest.param([piece(FIRST, name="act"), piece(SECOND, name="act")], id="names alone"),
        pytest.param(
            [piece(id="a", name="act"), piece('{"x":'), piece("1}"), piece(id="b", name="act"), piece(SECOND)],
            id="no index, in pieces",
        ),
        pytest.param(
            [piece('{"x":', id="a", name="act"), piece(SECOND, id="b", name="act"), piece("1}", id="a")],
            id="an id in each piece",
        ),
        pytest.param(
            [piece("", index=1, id="b", name="act"), piece(FIRST, index=0, id="a", name="act"), piece(SECOND, index=1)],
            id="another order",
        ),
        pytest.param(
            # vLLM before 0.9 made an id for each piece.
            [
                piece(index=0, id="a", name="act"),
                piece('{"x":', index=0, id="r1"),
                piece("1}", index=0, id="r2"),
                piece(index=1, id="b", name="act"),
                piece(SECOND, index=1, id="r3"),
            ],
            id="an id for each piece",
        ),
        pytest.param(
            [
                piece("", index=0, id="a", name="act"),
                piece('{"x":', index=0, id="a", name="act"),
                piece("1}", index=0, id="a", name="act"),
                piece(SECOND, index=1, id="b", name="act"),
                piece("", index=1, id="b", name="act"),
            ],
            id="the head in each piece",
        ),
        pytest.param(
            [
                piece('{"x":', index=0, name="act"),
                piece("1}", index=0, name="act"),
                piece("\n", index=0, name="act"),
                piece(SECOND, index=1, name="act"),
            ],
            id="the name in each piece",
        ),
        pytest.param([piece({"x": 1}, id="a", name="act"), piece({"x": 2}, id="b", name="act")], id="objects"),
    ],
)
def test_parallel_calls_stay_apart(pieces: list[dict[str, Any]]) -> None:
    assert calls(*pieces) == TWO


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([piece(FIRST)], id="no call"),
        pytest.param(
            [piece('{"x":', index=0, id="a", name="act"), piece("1}", index=0, id="b", name="act")], id="within"
        ),
        pytest.param([piece('{"x":', name="act"), piece("1}", name="act")], id="no ids"),
        pytest.param([piece(FIRST, id="a", name="act"), piece(SECOND, id="a", name="act")], id="twice"),
        pytest.param([piece("{", index=0, id="a", name="act"), piece({"x": 1}, index=0)], id="object within"),
        pytest.param([piece(FIRST, id="a")], id="no name"),
        *(
            pytest.param([piece(FIRST, index=index, id="a", name="act")], id=f"index {index!r}")
            for index in ("x", [1], 0.5, math.inf, -math.inf, math.nan, True)
        ),
    ],
)
def test_a_piece_that_cannot_be_placed_is_not_the_models(pieces: list[dict[str, Any]]) -> None:
    with pytest.raises(BadAnswer):
        calls(*pieces)


def test_arguments_that_are_no_json_are_the_models() -> None:
    read = streamed([chunk(tool_calls=[piece('{"x": 1', id="a", name="act")]), chunk("stop")])
    assert read.tool_calls[0]["function"]["arguments"] == '{"x": 1'


def test_an_error_within_a_stream() -> None:
    with pytest.raises(BadAnswer) as refused:
        streamed([STREAM[0], {**STREAM[-1], "error": {"message": "the engine died"}}, STREAM[-2]])
    assert refused.value.kind == "error as answer"
    assert streamed([{**value, "error": None} for value in STREAM]).text == "I look."


def test_another_answer_to_the_same_request_is_left_out() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert streamed([chunk(content="yes"), other, chunk("stop")]).text == "yes"


# --- answers of another shape --------------------------------------------------------------------


def changed(path: Sequence[str | int], value: Any) -> dict[str, Any]:
    """Return the answer with another value at a place."""
    answer = copy.deepcopy(WHOLE)
    place: Any = answer
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return answer


MESSAGE = ("choices", 0, "message")
CALL = (*MESSAGE, "tool_calls", 0)
#: Values that cannot stand at a place.
OTHER_SHAPES: list[tuple[tuple[str | int, ...], list[Any]]] = [
    ((*MESSAGE, "content"), [["a", "b"], [None], [{"text": 5}], {}, 0, False, 5, [[]]]),
    ((*MESSAGE, "reasoning_content"), [{"a": 1}, ["a"], 5, True]),
    ((*MESSAGE, "tool_calls"), [{"a": 1}, "x", 5, [None], [[]], [{}]]),
    ((*CALL, "function"), [None, "x", [], {"name": 5}, {"name": None}]),
    ((*CALL, "id"), [{"a": 1}, ["a"], True, math.inf]),
    ((*CALL, "function", "arguments"), [5, True, math.nan, {"x": math.inf}, [math.nan]]),
    (("choices", 0, "finish_reason"), [{"a": 1}, [], 0, False, 5, math.nan, "abort"]),
    (("choices",), [None, [], {}, {"0": 1}, "x", 5, [None], [[]], [{}]]),
    (MESSAGE, [None, [], "x", 5]),
    (("error",), [{"message": "the engine died"}, "the engine died"]),
]


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in OTHER_SHAPES for value in values])
def test_an_answer_of_another_shape(path: Sequence[str | int], value: Any) -> None:
    with pytest.raises(BadAnswer):
        read_completion(changed(path, value))


@pytest.mark.parametrize("count", [10**400, 10**30, math.inf, math.nan, -1, "5", [], True])
def test_a_count_that_cannot_be_is_not_counted(count: Any) -> None:
    usage = Usage()
    for path in (("prompt_tokens",), ("completion_tokens",), ("prompt_tokens_details", "cached_tokens")):
        usage.add(read_completion(changed(("usage", *path), count)))
    usage.add(read_completion(changed(("usage",), [count])))
    assert (usage.uncounted, usage.prompt_tokens, usage.cached_tokens) == (3, 7, 0)


def test_texts_in_parts() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "I "},
        {"type": "text", "text": "look."},
    ]
    assert read_completion(changed((*MESSAGE, "content"), parts)).text == "I look."
    assert streamed([chunk(content=parts), chunk("stop")]).text == "I look."


# --- mutated -------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, False, 0, -1, 5, 0.5, -1e300, math.inf, -math.inf, math.nan, 10**400, "", "x", "5", "[DONE]", "\ud83d",
    [], ["a", "b"], [None], [[]], {}, {"a": 1}, {"error": {"message": 5}}, [{"text": 5}], [{"text": "x"}],
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each list and object of a value with each of its keys."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        holder = cast("dict[Any, Any]", value)
        for key in list(holder) if isinstance(value, dict) else range(len(holder)):
            items += [(holder, key), *places(holder[key])]
    return items


def mutated(value: Any, drawn: random.Random) -> Any:
    """Return a copy with a few values changed, removed, renamed, or sent twice."""
    value = copy.deepcopy(value)
    for _ in range(drawn.randint(1, 3)):
        if not (found := places(value)):
            return value
        holder, key = drawn.choice(found)
        change = drawn.randrange(5)
        if change == 0:
            del holder[key]
        elif change == 1 and isinstance(holder, list):
            cast("list[Any]", holder).insert(key, copy.deepcopy(cast("list[Any]", holder)[key]))
        elif change == 2 and isinstance(holder, dict):
            holder[drawn.choice(["error", "index", "id", "tool_calls", "content", "reasoning", "usage"])] = holder[key]
        else:
            holder[key] = copy.deepcopy(drawn.choice(ODD))
    return value


def test_a_mutated_answer_is_a_usable_turn_or_refused() -> None:
    drawn = random.Random(17)
    read = refused = 0
    for number in range(1000):
        value = mutated(WHOLE if number % 2 else STREAM, drawn)
        try:
            found = read_completion(read_json(json.dumps(value).encode())) if number % 2 else streamed(value)
        except BadAnswer:
            refused += 1
            continue
        read += 1
        assert all(isinstance(text, str) for text in (found.text, found.reasoning, found.finish))
        for call in found.tool_calls:
            texts = (call["id"], call["function"]["name"], call["function"]["arguments"])
            assert all(isinstance(text, str) for text in texts)
        usage = Usage()
        usage.add(found)
        assert 0 <= float(usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens) < 1e10
        json.dumps([found.text, found.reasoning, found.tool_calls], allow_nan=False, ensure_ascii=False).encode()
    assert read > 200
    assert refused > 200
