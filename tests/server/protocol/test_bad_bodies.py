"""Invalid bodies: a clear 4xx that names the field and does not echo the input, and a healthy server afterwards."""

import json

import pytest

from ors_server.http.errors import BodyTooLarge
from ors_server.http.exchange import Exchange
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo

CREATE = {"split": "train", "index": 0}


async def test_toolset_name_is_400_and_opens_nothing(serve: Serve) -> None:
    """Section 8: accept the key, 400 where the name is unknown, as every name is for a class of our own."""
    client = serve(Echo)
    response = await client.create("s", {**CREATE, "toolset_name": "claude-code"})
    assert response.status_code == 400
    assert response.json()["detail"].startswith("unknown toolset 'claude-code'; valid options are []")
    assert (await client.post("/ping", sid="s")).status_code == 404


async def test_keys_of_the_other_dialect_are_tolerated(serve: Serve) -> None:
    """Section 8: ``toolset_name: null`` of openreward and ``secrets`` of the specification."""
    client = serve(Echo)
    await client.open({**CREATE, "toolset_name": None, "secrets": None, "env_name": None, "task_spec": None})


async def test_unknown_keys_are_422_and_the_input_is_not_echoed(serve: Serve) -> None:
    """Section 8, "unknown body keys": the 422 of both SDK servers, in FastAPI's form, without ``input``."""
    client = serve(Echo)
    await client.open(sid="s")
    bodies: list[tuple[str, dict[str, object]]] = [
        ("/create", {**CREATE}),
        ("/call", {"name": "echo", "input": {}}),
        ("/echo/call", {"name": "echo", "input": {}}),
        ("/score_group", {"candidates": []}),
        ("/tasks", {"split": "train"}),
        ("/num_tasks", {"split": "train"}),
        ("/task", {**CREATE}),
        ("/get_task", {**CREATE}),
        ("/task_range", {"split": "train"}),
        ("/echo/get_task_range", {"split": "train"}),
    ]
    for path, body in bodies:
        response = await client.post(path, {**body, "extra": "zzz-input"}, "s")
        assert response.status_code == 422, path
        (problem,) = response.json()["detail"]
        assert problem["type"] == "extra_forbidden"
        assert problem["loc"] == ["body", "extra"]
        assert problem["msg"] == "Extra inputs are not permitted"
        assert "input" not in problem
        assert "zzz-input" not in response.text, path


WRONG_TYPES: list[tuple[str, object, str]] = [
    ("/create", {"split": "train", "index": "zzz"}, "index"),
    ("/create", {"split": 7, "index": 0}, "split"),
    ("/create", {"task_spec": ["zzz"]}, "task_spec"),
    ("/create", {**CREATE, "env_name": 1}, "env_name"),
    ("/call", {"input": {}}, "name"),
    ("/call", {"name": "echo"}, "input"),
    ("/call", {"name": 5, "input": {}}, "name"),
    ("/call", {"name": "echo", "input": "zzz"}, "input"),
    ("/call", {"name": "echo", "input": None}, "input"),
    ("/call", {"name": "echo", "input": {}, "task_id": 9}, "task_id"),
    ("/score_group", {}, "candidates"),
    ("/score_group", {"candidates": {"zzz": 1}}, "candidates"),
    ("/score_group", {"candidates": [{"messages": [{"role": "robot", "blocks": []}]}]}, "candidates"),
    ("/tasks", {}, "split"),
    ("/task", {"split": "train"}, "index"),
    ("/task", {"split": "train", "index": 1.5}, "index"),
    ("/task_range", {"split": "train", "start": "zzz"}, "start"),
]


async def test_wrong_types_are_422_and_name_the_field(serve: Serve) -> None:
    """Bad input: wrong types."""
    client = serve(Echo)
    await client.open(sid="s")
    for path, body, field in WRONG_TYPES:
        response = await client.post(path, body, "s")
        assert response.status_code == 422, (path, body)
        problems = response.json()["detail"]
        assert field in [problem["loc"][1] for problem in problems], (path, body)
        assert "zzz" not in json.dumps([{**problem, "loc": []} for problem in problems]), (path, body)


async def test_create_wants_exactly_one_form_of_task(serve: Serve) -> None:
    client = serve(Echo)
    bodies: list[dict[str, object]] = [
        {},
        {"split": "train"},
        {"index": 0},
        {**CREATE, "task_spec": {"id": "x"}},
        {"env_name": "echo"},
    ]
    for body in bodies:
        response = await client.post("/create", body, "s")
        assert response.status_code == 422, body
        assert "Provide either task_spec or both split and index, not both/neither" in response.text


async def test_a_split_without_index_beside_a_task_is_422(serve: Serve) -> None:
    response = await serve(Echo).create("s", {"task_spec": {}, "split": "train"})
    assert response.status_code == 422
    assert "split and index must both be provided together" in response.text


async def test_broken_json_is_422(serve: Serve) -> None:
    """Bad input: bodies that are cut short, and bodies that are not JSON."""
    client = serve(Echo)
    await client.open(sid="s")
    headers = {"X-Session-ID": "s", "Content-Type": "application/json"}
    for path in ("/create", "/call", "/score_group", "/tasks", "/echo/task"):
        for content in (b"", b"{", b'{"split": "train", "index": ', b"zzz", b"\xff\xfe", b"[]", b"null"):
            response = await client.http.post(path, content=content, headers=headers)
            assert response.status_code == 422, (path, content)
            assert isinstance(response.json()["detail"], list)
    assert (await client.call("s", "echo", {"text": "fine"})).text == "fine"


async def test_deeply_nested_json_is_a_clear_4xx(serve: Serve) -> None:
    client = serve(Echo)
    await client.open(sid="s")
    headers = {"X-Session-ID": "s", "Content-Type": "application/json"}
    for path in ("/create", "/call", "/tasks"):
        response = await client.http.post(path, content=b"[" * 100_000, headers=headers)
        assert 400 <= response.status_code < 500, path
        assert response.json()["detail"]


async def test_the_content_type_of_a_json_body_does_not_matter_on_the_episode_routes(serve: Serve) -> None:
    client = serve(Echo)
    for kind in ("text/plain", "application/octet-stream", "application/x-www-form-urlencoded"):
        headers = {"X-Session-ID": kind, "Content-Type": kind}
        assert (await client.http.post("/create", content=json.dumps(CREATE), headers=headers)).status_code == 200


async def test_a_body_over_the_limit_is_413(serve: Serve) -> None:
    """Protocol 0.1: the body's limit, which the detail names together with the setting."""
    client = serve(Echo, max_body=1000)
    await client.open(sid="s")
    for path in ("/create", "/call", "/score_group", "/tasks", "/echo/task", "/nowhere"):
        response = await client.http.post(path, content=b" " * 1001, headers={"X-Session-ID": "s"})
        assert response.status_code == 413, path
        assert "1000 bytes" in response.json()["detail"]
        assert "ORS_MAX_BODY" in response.json()["detail"]
    assert (await client.call("s", "echo", {"text": "fine"})).text == "fine"


async def test_a_body_at_the_limit_is_taken(serve: Serve) -> None:
    client = serve(Echo, max_body=1000)
    body = json.dumps({"name": "echo", "input": {"text": ""}})
    await client.open(sid="s")
    padded = body.encode() + b" " * (1000 - len(body))
    response = await client.http.post("/call", content=padded, headers={"X-Session-ID": "s"})
    assert response.status_code == 200


@pytest.mark.parametrize("pieces", [[10], [4, 6], [10, 0]])
async def test_the_limit_is_the_same_however_a_body_comes(pieces: list[int]) -> None:
    """A server delivers a small body in one message, a large body in several, an ASGI client in two."""

    async def body(limit: int) -> bytes:
        last = len(pieces) - 1
        messages = [
            {"type": "http.request", "body": b"x" * size, "more_body": place < last}
            for place, size in enumerate(pieces)
        ]

        async def receive() -> object:
            return messages.pop(0)

        return await Exchange({"headers": []}, receive, None, None).body(limit)

    assert await body(10) == b"x" * 10
    with pytest.raises(BodyTooLarge):
        await body(9)


async def test_numbers_beyond_64_bits_reach_the_tool(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open({"task_spec": {"id": 2**80}})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == f"prompt of {2**80}"
