"""The journal of a run: its settings and tasks on the first line, then one line for each attempt that has ended.

It is only appended to, and a line is on the disk before the next attempt of its place begins, so that a run that was
killed goes on where it was: an attempt with a line is not played again. A second line, written when an attempt begins,
is what tells of the ones that a kill cut off. The process that writes holds a lock on the file, which ends with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from ors_clients.errors import EvaluationError
from ors_clients.evaluation.attempts import Attempt
from ors_clients.evaluation.settings import EvaluationSettings

__all__ = ["JOURNAL", "Journal", "RunRecord", "read_run"]

#: Name of the file in a run's folder.
JOURNAL = "journal.jsonl"
_VERSION = 2
_NEW = "Begin the run again, under another name."


@dataclass
class RunRecord:
    """The content of a journal."""

    name: str
    settings: EvaluationSettings
    #: ``split``, ``index``, ``hash`` and, where it has one, ``id`` of each task.
    tasks: list[dict[str, Any]]
    begun: str
    #: The name of the run in rollout stores, which no other run has: several data directories may share a store.
    id: str = ""
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    #: Attempts that were begun, by task and sample.
    started: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    @property
    def scored(self) -> dict[tuple[int, int], Attempt]:
        """The attempts with a reward, by task and sample."""
        return {(attempt.task, attempt.sample): attempt for attempt in self.attempts if attempt.lost is None}

    @property
    def interrupted(self) -> int:
        """Attempts that were begun and have no end."""
        ended = Counter((attempt.task, attempt.sample) for attempt in self.attempts)
        return sum((self.started - ended).values())

    @property
    def missing(self) -> int:
        """Samples that no attempt was scored for."""
        return len(self.tasks) * self.settings.samples - len(self.scored)


class Journal:
    """A journal that is open for writing. ``create`` or ``resume`` one, and ``close`` it."""

    def __init__(self, record: RunRecord, descriptor: int) -> None:
        self.record = record
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, settings: EvaluationSettings, tasks: Sequence[Mapping[str, Any]], begun: str) -> Self:
        """Begin a run in ``folder``. Raises ``EvaluationError`` if it has a run already."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise EvaluationError(
                f"The run {folder.name} exists", f"Go on with it: --resume {folder.name}. Or choose another --run."
            ) from None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        identifier = f"{folder.name}-{uuid.uuid4().hex[:12]}"
        record = RunRecord(folder.name, settings, [dict(task) for task in tasks], begun, identifier)
        journal = cls(record, descriptor)
        first = {
            "version": _VERSION,
            "id": identifier,
            "begun": begun,
            "settings": settings.as_json(),
            "tasks": record.tasks,
        }
        journal._write(first, durable=True)
        _sync_folder(folder)
        return journal

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """Open the journal of a run that goes on. A last line that is torn is cut off.

        Raises ``EvaluationError`` if there is none, if another process writes it, or if it cannot be read.
        """
        try:
            descriptor = os.open(folder / JOURNAL, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            raise _no_run(folder) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EvaluationError(
                    f"Another process plays the run {folder.name}", "Wait for it, or end it first."
                ) from None
            record, length = _read(folder)
            os.ftruncate(descriptor, length)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(record, descriptor)

    def begin(self, task: int, sample: int) -> None:
        """Note that an attempt begins. It may be lost in a power cut: it is for the report only."""
        self.record.started[task, sample] += 1
        self._write({"begun": [task, sample]}, durable=False)

    def add(self, attempt: Attempt) -> None:
        """Note the end of an attempt; on the disk when this returns. May be called in another thread."""
        self._write(attempt.as_json(), durable=True)
        self.record.attempts.append(attempt)

    def _write(self, value: Mapping[str, Any], *, durable: bool) -> None:
        line = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._descriptor == -1:  # a thread of a run that was ended
                raise EvaluationError("The journal is closed", f"Go on with the run: --resume {self.record.name}.")
            length = os.fstat(self._descriptor).st_size
            try:
                written = os.write(self._descriptor, line)
                if written != len(line):
                    raise OSError(f"{written} of {len(line)} bytes were written")
                if durable:
                    os.fsync(self._descriptor)
            except OSError as error:
                os.ftruncate(self._descriptor, length)  # half a line before others would be damage
                raise EvaluationError(
                    f"The journal cannot be written: {error}", f"Make room, then --resume {self.record.name}."
                ) from error

    def close(self) -> None:
        """Let other processes write it, after a line that another thread is writing. Call it once."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


def read_run(folder: Path) -> RunRecord:
    """Read the journal of a run, also while it is written. Raises ``EvaluationError``."""
    return _read(folder)[0]


def _read(folder: Path) -> tuple[RunRecord, int]:
    """Return what a journal says, and the length of its whole lines."""
    path = folder / JOURNAL
    try:
        content = path.read_bytes()
    except OSError:
        raise _no_run(folder) from None
    lines = content.split(b"\n")
    torn = lines.pop()
    length = len(content) - len(torn)
    if not lines:
        raise EvaluationError(f"The run {folder.name} was killed before it began", _NEW)
    record: RunRecord | None = None
    ended: dict[tuple[int, int], set[int] | None] = {}
    for number, line in enumerate(lines, 1):
        try:
            value: Any = json.loads(line)
            if record is None:
                record = _first(folder.name, value)
            elif "begun" in value:
                task, sample = value["begun"]
                record.started[task, sample] += 1
            else:
                _add(record, Attempt.from_json(value), ended)
        except EvaluationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EvaluationError(f"Line {number} of {path} cannot be read: {error}", _NEW) from error
    assert record is not None
    return record, length


def _first(name: str, value: Mapping[str, Any]) -> RunRecord:
    if value["version"] != _VERSION:
        raise ValueError(f"a journal of version {value['version']}")
    tasks = cast("list[dict[str, Any]]", value["tasks"])
    settings = EvaluationSettings.from_json(value["settings"])
    return RunRecord(name, settings, tasks, value["begun"], str(value["id"]))


def _add(record: RunRecord, attempt: Attempt, ended: dict[tuple[int, int], set[int] | None]) -> None:
    """Add an attempt. ``ended`` has the lost attempts of each sample, or None for one that is scored."""
    if not (0 <= attempt.task < len(record.tasks) and 0 <= attempt.sample < record.settings.samples):
        raise ValueError("an attempt of another run")
    earlier = ended.setdefault((attempt.task, attempt.sample), set())
    if earlier is None or attempt.attempt in earlier:
        raise ValueError(f"sample {attempt.sample} of task {attempt.task} ended twice")
    if attempt.lost is None:
        ended[attempt.task, attempt.sample] = None
    else:
        earlier.add(attempt.attempt)
    record.attempts.append(attempt)


def _no_run(folder: Path) -> EvaluationError:
    others = sorted(path.parent.name for path in folder.parent.glob(f"*/{JOURNAL}"))
    listed = f"There are {', '.join(others[-5:])}." if others else "There are none yet."
    return EvaluationError(f"No run {folder.name} in {folder.parent}", listed)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
