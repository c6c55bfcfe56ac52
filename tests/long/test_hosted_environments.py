"""Published environments, unchanged: ``ors-server host CHECKOUT`` and an episode with the real client.

The scaffold with a sandbox, which opens its sandboxes on the address that serves it, is played with a folder of data.

``ORS_PUBLISHED_ENVIRONMENTS`` names folders of checkouts, as in ``test_published_environments``. Environments that need
more than Python (a judge, data, images) are left out, by the table of needs.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from openreward import OpenReward

from tests.long.test_published_environments import VARIABLE, checkouts
from tests.support.paths import ROOT
from tests.support.servers import executable, free_port, running

pytestmark = pytest.mark.long

#: Seconds for the virtual environment, which pip may have to download.
_PATIENCE = 1200


@pytest.mark.skipif(not checkouts(), reason=f"{VARIABLE} names no folder with checkouts of published environments")
@pytest.mark.parametrize("checkout", checkouts(), ids=lambda checkout: checkout.name)
def test_an_episode_is_played(checkout: Path, tmp_path: Path) -> None:
    host = (sys.executable, "-m", "ors_cli", "host", str(checkout), "--check")
    checked = subprocess.run(host, capture_output=True, text=True, check=False)
    assert checked.returncode in (0, 1), checked.stderr
    if checked.returncode == 1:
        pytest.skip(f"{checkout.name} needs more than Python")
    table = tmp_path / "table"
    played = subprocess.run(
        (sys.executable, str(ROOT / "scripts" / "play-hosted"), str(checkout), "--output", str(table)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    print(table.read_text().splitlines()[-1])


def test_an_environment_opens_sandboxes_on_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN mkdir -p /home/ubuntu\nWORKDIR /home/ubuntu\n")
    images = '[images]\n"generalreasoning/python-ds:3.12-tools" = { dockerfile = "Dockerfile" }\n'
    (tmp_path / "images.toml").write_text(images)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hint.txt").write_text("look here\n")
    quiet = {**os.environ, "HOME": str(tmp_path), "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
    scaffold = (str(Path(sys.executable).with_name("orwd")), "init", "x", "--template", "sandbox")
    subprocess.run(scaffold, cwd=tmp_path, check=True, capture_output=True, env=quiet)
    port = free_port()
    for variable in ("OPENREWARD_API_URL", "OPENREWARD_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
    variables = {"ORS_IMAGE_MAP": str(tmp_path / "images.toml"), "ORS_DATA_DIR": str(tmp_path / "served")}
    host = [executable(), "host", str(tmp_path / "x"), "--data", f"x={tmp_path / 'data'}", "--port", str(port)]
    with (
        running(host, tmp_path / "log", variables=variables, patience=_PATIENCE),
        OpenReward(api_key="") as client,
    ):
        environment = client.environments.get("sandboxenv")
        with environment.session(split="train", index=0) as session:
            session.get_prompt()
            command = "pwd; cat /tmp/sandbox/hint.txt; echo x > /tmp/sandbox/hint.txt || echo refused"
            (block, *_) = session.call_tool("bash", {"command": command}).blocks
    text = getattr(block, "text", "")
    assert text.startswith("/home/ubuntu\nlook here\n")
    assert text.endswith("refused\n\n(exit 0)")
