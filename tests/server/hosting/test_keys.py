"""Keys of hosted environments: one check for all processes, and a key for the environments' own requests."""

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
    own = _call(mine, "walk", "secret", "api_key")
    for sid, sent, got in (
        ("sent", mine.headers["X-API-Key"], own),
        ("other", yours.headers["X-API-Key"], yours.headers["X-API-Key"]),  # as any secret that a client chooses
    ):
        headers = {"X-Session-ID": sid}
        body = {"env_name": "walk", "split": "train", "index": 0, "secrets": {"api_key": sent}}
        mine.post("/create", json=body, headers=headers)
        response = mine.post("/call", json={"name": "secret", "input": {"text": "api_key"}}, headers=headers)
        assert Reply(parse_events(response.content)).output["blocks"][0]["text"] == got


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
