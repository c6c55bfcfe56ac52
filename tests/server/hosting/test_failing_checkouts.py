"""Checkouts that cannot be served: the others serve, and requests for them get the reason."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ors_server.checkouts.errors import HostError
from ors_server.checkouts.loaded_checkouts import Failures
from ors_server.cluster.supervisor.control import ask
from tests.server.hosting.conftest import SOURCE, can_bind
from tests.support.paths import ROOT
from tests.support.servers import Running, running

UNPREPARED = "its packages exclude each other. Correct them."
BROKEN = "cannot be imported: RuntimeError: no weights here"


@contextmanager
def served(folder: Path, *names: str) -> Generator[Running]:
    """Serve checkouts by name: ``Walk`` works, ``Broken`` fails at its import, ``Absent`` before."""
    pytest.importorskip("openreward")
    arguments: list[str] = [] if can_bind(folder) else ["--unmounted"]
    for name in names:
        data = folder / f"{name}-data"
        data.mkdir()
        (folder / name).mkdir()
        failing = "\nraise RuntimeError('no weights here')\n" if name == "Broken" else ""
        (folder / name / "server.py").write_text(SOURCE.replace("NAME", name) + failing)
        arguments += [str(folder / name), "-" if name == "Absent" else str(data)]
    command = [sys.executable, "-m", "tests.server.hosting.hosted_server", *arguments]
    with running(command, folder / "log", cwd=ROOT, variables={"ORS_DATA_DIR": str(folder / "kept")}) as server:
        yield server


@pytest.mark.long
def test_the_others_serve(tmp_path: Path) -> None:
    with (
        served(tmp_path, "Absent", "Walk", "Broken") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert client.get("/list_environments").json() == ["walk"]
        assert [each["name"] for each in client.get("/v1/environments").json()["environments"]] == ["walk"]
        assert client.get("/health").status_code == client.get("/ready").status_code == 200

        def created(name: str) -> httpx.Response:
            body = {"split": "train", "index": 0, **({"env_name": name} if name else {})}
            return client.post("/create", json=body, headers={"X-Session-ID": f"of-{name}"})

        assert created("walk").status_code == created("Owner/Walk").status_code == 200
        for name, reason in (("Absent", UNPREPARED), ("broken", BROKEN), ("Owner/Broken", BROKEN)):
            last = name.rpartition("/")[2]
            for refused in (
                created(name),
                client.post("/create_session", headers={"X-Deployment": name}),
                client.get(f"/{last}/splits"),
                client.get(f"/v1/environments/{name}"),
            ):
                assert refused.status_code == 503, refused.request.url
                assert reason in refused.text
                assert str(tmp_path) not in refused.text
        # The first is the default environment also where it cannot be served: another would not be what was asked for.
        assert created("").status_code == 503
        assert UNPREPARED in created("").text
        rows = ask(httpx.URL(server.url).port or 0, {"command": "list"})["workers"]
        states = {row["name"]: (row["state"], row["reason"]) for row in rows}
        assert states["Walk"] == ("serving", None)
        assert states["Absent"] == ("out", UNPREPARED)
        assert states["Broken"][0] == "out"
        assert BROKEN in states["Broken"][1]
        assert client.get("/metrics").status_code == 200


@pytest.mark.long
@pytest.mark.parametrize("names", [["Broken"], ["Absent", "Broken"]])
def test_a_server_without_any_ends_with_the_reason(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(AssertionError, match=BROKEN), served(tmp_path, *names):
        pass


def test_each_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, program in (("Walk", SOURCE.replace("NAME", "Walk")), ("Bad", "import")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.py").write_text(program)
        (tmp_path / name / "requirements.txt").write_text("openreward\n")
    (tmp_path / "Empty").mkdir()
    command = [sys.executable, "-m", "ors_cli", "host", "Bad", "Walk", "Empty", "--check"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert "Walk: server.py" in checked.stdout
    assert "Bad is not served: " in checked.stderr
    assert "Empty is not served: " in checked.stderr
    command[4] = "Bda"
    mistyped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert mistyped.returncode == 2
    assert "There is no checkout Bda" in mistyped.stderr
    assert "Walk" not in mistyped.stdout


def test_the_reason_of_the_only_one_is_the_error() -> None:
    said: list[str] = []
    failures = Failures(said.append)
    failures.require_served(0)
    first = HostError("the network is down", "Retry.")
    with failures.of("one"):
        raise first
    failures.require_served(1)
    with pytest.raises(HostError) as caught:
        failures.require_served(0)
    assert caught.value is first
    failures.add("two", HostError("no packages"))
    with pytest.raises(HostError, match="None of one, two can be served"):
        failures.require_served(0)
    assert said == ["one is not served: the network is down. Retry.", "two is not served: no packages"]
