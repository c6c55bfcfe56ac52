"""Values from clients arrive unaltered, except for lone surrogates, which JSON text cannot carry."""

import itertools
import json
from typing import Any

import pytest
from pydantic import BaseModel

from ors_server import Blocks, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said
from tests.support.events import Reply, parse_events
from tests.support.http_client import Client


class Anything(BaseModel):
    """Input of any JSON."""

    value: Any


class Mirror(Echo):
    """Returns its input as Python's ``repr``, which hides nothing."""

    @tool
    async def mirror(self, params: Anything) -> ToolOutput:
        return said(json.dumps(params.value))

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=json.dumps(dict(self.task_spec)))]


async def mirrored(client: Client, sid: str, text: str) -> Any:
    """Return the tool's view of a value given as JSON text; None where the server refused it with 422."""
    content = b'{"name":"mirror","input":{"value":%b}}' % text.encode()
    response = await client.http.post("/call", content=content, headers={"X-Session-ID": sid})
    if response.status_code == 422:
        assert isinstance(response.json()["detail"], list)
        return None
    assert response.status_code == 200, response.text
    return json.loads(Reply(parse_events(response.content)).text)


def nested(depth: int, core: str, *, objects: bool = False) -> str:
    """Return a value nested this deeply, as JSON text."""
    return '{"k":' * depth + core + "}" * depth if objects else "[" * depth + core + "]" * depth


def compact(value: object) -> str:
    """Return a value in the format of `nested`."""
    return json.dumps(value, separators=(",", ":"))


#: The innermost values, and the form in which each arrives.
CORES = {"7": "7", '"\\ud83d"': '"\\ufffd"'}
#: As JSON text: the result beside a lone surrogate, and the result without one.
VALUES = [
    "1",
    "-0.0",
    "1e-7",
    "0.1",
    "123456789012345678901234567890",
    "true",
    "null",
    '""',
    '"\\ud83d\\ude00"',
    '"\\\\ud83d"',
    '"\\u0000\\u001f\\u2028"',
    '{"a": [1, 1.0, true], "": {"b": null}}',
    '[[], {}, [[]], "[1]"]',
    '{"long": "' + "é" * 5000 + '"}',
]


async def test_only_lone_surrogates_are_replaced(serve: Serve) -> None:
    client = serve(Mirror)
    sid = await client.open()
    halves = {"0": 0, '"\\ud83d"': "\ufffd", '"\\udc00 and \\ud800\\ud800"': "\ufffd and \ufffd\ufffd"}
    for (half, replaced), value in itertools.product(halves.items(), VALUES):
        got = await mirrored(client, sid, f"[{value}, {half}]")
        # Compared as text: 1, 1.0 and true are equal in Python but differ.
        assert json.dumps(got[0]) == json.dumps(json.loads(value)), value
        assert got[1] == replaced


async def test_lone_surrogates_in_keys(serve: Serve) -> None:
    client = serve(Mirror)
    sid = await client.open()
    assert await mirrored(client, sid, '{"a\\ud83d": {"\\udc00": 1, "b": [2]}}') == {"a\ufffd": {"\ufffd": 1, "b": [2]}}


@pytest.mark.parametrize("core", CORES, ids=["plain", "half a character"])
async def test_deep_values_arrive_as_they_are_or_not_at_all(serve: Serve, core: str) -> None:
    """A deep value never arrives as its text, and never causes a failure of the server."""
    client = serve(Mirror)
    sid = await client.open()
    for depth, objects in itertools.product([50, 99, 101, 150, 190, 210, 400, 990, 5_000, 200_000], [False, True]):
        text = nested(depth, core, objects=objects)
        got = await mirrored(client, sid, text)
        if depth > 150 and got is None:
            continue
        assert depth < 990, "deeper than the server can write it back"
        assert compact(got) == nested(depth, CORES[core], objects=objects), depth
    assert await mirrored(client, sid, "[1]") == [1]


@pytest.mark.parametrize("core", CORES, ids=["plain", "half a character"])
async def test_a_deep_task_arrives_as_it_is_or_is_refused(serve: Serve, core: str) -> None:
    client = serve(Mirror)
    for depth in (99, 150, 210, 5_000):
        sid = f"task {depth}"
        content = b'{"task_spec":{"value":%b}}' % nested(depth, core).encode()
        response = await client.http.post("/create", content=content, headers={"X-Session-ID": sid})
        if depth > 150 and response.status_code == 422:
            continue
        assert response.status_code == 200, (depth, response.text)
        task = json.loads((await client.get("/prompt", sid)).json()[0]["text"])
        assert compact(task["value"]) == nested(depth, CORES[core]), depth


async def test_invalid_json_is_422(serve: Serve) -> None:
    """Also beside a lone surrogate."""
    client = serve(Mirror)
    sid = await client.open()
    for text in ("", "{", "[1,]", "{'a': 1}", '"\\ud83d', '"\\uZZZZ"', "01", "\x01", '"\x01"', "[1] 2"):
        for value in (text, f'{text}, "\\ud83d"', f'["\\ud83d", {text}]'):
            content = b'{"name":"mirror","input":{"value":%b}}' % value.encode()
            response = await client.http.post("/call", content=content, headers={"X-Session-ID": sid})
            assert response.status_code == 422, (value, response.text)
