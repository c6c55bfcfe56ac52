"""Section 1 of the protocol: every endpoint, its response and its exact errors."""

import pytest

from ors_server import TextBlock, ToolOutput, tool
from ors_server.http.app import OrsApp
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, Text, said
from tests.support.events import parse_events

SESSION_ROUTES = [
    ("POST", "/create"),
    ("POST", "/delete"),
    ("POST", "/delete_session"),
    ("POST", "/ping"),
    ("GET", "/prompt"),
    ("GET", "/messages"),
    ("GET", "/task_tools"),
    ("POST", "/call"),
    ("POST", "/score_group"),
]


async def test_health(serve: Serve) -> None:
    assert (await serve(Echo).get("/health")).json() == {"status": "ok"}


async def test_ready_while_it_takes_new_sessions(serve: Serve) -> None:
    client = serve(Echo)
    assert (await client.get("/ready")).json() == {"status": "ready"}
    assert isinstance(client.app, OrsApp)
    client.app.sessions.closing.set()
    refused = await client.get("/ready")
    assert (refused.status_code, "shutting down" in refused.json()["detail"]) == (503, True)
    assert (await client.get("/health")).status_code == 200


async def test_version_names_the_build(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(Echo)
    monkeypatch.delenv("OPENREWARD_BUILD_SHA", raising=False)
    version = (await client.get("/version")).json()
    assert set(version) == {"version", "build_sha"}
    assert isinstance(version["version"], str)
    assert version["build_sha"] is None
    monkeypatch.setenv("OPENREWARD_BUILD_SHA", "0123abc")
    assert (await client.get("/version")).json()["build_sha"] == "0123abc"


async def test_list_environments_has_the_default_first_in_lower_case(serve: Serve) -> None:
    class Aardvark(Echo):
        pass

    assert (await serve(Echo, Aardvark).get("/list_environments")).json() == ["echo", "aardvark"]


async def test_tools_has_exactly_the_keys_that_clients_unpack(serve: Serve) -> None:
    """6.4 pitfall 3: clients pass a tool entry to ``ToolSpec(**tool)``, so an additional key breaks every client."""
    tools = (await serve(Echo).get("/echo/tools")).json()
    assert tools["tools"] == [
        {
            "name": "echo",
            "description": "Repeat a text.",
            "input_schema": {
                "title": "Text",
                "description": "Input of the usual tool.",
                "type": "object",
                "properties": {"text": {"title": "Text", "type": "string"}},
                "required": ["text"],
            },
        },
        {"name": "win", "description": "End the episode.", "input_schema": None},
    ]
    assert tools["terminal_tool"] is None
    assert tools["supports_score_group"] is False
    assert tools["message_block_types"] == ["text", "image", "reasoning", "tool_call", "tool_result"]


async def test_tools_are_listed_by_name_and_toolsets_after_the_environment(serve: Serve) -> None:
    """Section 4: the order both SDKs list tools in."""

    class Extra:
        @tool
        async def alpha(self) -> ToolOutput:
            return said()

    class Ordered(Bare):
        toolsets = (Extra,)

        @tool
        async def zulu(self) -> ToolOutput:
            return said()

        @tool
        async def mike(self) -> ToolOutput:
            return said()

    tools = (await serve(Ordered).get("/tools")).json()["tools"]
    assert [entry["name"] for entry in tools] == ["mike", "zulu", "alpha"]


async def test_splits_normalise_bare_names(serve: Serve) -> None:
    """Section 1: train, validation and test have their own type, any other name is a validation split."""

    class Many(Echo):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train", "validation", "test", "holdout"]

    assert (await serve(Many).get("/many/splits")).json() == [
        {"name": "train", "type": "train"},
        {"name": "validation", "type": "validation"},
        {"name": "test", "type": "test"},
        {"name": "holdout", "type": "validation"},
    ]


async def test_create_session_answers_events_where_they_are_accepted(serve: Serve) -> None:
    """Section 8 and 6.4 pitfall 1: SSE where Accept has text/event-stream."""
    response = await serve(Echo).post("/create_session", {}, Accept="text/event-stream")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    names = [event.name for event in parse_events(response.content)]
    assert names == ["task_id", "end"]
    sid = parse_events(response.content)[0].data
    assert len(sid) == 36
    assert parse_events(response.content)[1].data == ""


async def test_create_session_answers_json_otherwise(serve: Serve) -> None:
    """Section 8: the specification's own sample client reads ``response.json()["sid"]``."""
    client = serve(Echo)
    for accept in ("*/*", "application/json", ""):
        response = await client.post("/create_session", Accept=accept)
        assert response.headers["content-type"] == "application/json", accept
        assert list(response.json()) == ["sid"]


async def test_create_session_gives_a_new_id_each_time(serve: Serve) -> None:
    client = serve(Echo)
    sids = {(await client.post("/create_session")).json()["sid"] for _ in range(20)}
    assert len(sids) == 20


async def test_create_session_takes_any_body(serve: Serve) -> None:
    """6.4 pitfall 6: ``env`` in the body must not be refused; the body may be absent."""
    client = serve(Echo)
    bodies: list[object] = [None, {}, {"env": {"OPENAI_API_KEY": "k"}}, {"unheard": "of"}]
    for body in bodies:
        assert (await client.post("/create_session", body)).status_code == 200, body


async def test_create_session_only_allocates_an_id(serve: Serve) -> None:
    """Section 3: it only allocates an id; ``/create`` binds it."""
    client = serve(Echo)
    sid = (await client.post("/create_session")).json()["sid"]
    response = await client.post("/ping", sid=sid)
    assert (response.status_code, response.json()) == (404, {"detail": "Active environment not found"})


async def test_create_answers_the_session_id(serve: Serve) -> None:
    response = await serve(Echo).create("abc")
    assert (response.status_code, response.json()) == (200, {"sid": "abc"})


async def test_any_session_id_a_client_invents_is_taken_and_stripped(serve: Serve) -> None:
    """Section 1: white space around the value is not part of it."""
    client = serve(Echo)
    assert (await client.create("  my own id ")).json() == {"sid": "my own id"}
    assert (await client.post("/ping", sid="my own id")).status_code == 200


@pytest.mark.parametrize("sid", [None, "", "   "])
async def test_session_routes_need_the_session_id(serve: Serve, sid: str | None) -> None:
    """Section 1: missing and empty ids get the same 400, also where the body is missing."""
    client = serve(Echo)
    for method, path in SESSION_ROUTES:
        response = await (client.get(path, sid) if method == "GET" else client.post(path, sid=sid))
        assert response.status_code == 400, path
        assert response.json() == {"detail": "X-Session-ID header is required"}, path


async def test_ping_delete_and_delete_session(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    ping = await client.post("/ping", sid=sid)
    assert (ping.status_code, ping.json()) == (200, {"status": "ok"})
    deleted = await client.post("/delete", sid=sid)
    assert (deleted.status_code, deleted.json()) == (200, {"sid": sid})
    acknowledged = await client.post("/delete_session", sid=sid)
    assert (acknowledged.status_code, acknowledged.json()) == (200, {"sid": sid})


async def test_delete_session_ends_nothing(serve: Serve) -> None:
    """Section 1: only an acknowledgement."""
    client = serve(Echo)
    sid = await client.open()
    await client.post("/delete_session", sid=sid)
    assert (await client.call(sid, "echo", {"text": "still here"})).text == "still here"


async def test_bodyless_posts_may_carry_any_content_type(serve: Serve) -> None:
    """6.1: openreward sends them with Content-Length 0 as application/octet-stream."""
    client = serve(Echo)
    sid = await client.open()
    headers = {"X-Session-ID": sid, "Content-Type": "application/octet-stream", "X-API-Key": ""}
    for path in ("/ping", "/delete", "/delete_session"):
        assert (await client.http.post(path, content=b"", headers=headers)).status_code == 200, path


async def test_an_unknown_session_is_404(serve: Serve) -> None:
    """Bad input: unknown session."""
    client = serve(Echo)
    for response in (
        await client.get("/prompt", "never"),
        await client.get("/messages", "never"),
        await client.get("/echo/task_tools", "never"),
        await client.post("/ping", sid="never"),
        await client.call_response("never", "echo", {"text": "x"}),
        await client.call_response("never", "echo", {"text": "x"}, task_id="never"),
        await client.post("/score_group", {"candidates": []}, "never"),
    ):
        assert response.status_code == 404, response.url
        assert response.json() == {"detail": "Active environment not found"}


async def test_prompt_is_the_blocks(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    assert (await client.get("/echo/prompt", sid)).json() == [
        TextBlock(text="prompt of train-0").model_dump(),
    ]


async def test_an_empty_api_key_is_accepted(serve: Serve) -> None:
    """6.4 pitfall 10: openreward sends ``X-API-Key`` with an empty value when it has none."""
    client = serve(Echo)
    assert (await client.create("a", X_API_Key="")).status_code == 200
    assert (await client.create("b", X_API_Key="anything")).status_code == 200


async def test_a_call_output_has_all_four_keys(serve: Serve) -> None:
    """6.4 pitfall 4: clients index metadata, reward and finished directly."""
    client = serve(Echo)
    sid = await client.open()
    assert (await client.call(sid, "echo", {"text": "hi"})).result == {
        "ok": True,
        "output": {
            "blocks": [{"text": "hi", "detail": None, "type": "text"}],
            "metadata": None,
            "reward": None,
            "finished": False,
        },
    }


async def test_score_group_without_an_implementation_is_404(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    response = await client.post("/score_group", {"candidates": []}, sid)
    assert response.status_code == 404
    assert response.json() == {"detail": "Environment 'echo' does not implement score_group"}


async def test_a_wrong_method_is_405_and_harmless(serve: Serve) -> None:
    client = serve(Echo)
    for method in ("GET", "PUT", "DELETE"):
        for path in ("/call", "/echo/call", "/create", "/delete", "/tasks"):
            assert (await client.http.request(method, path)).status_code == 405, (method, path)


async def test_an_unknown_route_is_404_with_a_detail(serve: Serve) -> None:
    response = await serve(Echo).get("/nothing/of/that/kind")
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


async def test_the_platform_environment_has_id_and_variants(serve: Serve) -> None:
    """Issue, item 3: ``/v1/environments/{owner}/{name}``, found by alias, by name, in any case."""

    class Second(Echo):
        aliases = ("Somebody/Second-One",)

    client = serve(Echo, Second)
    assert (await client.get("/v1/environments/me/ECHO")).json()["id"] == "echo"
    found = (await client.get("/v1/environments/somebody/second-one")).json()
    assert (found["id"], found["name"]) == ("second", "second-one")
    variants = (await client.get("/v1/environments/somebody/second-one/variants")).json()
    assert [entry["name"] for entry in variants] == ["second", "echo"]
    assert all(set(entry) == {"id", "name"} for entry in variants)
    missing = await client.get("/v1/environments/me/missing")
    assert missing.status_code == 404
    assert missing.json()["detail"].startswith("unknown environment 'me/missing'")


async def test_a_tool_named_like_a_route_is_not_a_route(serve: Serve) -> None:
    class Odd(Bare):
        @tool
        async def prompt(self, params: Text) -> ToolOutput:
            return said(params.text)

    client = serve(Odd)
    sid = await client.open()
    assert (await client.call(sid, "prompt", {"text": "x"})).text == "x"
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "prompt of train-0"
