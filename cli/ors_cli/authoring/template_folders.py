"""Folders written from templates, without overwriting the user's files.

The templates are files in ``ors_cli/templates``: valid Python, README and Dockerfile as they are, in which
``TemplateEnvironment`` and ``template-environment`` stand for the class and the name. ``gitignore`` and its like get
their dot when they are written: with it they would apply to the templates themselves.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ors_server.errors import OrsError

__all__ = ["FolderError", "Names", "check_empty", "read_template", "write_folder"]

_TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
_DOTTED = frozenset({"dockerignore", "gitattributes", "gitignore"})


class FolderError(OrsError):
    """A folder cannot be read or written as asked."""


class Names:
    """The values of the templates' two placeholders."""

    def __init__(self, name: str, class_name: str) -> None:
        self.name = name
        self.class_name = class_name

    def fill(self, text: str) -> str:
        """Return the text with the placeholders replaced."""
        return text.replace("TemplateEnvironment", self.class_name).replace("template-environment", self.name)


def read_template(folder: str, names: Names) -> dict[str, bytes]:
    """Return the files of one template folder, by the name they get."""
    return {
        f".{file.name}" if file.name in _DOTTED else file.name: names.fill(file.read_text("utf-8")).encode()
        for file in sorted((_TEMPLATES / folder).iterdir())
        if file.is_file()
    }


def check_empty(folder: Path, names: Collection[str], *, force: bool) -> list[str]:
    """Check that a folder may be written: it is missing or empty, or ``force`` says that it may hold something.

    Returns which of the files to be written (``names``) are there already and will be overwritten; a git repository
    counts as nothing. Raises ``FolderError``.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise FolderError(f"{folder} is a file", "Name a folder.")
    overwritten = sorted(name for name in names if (folder / name).exists())
    there = sorted(entry.name for entry in folder.iterdir() if entry.name != ".git")
    if there and not force:
        loss = f"it would overwrite {', '.join(overwritten)}" if overwritten else "it would overwrite none of them"
        raise FolderError(
            f"{folder} is not empty: it holds {_some(there)}", f"Name another folder, or add --force: {loss}."
        )
    return overwritten


def write_folder(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write the files, given as their content or as a file to copy, and make the folder where it is missing.

    Raises ``FolderError`` where the file system does not let it.
    """
    try:
        for name, content in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy(content, file)
            else:
                file.write_bytes(content)
    except OSError as error:
        raise FolderError(f"{error.filename} cannot be written: {error.strerror}") from error


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
