"""The text of a file that describes an image: a Dockerfile or an Apptainer definition."""

from __future__ import annotations

from pathlib import Path

from ors_containers.errors import InvalidDefinition

__all__ = ["read_definition_text"]


def read_definition_text(path: Path, limit: int, kind: str, remedy: str) -> str:
    """Return the text of a file of at most ``limit`` bytes, with LF at the ends of lines.

    Raises ``InvalidDefinition``; where the content is not text of that size, it says that it is not ``kind``.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise InvalidDefinition(str(path), 0, "it is not a regular file")
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise InvalidDefinition(str(path), 0, f"it cannot be read: {error.strerror}") from error
    if len(content) > limit or b"\0" in content:
        raise InvalidDefinition(str(path), 0, f"it is not {kind}", remedy)
    return content.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
