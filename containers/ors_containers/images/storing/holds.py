"""Holds: layers that stay in the store until a time, whichever image has them, with notes of why.

A hold is one file, so any process may make it and any may read it. Invariants: a hold is written while its maker uses
the layers, and is there whole or not at all; one whose time is over holds nothing.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Hold", "find_holds", "held_layers", "remove_expired"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """Layers that are kept until a time, in seconds since 1970. ``notes`` are its maker's, as JSON values."""

    layers: tuple[str, ...]
    until: float
    notes: Mapping[str, Any]
    name: str = ""

    @property
    def expired(self) -> bool:
        """True once its time is over."""
        return time.time() >= self.until

    def save(self, folder: Path) -> Hold:
        """Write it to a new file of ``folder``; return it with its name. Raises ``OSError``."""
        folder.mkdir(mode=0o700, exist_ok=True)
        name = secrets.token_hex(8)
        partial = folder / f"{name}.new"
        content = {"format": _FORMAT, **asdict(self)}
        del content["name"]
        partial.write_text(json.dumps(content))
        partial.replace(folder / f"{name}.json")
        return Hold(self.layers, self.until, self.notes, name)


def find_holds(folder: Path) -> Iterator[Hold]:
    """Yield every hold of a folder, by name, also those whose time is over; a damaged file is left out."""
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content: dict[str, Any] = json.loads(path.read_bytes())
            if content["format"] == _FORMAT:
                yield Hold(tuple(content["layers"]), float(content["until"]), dict(content["notes"]), path.stem)


def held_layers(folder: Path) -> set[str]:
    """Return the layers of all holds whose time runs."""
    return {key for hold in find_holds(folder) if not hold.expired for key in hold.layers}


def remove_expired(folder: Path) -> set[str]:
    """Remove the holds whose time is over; return their layers, which others may hold as well. Raises ``OSError``."""
    layers: set[str] = set()
    for hold in find_holds(folder):
        if hold.expired:
            layers.update(hold.layers)
            (folder / f"{hold.name}.json").unlink(missing_ok=True)
    return layers
