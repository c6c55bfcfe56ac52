"""From the text of ``task.toml`` to its settings.

Invariant: every error names the file, and the line or the key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from ...task import FolderProblem
from .table import unknown_keys
from .task_config import TaskConfig

__all__ = ["parse_config"]

_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
#: Characters of a value that an error shows.
_SHOWN = 100
#: Members of unions, which a location names like keys.
_MEMBERS = ("Artifact", "int", "str")


def parse_config(file: Path, text: str) -> tuple[TaskConfig, list[str]]:
    """Return the settings in a text, and the keys in it that have no meaning. Raises ``FolderProblem``."""
    data = _parse_toml(file, text)
    try:
        config = TaskConfig.model_validate(data)
    except ValidationError as error:
        raise FolderProblem(file, _described(error, data)) from error
    return config, list(unknown_keys(TaskConfig, data))


def _parse_toml(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _LINE.search(str(error))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        raise FolderProblem(file, f"it is not TOML: {_LINE.sub('', str(error))}", line) from error
    except RecursionError as error:
        raise FolderProblem(file, "it is nested too deeply") from error
    except ValueError as error:  # a number of too many digits
        raise FolderProblem(file, f"it is not TOML: {error}") from error


def _described(error: ValidationError, data: Any) -> str:
    """Return the words for a value that is refused: its key, the reason, and the value if it is short."""
    errors = error.errors()
    # Of a union, each member has an error: most of them only say that the value is not of this member's type.
    first = next((each for each in errors if not each["type"].endswith("_type")), errors[0])
    value = first["input"]
    key = _key(first["loc"], data) or "its content"
    reason = first["msg"].removeprefix("Value error, ")
    # A table may be nested too deeply to be shown.
    shown = "" if isinstance(value, dict | list) else repr(value)
    return f"{key} is {shown}: {reason}" if 0 < len(shown) <= _SHOWN else f"{key}: {reason}"


def _key(location: Sequence[str | int], data: Any) -> str:
    """Return the key of a value. A location also has the types that the value was tried as, which are left out."""
    key = ""
    for part in location:
        if isinstance(data, dict) and isinstance(part, str):
            table = cast("dict[str, Any]", data)
            if part in table or (part.isidentifier() and part not in _MEMBERS):
                key, data = f"{key}.{part}" if key else part, table.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            key, data = f"{key}[{part}]", cast("list[Any]", data)[part]
    return key
