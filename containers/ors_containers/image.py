"""Images: the read-only directories that a sandbox starts from, and the user of its processes.

An ``Image`` has a list of layers, of which the first wins, and paths of the host that are bound read-only over them. A
sandbox adds a writable layer. Invariant: an image consists of paths of the host and never changes; starting a sandbox
of it copies no file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ors_containers.errors import InvalidImage
from ors_containers.linux.public_folders import make_folder

__all__ = ["DEFAULT_PATH", "Directory", "Image", "folder_image", "host_image"]

#: PATH where an image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Files of the machine's /etc that programs in /usr need and that reveal nothing about the machine.
_HOST_FILES = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "ssl/certs",
    "services",
    "magic",
)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that a sandbox always has; a file or directory of the image by that name is kept."""

    path: str
    mode: int = 0o755
    #: Whether it belongs to the sandbox's user rather than to root.
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """The layers, binds, user and environment that sandboxes of one image share.

    Raises ``InvalidImage`` where a sandbox could not start: a layer that is not a directory, a relative path, an
    invalid id.
    """

    name: str
    #: Directories of the host, the top one first.
    layers: tuple[Path, ...]
    #: Paths of the host and their targets, bound read-only.
    binds: tuple[tuple[Path, str], ...] = ()
    #: Variables of its shell; they override HOME, PATH, USER and the like.
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    #: User and group ids of its processes inside; 0 is root inside, which has no capabilities.
    user: int = 1000
    group: int = 1000
    #: Other groups of a container's commands.
    groups: tuple[int, ...] = ()
    user_name: str = "user"
    home: str = "/home/user"
    shell: str = "/bin/bash"
    #: The shell's directory, created where the image lacks it; empty for the home, and for / in a container.
    directory: str = ""
    #: Whether the image itself names this user; where it does not, a container's user is root, as Docker's is.
    names_user: bool = True

    def __post_init__(self) -> None:
        if not self.layers:
            raise InvalidImage(f"Image {self.name} has no layers")
        for layer in self.layers:
            if not layer.is_absolute() or not layer.is_dir():
                raise InvalidImage(f"Image {self.name}: {layer} is not a directory of this machine")
        for source, target in self.binds:
            if not source.exists():
                raise InvalidImage(f"Image {self.name}: {source} does not exist on this machine")
            if not target.startswith("/") or ".." in target.split("/"):
                raise InvalidImage(f"Image {self.name}: {target} is not an absolute path without `..`")
        if not self.home.startswith("/") or ".." in self.home.split("/"):
            raise InvalidImage(f"Image {self.name}: the home {self.home} is not an absolute path without `..`")
        if self.directory and (not self.directory.startswith("/") or ".." in self.directory.split("/")):
            raise InvalidImage(
                f"Image {self.name}: the directory {self.directory} is not an absolute path without `..`"
            )
        if not all(0 <= number < 65536 for number in (self.user, self.group, *self.groups)):
            raise InvalidImage(f"Image {self.name}: user and groups are ids from 0 to 65535")

    @property
    def directories(self) -> tuple[Directory, ...]:
        """The directories that every sandbox of the image has."""
        shared = tuple(Directory(path, 0o1777) for path in ("/tmp", "/var/tmp"))  # noqa: S108 - inside the sandbox
        return (
            *shared,
            Directory("/run"),
            Directory("/proc", 0o555),
            Directory("/dev"),
            Directory(self.home, 0o755, True),
            *([Directory(self.directory, 0o755, True)] if self.directory not in ("", "/", self.home) else []),
        )

    @property
    def variables(self) -> dict[str, str]:
        """The complete environment of its shell."""
        return {
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "LOGNAME": self.user_name,
            "PATH": DEFAULT_PATH,
            "SHELL": self.shell,
            "TERM": "dumb",
            "USER": self.user_name,
            **self.environment,
        }


def folder_image(
    folder: Path,
    *,
    user: int = 1000,
    group: int = 1000,
    user_name: str = "user",
    home: str = "/home/user",
    environment: Mapping[str, str] | None = None,
) -> Image:
    """Return an unpacked root file system (``/bin``, ``/etc``, …) as an image; it is shared and never written.

    Raises ``InvalidImage`` where ``folder`` is not a directory or has no bash.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        raise InvalidImage(f"{folder} is not a directory")
    shell = next((name for name in ("/bin/bash", "/usr/bin/bash") if _is_program(folder, name)), None)
    if shell is None:
        raise InvalidImage(f"{folder} has no /bin/bash", "Install bash in the image: every command runs in one")
    return Image(
        name=folder.name,
        layers=(folder,),
        environment=environment or {},
        user=user,
        group=group,
        user_name=user_name,
        home=home,
        shell=shell,
    )


def host_image(state: Path) -> Image:
    """Return an image of the machine's own programs, read-only, and of no other files of the machine.

    It has ``/usr`` (with ``/bin``, ``/lib`` and the like where they are separate) and copies of the few files of
    ``/etc`` that programs need to find their libraries. Users, host name and the rest of ``/etc`` are generated. The
    files are written to ``state``, a directory of the caller, and again when those of the machine have changed.

    Raises ``InvalidImage`` on a machine without bash.
    """
    if not Path("/bin/bash").exists():
        raise InvalidImage("This machine has no /bin/bash")
    binds = [(Path("/usr"), "/usr")]
    links: dict[str, str] = {}
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        here = Path("/", name)
        if here.is_symlink():
            links[name] = str(here.readlink())
        elif here.is_dir():
            binds.append((here, f"/{name}"))
    copied = [Path("/etc", name) for name in _HOST_FILES if Path("/etc", name).exists()]
    described = repr((binds, links, _ETC, [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in copied]))
    root = state / "images" / f"host-{hashlib.sha256(described.encode()).hexdigest()[:16]}"
    if not root.is_dir():
        _write_root(root, binds, links, copied)
    return Image(name="host", layers=(root,), binds=tuple(binds), names_user=False)


def _write_root(root: Path, binds: list[tuple[Path, str]], links: Mapping[str, str], copied: list[Path]) -> None:
    """Fill a new directory and rename it last, because another process may be writing the same image."""
    make_folder(root.parent)
    new = Path(tempfile.mkdtemp(dir=root.parent, prefix=".new-"))
    for name in ("etc", "home", "opt", "root", "srv", "var", "mnt", "media", "sys"):
        (new / name).mkdir()
    for name, target in links.items():
        (new / name).symlink_to(target)
    for _, target in binds:
        (new / target.removeprefix("/")).mkdir()
    for source in copied:
        target = new / str(source).removeprefix("/")
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    for name, content in _ETC.items():
        (new / "etc" / name).write_text(content)
    for path in (new, *new.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        new.rename(root)
    except OSError:  # another process was faster
        shutil.rmtree(new)


def _is_program(root: Path, name: str) -> bool:
    """Return whether ``name`` is an executable file below ``root``, links followed as inside a sandbox."""
    place = root
    parts = [part for part in name.split("/") if part]
    for _ in range(64):
        if not parts:
            return place.is_file() and os.access(place, os.X_OK)
        part = parts.pop(0)
        if part == "..":
            place = root if place == root else place.parent
            continue
        step = place / part
        if step.is_symlink():
            target = str(step.readlink())
            parts = [piece for piece in target.split("/") if piece not in ("", ".")] + parts
            place = root if target.startswith("/") else place
        else:
            place = step
    return False


_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\n"
    "user:x:1000:1000:user:/home/user:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
    "profile": "",
    "shells": "/bin/sh\n/bin/bash\n",
}
