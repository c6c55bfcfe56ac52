"""The results of tests, and the outcome that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps
from typing import Any

#: Outcomes of a run, and the exit status of each.
PASSED, FAILED, BROKEN, INTERNAL = "passed", "failed", "broken", "internal"
REFUSED, EMPTY, NETWORK, KILLED = "refused", "empty", "network", "killed"
STATUS = {PASSED: 0, FAILED: 1, BROKEN: 2, INTERNAL: 3, REFUSED: 4, EMPTY: 5, NETWORK: 6, KILLED: 7}

#: In characters. As JSON a character takes up to 12 bytes, and the grader keeps 64 KiB of the output.
DETAIL_LIMIT = 5_000
#: Bytes of the line that lists the tests, and characters of a name and of what a test that failed says in it.
_LIST_LIMIT, _NAME_LIMIT, _SAID_LIMIT = 64 * 1024, 200, 2_000
_MOST_NAMES = 500


class Reports:
    """The results so far."""

    def __init__(self, say: Callable[..., None]) -> None:
        """``say`` writes a line for the server."""
        self.say = say
        self.passed = 0
        #: Names of tests that passed, as many as a list may have.
        self.names: list[str] = []
        #: Descriptions of failures, by the name of the test.
        self.failed: dict[str, str] = {}

    def note_success(self, name: str) -> None:
        """Note a test that passed."""
        self.passed += 1
        if len(self.names) < _MOST_NAMES:
            self.names.append(name)

    def list(self) -> None:
        """Say the name, outcome and words of each test, those that failed first, as many as fit into their line."""
        tests = [[name, FAILED, detail] for name, detail in self.failed.items()]
        tests += [[name, PASSED, ""] for name in self.names if name not in self.failed]
        found: list[list[str]] = []
        size = 0
        for name, outcome, detail in tests:
            test = [name[:_NAME_LIMIT], outcome, detail[:_SAID_LIMIT]]
            size += len(dumps(test)) + 2
            if size > _LIST_LIMIT:
                break
            found.append(test)
        self.say(tests=found, in_all={PASSED: self.passed, FAILED: len(self.failed)})


def judge(said: Reports, found: dict[str, Any], text: str) -> tuple[str, str]:
    """Return the outcome and its detail, from the results and from what was found besides."""
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
