"""A journal of environments' actions, written by the server's process and read by the tests'.

It shows how often an action happened: a client that got one response cannot know whether its tool ran once.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Variable with the journal's file, for the server's process.
VARIABLE = "REAL_CLIENTS_JOURNAL"


def note(event: str, subject: object) -> None:
    """Write one line; called by environments. One `write` of a short line to a file opened for appending is atomic."""
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(f"{event} {subject}\n")


class Journal:
    """The journal as tests read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def events(self, subject: str) -> list[str]:
        """Return the events of a subject, in order."""
        lines = (line.rpartition(" ") for line in self.path.read_text().splitlines())
        return [event for event, _, name in lines if name == subject]
