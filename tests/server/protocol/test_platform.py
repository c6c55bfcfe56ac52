"""``/v1/environments`` and ``/v1/namespace``: requests of clients of the hosted platform."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest

from ors_server import Server
from ors_server.errors import DefinitionError
from tests.server.protocol.conftest import Serve
from tests.server.protocol.foreign import OpenRewardGame
from tests.support.environments import Echo


class Judged(Echo):
    aliases = ("Somebody/Judged-Tasks", "a/path/of/four")
    required_secrets = ("openai_api_key", "hf_token")


async def test_the_secrets_a_class_requires(serve: Serve) -> None:
    client = serve(Echo, Judged)
    for path, secrets in (
        ("me/judged", ["openai_api_key", "hf_token"]),
        ("SOMEBODY/judged-tasks", ["openai_api_key", "hf_token"]),
        ("a/path/of/four", ["openai_api_key", "hf_token"]),
        ("a%2Fpath/of%2Ffour", ["openai_api_key", "hf_token"]),
        ("me/echo", []),
        ("/judged", ["openai_api_key", "hf_token"]),  # the client's path for a name without an owner
    ):
        response = await client.get(f"/v1/environments/{path}/required-secrets")
        assert (response.status_code, response.json()) == (200, {"secrets": secrets}), path


@pytest.mark.parametrize("below", ["", "/variants", "/required-secrets", "/task-difficulty"])
async def test_unknown_environments(serve: Serve, below: str) -> None:
    client = serve(Echo, Judged)
    for path in ("me/missing", "/missing", "me%2Fechoes/", "..%2f..%2fetc/passwd", "%00/%ff", "x" * 3000 + "/y"):
        response = await client.get(f"/v1/environments/{path}{below}")
        assert response.status_code == 404, path
        assert response.json()["detail"]


async def test_one_environment_answers_to_every_name(serve: Serve) -> None:
    """As with ``X-Deployment``: the client that asks here opens its sessions under the same name."""
    client = serve(Judged)
    for path in ("me/anything", "/anything"):
        assert (await client.get(f"/v1/environments/{path}")).json()["id"] == "judged"
        secrets = await client.get(f"/v1/environments/{path}/required-secrets")
        assert secrets.json() == {"secrets": ["openai_api_key", "hf_token"]}


@pytest.mark.parametrize("value", ["openai_api_key", {"openai_api_key": "sk-value"}, [1], 7])
def test_secrets_that_are_not_a_list_of_names(value: object) -> None:
    """An error in a class of our own; ignored in a class of another SDK, where the attribute has no meaning."""
    with pytest.raises(DefinitionError, match="required_secrets"):
        Server([type("Wrong", (Echo,), {"required_secrets": value})])
    server = Server([type("Foreign", (OpenRewardGame,), {"required_secrets": value})])
    assert server.environments[0].required_secrets == []


class Foreign(OpenRewardGame):
    required_secrets: ClassVar[list[str]] = ["tavily_api_key"]


async def test_a_foreign_class_may_list_them_too(serve: Serve) -> None:
    client = serve(cast("Any", Foreign))
    assert (await client.get("/v1/environments/x/foreign/required-secrets")).json() == {"secrets": ["tavily_api_key"]}


async def test_the_namespace_of_every_key(serve: Serve) -> None:
    client = serve(Echo)
    for query in ("", "?type=user"):
        found = await client.get(f"/v1/namespace/current{query}")
        assert found.json() == {"id": "local", "name": "local", "type": "user"}
    assert (await client.get("/v1/namespace/current?type=org")).status_code == 404
    assert (await client.get("/v1/namespace/current?type=x")).status_code == 422


async def test_the_list_of_environments(serve: Serve) -> None:
    client = serve(Echo, Judged)

    async def listed(query: str) -> tuple[list[str], int]:
        page = (await client.get(f"/v1/environments{query}")).json()
        return [f"{each['owner']}/{each['name']}" for each in page["environments"]], page["total"]

    assert await listed("") == (["local/echo", "local/judged"], 2)
    assert await listed("?limit=1&offset=1") == (["local/judged"], 2)
    assert await listed("?offset=9") == ([], 2)
    assert await listed("?owner=local") == (["local/echo", "local/judged"], 2)
    assert await listed("?owner=SOMEBODY") == (["Somebody/Judged-Tasks"], 1)
    assert await listed("?owner=nobody") == ([], 0)
    assert await listed("?search=JUDGED-t") == (["local/judged"], 1)
    assert await listed("?search=echo&owner=somebody") == ([], 0)
    for listing in (await client.get("/v1/environments")).json()["environments"]:
        named = (await client.get(f"/v1/environments/{listing['owner']}/{listing['name']}")).json()
        assert named == listing
    assert (await client.get("/v1/environments?limit=1001")).status_code == 422
