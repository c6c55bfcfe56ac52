"""Programs of an agent that its verifier ran, by the record of a run over the solution's files.

A test that starts or imports what the agent wrote lends it the rights of the test, and so the reward. Seen are files
that the kernel executed, scripts that an interpreter was given, libraries, which are opened and are ELF files, and
modules: a Python that imports a source looks for its compiled form first.

Not seen: a file that a program reads and then executes by itself, as a shell does with ``source``. It is opened as an
answer is that a test reads, and a rule that took every opened file for a program would refuse nearly every task.
"""

from __future__ import annotations

import os
from pathlib import Path

from ors_containers.layers.sharing import source_of
from ors_containers.sandbox import RecordedPaths

__all__ = ["imported_modules", "programs_run"]

_ELF = b"\x7fELF"
#: Programs that are named.
_NAMED = 3


def imported_modules(used: RecordedPaths) -> frozenset[str]:
    """Return the files of modules that a recorded run's Python has imported."""
    compiled = {source_of(path) for path in used.opened | used.missing}
    without_source = {path for path in used.opened if path.endswith(".pyc") and not source_of(path)}
    return (used.opened & compiled) | without_source


def programs_run(used: RecordedPaths, changes: Path) -> str:
    """Return a sentence on the files of the layer ``changes`` that a recorded run executed, imported or loaded.

    Empty where there are none.
    """
    candidates = used.executed | used.scripts | imported_modules(used)
    found = {path for path in candidates if os.path.lexists(changes / path[1:])}
    found.update(path for path in used.opened if _is_elf(changes / path[1:]))
    more = ", …" * (len(found) > _NAMED)
    return f"the verifier runs programs of the agent: {', '.join(sorted(found)[:_NAMED])}{more}" if found else ""


def _is_elf(place: Path) -> bool:
    if place.is_symlink() or not place.is_file():
        return False
    try:
        with place.open("rb") as stream:
            return stream.read(len(_ELF)) == _ELF
    except OSError:
        return False  # not this process's to read, and not its verifier's without root's rights
