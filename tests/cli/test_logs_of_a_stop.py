"""Logs of servers that consist of several processes: JSON from the first line, and the stop in them."""

import json
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import WriteEnvironment
from tests.support.servers import Running, running, running_workers

KEY = "a key of the tests, long enough"
#: `ors-server host` without the minutes in which packages are installed.
HOST = """
import sys
from pathlib import Path
import ors_server.checkouts.virtualenv as virtualenv

def provide(name, requirements, root, progress):
    progress("installing requirements.txt")
    return Path(sys.executable)

virtualenv.provide_virtualenv = provide
from ors_cli import main
main()
"""


def events_of(server: Running) -> list[str]:
    """Stop a server; return the events of its log, each line of which is JSON."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert server.output.read_text() == ""
    entries = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [entry["event"] for entry in entries if "slot" not in entry]


def test_a_server_with_workers(tmp_path: Path, write_environment: WriteEnvironment) -> None:
    with running_workers(tmp_path, write_environment("talk"), ORS_LOG_FORMAT="json") as server:
        events = events_of(server)
    assert events == ["serving", "stopping", "stopped"]


def test_a_gateway_of_a_cluster(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ors_cli", "gateway", "--port", "0"]
    with running(command, tmp_path, variables={"ORS_LOG_FORMAT": "json", "ORS_CLUSTER_KEY": KEY}) as server:
        httpx.get(f"{server.url}/health", timeout=60)  # answered once its event loop gets the signals
        events = events_of(server)
    assert events[-2:] == ["stopping", "stopped"]


@pytest.mark.long
def test_hosted_environments(tmp_path: Path, write_environment: WriteEnvironment) -> None:
    pytest.importorskip("openreward")
    folder = write_environment("talk")
    (folder / "requirements.txt").touch()
    (folder / "environment.py").rename(folder / "server.py")
    bad = tmp_path / "bad"
    bad.mkdir()
    variables = {"ORS_LOG_FORMAT": "json", "ORS_DATA_DIR": str(tmp_path / "data"), "ORS_MAX_BODIES": "10"}
    command = [sys.executable, "-c", HOST, "host", str(folder), str(bad), "--port", "0"]
    with running(command, tmp_path / "run", variables=variables) as server:
        events = events_of(server)
    assert "ORS_MAX_BODIES" in events[0]
    assert any(event.startswith("bad is not served: ") for event in events)
    assert {"needs", "preparing", "serving"} < set(events)
    assert events[-2:] == ["stopping", "stopped"]
