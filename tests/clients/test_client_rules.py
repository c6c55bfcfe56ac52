"""Rules of the client, over a scripted transport: the failures it retries, and the errors it raises.

The transport replaces a server so that every response can be chosen; `test_client_servers` and `test_client_lifetime`
test the same rules against real servers.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ors_clients import models
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import (
    CallOutcomeUnknown,
    ClientError,
    ConfigurationError,
    DeadlineExceeded,
    InfrastructureFailure,
    NotAuthorized,
    NotFound,
    RequestRefused,
    ServerUnavailable,
    SessionLost,
    ToolFailed,
)
from ors_clients.models import Task, read_result
from ors_clients.transport.base import ConnectionLost, Request, Response

from ors_server.protocol import VERDICT, TextBlock

SID = b"event: task_id\r\ndata: s1\r\n\r\nevent: end\r\ndata: \r\n\r\n"
RAN = b'event: end\r\ndata: {"ok":true,"output":{"blocks":[],"metadata":null,"reward":1,"finished":false}}\r\n\r\n'
NAMED = b"event: task_id\r\ndata: t1\r\n\r\n"

Answer = Response | Exception | bytes | tuple[bytes, Exception]


def said(status: int, detail: object = None, **headers: str) -> Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, names, json.dumps({"detail": detail}).encode())


def lost(*, sent: bool = True, stale: bool = False) -> ConnectionLost:
    return ConnectionLost("cut", sent=sent, stale=stale)


class Script:
    """A transport that returns its responses in turn: bytes are an event stream, which an exception may follow."""

    threads = False

    def __init__(self, *answers: Answer) -> None:
        self.answers: Sequence[Answer] = answers
        self.requests: list[Request] = []

    async def exchange(self, request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        self.requests.append(dataclasses.replace(request))
        answer, *self.answers = self.answers
        if isinstance(answer, tuple):
            assert on_data is not None
            on_data(answer[0])
            answer = answer[1]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, bytes):
            assert on_data is not None
            on_data(answer)
            return Response(200, {}, b"")
        return answer

    async def close(self) -> None:
        pass

    @property
    def paths(self) -> list[str]:
        return [request.target for request in self.requests]

    def headers(self, number: int) -> dict[str, str]:
        return {name: value for block in self.requests[number].headers for name, value in block.items}

    def body(self, number: int) -> Any:
        return json.loads(self.requests[number].body)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record pauses instead of making them."""
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("ors_clients.transport.connection.sleep", note)
    return pauses


def client(script: Script, **options: Any) -> AsyncClient:
    return AsyncClient("http://server/base/", transport=script, **options)


async def opened(script: Script, *answers: Answer, promise: bool = True, **options: Any) -> AsyncSession:
    """Return a session at a server with or without the promise of at-most-once calls; then these responses follow."""
    created = Response(200, {"x-idempotent-calls": "true"} if promise else {}, b'{"sid":"s1"}')
    script.answers = [SID, created]
    session = client(script).environment("env").session(split="train", index=0, **options)
    await session.open()
    script.answers = list(answers)
    script.requests.clear()
    return session


# --- addresses and keys --------------------------------------------------------------------------


def test_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORS_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.delenv(name, raising=False)
    assert AsyncClient().url == "http://127.0.0.1:8080"
    monkeypatch.setenv("OPENREWARD_SESSION_URL", "https://sessions.example/")
    assert AsyncClient().url == "https://sessions.example"
    monkeypatch.setenv("ORS_URL", "http://[::1]:9")
    assert AsyncClient().url == "http://[::1]:9"
    assert AsyncClient("http://other").url == "http://other"


@pytest.mark.parametrize(
    "url",
    ["server:8080", "ftp://server", "http://", "http://server:port", "http://me:hunter2@server", "http://server?a=b"],
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        AsyncClient(url)
    assert "hunter2" not in str(refused.value)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"retries": -1}])
def test_invalid_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        AsyncClient("http://server", **options)


async def test_the_platforms_key_goes_to_the_platform_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORS_API_KEY", raising=False)
    monkeypatch.delenv("ORS_URL", raising=False)
    monkeypatch.setenv("OPENREWARD_API_KEY", "platform")
    monkeypatch.setenv("OPENREWARD_SESSION_URL", "https://sessions.example")

    async def sent(base_url: str | None, **options: Any) -> str | None:
        script = Script(Response(200, {}, b"[]"))
        await AsyncClient(base_url, transport=script, **options).environments()
        return script.headers(0).get("X-API-Key")

    assert await sent("http://server") is None
    assert await sent("https://sessions.example.org") is None
    assert await sent("https://sessions.example") == "platform"  # the same host, named by the program
    assert await sent(None) == "platform"
    assert await sent(None, api_key="own") == "own"
    monkeypatch.setenv("ORS_API_KEY", "server's")
    assert await sent("http://server") == "server's"
    assert await sent("http://server", api_key="") is None
    assert await sent(None) == "platform"


async def test_paths_and_headers() -> None:
    script = Script(Response(200, {}, b"[]"), Response(200, {}, b"[]"), Response(200, {}, b"[]"))
    ours = client(script)
    await ours.environment("My Env").splits()
    await ours.environment("owner/Name").splits()
    await ours.environment().splits()
    assert script.paths == ["/base/My%20Env/splits", "/base/splits", "/base/splits"]
    assert [script.headers(number).get("X-Deployment") for number in range(3)] == [None, "owner/Name", None]
    for name in ("", "/", " ", "a\nb"):
        with pytest.raises(ConfigurationError):
            ours.environment(name)


async def test_redirects_stay_on_the_server() -> None:
    for location in ("http://elsewhere/x", "//elsewhere/x", ""):
        script = Script(Response(308, {"location": location}, b""))
        with pytest.raises(ServerUnavailable, match="308"):
            await client(script).environments()
    answer = Response(200, {}, b"[]")
    for first, later in ((308, "/c"), (307, "/base/list_environments")):
        moves = [Response(first, {"location": "/b"}, b""), Response(308, {"location": "/c"}, b"")]
        script = Script(*moves, answer, answer)
        ours = client(script)
        assert await ours.environments() == await ours.environments() == []
        assert script.paths[:3] == ["/base/list_environments", "/b", "/c"]
        assert script.paths[3] == later  # only 308 is permanent


# --- waiting and retrying ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "pause"),
    [
        (said(429, "slow down", retry_after="7"), 7.0),
        (said(429, "slow down"), 2.0),
        (said(429, "slow down", retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), 2.0),
        (said(429, "slow down", retry_after="86400"), 60.0),
        (said(503, "Environment still starting.", retry_after="2", x_backend_state="starting"), 2.0),
    ],
)
async def test_a_temporary_refusal_is_retried(refusal: Response, pause: float, no_pauses: list[float]) -> None:
    """Any number of times, because it is not a failure."""
    script = Script(*[refusal] * 9, Response(200, {}, b"[]"))
    assert await client(script, retries=0).environments() == []
    assert no_pauses == [pause] * 9


async def test_a_server_that_says_retry_after_0_gets_a_pause_all_the_same(no_pauses: list[float]) -> None:
    busy = said(429, "slow down", retry_after="0")
    script = Script(*[busy] * 7, Response(200, {}, b"[]"))
    assert await client(script, retries=0).environments() == []
    assert no_pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    asked = said(503, "starting", retry_after="0.001", x_backend_state="starting")
    session = await opened(Script(), asked, asked, NAMED + RAN, promise=False)
    no_pauses.clear()
    await session.call("tool")
    assert no_pauses == [0.1, 0.2]


async def test_a_temporary_refusal_is_retried_until_the_deadline() -> None:
    script = Script(*[said(429, "slow down", retry_after="50")] * 3)
    with pytest.raises(DeadlineExceeded, match="slow down"):
        await client(script, timeout=40).environments()
    session = await opened(Script(), said(503, "starting", x_backend_state="starting", retry_after="50"))
    session._connection.timeout = 40  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(DeadlineExceeded, match="starting"):
        await session.call("tool")


@pytest.mark.parametrize("trouble", [said(502), said(503, "no backend"), said(504), lost(), lost(sent=False)])
async def test_failures_are_retried_a_few_times(trouble: Answer, no_pauses: list[float]) -> None:
    script = Script(*[trouble] * 3, Response(200, {}, b'["env"]'))
    assert await client(script, retries=3).environments() == ["env"]
    assert len(no_pauses) == 3
    assert 0.25 <= no_pauses[0] <= 0.5
    assert 1.0 <= no_pauses[2] <= 2.0
    with pytest.raises(ServerUnavailable) as failed:
        await client(Script(*[trouble] * 3), retries=2).environments()
    assert isinstance(failed.value, ConnectionError)


async def test_a_stale_connection_is_not_a_failure(no_pauses: list[float]) -> None:
    script = Script(lost(stale=True), Response(200, {}, b"[]"))
    assert await client(script, retries=0).environments() == []
    assert no_pauses == []
    assert script.requests[1].longest_idle < 0  # the next connection is new


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (said(401, "no key"), NotAuthorized),
        (said(403, "not yours"), NotAuthorized),
        (said(404, "unknown environment 'x'"), NotFound),
        (said(400, "Invalid split"), RequestRefused),
        (said(409, "conflict"), RequestRefused),
        (said(410, "gone"), RequestRefused),
        (said(500, "ValueError: broken"), ServerUnavailable),
        (said(503, "InfrastructureError: no disk. Add one."), ServerUnavailable),
        (said(302, "elsewhere"), ServerUnavailable),
        (Response(200, {}, b"<html>"), ServerUnavailable),
        (Response(200, {}, b'{"a": 1}'), ServerUnavailable),
        (Response(200, {}, b"[1]"), ServerUnavailable),
    ],
)
async def test_answers_that_are_final(answer: Response, kind: type[ClientError], no_pauses: list[float]) -> None:
    with pytest.raises(ClientError) as failed:
        await client(Script(answer)).environments()
    assert type(failed.value) is kind
    assert no_pauses == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (said(404, "Active environment not found"), SessionLost),
        (said(410, "Session deleted"), SessionLost),
        (said(404, "unknown environment 'x'"), NotFound),
        (said(404, "Not Found"), NotFound),
        (said(409, "another environment"), RequestRefused),
        (said(500, "ValueError: no set-up"), SessionLost),
        (said(503, "InfrastructureError: no disk. Add one."), SessionLost),
        (said(401, "no key"), NotAuthorized),
    ],
)
async def test_answers_of_a_session_that_are_final(answer: Response, kind: type[ClientError]) -> None:
    session = await opened(Script(), answer)
    with pytest.raises(ClientError) as failed:
        await session.prompt()
    assert type(failed.value) is kind
    session = await opened(Script(), answer)
    with pytest.raises(ClientError) as failed:
        await session.call("tool")
    assert type(failed.value) is kind


async def test_details_in_every_form() -> None:
    body = {"detail": [{"loc": ["body", "index"], "msg": "not a number", "input": "the answer"}]}
    for content, text in [
        (json.dumps(body).encode(), "body.index: not a number"),
        (b'{"message": "for the orwd command"}', "for the orwd command"),
        (b"<h1>Bad\n  gateway</h1>", "<h1>Bad gateway</h1>"),
        (b'"text"', "text"),
        (b"\xff" * 3, "\ufffd\ufffd\ufffd"),
        (b"x" * 9000, "x" * 2000 + " …"),
    ]:
        with pytest.raises(RequestRefused) as failed:
            await client(Script(Response(400, {}, content))).environments()
        assert failed.value.detail_text == text
        assert failed.value.status_code == 400


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [SID, Response(200, {}, b'{"sid":"s1"}'), NAMED + b'event: end\ndata: {"sid":"s1"}\n\n']
)
async def test_the_ids_of_sessions(answer: Answer) -> None:
    """Events, events with the id at the end, and the specification's JSON."""
    script = Script(answer, Response(200, {}, b"{}"))
    session = client(script).environment("env").session(split="train", index=0)
    with pytest.raises(ConfigurationError):
        _ = session.id
    await session.open()
    assert (session.id, script.headers(1)["X-Session-ID"]) == ("s1", "s1")
    assert script.body(1) == {"split": "train", "index": 0, "env_name": "env"}
    script.answers = [said(200), said(200)]
    await session.close()
    assert script.paths[2:] == ["/base/delete", "/base/delete_session"]
    await session.close()
    assert len(script.requests) == 4


async def test_a_server_may_end_a_session_by_one_request() -> None:
    script = Script(SID, Response(200, {"x-delete-ends-session": "true"}, b"{}"), said(200))
    session = client(script).environment("env").session(split="train", index=0)
    await session.open()
    await session.close()
    assert script.paths[2:] == ["/base/delete"]


@pytest.mark.parametrize("answer", [b"event: end\ndata: \n\n", Response(200, {}, b"{}"), Response(200, {}, b"<html>")])
async def test_no_id(answer: Answer) -> None:
    with pytest.raises(ServerUnavailable):
        await client(Script(answer)).environment("env").session(split="train", index=0).open()


async def test_a_session_whose_creation_was_lost_is_ended_and_another_opened() -> None:
    """A new id, because it is unknown whether the first exists; on some servers a repetition would break it."""
    created = Response(200, {}, b"{}")
    other = SID.replace(b"s1", b"s2")
    script = Script(SID, lost(), other, created)
    session = client(script).environment("env").session(split="train", index=0)
    ended: list[str] = []
    exchange = script.exchange

    async def recorded(request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        if request.target.startswith("/base/delete"):
            headers = {name: value for block in request.headers for name, value in block.items}
            ended.append(headers["X-Session-ID"])
            return created
        return await exchange(request, on_data)

    script.exchange = recorded
    await session.open()
    assert session.id == "s2"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ended[:1] == ["s1"]


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"split": "train"},
        {"index": 0},
        {"task": {}, "split": "train", "index": 0},
        {"task": Task("env", None, None, {}), "split": "train"},
    ],
)
def test_sessions_need_one_task(choice: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        client(Script()).environment("env").session(**choice)


async def test_secrets_go_both_ways_and_nowhere_else() -> None:
    """In the header, as both SDKs send them, and in the body, where the server accepts them."""
    refused = said(422, [{"loc": ["body", "secrets"], "msg": "Extra inputs are not permitted", "input": "hunter2"}])
    script = Script(SID, refused, Response(200, {}, b"{}"))
    secrets = {"key": "hunter2", "é": "ü"}
    session = client(script, api_key="topsecret").environment("env").session(split="a", index=0, secrets=secrets)
    await session.open()
    assert script.body(1)["secrets"] == secrets
    assert "secrets" not in script.body(2)
    for number in range(3):
        header: Mapping[str, Any] = json.loads(base64.b64decode(script.headers(number)["X-Secrets"]))
        assert header == {"key": {"value": "hunter2"}, "é": {"value": "ü"}}
    script.answers = [said(500, "ValueError: hunter2 and topsecret"), b"event: error\ndata: hunter2 topsecret\n\n"]
    with pytest.raises(SessionLost) as first:
        await session.prompt()
    with pytest.raises(ToolFailed) as second:
        await session.call("tool")
    assert "X-Secrets" not in script.headers(3)
    assert "X-Secrets" not in script.headers(4)
    for text in [str(first.value), str(second.value), second.value.message, *map(repr, (session, script.requests))]:
        assert "hunter2" not in text
        assert "topsecret" not in text
    assert second.value.message == "[secret] [secret]"


@pytest.mark.parametrize(
    ("secret", "repeated"),
    [
        ("abcd-EFGH-private", "abcd-EFGH-private"),
        ('pa"ss\\word', json.dumps('pa"ss\\word')),
        ("p\u00e4ssw\u00f6rd", json.dumps("p\u00e4ssw\u00f6rd")),
        ('pa"ss\n\u00f6', json.dumps('pa"ss\n\u00f6', ensure_ascii=False)),
        ("it's\ta secret", repr("it's\ta secret")),
        ("first line\n  second line", "first line second line"),
    ],
)
async def test_a_secret_is_redacted_in_every_spelling(secret: str, repeated: str) -> None:
    script = Script(SID, Response(400, {}, b"bad value " + repeated.encode() + b"!"))
    secrets = {"short": "abcd", "long": secret}
    with pytest.raises(RequestRefused) as refused:
        await client(script).environment("env").session(split="a", index=0, secrets=secrets).open()
    assert refused.value.detail_text.replace('"', "").replace("'", "") == "bad value [secret]!"


async def test_the_header_of_the_secrets_is_one() -> None:
    script = Script(SID)
    session = client(script).environment("env").session(split="a", index=0, secrets={"a": "hunter2"})
    header = base64.b64encode(b'{"a": {"value": "hunter2"}}').decode()
    script.answers = [SID, said(400, f"headers: x-secrets={header}")]
    with pytest.raises(RequestRefused, match=r"x-secrets=\[secret\]$"):
        await session.open()
    assert script.headers(1)["X-Secrets"] == header


async def test_a_server_that_knows_no_messages() -> None:
    blocks = Response(200, {}, b'[{"type":"text","text":"go","more":1}]')
    script = Script()
    session = await opened(script, said(404, "Not Found"), blocks, blocks)
    for _ in range(2):
        (message,) = await session.messages()
        assert (message.role, [block.text for block in message.blocks if block.type == "text"]) == ("user", ["go"])
    assert script.paths == ["/base/env/messages", "/base/env/prompt", "/base/env/prompt"]


async def test_tools_are_asked_for_once() -> None:
    listing = b'{"tools":[{"name":"a","description":"A","input_schema":null,"more":1}],"terminal_tool":{"name":"t"}}'
    script = Script()
    session = await opened(script, Response(200, {}, listing))
    assert session.terminal_tool is None
    assert [tool.name for tool in await session.tools()] == [tool.name for tool in await session.tools()] == ["a"]
    assert session.terminal_tool is not None
    assert (session.terminal_tool.name, session.terminal_tool.arg) == ("t", None)


@pytest.mark.parametrize(
    "output",
    [
        b'{"ok":true}',
        b'{"ok":true,"output":{"blocks":[{"type":"video"}],"reward":null}}',
        b'{"ok":true,"output":{"blocks":[{"text":1,"type":"text"}]}}',
        b'{"ok":true,"output":{"blocks":[],"reward":"much"}}',
        b'{"ok":true,"output":{"blocks":[],"reward":"1"}}',
        b'{"ok":true,"output":{"blocks":[],"reward":"nan"}}',
        b'{"ok":true,"output":{"blocks":[],"reward":true}}',
        b'{"ok":true,"output":{"blocks":[],"reward":NaN}}',
        b'{"ok":true,"output":{"blocks":[],"reward":-Infinity}}',
        b'{"ok":true,"output":{"blocks":[],"reward":1e999}}',
        b'{"ok":true,"output":{"blocks":[],"reward":1' + b"0" * 400 + b"}}",
        b'{"ok":true,"output":{"blocks":[],"reward":1' + b"0" * 5000 + b"}}",
        b'{"ok":"false","output":{"blocks":[],"reward":1}}',
        b'{"ok":true,"output":{"blocks":[],"metadata":' + b'{"a":' * 900 + b"1" + b"}" * 902,
        b'{"ok":true,"output":{"blocks":[],"metadata":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"ok":false}',
        b"[]",
    ],
)
async def test_invalid_results(output: bytes) -> None:
    """Never a result with holes."""
    session = await opened(Script(), b"event: end\ndata: " + output + b"\n\n")
    with pytest.raises(ServerUnavailable):
        await session.call("tool")


async def test_a_verdict_of_a_server_that_sends_one_reaches_no_adapter() -> None:
    """Every adapter plays by results that ``read_result`` has read: no other module of the clients makes one."""
    output: Any = {"blocks": [], "metadata": {VERDICT: {"output": "hidden"}, "a": 1}, "reward": 1, "finished": True}
    result = read_result({"ok": True, "output": output})
    assert (result.metadata, "hidden" in repr(result)) == ({"a": 1}, False)
    sources = Path(models.__file__).parent
    makers = [path.name for path in sources.rglob("*.py") if re.search(r"\bToolResult\(", path.read_text())]
    assert makers == ["models.py"]


async def test_lone_surrogates_become_something_that_can_be_written() -> None:
    lone, pair = rb"\ud83d", rb"\ud83d\ude00"
    text = b'{"type":"text","text":"a' + lone + b"b" + pair + b'"}'
    output = b'{"ok":true,"output":{"blocks":[' + text + b'],"metadata":{"k' + lone + b'":["' + lone + b'"]}}}'
    failed = b'{"ok":false,"error":"no ' + lone.upper().replace(b"U", b"u") + b'"}'
    listing = b'{"tools":[{"name":"a","description":"' + lone + b'"}]}'
    session = await opened(
        Script(),
        Response(200, {}, b"[" + text + b"]"),
        Response(200, {}, listing),
        b"event: end\ndata: " + output + b"\n\n",
        b"event: end\ndata: " + failed + b"\n\n",
        Response(410, {}, b'{"detail":"gone ' + lone + b'"}'),
    )
    (block,) = await session.prompt()
    assert block == TextBlock(text="a\ufffdb\U0001f600")
    assert [tool.description for tool in await session.tools()] == ["\ufffd"]
    result = await session.call("tool")
    assert (result.text, result.metadata) == ("a\ufffdb\U0001f600", {"k\ufffd": ["\ufffd"]})
    assert (await session.call("tool")).error == "no \ufffd"
    with pytest.raises(SessionLost, match="gone \ufffd"):
        await session.call("tool")


# --- calls ---------------------------------------------------------------------------------------


async def test_with_the_promise_a_lost_call_is_sent_again_with_its_key() -> None:
    script = Script()
    session = await opened(script, lost(), said(502), said(504), (NAMED, lost()), b"", NAMED + RAN, NAMED + RAN)
    assert (await session.call("tool", {"a": 1})).reward == 1.0
    keys = [script.headers(number)["Idempotency-Key"] for number in range(6)]
    assert len(set(keys)) == 1
    assert [script.body(number).get("task_id") for number in range(6)] == [None, None, None, None, "t1", "t1"]
    assert all(script.body(number)["input"] == {"a": 1} for number in range(6))
    await session.call("tool", {"a": 1})
    assert script.headers(6)["Idempotency-Key"] not in keys


@pytest.mark.parametrize(
    "trouble",
    [
        lost(),
        lost(stale=True),
        (b"event: ta", lost()),
        said(502, "bad"),
        said(503, "no backend"),
        Response(503, {"retry-after": "1"}, b"upstream connect error or disconnect/reset before headers"),
        said(504),
        said(520),
    ],
)
async def test_without_the_promise_the_outcome_is_unknown(trouble: Answer) -> None:
    """A gateway may also respond after the tool has run."""
    script = Script()
    session = await opened(script, trouble, RAN, promise=False)
    with pytest.raises(CallOutcomeUnknown):
        await session.call("tool")
    assert len(script.requests) == 1
    assert script.requests[0].longest_idle <= 1.0


@pytest.mark.parametrize(
    "trouble",
    [
        lost(sent=False),
        lost(sent=False, stale=True),
        said(429),
        said(503, "Environment still starting.", retry_after="2", x_backend_state="starting"),
    ],
)
async def test_a_request_that_cannot_have_arrived_is_retried(trouble: Answer) -> None:
    session = await opened(Script(), trouble, RAN, promise=False)
    assert (await session.call("tool")).reward == 1.0


async def test_a_call_with_an_id_is_fetched_by_it() -> None:
    script = Script()
    session = await opened(script, (NAMED, lost()), lost(), said(502), NAMED + RAN, promise=False)
    assert (await session.call("tool")).reward == 1.0
    assert [script.body(number).get("task_id") for number in range(4)] == [None, "t1", "t1", "t1"]


async def test_a_loss_after_the_last_event_is_ignored() -> None:
    session = await opened(Script(), (NAMED + RAN, lost()), promise=False)
    assert (await session.call("tool")).reward == 1.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ValueError: no", ToolFailed),
        ("ToolTimeout: 'tool' ran longer than 3600 s.", ToolFailed),
        ("SessionGone: Session deleted", SessionLost),
        ("InfrastructureError: no disk. Add one.", SessionLost),
        ("unknown task_id", CallOutcomeUnknown),
        ("ResultExpired: this call ran and its result was delivered long ago", CallOutcomeUnknown),
    ],
)
async def test_error_events(text: str, kind: type[ClientError]) -> None:
    session = await opened(Script(), NAMED + f"event: error\ndata: {text}\n\n".encode())
    with pytest.raises(ClientError) as failed:
        await session.call("tool")
    assert type(failed.value) is kind
    assert isinstance(failed.value, InfrastructureFailure) is (kind is not ToolFailed)


async def test_a_call_that_is_lost_for_good() -> None:
    session = await opened(Script(), *[(NAMED, lost())] * 9)
    with pytest.raises(ServerUnavailable, match="tried 6 times"):
        await session.call("tool")


async def test_inputs_that_are_not_json() -> None:
    session = await opened(Script())
    with pytest.raises(ConfigurationError, match="JSON"):
        await session.call("tool", {"a": object()})


# --- tasks ---------------------------------------------------------------------------------------


async def test_tasks_that_cannot_be_listed_are_fetched_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_clients.client.environments._RANGE", 2)
    unsupported = said(400, "list_tasks is not supported for this environment. Use the index-based API instead.")
    script = Script(
        unsupported,
        Response(200, {}, b'{"num_tasks":3}'),
        Response(200, {}, b'{"tasks":[{"n":0},{"n":1}],"env_name":"Env"}'),
        Response(200, {}, b'{"tasks":[{"n":2}]}'),
    )
    tasks = await client(script).environment("env").tasks("train")
    assert [(task.index, task.spec, task.server_name) for task in tasks] == [
        (0, {"n": 0}, "Env"),
        (1, {"n": 1}, "Env"),
        (2, {"n": 2}, None),
    ]
    assert [script.body(number) for number in (2, 3)] == [
        {"split": "train", "start": 0, "stop": 2},
        {"split": "train", "start": 2, "stop": 3},
    ]


@pytest.mark.parametrize("answer", [b"[]", b'{"tasks":{}}', b'{"tasks":["a"]}'])
async def test_invalid_tasks(answer: bytes) -> None:
    with pytest.raises(ServerUnavailable):
        await client(Script(Response(200, {}, answer))).environment("env").tasks("train")


def test_a_tasks_repr_does_not_show_the_answer() -> None:
    assert "42" not in repr(Task("env", "train", 0, {"answer": "42"}))
