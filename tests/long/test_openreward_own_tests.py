"""OpenReward's own tests, from openreward's source distribution, with our ``Server`` instead of theirs.

They run in the virtual environment that scripts/openreward-venv makes, in a process of their own; the plugin
``openreward/our_server.py`` replaces the ``Server`` that they import. That process has a loopback device of its own,
because their servers' ports are fixed (8080 is one), and no network. Some tests cannot pass, each for a reason listed
here: a new failure is a fault of ours, and after a new success its line has to be removed.
"""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.virtualenvs import made_by

pytestmark = pytest.mark.long

OWN_LOOPBACK = ("bwrap", "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent", "--")
#: Sets a constant of the reference server's module.
PRIVATE = "patches a private part of the reference server"
#: Takes a route out of the application's router, to simulate an older server. Ours answers episodes before its router.
ROUTER = "takes a route out of the reference server's router"
#: Its client uses the hosted platform.
INTERNET = "needs the internet"
EXPECTED = {
    "test_environment.test_readiness_wait_returns_retryable_starting_on_timeout": PRIVATE,
    "test_messages.test_old_server_falls_back_to_prompt": ROUTER,
    "test_score_group.test_old_server_raises_unsupported": ROUTER,
    "test_errors.test_nonexistent_environment": INTERNET,
    "test_errors.test_missing_api_key": INTERNET,
}


@pytest.fixture(scope="module")
def openreward_python() -> Path:
    """Return the Python that has the packages. The first run of a machine downloads them."""
    return made_by("openreward-venv")


def test_they_pass_with_our_server(openreward_python: Path, tmp_path: Path) -> None:
    sources = openreward_python.parent.parent / "sources" / "tests"
    files = sorted(path for path in sources.glob("test_*.py") if re.search(r"\bServer\b", path.read_text()))
    assert len(files) >= 10
    report = tmp_path / "report.xml"
    variables = {
        "PYTHONPATH": os.pathsep.join(
            map(
                str,
                [ROOT, ROOT / "clients", ROOT / "containers", ROOT / "tests" / "long" / "openreward", sources],
            )
        ),
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    options = ["-q", "-p", "our_server", "-p", "no:cacheprovider", "-W", "ignore", "--junit-xml", report]
    finished = subprocess.run(
        [*OWN_LOOPBACK, openreward_python, "-m", "pytest", *options, *files],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    print(finished.stdout[-20_000:])
    assert report.exists(), finished.stderr[-5000:]
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = {
        f"{(case.get('classname') or '').rpartition('.tests.')[2].rpartition('.')[2]}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    assert len(cases) >= 300
    assert failed == set(EXPECTED), finished.stderr[-5000:]
