"""``ors-server check``: the faults of both reference servers, and none here, also behind gateways and nginx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.long.test_proxies import nginx_command
from tests.support.servers import free_port, launched, running, running_workers

pytestmark = pytest.mark.long

#: Rules that a fault of protocol.md's list of weaknesses breaks, by server.
OF_BOTH = {
    "server.unknown-environment",
    "discovery.deployment",
    "tasks.of-a-subclass",
    "session.create-session-json",
    "session.repeated-create",
    "session.unshared-tools",
    "session.other-environment",
    "session.bad-secrets",
    "session.gone",
    "session.ping-after-failed-setup",
    "session.teardown-after-calls",
    "call.white-space",
    "call.foreign-task-id",
    "call.during-setup",
    "call.cancelled",
    "call.nan-reward",
    "call.surrogate",
    "call.metadata",
    "limits.body",
    "limits.head",
    "reveals.body",
}
OF_ONE = {
    "ors-sdk": {
        "tasks.one",
        "tasks.range",
        "session.messages",
        "session.secrets-arrive",
        "session.teardown-after-failed-setup",
        "call.reasons",
        "call.finished",
    },
    "openreward": {"session.create-at-once", "session.secrets-body"},
}
PROBE = [f"ors_clients.conformance.own_probe:{name}" for name in ("OrsProbe", "OrsProbeDerived")]


def checked(target: str, folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """Run the command; return its exit status and the outcome of each rule."""
    file = folder / "report.json"
    command = [sys.executable, "-m", "ors_cli", "check", target, "--json", str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert file.exists(), done.stderr
    report: Any = json.loads(file.read_text())
    assert "Traceback" not in done.stderr
    for rule in report["rules"]:
        if rule["outcome"] != "passed":
            sys.stdout.write(f"{rule}\n")  # the reasons, for a test that fails
    return done.returncode, {rule["id"]: rule["outcome"] for rule in report["rules"]}


@pytest.mark.parametrize("sdk", ["ors-sdk", "openreward"])
def test_the_faults_of_the_reference_servers_are_found(sdk: str, tmp_path: Path) -> None:
    variables = {"ORS_PROBE_DIR": str(tmp_path / "probe"), "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
    with launched("compat.reference_servers.probed", tmp_path / "server", sdk, variables=variables) as server:
        status, outcomes = checked(server.url, tmp_path)
    broken = {id for id, outcome in outcomes.items() if outcome == "failed"}
    assert status == 1
    assert OF_BOTH | OF_ONE[sdk] <= broken
    assert "error" not in outcomes.values()


def passed(outcomes: dict[str, str], *not_tried: str) -> bool:
    others = {id: outcome for id, outcome in outcomes.items() if outcome != "passed"}
    assert others == dict.fromkeys(not_tried, "not tried")
    return True


def test_ours_behind_gateways_and_slow_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_PROBE_DIR", str(tmp_path / "probe"))
    with running_workers(tmp_path / "server", *PROBE, workers=2, gateways=1) as server:
        status, outcomes = checked(server.url, tmp_path, "--slow")
    assert status == 0
    assert passed(outcomes)


def test_ours_behind_nginx(tmp_path: Path) -> None:
    if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        pytest.skip("nginx is not installed")
    variables = {
        "ORS_PROBE_DIR": str(tmp_path / "probe"),
        "ORS_DATA_DIR": str(tmp_path / "data"),
        "ORS_LISTEN": "tcp:127.0.0.1:0",
    }
    command = [sys.executable, "-m", "ors_cli", "serve", *PROBE]
    with running(command, tmp_path / "server", variables=variables) as server:
        (tmp_path / "nginx").mkdir()
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with running(nginx_command(tmp_path / "nginx", port, server.port), tmp_path / "proxy", url=url):
            status, outcomes = checked(url, tmp_path)
    assert status == 0
    assert passed(outcomes, "call.heartbeat", "call.late-result")


def test_a_target_with_an_environment_that_comes_along(tmp_path: Path) -> None:
    status, outcomes = checked("echo", tmp_path, "--reward-range", "0", "1")
    assert status == 0
    assert {outcomes[rule] for rule in ("target.calls", "target.rewards", "target.same-tasks")} == {"passed"}
