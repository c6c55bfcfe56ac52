"""Records of images and layers: what each is made of and where it comes from.

An image's record has its layers, user, configuration and origin, in a file named after it.

Invariant: a record is written atomically, after all its layers exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ors_containers.errors import InvalidImage

__all__ = ["ImageRecord", "LayerInformation", "checked_name", "stem_of"]

_SUFFIX = ".json"
_FORMATS = (".sif", ".simg", ".img", ".tar", ".tgz", ".txz", ".gz", ".xz", ".bz2", ".zst", ".def")
_MAX_NAME_LENGTH = 128
#: Records that stay in memory.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class LayerInformation:
    """Size and origin of a layer."""

    key: str
    size: int
    #: The import, definition or recipe that made it, for display.
    made_by: str
    #: Whether a recipe made it: it belongs to no image of the store.
    recipe: bool
    #: Seconds since 1970.
    used: float


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image of the store. Layers are listed by their keys, the top one first."""

    name: str
    #: The layers that were imported or built; other images are built on these.
    layers: tuple[str, ...]
    #: The layer above them in sandboxes: the account of the image's user, where the image lacks it.
    account: tuple[str, ...] = ()
    user: int = 1000
    group: int = 1000
    user_name: str = "user"
    home: str = "/home/user"
    shell: str = "/bin/bash"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    #: What the image's own configuration says, under Docker's names: User, WorkingDir, Cmd, Entrypoint, OnBuild, ….
    #: ``None`` for an image that was made before this was kept.
    config: Mapping[str, Any] | None = None
    #: Paths of this machine and their targets: an image built on ``host`` has its programs from there.
    binds: tuple[tuple[str, str], ...] = ()
    #: The shell's directory; empty for the home.
    directory: str = ""
    #: Whether the archive, the Dockerfile or the caller names the user.
    names_user: bool = False
    #: The file or reference it was made from, for display.
    source: str = ""
    #: A digest of all that it was made from. A definition with the same origin is not built again.
    origin: str = ""
    #: A digest of the row of the image map that made it, and of its file's time; empty for an image of other origin.
    stamp: str = ""
    #: Bytes of all layers, shared ones as well.
    size: int = 0
    #: Seconds since 1970.
    created: float = 0.0
    used: float = 0.0

    @property
    def all_layers(self) -> tuple[str, ...]:
        """All layers of a sandbox of the image."""
        return (*self.account, *self.layers)

    @property
    def docker_config(self) -> dict[str, Any]:
        """Its configuration under Docker's names; of an image made before it was kept, user and folder alone."""
        if self.config is not None:
            return dict(self.config)
        named = self.names_user or not (self.account or self.user_name == "user")
        return {"User": self.user_name if named else "", "WorkingDir": self.directory}

    def save(self, folder: Path) -> None:
        """Write the record to its file in ``folder``."""
        target = folder / _file_name(self.name)
        new = target.with_suffix(f".{time.time_ns()}.new")
        content = asdict(self)
        del content["used"]
        try:
            new.touch(mode=0o644)  # whatever the umask is: who can write it chooses what sandboxes run
            new.write_text(json.dumps(content, indent=1))
            new.replace(target)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    @staticmethod
    def load(folder: Path, name: str) -> ImageRecord | None:
        """Read the record of that name; None where there is none. Raises ``InvalidImage`` for a damaged file."""
        path = folder / _file_name(name)
        try:
            status = path.stat()
            return _loaded(path, name, (status.st_mtime_ns, status.st_size, status.st_ino))
        except FileNotFoundError:
            return None

    @staticmethod
    def exists(folder: Path, name: str) -> bool:
        """Return whether there is an image of that name."""
        try:
            return (folder / _file_name(name)).is_file()
        except OSError:  # longer than a file's name may be
            return False

    @staticmethod
    def names(folder: Path) -> list[str]:
        """Return the names of all images."""
        try:
            return sorted(unquote(path.name.removesuffix(_SUFFIX)) for path in folder.glob(f"*{_SUFFIX}"))
        except FileNotFoundError:
            return []

    def path(self, folder: Path) -> Path:
        """Return the path of the record's file."""
        return folder / _file_name(self.name)


@lru_cache(maxsize=_REMEMBERED)
def _loaded(path: Path, name: str, stamp: tuple[int, int, int]) -> ImageRecord:
    """Read a record once for all sandboxes of its image, as long as its file is the same."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidImage(f"The store's record of {name} is damaged: {error}", f"Remove {path}") from error
    for key in ("layers", "account"):
        content[key] = tuple(content[key])
    content["binds"] = tuple((source, target) for source, target in content["binds"])
    return ImageRecord(**content, used=stamp[0] / 1e9)


def _file_name(name: str) -> str:
    return quote(name, safe="") + _SUFFIX


def stem_of(name: str) -> str:
    """Return a file name without the suffixes of its format: ``ubuntu_22.04`` for ``ubuntu_22.04.tar.gz``."""
    while name.endswith(_FORMATS):
        name = name.rpartition(".")[0]
    return name


def checked_name(name: str) -> str:
    """Return ``name`` if it is valid for an image. Raises ``InvalidImage``."""
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable() or name != name.strip() or name == "host":
        raise InvalidImage(
            f"An image cannot be called {name!r}",
            f"A name has 1 to {_MAX_NAME_LENGTH} printable characters, and `host` is this machine's own image",
        )
    return name
