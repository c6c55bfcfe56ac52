"""Recipes: the files, script and variables that are added to an image to derive another.

Invariant: a recipe is a value. Equal recipes have equal keys and make the same layers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ors_containers.errors import InvalidImage

__all__ = ["Recipe", "RecipeFile"]


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A file of a recipe: regular with ``content``, a symbolic ``link``, or a ``directory``."""

    content: bytes = b""
    #: Permission bits; by default 644 for a file and 755 for a directory. A link has none.
    mode: int | None = None
    #: Target of a symbolic link, as written.
    link: str | None = None
    directory: bool = False
    #: The image's user, or root. Where files can have one owner only (see ``docs/images.md``), both mean that one.
    owner: Literal["user", "root"] = "user"

    @property
    def permissions(self) -> int:
        """Its permission bits."""
        return (0o755 if self.directory else 0o644) if self.mode is None else self.mode


@dataclass(frozen=True, slots=True)
class Recipe:
    """Files that are written over an image, then a script that is run once in a build sandbox of it.

    Missing parents of a file are created with mode 755; below the user's home they belong to the user, elsewhere to
    root. Raises ``InvalidImage`` for a path that is relative or has ``..``, for a script with a NUL character, and for
    a time-out that is not above 0.
    """

    #: By absolute path.
    files: Mapping[str, RecipeFile] = field(default_factory=dict[str, RecipeFile])
    #: Text for the image's shell, run in the user's home with ``-e``: the build fails at the first failing command.
    script: str = ""
    #: Whether the script runs as root, with root's rights over the image's files, or as the image's user.
    as_root: bool = False
    #: Variables that override the image's, in the derived image and in the script.
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Seconds the script may take.
    timeout: float = 600.0

    def __post_init__(self) -> None:
        for path, file in self.files.items():
            parts = path.split("/")
            if not path.startswith("/") or not path.strip("/") or ".." in parts or "\0" in path:
                raise InvalidImage(f"A recipe's file {path!r} is not an absolute path without `..`")
            if (file.link is not None) + file.directory + bool(file.content) > 1:
                raise InvalidImage(f"A recipe's file {path} is two things at once")
        if "\0" in self.script:
            raise InvalidImage("A recipe's script holds a NUL character")
        if not self.timeout > 0:
            raise InvalidImage(f"A recipe's time-out of {self.timeout} s leaves no time")

    @property
    def key(self) -> str:
        """A digest of everything but the time-out."""
        files = {
            path: [
                hashlib.sha256(file.content).hexdigest(),
                None if file.link is not None else file.permissions,
                file.link,
                file.directory,
                file.owner,
            ]
            for path, file in self.files.items()
        }
        text = json.dumps([files, self.script, self.as_root, dict(self.environment)], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
