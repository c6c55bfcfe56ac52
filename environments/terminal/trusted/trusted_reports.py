"""Reports of the process that runs the tests, and the outcome that follows from them.

The process that decides has started before the tests, has run none of them, and reads the reports from a pipe.

Invariant: nothing counts after the last report, and without it there is no verdict but an error of the grader.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Callable
from typing import Any

#: Outcomes of a run, and the exit status of each.
PASSED, FAILED, BROKEN, INTERNAL = "passed", "failed", "broken", "internal"
REFUSED, EMPTY, NETWORK, KILLED = "refused", "empty", "network", "killed"
STATUS = {PASSED: 0, FAILED: 1, BROKEN: 2, INTERNAL: 3, REFUSED: 4, EMPTY: 5, NETWORK: 6, KILLED: 7}

#: In characters. As JSON a character takes up to 12 bytes, and the grader keeps 64 KiB of the output.
DETAIL_LIMIT = 5_000
#: Bytes of the line that lists the tests, and characters of a name and of what a test that failed says in it.
_LIST_LIMIT, _NAME_LIMIT, _SAID_LIMIT = 64 * 1024, 200, 2_000


class Reports:
    """Reports of the process that runs the tests."""

    def __init__(self, say: Callable[..., None]) -> None:
        """``say`` passes on what the server has to know before the verdict."""
        self._say = say
        self.passed = 0
        #: Names of tests that passed, as many as a list may have.
        self.names: list[str] = []
        #: Descriptions of failures, by the name of the test.
        self.failed: dict[str, str] = {}
        #: The last report; None if there was none.
        self.findings: dict[str, Any] | None = None

    def collect(self, reports: int, child: int) -> int:
        """Read until the process has ended. Return its exit status; a signal's number is negative."""
        os.set_blocking(reports, False)
        ended = os.pidfd_open(child)
        poll = select.poll()
        poll.register(reports, select.POLLIN)
        poll.register(ended, select.POLLIN)
        rest, last = b"", False
        while not last:
            # What it has written is read once more after its end. A copy of it may still have the pipe open.
            last = any(descriptor == ended for descriptor, _ in poll.poll())
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(reports, 1 << 16):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._take(line)
                else:
                    poll.unregister(reports) if not last else None
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _take(self, line: bytes) -> None:
        if self.findings is not None:
            return  # nothing counts after the end of the tests
        try:
            words = json.loads(line)
            if "ready" in words:
                self._say(ready=True)
            elif "ran" in words:
                self._say(ran=str(words["ran"])[:200])
            elif "programs" in words:
                self._say(programs=words["programs"])
            elif "passed" in words:
                self.passed += 1
                if len(self.names) < 500:
                    self.names.append(str(words["passed"]))
            elif "failed" in words:
                self.failed[str(words["failed"])] = str(words["detail"])
            else:
                self.findings = words["findings"]
        except (ValueError, KeyError, TypeError) as error:
            # This process wrote something else to the pipe, which sound code of the grader does not.
            self.findings = {"failed": f"a report that is none: {error}"}

    def listed(self) -> list[list[str]]:
        """Return name, outcome and words of each test, those that failed first, as many as fit into their line."""
        tests = [[name, FAILED, detail] for name, detail in self.failed.items()]
        tests += [[name, PASSED, ""] for name in self.names if name not in self.failed]
        found: list[list[str]] = []
        size = 0
        for name, outcome, detail in tests:
            test = [name[:_NAME_LIMIT], outcome, detail[:_SAID_LIMIT]]
            size += len(json.dumps(test)) + 2
            if size > _LIST_LIMIT:
                break
            found.append(test)
        return found


def judge(said: Reports, text: str) -> tuple[str, str]:
    """Return the outcome and its detail, from the reports of the process that ran the tests."""
    found = said.findings
    if found is None:
        return INTERNAL, "the tests ended without a report"
    if "internal" in found:
        return INTERNAL, found["internal"]
    if "failed" in found:
        return FAILED, found["failed"]
    status = found["status"]
    if found["refused"]:
        return REFUSED, found["refused"]
    if found["planted"]:
        return FAILED, f"{found['planted']} would have run inside the grader"
    if found["exhausted"]:
        return FAILED, "the tests were led to start more programs than can be kept apart"
    if found["remote"] and status != 0:
        return NETWORK, found["remote"]
    if status == 0 and found["killed"]:
        return KILLED, found["killed"]
    if status == 0 and found["misled"]:
        return FAILED, found["misled"]
    if status == 0 and not said.failed:
        # Skipped tests prove nothing.
        return (PASSED, "") if said.passed else (FAILED, "every test was skipped")
    if status in (0, 1):
        return FAILED, "\n".join(f"{name}: {detail}" for name, detail in said.failed.items())
    if status == 2:
        return (BROKEN if found.get("own") else FAILED), found.get("error", "pytest ended with 2")
    if status == 5:
        # Where the state decides which tests exist, an agent that leaves nothing to test has not done the task.
        return (FAILED if has_conditional_tests(text) else EMPTY), "there is no test"
    # A program of the agent that the tests have started may have damaged anything that its user can write.
    return (FAILED if found["started"] else INTERNAL), f"pytest ended with {status}"


def doubt_about(found: dict[str, Any]) -> str:
    """Return the finding for which tests have not passed although none but the one that must fail has failed."""
    if "failed" in found:
        return found["failed"]
    if found.get("planted"):
        return f"{found['planted']} would have run inside the grader"
    if found.get("exhausted"):
        return "too many programs"
    if found.get("status", 1) != 1:
        return f"the tests ended with {found['status']}, not with a test that failed"  # some may not have run
    return found.get("killed") or found.get("misled") or ""


def has_conditional_tests(text: str) -> bool:
    """Return whether a module defines tests in branches or loops, or by name, so that there may be none."""
    import ast  # rarely needed

    module = ast.parse(text)
    for statement in module.body:
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try, ast.With)) and any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.lower().startswith("test")
            for node in ast.walk(statement)
        ):
            return True
    names = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    return bool(names & {"globals", "vars", "setattr", "locals"}) or "pytest_generate_tests" in defined
