"""Protocol 0.1, "Which environment": the path, then the body, then ``X-Deployment``, then the default."""

import pytest

from ors_server import Blocks, JSONObject, Server, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, said
from tests.support.http_client import Client

BY_INDEX = {"split": "train", "index": 0}


class Alpha(Bare):
    """The default environment."""

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"alpha {self.task_spec.get('id')}")]

    @tool
    async def alpha_tool(self) -> ToolOutput:
        return said("alpha")


class Beta(Bare):
    """Another environment."""

    aliases = ("owner/Beta-Env", "short")

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": "b"}]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"beta {self.task_spec.get('id')}")]

    @tool
    async def beta_tool(self) -> ToolOutput:
        return said("beta")


async def tool_names(client: Client, path: str, **headers: str) -> list[str]:
    response = await client.get(path, **headers)
    assert response.status_code == 200, response.text
    return [entry["name"] for entry in response.json()["tools"]]


async def prompt(client: Client, sid: str, path: str = "/prompt") -> str:
    response = await client.get(path, sid)
    assert response.status_code == 200, response.text
    return response.json()[0]["text"]


# --- discovery -----------------------------------------------------------------------------------


async def test_the_path_wins_over_the_deployment_in_any_case(serve: Serve) -> None:
    """6.4 pitfall 5: mixed-case names."""
    client = serve(Alpha, Beta)
    for name in ("beta", "BETA", "Beta", "short", "SHORT"):
        assert await tool_names(client, f"/{name}/tools", X_Deployment="alpha") == ["beta_tool"], name


async def test_the_deployment_decides_for_a_bare_path(serve: Serve) -> None:
    """The whole name first, then its last segment, in any case; aliases count."""
    client = serve(Alpha, Beta)
    for deployment in ("beta", "BETA", "whoever/Beta", "Owner/beta-env", "short", "x/short"):
        assert await tool_names(client, "/tools", X_Deployment=deployment) == ["beta_tool"], deployment


async def test_the_whole_deployment_wins_over_its_last_segment(serve: Serve) -> None:
    class Tricky(Alpha):
        aliases = ("owner/Beta",)

    assert await tool_names(serve(Tricky, Beta), "/tools", X_Deployment="owner/beta") == ["alpha_tool"]
    assert await tool_names(serve(Tricky, Beta), "/tools", X_Deployment="other/beta") == ["beta_tool"]


async def test_a_bare_path_without_a_name_is_the_default_and_no_redirect(serve: Serve) -> None:
    """6.4 pitfall 5: bare paths; issue: without a redirect."""
    assert await tool_names(serve(Alpha, Beta), "/tools") == ["alpha_tool"]


async def test_one_environment_answers_to_any_deployment(serve: Serve) -> None:
    """TRL sends ``env``; a client of one environment may use any name."""
    client = serve(Alpha)
    for deployment in ("env", "anything", "some/body"):
        assert await tool_names(client, "/tools", X_Deployment=deployment) == ["alpha_tool"]
        assert await prompt(client, await client.open(X_Deployment=deployment)) == "alpha train-0"


async def test_several_environments_answer_env_with_the_default(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    assert await tool_names(client, "/tools", X_Deployment="env") == ["alpha_tool"]
    assert await prompt(client, await client.open(X_Deployment="env")) == "alpha train-0"


async def test_several_environments_refuse_an_unknown_deployment_and_list_the_names(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    for response in (await client.get("/tools", X_Deployment="gamma"), await client.create("s", X_Deployment="gamma")):
        assert response.status_code == 404
        assert response.json()["detail"].startswith("unknown environment 'gamma'")
        assert "alpha, beta" in response.json()["detail"]
    assert (await client.post("/ping", sid="s")).status_code == 404


@pytest.mark.parametrize("environments", [(Alpha,), (Alpha, Beta)])
async def test_an_unknown_name_in_the_path_is_never_rewritten(serve: Serve, environments: tuple[type, ...]) -> None:
    """``/typo/tools`` is always 404, also with one environment hosted."""
    client = serve(*environments)
    sid = await client.open()
    gets = ("tools", "splits", "prompt", "messages", "task_tools")
    posts = {"tasks": {"split": "train"}, "num_tasks": {"split": "train"}, "task": BY_INDEX, "get_task": BY_INDEX}
    posts |= {"task_range": {"split": "train"}, "get_task_range": {"split": "train"}}
    posts |= {"call": {"name": "alpha_tool", "input": {}}, "score_group": {"candidates": []}}
    responses = [await client.get(f"/typo/{name}", sid, X_Deployment="alpha") for name in gets]
    responses += [await client.post(f"/typo/{name}", body, sid) for name, body in posts.items()]
    for response in responses:
        assert response.status_code == 404, response.url
        assert response.json()["detail"].startswith("unknown environment 'typo'")
        assert "alpha" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/beta/tasks", "/Beta/tasks", "/short/tasks"])
async def test_env_name_in_the_answer_is_the_path_segment_as_received(serve: Serve, path: str) -> None:
    answer = (await serve(Alpha, Beta).post(path, {"split": "train"})).json()
    assert answer == {"tasks": [{"id": "b"}], "env_name": path.split("/")[1]}


async def test_env_name_in_the_answer_of_a_bare_path_is_the_environment(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    assert (await client.post("/task", BY_INDEX)).json()["env_name"] == "alpha"
    assert (await client.post("/task", BY_INDEX, X_Deployment="owner/Beta-Env")).json()["env_name"] == "beta"


# --- sessions ------------------------------------------------------------------------------------


async def test_env_name_in_the_body_wins_over_the_deployment(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    sid = await client.open({"env_name": "BETA", **BY_INDEX}, X_Deployment="alpha")
    assert await prompt(client, sid) == "beta b"


async def test_env_name_may_be_an_alias(serve: Serve) -> None:
    client = serve(Alpha, Beta, aliases={"catalogue/Alpha": "alpha"})
    assert await prompt(client, await client.open({"env_name": "Owner/Beta-Env", **BY_INDEX})) == "beta b"
    assert await prompt(client, await client.open({"env_name": "catalogue/alpha", **BY_INDEX})) == "alpha train-0"


async def test_an_unknown_env_name_in_the_body_is_404_and_opens_nothing(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    response = await client.create("s", {"env_name": "gamma", **BY_INDEX})
    assert response.status_code == 404
    assert response.json()["detail"].startswith("unknown environment 'gamma'")
    assert (await client.post("/ping", sid="s")).status_code == 404


async def test_a_bare_path_is_the_sessions_own_environment(serve: Serve) -> None:
    """Section 1: openreward calls bare paths whatever environment the session has."""
    client = serve(Alpha, Beta)
    sid = await client.open({"env_name": "beta", **BY_INDEX})
    assert await prompt(client, sid) == "beta b"
    assert (await client.call(sid, "beta_tool")).text == "beta"
    assert await tool_names_of_session(client, sid) == ["beta_tool"]


async def tool_names_of_session(client: Client, sid: str) -> list[str]:
    return [entry["name"] for entry in (await client.get("/task_tools", sid)).json()["tools"]]


async def test_a_bare_path_ignores_the_deployment_once_bound(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    sid = await client.open({"env_name": "beta", **BY_INDEX})
    assert (await client.get("/prompt", sid, X_Deployment="alpha")).json()[0]["text"] == "beta b"


@pytest.mark.parametrize("named", [True, False], ids=["by env_name", "by X-Deployment"])
async def test_another_environment_in_the_path_is_409(serve: Serve, named: bool) -> None:
    client = serve(Alpha, Beta)
    if named:
        sid = await client.open({"env_name": "beta", **BY_INDEX})
    else:
        sid = await client.open(X_Deployment="owner/beta")
    for response in (
        await client.get("/alpha/prompt", sid),
        await client.get("/Alpha/task_tools", sid),
        await client.get("/alpha/messages", sid),
        await client.call_response(sid, "beta_tool", path="/alpha/call"),
    ):
        assert response.status_code == 409
        assert "'beta'" in response.json()["detail"]
        assert "'alpha'" in response.json()["detail"]
    # Each of its own names continues to work.
    assert await prompt(client, sid, "/SHORT/prompt") == "beta b"
    assert (await client.call(sid, "beta_tool", path="/beta/call")).text == "beta"


@pytest.mark.parametrize(
    ("path", "expected"), [("/beta/prompt", "beta b"), ("/ALPHA/prompt", "alpha train-0"), ("/prompt", "alpha train-0")]
)
async def test_a_session_without_a_name_binds_at_its_first_naming_request(
    serve: Serve, path: str, expected: str
) -> None:
    """ors-sdk's split and index sessions name no environment; their paths do. A bare path means the default."""
    client = serve(Alpha, Beta)
    sid = await client.open()
    assert await prompt(client, sid, path) == expected
    other = "/alpha/prompt" if expected.startswith("beta") else "/beta/prompt"
    assert (await client.get(other, sid)).status_code == 409
    assert await prompt(client, sid) == expected


async def test_an_unbound_session_binds_at_a_call(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    sid = await client.open()
    assert (await client.call(sid, "beta_tool", path="/Beta/call")).text == "beta"
    assert await prompt(client, sid) == "beta b"


async def test_an_unbound_session_binds_once_under_concurrent_requests(serve: Serve) -> None:
    import asyncio

    built: list[str] = []

    class Counted(Beta):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            built.append("counted")
            super().__init__(task_spec, secrets)

    client = serve(Alpha, Counted)
    sid = await client.open()
    answers = await asyncio.gather(*(prompt(client, sid, "/counted/prompt") for _ in range(20)))
    assert set(answers) == {"beta b"}
    assert built == ["counted"]


async def test_a_ping_does_not_bind_and_deletion_needs_no_environment(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    sid = await client.open()
    assert (await client.post("/ping", sid=sid)).status_code == 200
    assert await prompt(client, sid, "/beta/prompt") == "beta b"
    unbound = await client.open()
    assert (await client.post("/delete", sid=unbound)).status_code == 200
    assert (await client.get("/prompt", unbound)).status_code == 410


async def test_a_typo_does_not_bind(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    sid = await client.open()
    assert (await client.get("/typo/prompt", sid)).status_code == 404
    assert await prompt(client, sid, "/beta/prompt") == "beta b"


async def test_an_unbound_session_with_an_invalid_task_says_so_when_it_binds(serve: Serve) -> None:
    client = serve(Alpha, Beta)
    sid = await client.open({"split": "train", "index": 3})
    response = await client.get("/beta/prompt", sid)
    assert response.status_code == 400
    assert response.json()["detail"].startswith("Invalid index")


async def test_one_environment_binds_at_once(serve: Serve) -> None:
    client = serve(Alpha)
    response = await client.create("s", {"split": "train", "index": 99})
    assert response.status_code == 400
    assert response.json()["detail"].startswith("Invalid index")


async def test_an_environment_that_cannot_be_served_says_what_it_needs() -> None:
    server = Server([Alpha], unavailable={"Terminal": "It needs bubblewrap: apt-get install bubblewrap."})
    client = Client(server.app)
    for response in (
        await client.get("/terminal/tools"),
        await client.get("/tools", X_Deployment="owner/Terminal"),
        await client.create("s", {"env_name": "terminal", **BY_INDEX}),
    ):
        assert response.status_code == 404
        assert response.json()["detail"].startswith("unknown environment")
        assert "apt-get install bubblewrap" in response.json()["detail"]
    assert await tool_names(client, "/tools") == ["alpha_tool"]
    await server.sessions.close()
    await client.close()
