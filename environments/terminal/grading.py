"""Grading: runs trusted tests, which the agent cannot reach, on the state that an agent left.

``frozen``: every process of the agent is ended before the tests run. ``live``: its shell is ended and its services go
on, for tasks that are about them. In both cases the tests, the interpreter and pytest come from outside of the sandbox
(``Sandbox.examine``, ``trusted_runner``) and run with the image's variables, never the agent's.

Outcomes and their rewards:

 | |
---|---|
 every test passes | 1 |
 a test fails, or the tests' module fails on the state it finds | 0 |
 the tests take too long, or a program that they start ends the grader | 0 |
 what the agent left running was killed and does not end | 0 |
 they would run the agent's code inside the grader | 0 |
 the processes of the agent leave no room for a live examination | 0 |
 they pass, but a program of theirs was ended by a signal that they have not sent | 0 |
 the tests cannot be imported, or hold no test | ``TestsUnfit`` |
 the tests fail and have looked for a host outside which they name, before they asked any service | ``TestsUnfit`` |
 they fail and were led to such a host by what the agent left | 0 |
 the examination cannot be made, or reports nothing | ``GradingFailed`` or what ``examine`` raises |

An agent may have caused a failure all the same: ``failure_cause`` decides that before a failure reaches a client.

With ``import_code`` the agent's code may run in the tests' process. There it can do what the tests can, so the tests
get one that must fail (``canary``), of which only this process knows. The verdict is a pass if this test alone has
failed, and it carries a mark if code of the agent ran.

Invariant: a verdict is taken only from a line that carries the nonce of this examination. ``GradingFailed`` is an
``InfrastructureFailure``: it never becomes a reward.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import marshal
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ors_containers import (
    CommandResult,
    ExaminationFailed,
    InfrastructureFailure,
    ProcessesRemain,
    Sandbox,
    WarmProgram,
)
from ors_containers.sandbox import EXAMINATION

from .states.program import with_seed
from .tests_code.canary import name_of_canary, with_canary
from .tests_code.grader_lines import Said, read_lines
from .tests_code.plain_tests import plain_tests

if TYPE_CHECKING:  # grading needs sandboxes, and no server
    from ors_server import JSONObject

__all__ = ["CODE_RAN", "GradingFailed", "GradingLate", "TestsUnfit", "Tools", "Verdict", "run_tests", "verdict_of"]

#: The mark of a verdict of tests in whose process the agent's code ran.
CODE_RAN = "the agent's code ran in the tests' process"

#: The examination's program, and the modules that it imports from its folder.
_RUNNER = "trusted_runner"
_PARTS = ("data", "endings", "guard", "links", "programs", "reports", "running", "surroundings", "texts")
#: What a warm Python has imported before: what the program imports later, and what most tests do.
_AHEAD = (
    *("process_isolation", "stray_processes", "program_rights", "sealed_programs"),
    *("csv", "glob", "gzip", "hashlib", "pathlib", "random", "re"),
    *("shutil", "subprocess", "tarfile", "tempfile", "zipfile"),
)
#: What it has imported besides where tests need it. Each copy of a Python with it takes twice the time, and an
#: examination has four.
_FRAMEWORK = "pytest"
#: The verdict, the list of tests, and the programs where they are recorded.
_OUTPUT_LIMIT = 192 * 1024
_WORDS = {"timed out": "The tests took too long.", "killed": "The tests were killed."}
#: Outcomes that are the fault of the tests.
_UNFIT = {
    "broken": "cannot be imported",
    "empty": "test nothing",
    "network": "need the network",
}


class GradingFailed(InfrastructureFailure):
    """The tests did not reach a verdict."""


class GradingLate(GradingFailed):
    """The grader did not begin in time, and no process of the agent ran beside it."""


class TestsUnfit(GradingFailed):
    """The tests cannot judge the state: they cannot be imported, hold no test, or need a network."""


class Tools(Protocol):
    """The part of a toolset that grading needs."""

    @property
    def command(self) -> Sequence[str]:
        """Command that starts its Python in a sandbox."""
        ...

    @property
    def packages(self) -> str:
        """Folder of its pytest in a sandbox."""
        ...

    @property
    def bind(self) -> tuple[Path, str]:
        """Its folder on this machine, and the path of that folder in a sandbox."""
        ...


@dataclass(frozen=True)
class Verdict:
    """Verdict of the tests. ``detail`` quotes them and is for the server's log, never for a client."""

    passed: bool
    how: Literal["passed", "failed", "timed out", "killed"]
    detail: str = ""
    #: Code of the sandbox that was kept from running in the tests' process; empty for none.
    kept_out: str = ""
    #: Test, name and places of each program that was given a place of the agent, where the record was asked for.
    programs: tuple[Sequence[Any], ...] = ()
    #: A reservation about the verdict (``CODE_RAN``); empty for none.
    mark: str = ""
    #: Seed of the drawn cases: the same state with the same seed has the same verdict. Never for a client.
    seed: int = 0
    #: Name, ``passed`` or ``failed``, and words of the tests; the numbers of others by their outcomes. Never for a
    #: client.
    tests: tuple[tuple[str, str, str], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def data(self) -> JSONObject:
        """Findings for the record of the episode (docs/environments.md)."""
        listed = any(outcome == "failed" for _, outcome, _ in self.tests)
        return {
            "summary": _WORDS.get(self.how, ""),
            "tests": [{"name": name, "outcome": outcome, "output": words} for name, outcome, words in self.tests],
            "left_out": dict(self.left_out),
            # Where no test has failed, the reason is another one, such as a module that cannot be imported.
            "output": "" if listed and self.how == "failed" else self.detail,
        }


async def run_tests(
    sandbox: Sandbox,
    tools: Tools,
    tests: str,
    *,
    live: bool,
    timeout: float,
    import_code: bool = False,
    record: bool = False,
    seed: int | None = None,
) -> Verdict:
    """Run the text of a pytest module against a sandbox as its agent left it; ``record`` its programs.

    ``seed`` draws the cases of tests that draw some; by default it is a new one.

    Raises ``GradingFailed`` and what ``Sandbox.examine`` raises.
    """
    nonce = secrets.token_hex(16)
    plain = plain_tests(tests)
    seed = secrets.randbits(32) if seed is None else seed
    text = with_seed(tests if plain is None else plain, seed)
    canary = name_of_canary() if import_code else ""
    ahead = (*_AHEAD, _FRAMEWORK) if plain is None else _AHEAD
    request = {
        "nonce": nonce,
        "tests": with_canary(text, canary) if canary else text,
        "plain": plain is not None,
        "import_code": import_code,
        "record": record,
        "scratch": EXAMINATION,
        "packages": tools.packages,
        "trusted": [tools.bind[1]],
    }
    try:
        result = await sandbox.examine(
            [*tools.command, "-I", "-S", "-B", f"{EXAMINATION}/{_RUNNER}.pyc"],
            files=_files(),
            input=json.dumps(request).encode(),
            timeout=timeout,
            output_limit=_OUTPUT_LIMIT,
            keep_processes=live,
            private_output=True,
            warm=WarmProgram(_RUNNER, *tools.bind, tools.packages, ahead),
        )
    except ProcessesRemain as error:
        return Verdict(False, "killed", str(error))  # only the agent can cause that
    except ExaminationFailed as error:
        if live and await _possible_without_the_agent(sandbox, tools, timeout):
            return Verdict(False, "killed", str(error))
        raise
    return dataclasses.replace(verdict_of(result, nonce, live=live, canary=canary), seed=seed)


async def _possible_without_the_agent(sandbox: Sandbox, tools: Tools, timeout: float) -> bool:
    """Return whether the agent's processes prevented a live examination: without them it is possible.

    Raises ``ExaminationFailed`` if it is not.
    """
    try:
        result = await sandbox.examine([*tools.command, "-I", "-S", "-B", "-c", "pass"], timeout=timeout)
    except ProcessesRemain:
        return True
    return result.exit_status == 0


def verdict_of(result: CommandResult, nonce: str, *, live: bool, canary: str) -> Verdict:
    """Return what the grader's output says, without the test that must fail. Raises ``GradingFailed``."""
    said = read_lines(result.output, nonce)
    left_out = Counter[str](said.in_all) - Counter(outcome for _, outcome, _ in said.tests)
    tests = tuple(test for test in said.tests if test[0] != canary)
    verdict = _decided(result, said, live=live, canary=canary)
    return dataclasses.replace(verdict, tests=tests, left_out=left_out, programs=tuple(said.programs))


def _decided(result: CommandResult, said: Said, *, live: bool, canary: str) -> Verdict:
    if result.timed_out:
        if said.words or live:
            return Verdict(False, "timed out")
        # No code of the task had begun.
        raise GradingLate(f"The grader did not begin within {result.seconds:.0f} s", "The machine is overloaded.")
    outcome, detail = said.outcome, said.detail
    mark = CODE_RAN if "ran" in said.words else ""
    if said.twice:
        return Verdict(False, "failed", "not every line of the grader is its own", mark=mark)
    if outcome == "refused":
        return Verdict(False, "failed", f"code would have run inside the grader: {detail}", kept_out=detail)
    if canary and (verdict := _with_canary(said, canary, mark)) is not None:
        return verdict if result.exit_status <= 128 else dataclasses.replace(verdict, passed=False, how="killed")
    if outcome == "passed" and result.exit_status == 0:
        return Verdict(True, "passed")
    if outcome == "failed":
        # Once the runner has reported, its exit status does not matter.
        return Verdict(False, "failed", detail)
    if outcome == "killed" or (outcome == "passed" and result.exit_status > 128):
        return Verdict(False, "killed", detail or f"signal {result.exit_status - 128}")
    if outcome in _UNFIT:
        raise TestsUnfit(f"The tests {_UNFIT[str(outcome)]}: {detail}", "Correct the task's tests, or leave it out.")
    if outcome is not None:
        raise GradingFailed(f"The grader failed: {outcome}, status {result.exit_status}, {detail}")
    if result.exit_status > 128 and (said.words or live):
        # Only processes beside it can have killed it: programs that the tests started, or services of the agent.
        return Verdict(False, "killed", f"signal {result.exit_status - 128}")
    others = b"\n".join(said.others).decode(errors="replace").strip()[-500:]
    how = "ended without a verdict" if said.words else "did not run"
    raise GradingFailed(f"The grader {how}: status {result.exit_status}{', ' + others if others else ''}")


def _with_canary(said: Said, canary: str, mark: str) -> Verdict | None:
    """Return the verdict of tests with a canary; None where no code of the agent mattered."""
    outcome, detail = said.outcome, said.detail
    if outcome in ("failed", "network") and said.failed == [canary] and said.words["passed"]:
        found: str = said.words["found"]
        return Verdict(not found, "failed" if found else "passed", found, mark=mark)
    if outcome == "passed" or (outcome == "failed" and canary not in said.failed):
        return Verdict(False, "failed", f"a test that must fail has not failed\n{detail}", mark=mark)
    if mark or outcome == "broken":  # a module that is missing is one that the agent has not written
        return Verdict(False, "killed" if outcome is None else "failed", detail, mark=mark)
    return None


@cache
def _files() -> dict[str, bytes]:
    """Return the files of an examination: compiled here, once, because the grader would compile them each time.

    The toolset's Python is a copy of this one; another version refuses to run them (``MAGIC_NUMBER``).
    """
    return {f"{name}.pyc": _compiled(name) for name in (_RUNNER, *(f"trusted_{part}" for part in _PARTS))}


def _compiled(name: str) -> bytes:
    source = (Path(__file__).parent / "trusted" / f"{name}.py").read_bytes()
    # Without the optimisation of this process: it may have been started with -O.
    code = compile(source, f"{EXAMINATION}/{name}.py", "exec", dont_inherit=True, optimize=0)
    unchecked = (1).to_bytes(4, "little")  # a flag: there is no source beside it to compare its hash with
    return importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + marshal.dumps(code)
