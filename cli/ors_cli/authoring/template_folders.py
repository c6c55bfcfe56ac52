"""Folders written from templates, without overwriting the user's files.

The templates are files in ``ors_cli/templates``: valid Python, README and Dockerfile as they are, in which
``TemplateEnvironment`` and ``template-environment`` stand for the class and the name. ``gitignore`` and its like get
their dot when they are written: with it they would apply to the templates themselves. Every written environment has the
files of ``shared`` and ``frame``. The folder of its template adds its code, and two parts of the README of ``frame``:
what it is about, and calls of its tools.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ors_server.errors import OrsError

__all__ = ["TEMPLATES", "FolderError", "Names", "check_empty", "read_environment", "read_template", "write_folder"]

#: The templates of environments, the default first, and what each of them shows.
TEMPLATES = {
    "basic": "a question in text, and two tools: the parts that every environment has",
    "images": "images in the prompt and in the result of a tool",
    "files": "files that the agent reads, and files that it hands in",
    "judge": "a reward that a model gives, behind an endpoint of OpenAI's chat completions",
    "tasks": "a million tasks by index, drawn from seeds, none of the test in the training",
    "sandbox": "a sandbox for each session, and grading in it",
}

_TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
#: Parts of the README, which are not files of their own.
_ABOUT, _CALLS = "about.md", "calls.txt"
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
    """Return the files of one template folder and the folders in it, by the path they get."""
    root = _TEMPLATES / folder
    files: dict[str, bytes] = {}
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root)
        # A template is compiled where it is installed, as every module of a package.
        if file.is_file() and "__pycache__" not in path.parts:
            written = path.with_name(f".{path.name}") if path.name in _DOTTED else path
            files[written.as_posix()] = names.fill(file.read_text("utf-8")).encode()
    return files


def read_environment(template: str, names: Names) -> dict[str, bytes]:
    """Return the files of an environment of one of ``TEMPLATES``. Raises ``FolderError`` for any other name."""
    if template not in TEMPLATES:
        raise FolderError(f"There is no template {template!r}", f"There are: {', '.join(TEMPLATES)}.")
    files = {**read_template("shared", names), **read_template("frame", names), **read_template(template, names)}
    about, calls = files.pop(_ABOUT).decode().rstrip(), files.pop(_CALLS).decode().rstrip()
    readme = files["README.md"].decode().replace("template-about", about)
    files["README.md"] = readme.replace("    template_calls", textwrap.indent(calls, " " * 4)).encode()
    return dict(sorted(files.items()))


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
