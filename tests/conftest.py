"""Says at the end of every run which tests did not run, and why: a skip nobody reads is a test nobody has."""

from collections import defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints one line a reason, with the tests it kept from running."""
    tests_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.getreports("skipped"):
        tests_by_reason[_reason(report)].append(report.nodeid)
    deselected = len(terminalreporter.stats.get("deselected", []))

    terminalreporter.section("not run")
    if deselected:
        terminalreporter.line(f"{deselected} tests were not selected; `make test-all` runs every test.")
    for reason, tests in sorted(tests_by_reason.items()):
        terminalreporter.line(f"{len(tests)} skipped: {reason}")
        for test in tests:
            terminalreporter.line(f"    {test}")
    if not deselected and not tests_by_reason:
        terminalreporter.line("nothing was skipped.")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason given to `pytest.skip` or to a mark; pytest keeps it as (path, line, "Skipped: reason")."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return getattr(report, "wasxfail", "no reason given")
