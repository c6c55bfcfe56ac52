"""What environments did, written by the server's process and read by the tests'.

Only this says how often something really happened: a client that got one answer cannot tell whether its tool ran once.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Names the journal's file in the server's process.
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
        """What happened to a subject, in order."""
        lines = (line.rpartition(" ") for line in self.path.read_text().splitlines())
        return [event for event, _, name in lines if name == subject]
