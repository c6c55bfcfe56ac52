"""A server whose workers have different environments, one pool with an interpreter of its own."""

import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from ors_server.cluster.errors import PoolsError
from ors_server.cluster.supervisor.control import ask
from ors_server.cluster.supervisor.pools import Pool, read_pools
from tests.server.cluster.conftest import WIRE
from tests.support.servers import Running, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """Wire on slot 0, the default; echo on slots 1 and 2."""
    folder = tmp_path_factory.mktemp("pools")
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nOF_A_POOL=1 exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    (folder / "pools.toml").write_text('[[pool]]\ntargets = ["echo"]\npython = "python"\nworkers = 2\n')
    command = [sys.executable, "-m", "ors_cli", "serve", WIRE, "--pools", str(folder / "pools.toml"), "--port", "0"]
    with running(command, folder, variables={"ORS_DATA_DIR": str(folder / "data")}) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Generator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        yield client


def sid_of(client: httpx.Client, **headers: str) -> str:
    response = client.post("/create_session", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["sid"]


def test_a_pool_has_its_interpreter(server: Running) -> None:
    workers = ask(server.port, {"command": "workers"})["workers"]
    variables = [b"OF_A_POOL=1" in Path(f"/proc/{row['pid']}/environ").read_bytes() for row in workers]
    assert variables == [False, True, True]


def test_listings_are_those_of_all_pools(client: httpx.Client) -> None:
    assert client.get("/list_environments").json() == ["wire", "echoenvironment"]
    assert client.get("/health").json() == {"status": "ok"}
    wire, echo = client.get("/wire/tools").json(), client.get("/echoenvironment/tools").json()
    assert wire != echo
    assert client.get("/tools").json() == wire
    assert client.get("/tools", headers={"X-Deployment": "someone/EchoEnvironment"}).json() == echo
    assert client.get("/nothing/tools").status_code == 404


@pytest.mark.parametrize("way", ["deployment at once", "deployment", "body", "chunked body"])
@pytest.mark.parametrize("own_id", [False, True])
def test_a_session_goes_to_the_pool_of_its_environment(
    server: Running, client: httpx.Client, way: str, own_id: bool
) -> None:
    for environment in ("wire", "echoenvironment"):
        listed = client.get(f"/{environment}/tools").json()
        at_once = {"X-Deployment": environment} if way == "deployment at once" else {}
        sid = f"{way} {environment}" if own_id else sid_of(client, **at_once)
        split = client.get(f"/{environment}/splits").json()[0]["name"]
        content: dict[str, object] = {"split": split, "index": 0}
        headers = {"X-Session-ID": sid}
        if way.startswith("deployment"):
            headers["X-Deployment"] = environment
        if way.endswith("body"):
            content["env_name"] = environment
        if way == "chunked body":
            request = httpx.Request("POST", "/", json=content)
            created = client.post(
                "/create",
                content=iter([request.content[:9], request.content[9:]]),
                headers={**headers, "expect": "100-continue"},
            )
        else:
            created = client.post("/create", json=content, headers=headers)
        assert created.status_code == 200, created.text
        for _ in range(2):
            assert client.get("/task_tools", headers={"X-Session-ID": sid}).json()["tools"][0] == listed["tools"][0]
        assert client.post("/ping", headers={"X-Session-ID": sid}).status_code == 200
        assert client.post("/delete", headers={"X-Session-ID": sid}).status_code == 200
        assert client.post("/ping", headers={"X-Session-ID": sid}).status_code == 410


def test_a_session_without_a_name_gets_the_default(client: httpx.Client) -> None:
    sid = sid_of(client)
    assert client.post("/ping", headers={"X-Session-ID": sid}).status_code == 404
    headers = {"X-Session-ID": sid}
    assert client.post("/create", json={"split": "train", "index": 0}, headers=headers).status_code == 200
    assert client.get("/task_tools", headers=headers).status_code == 200
    assert client.post("/create", content=b"nonsense", headers={"X-Session-ID": "mine"}).status_code == 422
    assert client.post("/create", content=b"x" * (2**24 + 1), headers={"X-Session-ID": "mine"}).status_code == 413


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pool = 1", "valid list"),
        ("[[pool]]\nworkers = 1", "targets"),
        ('[[pool]]\ntargets = ["echo"]\nworkers = 0', "workers"),
        ('[[pool]]\ntargets = ["echo"]\nwork = 1', "work"),
        ('[[pool]]\ntargets = ["echo"]\npython = "nowhere/python"', "not an interpreter"),
        ("[[pool", "not TOML"),
    ],
)
def test_a_file_that_does_not_describe_pools(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "pools.toml"
    with pytest.raises(PoolsError, match="Cannot read"):
        read_pools(file)
    file.write_text(text)
    with pytest.raises(PoolsError, match=words):
        read_pools(file)


def test_paths_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "my_env").mkdir()
    file = tmp_path / "pools.toml"
    file.write_text('[[pool]]\ntargets = ["my_env:Mine", "echo"]')
    assert read_pools(file) == [Pool(["serve", f"{tmp_path}/my_env:Mine", "echo"], 1, sys.executable)]
