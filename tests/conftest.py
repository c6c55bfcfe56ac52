"""Says at the end of every run which tests did not run, and why: a skip nobody reads is a test nobody has.

Where ``NOT_RUN`` names a file it is said there as well: `make test` runs several processes, and shows what all of them
left out in one place.
"""

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter that every user of the machine may run; this one may lie where only its owner can look."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    found = shutil.which("python3", path="/usr/bin")
    probe = [found or "", "-c", "import sys; print(sys.version_info >= (3, 11))"]
    if found is None or subprocess.run(probe, capture_output=True, text=True, check=True).stdout != "True\n":
        pytest.skip("there is no Python 3.11 in /usr/bin, and an ordinary user may not reach this one")
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints one line a reason, with the tests it kept from running."""
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
    """The reason given to `pytest.skip` or to a mark; pytest keeps it as (path, line, "Skipped: reason")."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return getattr(report, "wasxfail", "no reason given")
