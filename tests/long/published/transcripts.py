"""Transcripts of a server's responses to a script: discovery, tasks, and episodes with valid and invalid calls.

The script follows from the server's own responses (names, splits and schemas) and a seeded generator. Two servers of
the same environment get the same requests as long as their responses agree. Transcripts omit ids and times. Where this
server deliberately differs from the reference (``docs/protocol.md``), a transcript has the common part: of an error its
status or its reason, up to the first colon.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Iterator
from typing import Any, cast

import httpx

__all__ = ["Transcript", "transcript"]

#: One entry for each request: the request, and the response.
Transcript = list[tuple[str, Any]]
JSONObject = dict[str, Any]

_EPISODES = 4
_CALLS = 14


def transcript(url: str, seed: int = 0) -> Transcript:
    """Play the script on a server."""
    with httpx.Client(base_url=url, timeout=600, follow_redirects=True, trust_env=False) as http:
        return list(_play(http, seed))


def _play(http: httpx.Client, seed: int) -> Iterator[tuple[str, Any]]:
    names: list[str] = _json(http.get("/list_environments"))
    yield "environments", names
    for name in names:
        chooser = random.Random(f"{name} {seed}")
        tools = _json(http.get(f"/{name}/tools"))
        yield f"{name} tools", tools
        splits = _json(http.get(f"/{name}/splits"))
        yield f"{name} splits", splits
        yield f"{name} wrong split", _status(http.post(f"/{name}/num_tasks", json={"split": "no such split"}))
        counts: list[tuple[str, int]] = []
        for split in splits:
            yield from _tasks(http, name, split["name"], counts)
        for number in range(_EPISODES):
            if counts:
                split, count = counts[number % len(counts)]
                index = [0, count - 1, count // 2, 1 % count][number % 4]
                label = f"{name} {split} {index}"
                for asked, answered in _episode(http, name, {"split": split, "index": index}, chooser):
                    yield f"{label} {asked}", answered


def _tasks(http: httpx.Client, name: str, split: str, counts: list[tuple[str, int]]) -> Iterator[tuple[str, Any]]:
    counted = http.post(f"/{name}/num_tasks", json={"split": split})
    yield f"{name} {split} count", _answer(counted)
    listed = http.post(f"/{name}/tasks", json={"split": split})
    yield f"{name} {split} list", _answer(listed)
    if counted.status_code != 200:
        return
    count = counted.json()["num_tasks"]
    if count:
        counts.append((split, count))
    for index in (0, count - 1, -1, count // 2, count, count + 10, -count - 1):
        yield f"{name} {split} task {index}", _answer(http.post(f"/{name}/task", json={"split": split, "index": index}))
    for start, stop in ((0, 2), (None, 1), (-2, None), (1, 1), (count - 1, count + 5)):
        body = {"split": split, "start": start, "stop": stop}
        yield f"{name} {split} range {start} {stop}", _answer(http.post(f"/{name}/task_range", json=body))


def _episode(http: httpx.Client, name: str, task: JSONObject, chooser: random.Random) -> Iterator[tuple[str, Any]]:
    sid = {"X-Session-ID": str(uuid.uuid4())}
    created = http.post("/create", json={"env_name": name, **task}, headers=sid)
    yield "create", created.status_code if created.status_code == 200 else _answer(created)
    if created.status_code != 200:
        return
    prompt = http.get(f"/{name}/prompt", headers=sid)
    yield "prompt", _answer(prompt)
    yield "messages", _answer(http.get(f"/{name}/messages", headers=sid))
    listed = http.get(f"/{name}/task_tools", headers=sid)
    yield "tools", _answer(listed)
    seen = prompt.text
    tools: list[JSONObject] = listed.json()["tools"] if listed.status_code == 200 else []
    for number in range(_CALLS):
        if not tools:
            break
        tool, arguments = _call(number, tools, seen, chooser)
        answered = _events(http.post(f"/{name}/call", json={"name": tool, "input": arguments}, headers=sid))
        yield f"call {number} {tool} {json.dumps(arguments)}", answered
        seen = json.dumps(answered)
    yield "ping", http.post("/ping", headers=sid).status_code
    yield "delete", http.post("/delete", headers=sid).status_code
    yield "after the end", http.get(f"/{name}/prompt", headers=sid).status_code in (404, 410)


def _call(number: int, tools: list[JSONObject], seen: str, chooser: random.Random) -> tuple[str, Any]:
    """Return the next call; every fourth is invalid."""
    tool = chooser.choice(tools)
    schema: JSONObject = tool["input_schema"] or {}
    arguments = cast("JSONObject", _value(schema, schema, seen, chooser)) if schema else {}
    if number % 4 == 3:
        kind = chooser.randrange(4)
        if kind == 0:
            return "no_such_tool", arguments
        if kind == 1 and arguments:
            arguments.pop(chooser.choice(sorted(arguments)))
        elif kind == 2 and arguments:
            arguments[chooser.choice(sorted(arguments))] = {"an": ["object"]}
        else:
            arguments["unknown_key"] = 1
    return tool["name"], arguments


def _value(schema: JSONObject, root: JSONObject, seen: str, chooser: random.Random) -> Any:
    if "$ref" in schema:
        return _value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, seen, chooser)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return chooser.choice(schema["enum"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _value(chooser.choice(schema[several]), root, seen, chooser)
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", [])
        properties: dict[str, JSONObject] = schema.get("properties", {})
        chosen = [key for key in properties if key in required or chooser.random() < 0.5]
        return {key: _value(properties[key], root, seen, chooser) for key in chosen}
    if kind == "array":
        return [_value(schema.get("items", {}), root, seen, chooser) for _ in range(chooser.randrange(1, 3))]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 9)
        return chooser.randint(int(low), max(int(low), int(high)))
    if kind == "boolean":
        return chooser.random() < 0.5
    if kind == "null":
        return None
    words = sorted(set(re.findall(r"[A-Za-z0-9_+\-]{1,12}", seen))) or ["word"]
    return chooser.choice([*words, f"[{chooser.choice(words)}]", "up", "crane", "1", ""])


def _json(response: httpx.Response) -> Any:
    response.raise_for_status()
    return response.json()


def _status(response: httpx.Response) -> int:
    return response.status_code


def _answer(response: httpx.Response) -> Any:
    """Return the JSON of a response; of an error its status and the beginning of its text."""
    if response.status_code == 200:
        return response.json()
    return response.status_code


def _events(response: httpx.Response) -> Any:
    if response.status_code != 200:
        return response.status_code
    events = [(name, data) for name, data in _parsed(response.content.decode()) if name != "task_id"]
    if events[-1][0] == "error":
        return {"error": _beginning(events[-1][1])}
    result = json.loads("".join(data for _, data in events))
    if not result["ok"]:
        return {"reason": result.get("reason"), "error": _beginning(result["error"])}
    return result


def _parsed(text: str) -> Iterator[tuple[str, str]]:
    """Parse events by the standard, which strips one space of a line's data.

    The SDKs' own parsers and ``tests.support.events`` strip all of them, and so lose the white space at the beginning
    of a piece of the reference server's response.
    """
    for event in re.split(r"\r?\n\r?\n", text):
        fields = [line.split(":", 1) for line in re.split(r"\r?\n", event) if line and not line.startswith(":")]
        if fields:
            name = next(value.strip() for key, value in fields if key == "event")
            yield name, "\n".join(value.removeprefix(" ") for key, value in fields if key == "data")


def _beginning(text: str) -> str:
    """Return the text up to the first colon or full stop, on which both servers agree."""
    return re.split(r"[:.]", text, maxsplit=1)[0]
