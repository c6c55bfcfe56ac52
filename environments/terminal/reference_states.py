"""States that solutions leave: made once a task in a sandbox of its image, and kept outside of every sandbox.

The final tests of a generated task compare the agent's folder with such a state (``states``). It is made before the
task's first episode is set up, so that no episode holds a sandbox while it waits for another. The store keeps it under
a digest of everything it follows from: the image, the solution and the text of the tests.

Invariant: a state is complete or absent, and is never read or written by a process of a sandbox.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import shlex
from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

from ors_containers import Image, keep_from_sandboxes
from ors_containers.sandbox import EXAMINATION

from ors_server import InfrastructureFailure

from .preparation import Service, episode_sandbox, task_image
from .settings import TerminalSettings
from .states.program import printing_state, read_state, with_reference
from .states.tree import made_by
from .task import TerminalTask

__all__ = ["completed", "forget"]

#: Bytes of a printed state.
_LARGEST = 8 * 2**20
_TIMEOUT = 120.0
#: Complete tests of this process by digest; those not used for longest are dropped.
_completed: OrderedDict[str, str] = OrderedDict()
_MOST = 1024
#: One lock for each state that is being made.
_making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


async def completed(service: Service, task: TerminalTask, settings: TerminalSettings) -> TerminalTask:
    """Return a task with final tests that are complete with the state that the solution leaves.

    Raises ``InfrastructureFailure`` where the solution does not end well, and what starting a sandbox raises.
    """
    if task.state is None:
        return task
    key = _digest(task, await task_image(service, task, settings))
    lock = _making.setdefault(key, asyncio.Lock())
    async with lock:
        if key not in _completed:
            folder = service.store.root / "references"
            keep_from_sandboxes(folder)
            file = folder / f"{key}.json"
            reference = await asyncio.to_thread(_read, file)
            if reference is None:
                reference = await _make(service, task, settings)
                await asyncio.to_thread(_write, file, reference)
            _completed[key] = with_reference(task.final_tests, reference)
        _completed.move_to_end(key)
        while len(_completed) > _MOST:
            _completed.popitem(last=False)
        return dataclasses.replace(task, final_tests=_completed[key], state=None)


def forget() -> None:
    """Drop the completed tests of this process."""
    _completed.clear()


def _digest(task: TerminalTask, image: Image) -> str:
    # The machine's own programs change without a new name of the image; its folder of programs shows that.
    programs = [
        (layer / "usr" / "bin").stat().st_mtime_ns for layer in image.layers if (layer / "usr" / "bin").is_dir()
    ]
    parts = (task.name, task.final_tests, task.solution, task.start, [str(layer) for layer in image.layers], programs)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:40]


async def _make(service: Service, task: TerminalTask, settings: TerminalSettings) -> dict[str, list[str | None]]:
    assert task.state is not None
    assert task.solution is not None
    python = [*(await service.toolset()).command, "-I", "-S", "-B"]
    program = printing_state(task.final_tests).encode()
    sandbox = await episode_sandbox(service, task, settings)
    try:
        await sandbox.write_file("/tmp/state.py", program)  # noqa: S108 - of the sandbox
        before = await sandbox.run(shlex.join([*python, "/tmp/state.py"]), timeout=_TIMEOUT, output_limit=_LARGEST)  # noqa: S108 - as above
        solved = await sandbox.run(f"rm /tmp/state.py; bash -c {shlex.quote(task.solution)}", timeout=_TIMEOUT)
        after = await sandbox.examine(
            [*python, f"{EXAMINATION}/state.py"],
            files={"state.py": program},
            timeout=_TIMEOUT,
            output_limit=_LARGEST,
            keep_processes=task.grading == "live",
        )
    finally:
        await sandbox.stop()
    for what, result in (("initial state", before), ("solution", solved), ("solution's state", after)):
        if result.exit_status != 0 or result.truncated:
            raise InfrastructureFailure(
                f"The {what} of {task.name!r} cannot be recorded: status {result.exit_status}, "
                f"{result.text.strip()[-300:]}",
                f"Correct the task ({task.origin}).",
            )
    return made_by(read_state(before.text), read_state(after.text), task.state.modes)


def _read(file: Path) -> dict[str, list[str | None]] | None:
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None


def _write(file: Path, reference: dict[str, list[str | None]]) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(reference))
    partial.replace(file)
