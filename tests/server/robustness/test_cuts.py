"""Connections that are lost at every byte of a call, and clients that retry.

With an Idempotency-Key the tool runs exactly once, wherever the connection was lost. Without a key, a client that has
seen `task_id` resumes, and the tool has run once, too. A client that has not seen it can only repeat the call, and then
at most two runs are possible, each under a `task_id` of its own (`docs/operation.md`). In the end the client gets, byte
for byte, what it would have got without the loss.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Generator
from typing import Any

import aiohttp
import httpx
import pytest

from tests.server.robustness.cutting import Cut, Partial, call_request, cutting, each, send
from tests.support.events import Reply, parse_events
from tests.support.servers import Running, launched

#: Milliseconds after which the server opens a stream, and the duration of the tool in the slow cases. The server must
#: have noticed a loss in the first half of them before it wrote its last byte.
STREAM_AFTER = 20
SLOW = 160


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    variables = {"ORS_STREAM_AFTER": str(STREAM_AFTER / 1000), "ORS_HEARTBEAT": "0.01"}
    with launched("server.robustness.counting_server", tmp_path_factory.mktemp("cuts"), variables=variables) as running:
        yield running


class Episode:
    """One session, and the counts of its tool."""

    def __init__(self, server: Running, sid: str) -> None:
        self.server = server
        self.sid = sid

    async def open(self) -> Episode:
        async with httpx.AsyncClient(base_url=self.server.url, trust_env=False) as http:
            created = await http.post(
                "/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": self.sid}
            )
            assert created.status_code == 200, created.text
        return self

    async def request(self, port: int, text: str, key: str | None, cut: Cut | None = None, **more: Any) -> Partial:
        task_id = more.pop("task_id", None)
        body: dict[str, Any] = {"name": "count", "input": {"text": text, **more}}
        if task_id is not None:
            body["task_id"] = task_id
        return await send(port, call_request(self.sid, body, key, cut))

    async def runs(self) -> dict[str, int]:
        whole = await send(self.server.port, call_request(self.sid, {"name": "runs_so_far", "input": {}}))
        return json.loads(Reply(parse_events(whole.body)).text)


def seen_task_id(partial: Partial) -> str | None:
    """Return the call's id if the client's parser has received that whole event."""
    events = parse_events(partial.body)
    return events[0].data if events else None


def without_comments(body: bytes) -> bytes:
    """Drop the comments that keep a stream alive from a response or the beginning of one.

    By bytes, because two responses are compared that may end in the middle of an event.
    """
    return b"\r\n\r\n".join(part for part in body.split(b"\r\n\r\n") if not part.startswith(b":"))


FORMS = [pytest.param(0, id="in one response"), pytest.param(SLOW, id="in a stream")]


@pytest.mark.parametrize("milliseconds", FORMS)
@pytest.mark.parametrize(
    "keyed", [pytest.param(True, id="with a key"), pytest.param(False, id="without a key", marks=pytest.mark.long)]
)
async def test_the_response_is_cut_at_every_byte(server: Running, milliseconds: int, keyed: bool) -> None:
    episode = await Episode(server, f"response-{milliseconds}-{keyed}").open()
    whole = await episode.request(server.port, "whole", None, milliseconds=milliseconds)
    assert (b"chunked" in whole.raw) is bool(milliseconds)
    # A text of the same length as "whole", so that every response is as long; streams have comments in addition.
    length = len(whole.raw) + (0 if not milliseconds else 40)
    ran_again: set[int] = set()

    async with cutting(server.port) as proxy:

        async def lose_and_retry(at: int) -> None:
            text, key = f"w{at:04d}", f"key-{at}" if keyed else None
            cut = Cut("response", "end" if at % 2 else "reset", at)
            started = time.monotonic()
            first = await episode.request(proxy, text, key, cut, milliseconds=milliseconds)
            early = (time.monotonic() - started) * 1000 < milliseconds / 2
            task_id = seen_task_id(first)
            again = await episode.request(server.port, text, key, milliseconds=milliseconds, task_id=task_id)
            reply = Reply(parse_events(again.body))
            run = reply.output["metadata"]["run"]
            assert reply.output["reward"] == 0.1 * run
            if keyed or task_id is not None or early:
                assert run == 1
            elif run != 1:
                assert run == 2
                ran_again.add(at)
            if task_id is not None:
                assert reply.task_id == task_id
            # The part of the first response that arrived is the beginning of the final response.
            if run == 1:
                assert without_comments(again.body).startswith(without_comments(first.body))
            if at % 4 == 0:
                third = await episode.request(server.port, text, key, task_id=reply.task_id)
                assert without_comments(third.body) == without_comments(again.body)

        await each(length, lose_and_retry, at_once=64 if milliseconds else 24)

    runs = await episode.runs()
    assert {text: count for text, count in runs.items() if count != 1} == {f"w{at:04d}": 2 for at in ran_again}
    assert len(runs) == length + 1
    if keyed:
        assert not ran_again


@pytest.mark.parametrize("milliseconds", FORMS)
@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
async def test_the_request_is_cut_at_every_byte(server: Running, milliseconds: int, keyed: bool) -> None:
    episode = await Episode(server, f"request-{milliseconds}-{keyed}").open()
    body = {"name": "count", "input": {"text": "w0000", "milliseconds": milliseconds}}
    length = len(call_request(episode.sid, body, "key-000" if keyed else None))

    async with cutting(server.port) as proxy:

        async def lose_and_retry(at: int) -> None:
            text, key = f"w{at:04d}", f"key-{at:03d}" if keyed else None
            cut = Cut("request", "end" if at % 2 else "reset", at)
            first = await episode.request(proxy, text, key, cut, milliseconds=milliseconds)
            assert first.raw == b""
            again = await episode.request(server.port, text, key, milliseconds=milliseconds)
            reply = Reply(parse_events(again.body))
            # An unfinished request runs nothing. A whole request runs, although its client has left. Where it finished
            # before the server noticed that, a repetition without a key is another call.
            assert reply.output["metadata"]["run"] == 1 or (at == length and not keyed)

        await each(length + 1, lose_and_retry, at_once=64 if milliseconds else 24)

    runs = await episode.runs()
    uncertain = f"w{length:04d}"
    assert {text: count for text, count in runs.items() if count != 1 and text != uncertain} == {}
    assert runs[uncertain] == 1 or not keyed


@pytest.mark.long
async def test_a_long_result_is_cut_at_many_bytes(server: Running) -> None:
    """Chunks of 32 KiB; the cuts include their borders."""
    episode = await Episode(server, "long").open()
    size = 15_000
    whole = await episode.request(server.port, "whole", "whole", size=size)
    assert len(whole.raw) > 100_000
    borders = [at for at in range(len(whole.raw)) if whole.raw.startswith((b"event: ", b"\r\n\r\nevent"), at)]
    places = sorted(
        {max(0, at + offset) for at in borders for offset in range(-12, 26)} | {*range(0, len(whole.raw), 4001)}
    )

    async with cutting(server.port) as proxy:

        async def lose_and_retry(number: int) -> None:
            text, key = f"w{number:04d}", f"long-{number}"
            cut = Cut("response", "end" if number % 2 else "reset", places[number])
            first = await episode.request(proxy, text, key, cut, size=size)
            again = await episode.request(server.port, text, key, size=size, task_id=seen_task_id(first))
            assert Reply(parse_events(again.body)).text == f"{text} \N{IDEOGRAPHIC SPACE}\n" * size
            assert again.body.startswith(first.body)

        await each(len(places), lose_and_retry, at_once=16)

    assert set((await episode.runs()).values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("milliseconds", FORMS)
@pytest.mark.parametrize("sdk", ["openreward.api._session.http", "ors.client._http"], ids=["openreward", "ors-sdk"])
async def test_real_clients_retry(server: Running, sdk: str, milliseconds: int) -> None:
    """Both SDKs' own code for calls, which retries after a moment."""
    resumable_sse: Any = importlib.import_module(sdk).resumable_sse
    episode = await Episode(server, f"{sdk}-{milliseconds}").open()
    length, step = 560 if milliseconds else 420, 4  # every fourth byte, because their code is slow

    # One connection per request, as the proxy requires.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with (
        cutting(server.port) as proxy,
        aiohttp.ClientSession(f"http://127.0.0.1:{proxy}", connector=connector) as http,
    ):

        async def lose_and_retry(number: int) -> None:
            at = number * step
            text, ids = f"w{at:04d}", list[str]()

            def on_event(event: str, data: str) -> None:
                if event == "task_id":
                    ids.append(data)

            cut = Cut("response", "end" if at % 2 else "reset", at).header(text)
            result = await resumable_sse(
                http,
                "/call",
                None,
                json={"name": "count", "input": {"text": text, "milliseconds": milliseconds}},
                sid=episode.sid,
                backoff_base=0.005,
                extra_headers={"X-Cut": cut},
                on_event=on_event,
            )
            if len(ids) == 2:  # it had seen the first id, and so resumed
                assert (result["output"]["metadata"]["run"], len(set(ids))) == (1, 1)
            assert result["output"]["blocks"][0]["text"] == f"{text} \N{IDEOGRAPHIC SPACE}\n"

        await each(length // step, lose_and_retry, at_once=64 if milliseconds else 24)

    runs = await episode.runs()
    assert len(runs) == length // step
    assert set(runs.values()) <= {1, 2}
