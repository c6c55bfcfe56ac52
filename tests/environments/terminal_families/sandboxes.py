"""Generated tasks laid out in sandboxes, with solutions played there and graded by the tasks' tests.

The tests run with the sandbox's own Python and without pytest. The environment's tests cover grading out of the agent's
reach. A ``frozen`` task is laid out once: before each play the home is restored, and before the tests every process
that the play left running is ended. Each play of a ``live`` task has a sandbox of its own.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ors_containers import BubblewrapRuntime, Sandbox

if TYPE_CHECKING:
    from environments.terminal.tasks.generation import GeneratedTask

from tests.environments.terminal_families.loading import load_program

__all__ = ["Play", "Played", "play"]

_PLAYER = Path(__file__).with_name("player.py")
#: For a script, or for the tests after it.
_SECONDS = 60


@dataclass(frozen=True)
class Play:
    """Actions in a sandbox before the tests: the oracle if ``solved``, and a script."""

    script: str = ""
    #: The oracle runs first, and the script in the project's folder instead of in the home.
    solved: bool = False
    tests: str = "final"
    #: A change of what the oracle left (``mutators``).
    mutator: str = ""


@dataclass(frozen=True)
class Played:
    """Result of a play: the script's end, the number of tests, and the failed tests with reasons."""

    status: int
    output: str
    count: int
    failed: dict[str, str] = field(default_factory=dict[str, str])
    #: Whether the mutator found what it changes.
    applied: bool = True

    def __str__(self) -> str:
        return f"status {self.status}, {len(self.failed)} of {self.count} tests fail: {self.failed} {self.output}"


async def play(runtime: BubblewrapRuntime, task: GeneratedTask, plays: Sequence[Play]) -> list[Played]:
    """Play them one after another, each from the initial state. The oracle's state is recorded first."""
    if task.grading == "frozen":
        async with _laid_out(runtime, task) as sandbox:
            return (await _played(sandbox, task, plays, None))[0]
    async with _laid_out(runtime, task) as sandbox:
        _, reference = await _played(sandbox, task, (), None)
    found: list[Played] = []
    for one in plays:
        async with _laid_out(runtime, task) as sandbox:
            found += (await _played(sandbox, task, [one], reference))[0]
    return found


async def _played(
    sandbox: Sandbox, task: GeneratedTask, plays: Sequence[Play], reference: object
) -> tuple[list[Played], object]:
    request = {
        "oracle": task.oracle,
        "root": task.root,
        "seed": task.name,
        "seconds": _SECONDS,
        "live": task.grading == "live",
        "modes": dict(task.state.modes),
        "loose": [path for path, form in task.state.forms.items() if form[0] in ("json", "xml")],
        "written": [path for path, (comparer, *_) in task.state.forms.items() if comparer == "any"],
        "plays": [asdict(one) for one in plays],
        "reference": reference,
    }
    await sandbox.write_file("/tmp/play/request.json", json.dumps(request).encode())
    result = await sandbox.run(
        "python3 -I /tmp/play/player.py", timeout=_SECONDS * (len(plays) + 1), output_limit=2**24
    )
    assert result.exit_status == 0, f"{task.name}: {result.text}"
    report = json.loads(result.text.splitlines()[-1])
    return [Played(**one) for one in report["plays"]], report["reference"]


@asynccontextmanager
async def _laid_out(runtime: BubblewrapRuntime, task: GeneratedTask) -> AsyncGenerator[Sandbox]:
    """Return a sandbox in which the task begins."""
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        await sandbox.write_file("/tmp/task.tar", _archive(task))
        commands = ["cd / && tar -xpf /tmp/task.tar && cd /home/user"]
        if task.setup:
            # In a shell of its own: its settings must not reach the agent's shell.
            commands.append(f"bash <<'SETUP OF THE TASK'\n{task.setup}\nSETUP OF THE TASK")
        await _must(sandbox, "\n".join(commands))
        if task.start:
            await _must(sandbox, f"(\n{task.start}\n)")
        yield sandbox


def _archive(task: GeneratedTask) -> bytes:
    """Return an archive of the task's files and the modules of its tests."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, file in task.files.items():
            member = tarfile.TarInfo(path.removeprefix("/"))
            member.mode, member.size = file.mode, len(file.content)
            if file.directory:
                member.type = tarfile.DIRTYPE
            elif file.link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, file.link
            archive.addfile(member, io.BytesIO(file.content))
        for name, text in (
            ("player", _PLAYER.read_text()),
            ("mutators", _PLAYER.with_name("mutators.py").read_text()),
            ("initial", task.initial_tests),
            ("final", load_program().state_tests(task.state, task.final_tests)),
        ):
            member = tarfile.TarInfo(f"tmp/play/{name}.py")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def _must(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.run(command, timeout=60)
    assert result.exit_status == 0, result.text
