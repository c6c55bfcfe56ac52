"""The program of a checkout: the Python file that its author starts as the server.

In this order: the file that the Dockerfile's command starts, ``server.py``, ``app.py``, and the other files in which
``ors-server serve`` looks for classes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

from ors_server.checkouts.errors import HostError
from ors_server.hosting.loading.targets import ENVIRONMENT_FILES

__all__ = ["dockerfile_instructions", "find_program"]

_PREFERRED = ("server.py", "app.py")
_SERVED = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")


def find_program(folder: Path) -> Path:
    """Return the file of a checkout that starts its server. Raises ``HostError``."""
    started = _started_by_dockerfile(folder)
    if started is not None:
        return started
    for name in dict.fromkeys((*_PREFERRED, *ENVIRONMENT_FILES)):
        if (folder / name).is_file():
            return folder / name
    there = sorted(path.name for path in folder.glob("*.py"))
    example = folder / (there[0] if there else "main.py")
    raise HostError(
        f"{folder} has no server.py or app.py, and no Dockerfile that starts another file",
        f"Name the file that starts its server, as in `ors-server host {example}`.",
    )


def dockerfile_instructions(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a checkout's Dockerfile, each with its arguments in one line."""
    try:
        text = (folder / "Dockerfile").read_text("utf-8", "replace")
    except OSError:
        return
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        if instruction:
            yield instruction.upper(), arguments.strip()


def _started_by_dockerfile(folder: Path) -> Path | None:
    directory = PurePosixPath("/")
    command: list[str] = []
    for instruction, arguments in dockerfile_instructions(folder):
        if instruction == "FROM":
            directory, command = PurePosixPath("/"), []
        elif instruction == "WORKDIR":
            directory /= arguments
        elif instruction in ("CMD", "ENTRYPOINT"):
            command = _words(arguments)
    for word, following in pairwise([*command, ""]):
        if word.endswith(".py"):
            names = [word]
        elif word == "-m":
            names = [following.replace(".", "/") + ".py", following.replace(".", "/") + "/__main__.py"]
        elif match := _SERVED.fullmatch(word):  # `uvicorn module:app`
            names = [match.group(1).replace(".", "/") + ".py"]
        else:
            continue
        for name in names:
            path = directory / name
            if path.is_relative_to(directory) and (file := folder / path.relative_to(directory)).is_file():
                return file
    return None


def _words(arguments: str) -> list[str]:
    try:
        words = json.loads(arguments)
        if isinstance(words, list):
            return [str(word) for word in words]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    except ValueError:
        pass
    try:
        return shlex.split(arguments)
    except ValueError:  # an open quotation mark
        return arguments.split()
