"""Keys of hosted environments: one check for all processes, and a key for the environments' own requests."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from ors_server import Settings
from ors_server.keys.exposure import add_key
from tests.server.hosting.conftest import fronted
from tests.support.events import Reply, parse_events

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[httpx.Client, httpx.Client, httpx.Client]]:
    """Serve two environments with two keys; return a client of each key, and one without."""
    folder = tmp_path_factory.mktemp("guarded")
    settings = Settings(data_dir=folder / "kept")
    secrets = [add_key(settings, "a"), add_key(settings, "b"), ""]
    with fronted(folder) as front:
        found = [httpx.Client(base_url=front.url, headers={"X-API-Key": secret}, timeout=60) for secret in secrets]
        yield found[0], found[1], found[2]
        for client in found:
            client.close()


def test_every_path_wants_a_key(clients: tuple[httpx.Client, httpx.Client, httpx.Client]) -> None:
    with_key, _, without = clients
    for method, path in (
        ("GET", "/list_environments"),
        ("POST", "/create_session"),
        ("GET", "/v1/environments"),
        ("GET", "/v1/runs"),
        ("GET", "/v1/files/walk"),
        ("POST", "/v1/rollouts"),
        ("GET", "/walk/tools"),
        ("POST", "/create"),
        ("POST", "/call"),
        ("POST", "/ping"),
        ("POST", "/delete_session"),
        ("POST", "/create_sandbox"),
        ("POST", "/run"),
        ("POST", "/read_file"),
        ("GET", "/ui"),
        ("OPTIONS", "/call"),
        ("HEAD", "/list_environments"),
    ):
        status = without.request(method, path, headers={"X-Session-ID": "x"}).status_code
        assert status == 401 or (path == "/ui" and status in (303, 404)), (method, path, status)
    assert without.get("/health").status_code == 200
    assert with_key.get("/list_environments").json() == ["walk", "swim"]
    assert with_key.get("/v1/environments").json()["total"] == 2


def test_sessions_belong_to_their_key(clients: tuple[httpx.Client, httpx.Client, httpx.Client]) -> None:
    mine, yours, _ = clients
    for client, environment in ((mine, "walk"), (yours, "swim")):
        body = {"env_name": environment, "split": "train", "index": 0}
        assert client.post("/create", json=body, headers={"X-Session-ID": "same"}).status_code == 200
    body = {"env_name": "walk", "split": "train", "index": 0}
    mine.post("/create", json=body, headers={"X-Session-ID": "mine"})
    foreign = yours.post("/ping", headers={"X-Session-ID": "mine"})
    unknown = yours.post("/ping", headers={"X-Session-ID": "none"})
    assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content) == (404, unknown.content)
    assert yours.post("/ping", headers={"X-Session-ID": "same"}).status_code == 200


def _call(client: httpx.Client, environment: str, tool: str, text: str) -> str:
    headers = {"X-Session-ID": f"{environment}-inner"}
    client.post("/create", json={"env_name": environment, "split": "train", "index": 0}, headers=headers)
    response = client.post("/call", json={"name": tool, "input": {"text": text}}, headers=headers)
    return str(Reply(parse_events(response.content)).output["blocks"][0]["text"])


def test_an_environment_has_a_key_of_its_own(clients: tuple[httpx.Client, httpx.Client, httpx.Client]) -> None:
    mine, _, without = clients
    walk, swim = (_call(mine, name, "variable", "OPENREWARD_API_KEY") for name in ("walk", "swim"))
    assert walk != swim
    assert _call(mine, "walk", "secret", "api_key") == walk
    assert without.get("/list_environments", headers={"X-API-Key": walk}).status_code == 200
    assert without.post("/ping", headers={"X-API-Key": walk, "X-Session-ID": "walk-inner"}).status_code == 404
    assert without.get("/list_environments", headers={"X-API-Key": "ors-local"}).status_code == 401
    file = _call(mine, "walk", "variable", "ORS_SECRETS_FILE")
    assert walk in _call(mine, "walk", "shell", f"cat {file}")
    if not _call(mine, "walk", "shell", f"ls {Path(file).parents[1]}/1"):  # not kept apart on every machine
        assert swim not in _call(mine, "walk", "shell", f"cat {Path(file).parents[1]}/*/*")


def test_the_key_of_a_client_is_not_a_secret_of_its_session(
    clients: tuple[httpx.Client, httpx.Client, httpx.Client],
) -> None:
    mine, yours, _ = clients
    own, sent = _call(mine, "walk", "secret", "api_key"), mine.headers["X-API-Key"]
    foreign = yours.headers["X-API-Key"]  # as any secret that a client chooses
    for number, (name, value, got) in enumerate(
        (
            ("api_key", sent, own),
            ("OPENREWARD_API_KEY", sent, own),
            ("wandb", f" {sent}\n", own),
            ("token", f"Bearer {sent}", own),
            ("api_key", foreign, foreign),
        )
    ):
        headers = {"X-Session-ID": f"sent-{number}"}
        body = {"env_name": "walk", "split": "train", "index": 0, "secrets": {name: value}}
        mine.post("/create", json=body, headers=headers)
        response = mine.post("/call", json={"name": "secret", "input": {"text": name}}, headers=headers)
        assert Reply(parse_events(response.content)).output["blocks"][0]["text"] == got


def test_the_client_of_openreward_gives_its_key_to_no_environment(
    clients: tuple[httpx.Client, httpx.Client, httpx.Client],
) -> None:
    from openreward import OpenReward  # pyright: ignore[reportMissingTypeStubs]

    mine, _, _ = clients
    url, key = str(mine.base_url), mine.headers["X-API-Key"]
    with OpenReward(api_key=key, base_url=url) as client:
        environment = client.environments.get("walk", base_url=url)
        with environment.session(split="train", index=0) as session:
            given = str(session.call_tool("secrets", {"text": ""}).blocks[0])
    assert key not in given
    assert "OPENREWARD_API_KEY" in given


def test_orwd_fills_a_data_folder_with_a_key(
    clients: tuple[httpx.Client, httpx.Client, httpx.Client], tmp_path: Path
) -> None:
    mine, yours, without = clients
    (tmp_path / "a file.txt").write_text("uploaded")
    platform = {"OPENREWARD_API_URL": str(mine.base_url), "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
    command = [Path(sys.executable).with_name("orwd"), "upload", "Owner/Swim", str(tmp_path / "a file.txt")]
    variables = {**os.environ, **platform, "OPENREWARD_API_KEY": mine.headers["X-API-Key"]}
    ran = subprocess.run(command, env=variables, check=False, capture_output=True, text=True, timeout=60)
    assert "Uploaded 1 file" in ran.stdout, ran.stdout + ran.stderr
    body = {"environmentId": "swim", "files": [{"fileName": "one.txt"}]}
    url = mine.post("/v1/files/upload-urls", json=body).json()["urls"][0]["uploadUrl"]
    for wrong in (url.replace("one.txt", "two.txt"), url.partition("?")[0], url.replace("expires=1", "expires=9")):
        assert without.put(wrong, content=b"forged").status_code == 401
    assert without.get(url).status_code == without.delete(url).status_code == 401
    assert without.put(url, content=b"signed").status_code == 200
    listed = {file["path"]: file["size"] for file in yours.get("/v1/files/swim").json()["files"]}
    assert listed == {"a file.txt": 8, "name.txt": 4, "one.txt": 6}
    for name in ("a file.txt", "one.txt"):
        assert mine.delete(f"/v1/files/swim/{name}").status_code == 200


def test_an_environment_reaches_its_own_data_folder_only(
    clients: tuple[httpx.Client, httpx.Client, httpx.Client],
) -> None:
    mine, _, without = clients
    headers = {"X-API-Key": _call(mine, "walk", "variable", "OPENREWARD_API_KEY")}
    assert [file["path"] for file in without.get("/v1/files/walk", headers=headers).json()["files"]] == ["name.txt"]
    for method, path in (
        ("GET", "/v1/files/Swim"),
        ("PUT", "/v1/files/swim/name.txt"),
        ("DELETE", "/v1/files/swim/name.txt"),
        ("DELETE", "/v1/files/SWIM/folder/name.txt"),
    ):
        assert without.request(method, path, headers=headers).status_code == 404, (method, path)
    assert mine.get("/v1/files/swim").json()["files"] == [{"path": "name.txt", "size": 4}]

    def creation(environment: str) -> str:
        body = {
            "image": "none",
            "environment": environment,
            "machine_size": "0.5:1",
            "bucket_config": {"mount_path": "/data"},
        }
        return without.post("/create_sandbox", json=body, headers=headers).text

    assert "unknown environment 'Owner/Swim'" in creation("Owner/Swim")
    assert "There is no image none" in creation("Owner/Walk")
