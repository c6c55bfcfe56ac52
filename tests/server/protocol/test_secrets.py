"""Both forms of secrets, and invalid headers, which are refused without an echo (protocol, sections 5 and 8)."""

import base64
import json
import logging

import pytest

from ors_server import Blocks, JSONObject, TextBlock
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo
from tests.support.http_client import Client, secrets_header

TASK: dict[str, object] = {"split": "train", "index": 0}


class Keeper(Echo):
    """Its prompt shows the secrets its constructor got."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec)
        self.given = secrets

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=json.dumps(self.given, sort_keys=True))]


async def secrets_of(client: Client, sid: str) -> dict[str, str]:
    return json.loads((await client.get("/prompt", sid)).json()[0]["text"])


async def test_none(serve: Serve) -> None:
    client = serve(Keeper)
    assert await secrets_of(client, await client.open()) == {}


async def test_the_header_of_both_sdk_clients(serve: Serve) -> None:
    """base64 of ``{name: {"value": …, "allowed_domains": […]}}``; a plain string value is understood too."""
    client = serve(Keeper)
    header = secrets_header({"api_key": {"value": "k", "allowed_domains": ["a.example"]}, "plain": "p"})
    assert await secrets_of(client, await client.open(X_Secrets=header)) == {"api_key": "k", "plain": "p"}


async def test_the_body_of_the_specification(serve: Serve) -> None:
    client = serve(Keeper)
    sid = await client.open({**TASK, "secrets": {"a": "1", "b": {"value": "2"}}})
    assert await secrets_of(client, sid) == {"a": "1", "b": "2"}


async def test_the_header_wins_over_the_body(serve: Serve) -> None:
    client = serve(Keeper)
    body = {**TASK, "secrets": {"both": "body", "body": "body"}}
    sid = await client.open(body, X_Secrets=secrets_header({"both": {"value": "header"}, "header": {"value": "h"}}))
    assert await secrets_of(client, sid) == {"both": "header", "body": "body", "header": "h"}


async def test_secrets_of_several_kilobytes(serve: Serve) -> None:
    """6.4 pitfall 15."""
    client = serve(Keeper)
    sid = await client.open(X_Secrets=secrets_header({"certificate": {"value": "c" * 20_000}}))
    assert await secrets_of(client, sid) == {"certificate": "c" * 20_000}


async def test_create_session_takes_secrets_and_ignores_them(serve: Serve) -> None:
    """6.4 pitfall 6: both SDK clients send the header on ``/create_session`` as well."""
    client = serve(Keeper)
    good = await client.post("/create_session", {}, X_Secrets=secrets_header({"a": {"value": "x"}}))
    assert good.status_code == 200


async def test_unicode_secrets(serve: Serve) -> None:
    client = serve(Keeper)
    sid = await client.open(X_Secrets=base64.b64encode('{"k": {"value": "größe ✓"}}'.encode()).decode())
    assert await secrets_of(client, sid) == {"k": "größe ✓"}


GARBAGE = {
    "bare": "hunter2",
    "not base64": "hunter2!!not-base64",
    "stray characters": "!!".join(secrets_header({"key": {"value": "hunter2"}}).partition("=")),
    "no json": base64.b64encode(b"hunter2").decode(),
    "cut json": base64.b64encode(b'{"key": {"value": "hunter2"').decode(),
    "not utf-8": base64.b64encode(b"\xff\xfehunter2").decode(),
    "list": secrets_header(["hunter2"]),
    "string": secrets_header("hunter2"),
    "no value": secrets_header({"key": {"valeu": "hunter2"}}),
    "object value": secrets_header({"key": {"value": {"hunter2": 1}}}),
    "list value": secrets_header({"key": ["hunter2"]}),
    "null value": secrets_header({"key": None, "other": "hunter2"}),
    "deeply nested": base64.b64encode(b"[" * 20_000).decode(),
}


async def test_a_garbage_header_is_400_that_repeats_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Section 8: 400 on garbage. Issue, bad input: no leak, not even into the log; a healthy server afterwards."""
    client = serve(Keeper)
    caplog.set_level(logging.DEBUG, logger="ors_server")
    for name, header in GARBAGE.items():
        response = await client.create("s", X_Secrets=header)
        assert response.status_code == 400, name
        assert "X-Secrets" in response.json()["detail"], name
        assert "hunter2" not in response.text, name
        assert header not in response.text, name
    assert "hunter2" not in caplog.text
    assert (await client.post("/ping", sid="s")).status_code == 404
    assert (await client.create("s")).status_code == 200


async def test_garbage_secrets_in_the_body_are_refused_and_repeat_nothing(serve: Serve) -> None:
    client = serve(Keeper)
    garbage: list[object] = [{"key": 4711}, {"key": {"valeu": "hunter2"}}, {"key": ["hunter2"]}, ["hunter2"], "hunter2"]
    for secrets in garbage:
        response = await client.create("s", {**TASK, "secrets": secrets})
        assert response.status_code in (400, 422), secrets
        assert "secrets" in response.text
        assert "hunter2" not in response.text
        assert "4711" not in response.text


async def test_an_invalid_body_beside_secrets_repeats_nothing(serve: Serve) -> None:
    client = serve(Keeper)
    for body in (
        {"split": "train", "secrets": {"key": "hunter2"}},
        {**TASK, "index": {"hunter2": 1}, "secrets": {"key": "hunter2"}},
        {**TASK, "secrets": {"key": "hunter2"}, "extra": "hunter2"},
        {**TASK, "secrets": {"key": "hunter2"}, "task_spec": {"a": "hunter2"}},
    ):
        response = await client.create("s", body)
        assert response.status_code == 422
        assert "hunter2" not in response.text


async def test_other_secrets_under_the_same_id_are_another_request(serve: Serve) -> None:
    client = serve(Keeper)
    await client.open(sid="s", X_Secrets=secrets_header({"key": {"value": "hunter2"}}))
    response = await client.create("s", X_Secrets=secrets_header({"key": {"value": "hunter3"}}))
    assert response.status_code == 400
    assert response.json()["detail"].startswith("Session already exists")
    assert "hunter" not in response.text
    assert await secrets_of(client, "s") == {"key": "hunter2"}
