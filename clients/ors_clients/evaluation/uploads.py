"""The episodes of a run in a file, and from there in a server's rollout store.

Each line of the file is a body of ``POST /v1/rollouts``, with the attempt as the journal has it. It is written before
the journal has the episode's end, and it is sent from the file, so that a run that was killed sends what was left.
Where the journal lacks an end, a run that goes on takes it from here (``unnoted``): the episode may have been sent,
and played again it could end in another way. Events have ids of their own, so that what is sent twice is stored once.
A lost attempt is kept without its rewards, so that no page counts them.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ors_clients.errors import EvaluationError
from ors_clients.evaluation.attempts import Attempt
from ors_clients.evaluation.players import Played
from ors_clients.evaluation.redaction import Redaction
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.rollouts.upload_events import RolloutLabels, outcome, rollout_events
from ors_server.rollouts.reports.formats import EVALUATION

__all__ = ["EPISODES", "EpisodeFile", "Uploads", "unnoted"]

#: Names of the files in a run's folder: the episodes, and how many bytes of them the server has.
EPISODES, _SENT = "episodes.jsonl", "episodes.sent"
#: Tasks with fewer samples that an uploaded report names, at most.
_FEWER = 100
#: Answers to an upload that is of no use to repeat.
_NEVER = ("the server answered 413", "the server answered 422")


#: The beginning of each line.
_ATTEMPT = '{"attempt":'
#: Fields of events that hold foreign texts. The others are of this program, and pages and stores read them.
_FOREIGN = frozenset(("content", "name", "callId", "metadata", "task_spec"))


def unnoted(folder: Path, noted: Container[tuple[int, int, int]]) -> Iterator[Attempt]:
    """Yield the attempts whose episodes are in the file and that are not in ``noted``: task, sample and attempt.

    A last line that is torn is left out. Raises ``EvaluationError`` for any other damage.
    """
    path = folder / EPISODES
    decoder = json.JSONDecoder()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    text = line.decode()
                    if not text.startswith(_ATTEMPT):
                        raise ValueError("an episode of no attempt")
                    attempt = Attempt.from_json(decoder.raw_decode(text, len(_ATTEMPT))[0])
                except ValueError as error:
                    raise EvaluationError(
                        f"Line {number} of {path} cannot be read: {error}", "Begin the run again, under another name."
                    ) from error
                if (attempt.task, attempt.sample, attempt.attempt) not in noted:
                    yield attempt
    except FileNotFoundError:
        return


class EpisodeFile:
    """The file of a run's episodes, appended to."""

    def __init__(self, folder: Path, labels: Mapping[str, Any], redaction: Redaction) -> None:
        self._path = folder / EPISODES
        self._labels = labels
        self._redaction = redaction
        with self._open() as file:  # the next line would go on in one that is torn
            with contextlib.suppress(PermissionError):  # another user's file, in a folder of several
                os.fchmod(file.fileno(), 0o600)
            length = file.tell()
            if length:
                file.seek(0)
                whole = file.read().rfind(b"\n") + 1
                if whole < length:
                    file.truncate(whole)

    def _open(self) -> IO[bytes]:
        return os.fdopen(os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "ab+", buffering=0)

    def add(self, attempt: Attempt, played: Played, task: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        """Append an episode. Raises ``EvaluationError`` if the disk takes no more."""
        labels = RolloutLabels(
            **self._labels,
            reward=attempt.reward,
            rollout_name=f"{task['split']}-{task['index']}-{attempt.sample}-{attempt.attempt}",
            split=task["split"],
            task_spec=spec,
            metadata={"outcome": attempt.stop, "mistakes": attempt.mistakes},
            rollout_info={
                "task_index": task["index"],
                "sample": attempt.sample,
                "attempt": attempt.attempt,
                **outcome(attempt.stop, attempt.lost and f"{attempt.lost.side}: {attempt.lost.text}"),
            },
        )
        events = rollout_events(played.trajectory, labels)
        events = [
            {name: self._redaction.value(held) if name in _FOREIGN else held for name, held in event.items()}
            for event in events
        ]
        noted = json.dumps(attempt.as_json(), separators=(",", ":"))
        sent = json.dumps(events, separators=(",", ":"), default=repr)
        line = f'{_ATTEMPT}{noted},"events":{sent}}}\n'.encode()
        try:
            with self._open() as file:
                length = file.tell()
                written = file.write(line)
                if written != len(line):
                    file.truncate(length)  # half a line before others would be damage
                    raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError as error:
            raise EvaluationError(f"{self._path} cannot be written: {error}", "Make room, then --resume it.") from error


class Uploads:
    """Sends a run's episodes to the server at ``url``, in a thread of its own, as they are written."""

    def __init__(self, folder: Path, url: str, api_key: str) -> None:
        self._episodes, self._sent_file = folder / EPISODES, folder / _SENT
        self._sink = RolloutsSink(url, api_key=api_key)
        self._changed = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="ors-eval-uploads", daemon=True)
        #: Why the server did not take the last upload; None if it did.
        self.problem: str | None = None
        #: Why it will never take one of them.
        self.refused: str | None = None

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def notify(self) -> None:
        """Say that an episode was written."""
        self._changed.set()

    def finish(self, seconds: float = 60.0) -> str | None:
        """Send what is left, for at most so long; blocks. Return why some was not sent; None if all was."""
        self._ending = True
        self._changed.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return self.problem or "the server takes too long"
        return self.problem or self.refused

    def send_report(self, run: str, report: Mapping[str, Any]) -> str | None:
        """Send the report for the page of the run; blocks. Return why the server did not take it; None if it did.

        Its tasks stay here: the store has their rollouts.
        """
        tasks = report["tasks"] | {"with_fewer_samples": report["tasks"]["with_fewer_samples"][:_FEWER]}
        sent = {name: value for name, value in report.items() if name != "per_task"} | {"tasks": tasks}
        return self._sink.upload_report(run, EVALUATION, sent)

    def _work(self) -> None:
        while True:
            ending = self._ending
            self._changed.clear()
            self._send()
            if ending:
                return
            self._changed.wait(timeout=None if self.problem is None else 10.0)

    def _send(self) -> None:
        """Send the whole lines that were not sent, in pieces."""
        try:
            for lines, end in self._pieces():
                rollouts = [[json.dumps(event).encode() for event in json.loads(line)["events"]] for line in lines]
                for _, problem in self._sink.upload(rollouts):
                    if problem is not None and problem.startswith(_NEVER):
                        self.refused = problem  # the server has stored the others of the request
                        continue
                    self.problem = problem
                    if problem is not None:
                        return
                self._sent_file.write_text(str(end))
        except (OSError, ValueError) as error:
            self.problem = str(error)

    def _pieces(self) -> Iterator[tuple[list[bytes], int]]:
        try:
            position = int(self._sent_file.read_text())
        except (OSError, ValueError):
            position = 0
        with self._episodes.open("rb") as file:
            file.seek(position)
            while lines := [line for line in file.readlines(1 << 20) if line.endswith(b"\n")]:
                # Where the last one is being written, its beginning is read again.
                # What was sent and then lost in a power cut would be played again, and could end in another way.
                os.fsync(file.fileno())
                position += sum(map(len, lines))
                yield lines, position
                file.seek(position)
