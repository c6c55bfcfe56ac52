"""The compose file of a Terminal-Bench task as lines of a Dockerfile.

Invariant: a compose file that needs more than one container with an image of its own is refused by the name of what it
needs, so that a converted task never lacks a part.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...task import FolderProblem
from ..files import exists
from .documents import read_yaml

__all__ = ["ComposeService", "read_compose"]

_FILE = "docker-compose.yaml"
_MOVED = ("environment", "working_dir", "expose", "entrypoint", "platform")
_IGNORED = ("build", "image", "container_name", "command", "volumes")
#: The harness mounts its logs there; Harbor has places of its own.
_LOG_VOLUMES = (
    "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}",
    "${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}",
)
#: Variables of the harness, with the values that it gives them.
_PLACES = {
    "T_BENCH_TEST_DIR": "/tests",
    "T_BENCH_CONTAINER_LOGS_PATH": "/logs",
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/agent-logs",
}
_PLACE = re.compile(rf"\$\{{({'|'.join(_PLACES)})\}}")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,${}-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ComposeService:
    """The service that the agent works in."""

    #: The folder with the Dockerfile, relative to the task's.
    context: str
    #: Lines that follow the Dockerfile's own.
    lines: tuple[str, ...]
    platform: str

    def dockerfile(self, text: str) -> str:
        """Return the text of its Dockerfile with what the compose file says."""
        if self.platform:
            # A platform that is there already is replaced in every stage, else one is added to each.
            text, count = re.subn(
                r"^(FROM\s+)--platform=\S+\s+(.+)$",
                lambda found: f"{found[1]}--platform={self.platform} {found[2]}",
                text,
                flags=re.MULTILINE,
            )
            if count == 0:
                add = f"FROM --platform={self.platform} "
                text = re.sub(r"^FROM\s+(?!--platform)(.+)$", lambda found: add + found[1], text, flags=re.MULTILINE)
        text += "" if text.endswith("\n") else "\n"
        return text + "\n# Mapped from docker-compose.yaml\n" + "\n".join(self.lines) + "\n"


def read_compose(folder: Path) -> ComposeService:
    """Read the compose file of a task's folder. Raises ``FolderProblem``, also for what one container cannot be."""
    file = folder / _FILE
    data = read_yaml(file, folder)
    services = data.get("services")
    if not isinstance(services, dict) or not services:
        raise FolderProblem(file, "it has no services")
    table = cast("dict[str, Any]", services)
    if len(table) > 1:
        raise FolderProblem(file, f"several services are not supported: {', '.join(map(str, table))}")
    name, service = next(iter(table.items()))
    if not isinstance(service, dict):
        raise FolderProblem(file, f"services.{name} is not a table")
    fields = cast("dict[str, Any]", service)
    needed = [key for key in data if key not in ("services", "version")]
    needed += [f"services.{name}.{key}" for key in fields if key not in (*_MOVED, *_IGNORED)]
    volumes = [_text(file, each) for each in _list(fields.get("volumes"))]
    needed += [f"the volume {each}" for each in volumes if each not in _LOG_VOLUMES]
    build = fields.get("build", ".")
    table_of_build = cast("dict[str, Any]", build) if isinstance(build, dict) else {"context": build}
    needed += [
        f"services.{name}.build.{key}"
        for key, value in table_of_build.items()
        if key != "context" and (key, value) != ("dockerfile", "Dockerfile")
    ]
    if needed:
        raise FolderProblem(file, f"not supported here: {', '.join(map(str, needed))}")
    context = posixpath.normpath(_text(file, table_of_build.get("context", ".")))
    if context.startswith(("/", "..")) or not exists(folder / context / "Dockerfile"):
        raise FolderProblem(file, f"services.{name}.build: there is no Dockerfile in {context!r}")
    return ComposeService(context, tuple(_lines(file, fields)), _text(file, fields.get("platform", "")))


def _lines(file: Path, fields: dict[str, Any]) -> Iterator[str]:
    yield "ENV TEST_DIR=/tests"
    for name, value in _environment(file, fields.get("environment")):
        if name != "TEST_DIR" or value != "${T_BENCH_TEST_DIR}":
            yield f"ENV {name}={_word(_filled(value))}"
    directory = _text(file, fields.get("working_dir", ""))
    if directory and "${" not in directory:
        yield f"WORKDIR {directory}"
    for port in _list(fields.get("expose")):
        yield f"EXPOSE {_text(file, port)}"
    if "entrypoint" in fields:
        yield f"ENTRYPOINT {json.dumps([_text(file, each) for each in _list(fields['entrypoint'])])}"


def _environment(file: Path, found: Any) -> Iterator[tuple[str, str]]:
    if isinstance(found, dict):
        pairs = [(str(name), value) for name, value in cast("dict[Any, Any]", found).items()]
    else:
        words = [_text(file, each).partition("=") for each in _list(found)]
        pairs = [(name, value if equals else None) for name, equals, value in words]
    for name, value in pairs:
        if value is None or _NAME.fullmatch(name) is None:
            raise FolderProblem(file, f"environment: {name!r} has no value, or is not the name of a variable")
        yield name, _text(file, value)


def _text(file: Path, value: Any) -> str:
    """Return a text or number as a text. A list is refused: with YAML's aliases, its text may have no end."""
    if not isinstance(value, str | int | float):
        raise FolderProblem(file, f"a text is expected, not a {type(value).__name__}")
    return str(value)


def _list(found: Any) -> list[Any]:
    if found is None:
        return []
    return cast("list[Any]", found) if isinstance(found, list) else [found]


def _filled(text: str) -> str:
    return _PLACE.sub(lambda found: _PLACES[found[1]], text)


def _word(text: str) -> str:
    """Return a value as one word of a Dockerfile."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'
