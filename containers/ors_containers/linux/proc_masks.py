"""Masks over the paths of /proc that describe the machine and not the sandbox.

Container runtimes mask similar paths. A boot identifier is replaced by one of the sandbox's own, because programs read
it. The other paths are covered with an empty file or an empty directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ors_containers.linux import syscalls as system

__all__ = ["make_empty_file", "mask", "masks"]

#: Below /proc.
_MASKED = ("cmdline", "interrupts", "keys", "sched_debug", "acpi", "asound", "pressure", "scsi")
_EMPTY_FILE = "/.sandbox-nothing"
_BOOT_IDENTIFIER = "sys/kernel/random/boot_id"


def _new_identifier() -> str:
    text = os.urandom(16).hex()
    return "-".join((text[:8], text[8:12], f"4{text[13:16]}", f"a{text[17:20]}", text[20:])) + "\n"


def masks(nothing: str, directory: Path, *, everything: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the files and directories to mount, and the path of /proc that each of them covers.

    ``nothing`` is an empty directory to mount; files are made in ``directory``. Without ``everything`` only the boot
    identifier, which ``mask`` cannot replace.
    """
    identifier = directory / "boot_id"
    identifier.write_text(_new_identifier())  # programs want one
    identifier.chmod(0o444)
    yield str(identifier), f"/proc/{_BOOT_IDENTIFIER}"
    if everything:
        empty = directory / "empty"
        empty.touch(0o444)
        for place in _masked_paths():
            yield (nothing if place.is_dir() else str(empty)), str(place)


def make_empty_file(root: Path) -> None:
    """Make the empty file that ``mask`` mounts and removes, below the root of a sandbox that is not up yet.

    Raises ``OSError`` where the image has something of that name, which may be a link to anywhere.
    """
    os.close(os.open(root / _EMPTY_FILE[1:], os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))


def mask(nothing: str) -> None:
    """Cover the paths in this process's mount namespace, as its root; the boot identifier stays as it is.

    For bubblewrap, which reads the mount table again for each mount: sandboxes that start together wait for one another
    there. ``nothing`` is an empty directory of the namespace.
    """
    flags = system.MS_BIND | system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC | system.MS_RDONLY
    for place in _masked_paths():
        system.mount(nothing if place.is_dir() else _EMPTY_FILE, str(place), "", system.MS_BIND)
        system.mount("", str(place), "", system.MS_REMOUNT | flags)
    Path(_EMPTY_FILE).unlink()


def _masked_paths() -> list[Path]:
    return [place for place in (Path("/proc", name) for name in _MASKED) if place.exists()]
