"""Hosted environments on one address: names, sessions, deaths, data folders, secrets and variables."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from ors_server.checkouts import serving
from ors_server.hosting.task_agreement import digest_of
from tests.server.hosting.conftest import Front, can_bind
from tests.server.metrics.reading import read_figures
from tests.support.cut_connections import answered, streamed


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_each_environment_is_found_by_its_names(front: Front) -> None:
    with httpx.Client(base_url=front.url, timeout=30) as client:
        assert client.get("/list_environments").json() == ["walk", "swim"]
        assert client.get("/swim/splits").json() == client.get("/splits").json() == [{"name": "train", "type": "train"}]
        for deployment, name in (("Owner/Swim", "swim"), ("anyone/walk", "walk"), ("env", "walk"), ("", "walk")):
            headers = {"X-Session-ID": f"of-{deployment}-", "X-Deployment": deployment}
            assert client.post("/create", json={"split": "train", "index": 0}, headers=headers).status_code == 200
            prompt = client.get("/prompt", headers={"X-Session-ID": f"of-{deployment}-"})
            assert prompt.status_code == 200, prompt.text
            assert prompt.json()[0]["text"].lower() == name
        unknown = client.post(
            "/create", json={"env_name": "run", "split": "train", "index": 0}, headers={"X-Session-ID": "new"}
        )
        assert (unknown.status_code, "This server hosts: walk, swim" in unknown.text) == (404, True)
        assert client.get("/v1/environments/Owner/Swim").json()["id"] == "swim"
        found = client.get("/v1/environments", params={"limit": 1, "offset": 1}).json()
        assert (found["total"], [each["name"] for each in found["environments"]]) == (2, ["swim"])
        assert "sid" in client.post("/create_session").json()
        # The sandbox service is at this address; it refuses what names no image.
        assert client.post("/create_sandbox", json={}).status_code == 400


def _exchanged(front: Front, *requests: str) -> str:
    """Send requests in one packet; return the responses."""
    address = urlsplit(front.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 0), 30) as client:
        client.sendall("".join(requests).encode())
        received = b""
        while part := client.recv(2**16):
            received += part
    return received.decode()


def test_metrics_are_those_of_all_environments(front: Front) -> None:
    figures = read_figures(httpx.get(f"{front.url}/metrics", trust_env=False, timeout=60).text)
    assert figures["ors_build_info"] == len(figures.values("worker")) > 1


def test_a_session_is_known_before_its_client_is_answered(front: Front) -> None:
    """The next request on the connection may be read before the task of ``/create`` has ended."""
    body = '{"env_name": "swim", "split": "train", "index": 0}'
    head = "Host: front\r\nX-Session-ID: piped\r\n"
    answered = _exchanged(
        front,
        f"POST /create HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}",
        f"GET /prompt HTTP/1.1\r\n{head}Connection: close\r\n\r\n",
    )
    assert answered.count("HTTP/1.1 200") == 2, answered
    assert '"text":"swim"' in answered.lower()


def test_a_path_cannot_carry_a_second_request(front: Front) -> None:
    smuggled = "walk/tools HTTP/1.1\r\nHost: a\r\n\r\nGET /walk/splits HTTP/1.1\r\nHost: a\r\n\r\nGET /walk/splits"
    answered = _exchanged(front, f"GET //{quote(smuggled)} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answered.startswith("HTTP/1.1 404")
    assert answered.lower().count("content-length") == 1
    assert httpx.get(f"{front.url}//walk/splits/", timeout=30).json() == [{"name": "train", "type": "train"}]


def test_an_environment_that_blocks_leaves_the_others_in_the_list(front: Front) -> None:
    blocked = front.process_of("Walk")
    os.kill(blocked, signal.SIGSTOP)
    try:
        found = httpx.get(f"{front.url}/v1/environments", timeout=30).json()
    finally:
        os.kill(blocked, signal.SIGCONT)
    assert [each["name"] for each in found["environments"]] == ["swim"]


def _settled(url: str, sid: str) -> httpx.Response:
    """Return the first response that is not the one to retry."""
    found: list[httpx.Response] = []

    def settled() -> bool:
        found[:] = [answered(lambda: httpx.get(url, headers={"X-Session-ID": sid}, timeout=30))]
        return found[0].status_code != 503

    wait_until(settled)
    return found[0]


@pytest.mark.long
def test_a_death_ends_the_sessions_of_one_environment_only(mortal_front: Front) -> None:
    """An open call ends with an error event, later requests with 410, and a new session finds the next process."""
    front = mortal_front
    assert front.create("walk", "of walk").status_code == 200
    assert front.create("swim", "of swim").status_code == 200
    before = front.process_of("Walk")
    ended: list[str] = []
    begun = threading.Event()

    def wait() -> None:
        body = {"name": "wait", "input": {"text": "60"}}
        with httpx.Client(base_url=front.url, timeout=60) as client:
            answer = streamed(client, "/call", body, {"X-Session-ID": "of walk"}, begun.set)
        ended.extend(f"{event.name} {event.data}" for event in answer.events)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(60)
    os.kill(before, signal.SIGKILL)
    waiting.join(30)
    assert ended[-1].startswith("error InfrastructureError: the worker that held it ended")

    for path in ("/prompt", "/walk/prompt"):
        # A gateway that has not seen the session waits for the worker's successor before it answers.
        gone = _settled(f"{front.url}{path}", "of walk")
        assert gone.status_code == 410
        assert gone.json()["detail"].startswith("Session lost: InfrastructureError")
    assert httpx.post(f"{front.url}/delete", headers={"X-Session-ID": "of walk"}, timeout=30).status_code == 200
    assert front.call("of swim", "secret", "none") == "none"

    def served_again() -> bool:
        created = answered(lambda: front.create("walk", "another", api_key=""))
        assert created.status_code in (200, 503), created.text
        return created.status_code == 200

    wait_until(served_again)
    assert front.process_of("Walk") != before
    assert front.call("another", "variable", "none") == "none"


@pytest.mark.long
def test_processes_end_with_a_killed_server(mortal_front: Front) -> None:
    front = mortal_front
    processes = [front.process_of("Walk"), front.process_of("Swim")]
    front.running.process.kill()
    front.running.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{process}/cmdline").exists() for process in processes))


@pytest.mark.long
def test_each_environment_sees_its_own_data(front: Front, tmp_path: Path) -> None:
    if not can_bind(tmp_path):
        pytest.skip("this machine does not let a process have mounts of its own")
    for name in ("walk", "swim"):
        front.create(name, name)
        assert front.call(name, "data", "name.txt") == name.title()
    assert not Path("/orwd_data").exists()

    platform = {"OPENREWARD_API_URL": front.url, "OPENREWARD_API_KEY": "none", "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}

    def orwd(*arguments: str) -> str:
        command = [Path(sys.executable).with_name("orwd"), *arguments]
        variables = {**os.environ, **platform}
        return subprocess.run(command, env=variables, check=True, capture_output=True, text=True, timeout=60).stdout

    (tmp_path / "more.txt").write_text("more of Swim")
    assert "Uploaded 1 file" in orwd("upload", "Owner/Swim", str(tmp_path / "more.txt"))
    assert (front.folder / "Swim-data" / "more.txt").read_text() == "more of Swim"
    assert front.call("swim", "data", "more.txt") == "more of Swim"
    listed = orwd("files", "Owner/Swim")
    assert "more.txt" in listed
    assert "2 files, 0 folders" in listed
    orwd("delete-file", "Owner/Swim", "more.txt")
    assert "1 file, 0 folders" in orwd("files", "local/swim")


def test_files_stay_in_their_folder(front: Front) -> None:
    with httpx.Client(base_url=f"{front.url}/v1/files", timeout=30) as client:
        (front.folder / "Walk-data" / "out").symlink_to("/etc")
        for name in ("..%2f..%2fsecrets", "out%2fpasswd", "a%2f..%2f..%2fb", "%2fetc%2fpasswd"):
            assert client.put(f"/walk/{name}", content=b"x").status_code in (400, 404)
            assert client.delete(f"/walk/{name}").status_code in (400, 404)
        assert client.get("/run").status_code == 404
        (front.folder / "Walk-data" / "loop").symlink_to("loop")
        (front.folder / "Walk-data" / "file").touch()
        for name in ("x" * 300, "loop/a", "file/a", f"{'y' * 300}/a"):
            assert client.put(f"/walk/{name}", content=b"x").status_code == 400
        (front.folder / "Walk-data" / "file").unlink()
        many = [{"fileName": "a/b.txt"}, {"fileName": "../b.txt"}]
        assert client.post("/upload-urls", json={"environmentId": "walk", "files": many}).status_code == 400
        assert client.put("/walk/a/b.bin", content=bytes(2**24 + 1)).json() == {"path": "a/b.bin", "size": 2**24 + 1}
        page = client.get("/walk", params={"limit": 1}).json()
        assert page == {
            "files": [{"path": "a/b.bin", "size": 2**24 + 1}],
            "folders": ["a"],
            "nextPageToken": "a/b.bin",
        }
        assert client.get("/walk", params={"pageToken": "a/b.bin"}).json()["files"][0]["path"] == "name.txt"
        assert client.delete("/walk/folder/a").json() == {"deletedCount": 1}


def test_secrets_and_variables_of_the_operator_reach_the_environment(front: Front) -> None:
    front.create("walk", "without", api_key="", openai_api_key="")
    front.create("walk", "with", api_key="mine", openai_api_key="mine")
    assert front.call("without", "secret", "openai_api_key") == "sk-of-the-operator"
    own = front.call("without", "variable", "OPENREWARD_API_KEY")  # for sandboxes of this server
    assert own.startswith("ors_")
    assert front.call("without", "secret", "api_key") == own
    assert [front.call("with", "secret", name) for name in ("api_key", "openai_api_key")] == ["mine", "mine"]
    assert front.call("with", "variable", "OPENREWARD_API_URL") == front.url
    assert front.call("with", "variable", "OPENREWARD_SESSION_URL") == front.url
    assert front.call("with", "variable", "PYTHONHASHSEED") == "0"


@pytest.mark.long
async def test_a_restarted_process_lists_the_tasks_of_the_one_before(mortal_front: Front) -> None:
    """Tasks made of hashes and sets: by their digest, two starts of a process have one list."""
    front = mortal_front

    def tasks() -> list[Any] | None:
        answer = answered(lambda: httpx.post(f"{front.url}/walk/tasks", json={"split": "train"}, timeout=30))
        return answer.json()["tasks"] if answer.status_code == 200 else None

    before, listed = front.process_of("Walk"), tasks()
    assert listed
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: _other_process(front, "Walk", before) and tasks() is not None)
    again = tasks()
    assert again
    assert await digest_of(again) == await digest_of(listed)


def _other_process(front: Front, name: str, before: int) -> bool:
    try:
        return front.process_of(name) != before
    except (LookupError, OSError):  # it is not there yet, or one of those above it has just gone
        return False


def test_the_operator_may_choose_the_seed_of_hashes() -> None:
    given = {"PYTHONHASHSEED": "7", "PYTHONPATH": "/elsewhere"}
    passed = serving.variables_of_environments(given, "http://here")
    assert {name: value for name, value in passed.items() if name in given} == {"PYTHONHASHSEED": "7"}


def test_sessions_are_recorded(front: Front) -> None:
    for name in ("walk", "swim"):
        assert front.create(name, f"recorded {name}").status_code == 200
        assert front.call(f"recorded {name}", "wait", "0") == "waited"
        deleted = httpx.post(f"{front.url}/delete", headers={"X-Session-ID": f"recorded {name}"})
        assert deleted.status_code == 200

    def stored() -> set[tuple[str, float, bool]]:
        runs = httpx.get(f"{front.url}/v1/runs").json()["runs"]
        rows: list[dict[str, Any]] = (
            httpx.get(f"{front.url}/v1/runs/{runs[0]['name']}/rollouts").json()["rollouts"] if runs else []
        )
        return {(row["environment"], row["max_reward"], row["finished"]) for row in rows}

    wait_until(lambda: {("swim", 1.0, True), ("walk", 1.0, True)} <= stored())


def test_a_toolset_needs_a_sandbox_or_is_refused_by_name(front: Front) -> None:
    """Firehorse falls back on a 400 that says toolset or sandbox."""
    for name in ("claude-code", "no-such"):
        body = {"env_name": "walk", "split": "train", "index": 0, "toolset_name": name}
        refused = httpx.post(f"{front.url}/create", json=body, headers={"X-Session-ID": name}, timeout=60)
        assert refused.status_code == 400
        assert "toolset" in refused.text
