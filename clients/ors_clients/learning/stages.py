"""The stages of a run, each a file in its folder, whole or absent. A run that goes on skips those that are there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from ors_clients.errors import ConfigurationError

__all__ = ["Stages", "write_json", "written"]


class Stages:
    """The stages of a run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, with the seconds it took: from its file, or made now.

        Raises ``ConfigurationError`` where the file cannot be read or written, and what ``make`` raises.
        """
        file = self.folder / f"{name}.json"
        if file.exists():
            try:
                return json.loads(file.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"{file} cannot be read: {error}", "Remove it, or begin a new run.") from error
        begun = time.monotonic()
        result = make()
        result.setdefault("seconds", round(time.monotonic() - begun, 1))
        write_json(file, result)
        return result

    def model(self, name: str, save: Callable[[Path], None]) -> Path:
        """Save a model as the folder ``name``, whole or not at all. Raises ``ConfigurationError``."""
        folder, partial = self.folder / name, self.folder / f".{name}.{os.getpid()}"
        with written(folder):
            shutil.rmtree(partial, ignore_errors=True)
            save(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
        return folder


def write_json(file: Path, value: Any) -> None:
    """Write a file, whole or not at all. Raises ``ConfigurationError``."""
    with written(file):
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(value, indent=1) + "\n")
        partial.replace(file)


@contextlib.contextmanager
def written(place: Path) -> Generator[None]:
    """Raise ``ConfigurationError`` for whatever a block raises that writes to ``place``."""
    try:
        yield
    except Exception as error:  # safetensors and torch raise errors of their own for a full disk
        raise ConfigurationError(
            f"{place} cannot be written: {error}", "Make room, then go on with ors-server train --resume."
        ) from error
