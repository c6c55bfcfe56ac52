"""Pages of a server with several workers: an episode finds its worker, and each page says which worker it shows."""

import re
import time
import uuid
from pathlib import Path

import httpx
import pytest

from ors_server import Settings
from ors_server.cluster.gateway.members.placed_ids import PlacedIds
from ors_server.cluster.gateway.members.workers import Member, Workers
from ors_server.cluster.gateway.proxy.framing import read_head
from ors_server.cluster.gateway.routing.page_routing import route_page
from ors_server.keys.exposure import add_key
from tests.server.gateway.conftest import WIRE, Several, start_several


def form_token(page: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def opening(page: httpx.Response) -> str:
    """Return the path of the episode that the form of a task's page opens."""
    found = re.search(r'action="([^"]+)/open"', page.text)
    assert found is not None, page.text
    return found[1]


def test_an_episode_stays_where_it_is_when_workers_come_and_go() -> None:
    """The id in a form names its worker: no later view of the workers leads elsewhere."""
    workers, ids = Workers(), PlacedIds(b"key")

    def view(*members: Member) -> None:
        for worker in workers.replace(members)[0]:
            worker.report({"sessions": 0, "max_sessions": 9})

    def routed(path: str) -> tuple[int, str]:
        head = read_head(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-ORS-New-Session: chosen\r\n\r\n".encode())
        assert head is not None
        worker = route_page(workers, ids, head, path)
        found = re.findall(rb"x-ors-new-session: (.*)\r\n", head.data)
        return worker.place.slot, found[0].decode()

    first, *others = (Member(slot, 1, f"unix:/{slot}") for slot in range(12))
    view(first)
    sid = routed("/ui/environments/wire/task")[1]
    assert ids.read(sid) == first.place
    view(first, *others)
    assert routed(f"/ui/environments/wire/sessions/{sid}/tool") == (0, "")
    assert len({ids.read(routed("/ui/environments/wire/task")[1]) for _ in range(50)}) > 1
    view(*others)  # another worker says that there is no such episode
    assert routed(f"/ui/environments/wire/sessions/{sid}")[0] > 0


def test_an_episode_is_found_whichever_worker_shows_its_form(several: Several) -> None:
    with several.client() as client:
        owners: set[str] = set()
        for number in range(64):  # an id that is drawn chooses the worker
            page = client.get("/ui/environments/wire/task?index=0")
            assert page.status_code == 200, page.text
            # The id in the form, which a gateway has made, and one of a client's own.
            path = opening(page) if number % 2 else f"/ui/environments/wire/sessions/{uuid.uuid4()}"
            token = form_token(page)
            opened = client.post(f"{path}/open", data={"form_token": token, "split": "train", "index": "0"})
            assert opened.status_code == 303, opened.text
            for _ in range(100):
                page = client.get(path)
                assert page.status_code == 200, page.text
                if "being set up" not in page.text:
                    break
                time.sleep(0.02)
            for count in (1, 2):
                page = client.post(f"{path}/tool", data={"form_token": token, "tool": "step", "arg.text": "x"})
                assert page.status_code == 303, page.text
                assert client.get(path).text.count("m-tool_result") == count
            found = re.search(r"worker (\d+)", page.text or client.get(path).text)
            assert found is not None
            owners.add(found[1])
            assert client.post(f"{path}/end", data={"form_token": token}).status_code == 303
            if number >= 5 and len(owners) == 2:
                break
        assert owners == {"0", "1"}


def test_pages_of_what_lives_now_are_of_the_worker_that_is_asked_for(several: Several) -> None:
    with several.client() as client:
        for slot in ("0", "1"):
            for page in ("sessions", "sandboxes"):
                text = client.get(f"/ui/{page}?worker={slot}").text
                assert f"This is worker {slot};" in text
                assert re.findall(rf"/ui/{page}\?worker=(\d)\"", text) == ["0", "1"]
            assert f"/ui/sessions/events?worker={slot}" in client.get(f"/ui/sessions?worker={slot}").text
        for slot in ("7", "-1", "x", "1" * 50):
            assert client.get(f"/ui/sessions?worker={slot}").status_code == 200
        assert client.get("/ui/sessions", headers={"X-ORS-Workers": "5 6"}).text.count("?worker=5") == 0


def test_other_pages_are_those_of_one_server(several: Several) -> None:
    with several.client() as client:
        for path in ("", "/environments/wire/tasks", "/runs", "/rollouts", "/help", "/static/style.css"):
            assert client.get(f"/ui{path}").status_code == 200, path
        assert client.get("/ui/environments/nope").status_code == 404
        assert client.get("/ui/environments/nope/sessions/x").status_code == 404
        assert client.post("/ui/environments/wire/sessions/x/tool").status_code == 404
        assert client.post("/ui/login", content=b"x" * 5_000_000).status_code == 413
        with client.stream("GET", "/ui/sessions/events") as events:
            assert "event: rows" in next(events.iter_lines())


@pytest.mark.long
def test_a_log_in_holds_behind_gateways(tmp_path: Path) -> None:
    secret = add_key(Settings(data_dir=tmp_path / "data"), "anna")
    with start_several(tmp_path, f"{WIRE}:Wire") as server, server.client() as client:
        assert client.get("/ui/environments").headers["location"] == "/ui/login"
        assert client.get("/list_environments").status_code == 401
        token = form_token(client.get("/ui/login"))
        assert client.post("/ui/login", data={"form_token": token, "key": "ors_wrong"}).status_code == 401
        assert client.post("/ui/login", data={"form_token": token, "key": secret}).status_code == 303
        for _ in range(6):
            assert "anna" in client.get("/ui/environments").text
            page = client.get("/ui/environments/wire/task?index=0")
            path = f"/ui/environments/wire/sessions/{uuid.uuid4()}"
            fields = {"form_token": form_token(page), "split": "train", "index": "0"}
            assert client.post(f"{path}/open", data=fields).status_code == 303
            assert client.get(path).status_code == 200
        assert client.get("/list_environments").status_code == 401
        client.cookies.clear()
        token = form_token(client.get("/ui/login"))
        statuses = {
            client.post("/ui/login", data={"form_token": token, "key": str(number)}).status_code for number in range(50)
        }
        assert statuses == {401, 429}
