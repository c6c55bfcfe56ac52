"""Report of the tests that did not run, with the reasons, at the end of every run, so that skips are noticed.

If ``NOT_RUN`` names a file, the report is also appended to it: `make test` runs several processes, and prints the skips
of all of them in one place.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.combinations import leave_to_long_tests
from tests.support.prepared_python import PreparedProgram

# What is imported while tests are collected stays to the end: three seconds of searching it for garbage are saved.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_to_long_tests(items)


@pytest.fixture(scope="session", autouse=True)
def shared_certificates() -> Iterator[None]:
    """Read the trusted certificates once: httpx does so for each client, and tests make thousands for one request."""
    make = httpx.create_ssl_context
    shared = make()

    def context(*arguments: Any, **options: Any) -> Any:
        chosen = dict(zip(("verify", "cert", "trust_env"), arguments, strict=False)) | options
        own = chosen.get("verify", True) is not True or chosen.get("cert")
        return make(**chosen) if own else shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", context)
        yield


@pytest.fixture(scope="session", autouse=True)
def programs_of_ours_are_copies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subprocess.Popen", PreparedProgram)
        yield


@pytest.fixture(scope="session")
def python() -> str:
    """Return an interpreter that every user of the machine can run; this process's may lie where only its owner can
    look.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    found = shutil.which("python3", path="/usr/bin")
    probe = [found or "", "-c", "import sys; print(sys.version_info >= (3, 11))"]
    if found is None or subprocess.run(probe, capture_output=True, text=True, check=True).stdout != "True\n":
        pytest.skip("there is no Python 3.11 in /usr/bin, and an ordinary user may not reach this one")
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason, with the tests it kept from running."""
    lines = list(_not_run(terminalreporter))
    terminalreporter.section("not run")
    for line in lines or ["nothing was skipped."]:
        terminalreporter.line(line)
    if path := os.environ.get("NOT_RUN"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


def _not_run(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    tests_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.getreports("skipped"):
        tests_by_reason[_reason(report)].append(report.nodeid)
    if deselected := len(terminalreporter.stats.get("deselected", [])):
        yield f"{deselected} tests were not selected; `make test-all` runs every test."
    for reason, tests in sorted(tests_by_reason.items()):
        yield f"{len(tests)} skipped: {reason}"
        yield from (f"    {test}" for test in tests)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason given to `pytest.skip` or a mark; pytest stores it as (path, line, "Skipped: reason")."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return getattr(report, "wasxfail", "no reason given")
