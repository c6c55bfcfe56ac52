"""Lines of the grader that an agent has written, and links of the agent to the descriptors of the grader."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ors_containers import CommandResult, InfrastructureFailure

from .conftest import Service
from .parts import grader_lines, grading

_NONCE = "n"
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "test_canary", "passed", "failed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "nonce"]), inner, max_size=2),
    max_leaves=6,
)
_KINDS = (
    *(("ready",), ("ran",), ("programs",), ("tests", "in_all"), ("failed", "passed", "found"), ("outcome", "detail")),
    *(("tests",), ("failed",), ("outcome", "other")),
)


def _line(kind: tuple[str, ...], values: list[object]) -> bytes:
    return json.dumps({"nonce": _NONCE, **dict(zip(kind, values, strict=False))}).encode()


_LINES = st.one_of(
    st.binary(max_size=20),
    st.just(b"[" * 60_000),
    st.builds(_line, st.sampled_from(_KINDS), st.lists(_VALUES, min_size=3, max_size=3)),
)


@given(
    lines=st.lists(_LINES, max_size=5), canary=st.sampled_from(["", "test_canary"]), status=st.sampled_from([0, 1, 137])
)
def test_no_line_is_misread(lines: list[bytes], canary: str, status: int) -> None:
    """Whatever is written, there is a verdict or a failure that names the grader's."""
    output = b"\n".join(lines)
    assert grader_lines.read_lines(output, "another").words == {}
    result = CommandResult(status, output, 1.0)
    with contextlib.suppress(InfrastructureFailure):
        verdict = grading.verdict_of(result, _NONCE, live=False, canary=canary)
        json.dumps(verdict.data)
        assert not verdict.passed or grader_lines.read_lines(output, _NONCE).outcome


_USES = "import answer\ndef test_a():\n    assert answer.add(1, 2) == 3\n"
#: Code of the agent that runs in the grader and finds what the grader writes with.
_FINDS = """
import json, os, sys
def words():
    frame = sys._getframe()
    while "nonce" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals
def say(**line):
    os.write(words()["verdict"], json.dumps({"nonce": words()["nonce"], **line}).encode() + b"\\n")
def add(a, b): return 0
"""
WRITTEN = {
    "a line that is nested deeply": "os.write(words()['verdict'], b'[' * 60_000 + b'\\n')",
    "tests that are none": "say(tests=5, in_all={})",
    "a line that lacks a word": "say(failed=[], passed=1); say(outcome='failed')",
    "an outcome before the grader's": "say(outcome='passed', detail='')",
    "an outcome in the place of the grader's": "say(outcome='passed', detail=''); os._exit(0)",
}
#: Reads whatever can be read of the grader's descriptors.
DRAIN = """
import os
for name in os.listdir("/proc/self/fd"):
    for source in (f"/proc/self/fd/{name}", int(name)):
        try:
            again = os.open(source, os.O_RDONLY | os.O_NONBLOCK) if isinstance(source, str) else source
            os.set_blocking(again, False)
            os.read(again, 1 << 16)
        except OSError:
            pass
class Equal:
    def __eq__(self, other): return True
def add(a, b): return Equal()
"""


async def graded(service: Service, tests: str, files: dict[str, str], command: str = "true", **how: Any) -> Any:
    async with service.runtime.sandbox(service.image(await service.toolset())) as sandbox:
        for path, text in files.items():
            await sandbox.write_file(f"/home/user/{path}", text.encode())
        await sandbox.run(command, timeout=20)
        return await grading.run_tests(sandbox, await service.toolset(), tests, live=False, timeout=60, **how)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("what", WRITTEN)
async def test_lines_of_the_agents_code_earn_nothing(service: Service, what: str) -> None:
    verdict = await graded(service, _USES, {"answer.py": _FINDS + WRITTEN[what]}, import_code=True)
    assert (verdict.passed, verdict.mark) == (False, grading.CODE_RAN)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_agents_code_cannot_take_back_that_it_ran(service: Service) -> None:
    verdict = await graded(service, _USES, {"answer.py": DRAIN}, import_code=True)
    assert verdict.mark == grading.CODE_RAN


@pytest.mark.asyncio(loop_scope="module")
async def test_links_to_the_graders_descriptors_lead_nowhere(service: Service) -> None:
    """The word in the name of the test lets it open special files."""
    tests = (
        "def test_queue_is_fifo():\n"
        "    for number in range(3, 20):\n"
        "        for mode in ('r', 'w'):\n"
        "            try:\n"
        "                with open(f'/home/user/{number}', mode) as file:\n"
        "                    assert file.read() == '' if mode == 'r' else file.write(open('/home/user/text').read())\n"
        "            except OSError: pass\n"
        "    assert 0\n"
    )
    links = "for number in $(seq 3 19); do ln -s /proc/self/fd/$number $number; done"
    verdict = await graded(service, tests, {"text": "[" * 60_000 + "\n"}, links)
    assert (verdict.passed, verdict.how, [test[0] for test in verdict.tests]) == (
        False,
        "failed",
        ["test_queue_is_fifo"],
    )
