"""Masks over the paths of /proc that describe the machine and not the sandbox.

A figure that the kernel keeps for the whole machine is a channel: one sandbox moves it, another reads it. So a sandbox
sees of /proc what is its own and what never changes; all else is covered:

- at the top, everything that ``_KEPT`` does not name, also entries of kernel modules that this code does not know;
- below /proc/sys, every file whose mode lets no user write. A setting can be written; a file that cannot is a constant
  (``_CONSTANTS``) or a counter. /proc/sys/net and /proc/sys/user show the reader's own namespaces.

Programs parse some of these files: they find them with every counter at 0. A boot identifier is replaced by one of the
sandbox's own. The rest is covered with an empty file or an empty directory.

Not closed: the figures of sysinfo(2) (meminfo, loadavg, uptime), which no mount can take away, and those of the machine
in /proc/PID/net, which exist once for each process.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ors_containers.linux import kernel_files
from ors_containers.linux import syscalls as system

__all__ = ["make_empty_file", "mask", "masks", "prepare"]

#: Below /proc: processes and namespaces of the reader, constants of the machine, and what sysinfo(2) tells anyhow.
_KEPT = frozenset(
    (
        *("self", "thread-self", "net", "mounts", "sys", "sysvipc", "key-users"),
        *("config.gz", "cpuinfo", "devices", "execdomains", "filesystems", "version", "version_signature"),
        *("bootconfig", "dma", "fb", "iomem", "ioports", "kallsyms", "misc", "mtrr"),
        *("loadavg", "meminfo", "uptime"),
    )
)
#: Below /proc/sys: read-only, and the same for as long as the machine runs, or drawn for each reader.
_CONSTANTS = frozenset(
    (
        *("kernel/arch", "kernel/bootloader_type", "kernel/bootloader_version", "kernel/cap_last_cap"),
        *("kernel/core_modes", "kernel/ngroups_max", "kernel/nmi_watchdog", "kernel/osrelease", "kernel/ostype"),
        *("kernel/random/poolsize", "kernel/random/uuid", "kernel/seccomp/actions_avail", "kernel/version"),
        *("kernel/msg_next_id", "kernel/sem_next_id", "kernel/shm_next_id"),  # of an IPC namespace
    )
)
_BOOT_IDENTIFIER = "kernel/random/boot_id"
#: Directories of /proc/sys that show the reader's namespaces.
_NAMESPACED = ("net", "user")
#: Text files that programs of users parse, with the numbers of each line that say something about the machine.
_PARSED = {
    "stat": re.compile(r"(?m)(?<=[ ])\d+(?=[ \n])"),
    "vmstat": re.compile(r"(?<= )\d+"),
    "cgroups": re.compile(r"(?m)(?<=\t)\d+(?=\t\d+$)"),
}
_EMPTY_FILE = "/.sandbox-nothing"


def _new_identifier() -> str:
    text = os.urandom(16).hex()
    return "-".join((text[:8], text[8:12], f"4{text[13:16]}", f"a{text[17:20]}", text[20:])) + "\n"


@cache
def _counters() -> dict[str, str]:
    """Return the contents with which counters are covered, by path below /proc; an empty one for a directory.

    Reads some thousand entries, once a process.
    """
    found: dict[str, str] = {}
    for name, numbers in _PARSED.items():
        text = _read(Path("/proc", name))
        if text:
            found[name] = "".join(
                line if line.startswith("btime") else numbers.sub("0", line) for line in text.splitlines(keepends=True)
            )
    root = Path("/proc/sys")
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in _NAMESPACED]
        own = Path(folder).relative_to(root)
        kinds = {name: _is_counter(root / own / name, str(own / name)) for name in files}
        if own.parts and not folders and kinds and all(kinds.values()):
            found[f"sys/{own}"] = ""
            continue
        for name, is_counter in kinds.items():
            if is_counter:
                found[f"sys/{own / name}"] = re.sub(r"\d+", "0", _read(root / own / name))
    return found


def prepare() -> None:
    """Find out what there is to cover: children of this process inherit it, and start sooner."""
    _known_paths()


def masks(nothing: str, directory: str, *, everything: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the files and directories to mount, and the path of /proc that each of them covers.

    ``nothing`` is an empty directory to mount; files are made in ``directory``. Without ``everything`` only the boot
    identifier, which ``mask`` cannot replace.
    """
    identifier = f"{directory}/boot_id"
    kernel_files.write(identifier, _new_identifier())  # programs want one
    os.chmod(identifier, 0o444)
    yield identifier, f"/proc/sys/{_BOOT_IDENTIFIER}"
    if not everything:
        return
    made: dict[str, str] = {}
    for place, content in _masked_paths().items():
        if content is None:
            yield nothing, place
            continue
        if content not in made:
            made[content] = file = f"{directory}/masked{len(made)}"
            kernel_files.write(file, content)
            os.chmod(file, 0o444)
        yield made[content], place


def make_empty_file(root: str) -> None:
    """Make the empty file that ``mask`` mounts and removes, below the root of a sandbox that is not up yet.

    Raises ``OSError`` where the image has something of that name, which may be a link to anywhere.
    """
    os.close(os.open(f"{root}{_EMPTY_FILE}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))


def mask(nothing: str) -> None:
    """Cover the paths in this process's mount namespace, as its root; the boot identifier stays as it is.

    For bubblewrap, which reads the mount table again for each mount: sandboxes that start together wait for one another
    there. ``nothing`` is an empty directory of the namespace.
    """
    flags = system.MS_BIND | system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC | system.MS_RDONLY
    # Root inside could write what a namespace has of its own: without process ids nothing could be started or ended.
    system.mount("/proc/sys", "/proc/sys", "", system.MS_BIND | system.MS_REC)
    system.mount("", "/proc/sys", "", system.MS_REMOUNT | flags)
    files: list[str] = []
    #: The first path that is covered with a content. A mount of it for another path has its flags.
    covered: dict[str | None, str] = {}
    for place, content in _masked_paths().items():
        source = covered.get(content, nothing)
        if content is not None and content not in covered:
            # The file that was made before the sandbox came up serves the first content.
            source = f"{_EMPTY_FILE}{len(files) or ''}"
            created = os.O_CREAT | os.O_EXCL if files else 0
            files.append(source)
            descriptor = os.open(source, os.O_WRONLY | os.O_CLOEXEC | created, 0o444)
            os.write(descriptor, content.encode())
            os.close(descriptor)
        system.mount(source, place, "", system.MS_BIND)
        if content not in covered:
            system.mount("", place, "", system.MS_REMOUNT | flags)
            covered[content] = place
    for file in files:
        os.unlink(file)


def _masked_paths() -> dict[str, str | None]:
    """Return the content to cover each path with; None for an empty directory."""
    known = _known_paths()
    places = {place: cover.content for place, cover in known.items() if cover.covered}
    for name in os.listdir("/proc"):  # an entry of a module that was loaded since
        if not name.isdigit() and name not in _KEPT and f"/proc/{name}" not in known:
            cover = _cover(f"/proc/{name}", "")
            if cover.covered:
                places[f"/proc/{name}"] = cover.content
    return places


class _Cover(NamedTuple):
    """The content that covers a path, if it is covered."""

    covered: bool
    content: str | None


@cache
def _known_paths() -> dict[str, _Cover]:
    counters = _counters()
    top = [name for name in os.listdir("/proc") if name not in _KEPT and not name.isdigit()]
    names = sorted({*top, *counters})
    return {f"/proc/{name}": _cover(f"/proc/{name}", counters.get(name, "")) for name in names}


def _cover(place: str, content: str) -> _Cover:
    """Return how a path is covered. Users of a sandbox own no path of the host's, so others must be able to read it."""
    try:
        mode = os.stat(place).st_mode
    except OSError:
        return _Cover(False, None)
    return _Cover(bool(mode & stat.S_IROTH), None if stat.S_ISDIR(mode) else content)


def _is_counter(place: Path, name: str) -> bool:
    if name in _CONSTANTS or name == _BOOT_IDENTIFIER:
        return False
    try:
        return not place.stat().st_mode & 0o222
    except OSError:
        return False


def _read(place: Path) -> str:
    try:
        return place.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
