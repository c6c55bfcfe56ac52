"""Tests of the environment: whole episodes in sandboxes. Run `pytest` here.

They need no running server, and are skipped where the machine has no sandboxes.
"""

import asyncio

import environment
import pytest
from environment import TASKS, TemplateEnvironment
from ors_clients import local_sync
from ors_clients.models import ToolResult

from ors_server.sandboxes import sandboxes_unavailable

SOLUTIONS = {
    "sum": "awk '{ sum += $1 } END { print sum }'",
    "largest": "sort -n | tail -n 1",
    "ascending": "sort -n",
    "even": "awk '$1 % 2 == 0'",
    "backwards": "tac",
    "distinct": "sort -u | wc -l",
}


@pytest.fixture(scope="module", autouse=True)
def sandboxes() -> None:
    """Skip the tests where the machine has no sandboxes."""
    if reason := asyncio.run(sandboxes_unavailable()):
        pytest.skip(reason)


def played(program: str, *commands: str) -> ToolResult:
    """Play an episode of commands, and submit what they leave."""
    with local_sync(TemplateEnvironment, {"program": program}) as session:
        for command in commands:
            assert session.call("bash", {"command": command}).error is None
        return session.call("submit")


@pytest.mark.parametrize("program", [*TASKS["train"], *TASKS["test"]])
def test_a_right_script_is_rewarded(program: str) -> None:
    result = played(program, f"cat > solution.sh <<'END'\n{SOLUTIONS[program]}\nEND")
    assert (result.reward, result.finished) == (1.0, True)


@pytest.mark.parametrize(
    "commands",
    [
        ["true"],  # no script
        ["echo 'echo 7' > solution.sh"],
        ["echo 'sort' > solution.sh"],  # by the letters, not by the numbers
        ["echo 'sort -n; echo 7' > solution.sh"],
        ["echo 'sort -n; sleep 600' > solution.sh"],
        ["mkdir solution.sh"],
        ["mkfifo solution.sh"],
        ["echo 'cat' > solution.sh", "cat() { sort -n; }; export -f cat"],  # what the agent's shell has is not there
    ],
)
def test_another_is_not(commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SCRIPT_TIMEOUT", 1.0)
    monkeypatch.setattr(environment, "INPUTS", 2)
    result = played("ascending", *commands)
    assert (result.reward, result.finished) == (0.0, True)


def test_mistakes_of_the_agent_do_not_end_the_episode() -> None:
    with local_sync(TemplateEnvironment, split="train", index=0) as session:
        for command in ("no-such-program", "false", "echo 'half", "exit 3", "nul \x00"):
            result = session.call("bash", {"command": command})
            assert result.error is None
            assert not result.finished
        assert "still here" in session.call("bash", {"command": "echo still here"}).text


def test_sessions_do_not_see_each_other() -> None:
    with local_sync(TemplateEnvironment, split="train", index=0) as first:
        first.call("bash", {"command": "echo secret > /tmp/note; sleep 600 &"})
        with local_sync(TemplateEnvironment, split="train", index=1) as second:
            seen = second.call("bash", {"command": "cat /tmp/note; ps -e 2>/dev/null || ls /proc"}).text
    assert "secret" not in seen
    assert "sleep" not in seen


def test_a_task_names_a_program_that_is_there() -> None:
    with pytest.raises(ValueError, match="no program"):
        TemplateEnvironment({"program": "../sum"})
