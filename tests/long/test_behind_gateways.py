"""The suites of real clients and of lost connections, with every server two workers behind two gateways."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.long


@pytest.mark.parametrize("suite", ["compat/real_clients", "server/robustness", "clients/test_client_lifetime.py"])
def test_the_suite_passes_behind_two_gateways(suite: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / suite)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ORS_TEST_WORKERS": "2", "NOT_RUN": os.devnull},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5000:]
