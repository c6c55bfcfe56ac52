"""The part of a new sandbox that bubblewrap 0.8 cannot make: the user namespace and the copy-on-write root.

Runs in a child of the launcher that becomes ``bwrap`` afterwards. Everything is mounted below ``stage``, an empty
directory of the host, in a mount namespace of this process's own, so nothing is ever mounted on the host.

Invariants: a layer of an image is mounted read-only before anything can write through it; what is written goes to one
tmpfs of the disk limit's size; a sandbox's files are inodes of its own (``own_inodes``), but for what is reported.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ors_containers.launcher.private_inodes import (
    DEVICES,
    OWN_DEVICES,
    has_own_devices,
    make_own_devices,
    overlay_own,
    without,
)
from ors_containers.launcher.trusted_exec import EXAMINATION
from ors_containers.layers.tree import LayeredTree
from ors_containers.linux import syscalls as system
from ors_containers.linux.kernel_limits import TERMINAL_OPTIONS, limit_watches, make_nothing, replacements
from ors_containers.linux.user_namespaces import join_mapped_namespace, mapped_namespace

__all__ = ["FILTER_AT", "HOLDER_AT", "NEWS_AT", "Message", "bound_trees", "prepare", "prepare_root", "shared_text"]

Message = dict[str, Any]

#: Where a sandbox's bwrap finds the holder program, the filter and the pipe for its news.
HOLDER_AT = 20
FILTER_AT = 21
NEWS_AT = 22
_STAGE_SIZE = 1 << 20
_DEVICES_SIZE = 1 << 16
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def prepare(message: Message) -> tuple[list[str], list[str]]:
    """Make the namespaces and mounts that bubblewrap 0.8 cannot make.

    Returns its command line, and what of the sandbox is not its own (``prepare_root``).
    """
    shared = prepare_root(message)
    for source, target in bound_trees(message):
        # Here and not by bubblewrap, which reads the whole mount table again for each.
        system.mount(source, f"root{target}", "", system.MS_BIND | system.MS_REC)
    # A mount point directly below / is what nobody in the sandbox can rename, remove or put something in place of, its
    # root neither; an examination mounts its files over this.
    system.attach("disk/nothing", f"root{EXAMINATION}")
    _make_devices()
    stage: str = message["stage"]
    # With one user the first process that enters may not mount anything there, as ``kernel_objects.hide`` does.
    one_user = message["mapping"]["by"] == "user"
    hidden = list(replacements(f"{stage}/disk/nothing", Path(stage, "disk"), everything=one_user))
    with contextlib.suppress(OSError):  # a kernel that refuses it, or has too many already
        system.unshare(system.CLONE_NEWTIME)
    os.chdir("/")
    return [
        *(message["program"], *message["arguments"]),
        *("--dev-bind", f"{stage}/root", "/", "--proc", "/proc"),
        *(word for source, target in hidden for word in ("--ro-bind", source, target)),
        *("--seccomp", str(FILTER_AT), "--info-fd", str(NEWS_AT), "--", f"/proc/self/fd/{HOLDER_AT}"),
    ], shared


def _make_devices() -> None:
    """Mount /dev: bubblewrap's own takes ten readings of the mount table, and has no bound for terminals."""
    _make_point("/dev", directory=True)
    guarded = system.MS_NOSUID | system.MS_NODEV
    if has_own_devices(Path()):
        guarded = system.MS_NOSUID
        system.mount(OWN_DEVICES, "root/dev", "", system.MS_BIND)
    else:
        system.mount("tmpfs", "root/dev", "tmpfs", guarded, f"size={_DEVICES_SIZE},mode=755")
        for name in DEVICES:
            Path("root/dev", name).touch()
            system.mount(f"/dev/{name}", f"root/dev/{name}", "", system.MS_BIND)
    for name, target in _LINKS.items():
        Path("root/dev", name).symlink_to(target)
    for name in ("pts", "shm"):
        Path("root/dev", name).mkdir()
    system.mount("devpts", "root/dev/pts", "devpts", system.MS_NOSUID | system.MS_NOEXEC, TERMINAL_OPTIONS)
    system.mount("disk/shm", "root/dev/shm", "", system.MS_BIND)
    system.mount("", "root/dev", "", system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | guarded)


def shared_text(places: Sequence[str]) -> bytes:
    """How a sandbox that comes up tells what ``prepare_root`` returned."""
    return f"[shared {json.dumps(places)}]".encode() if places else b""


def bound_trees(message: Message) -> list[tuple[str, str]]:
    """The image's binds as ``prepare_root`` has left them: where each is below ``stage``, and where it shall appear."""
    return [
        (f"bind{number}" if is_directory else f"bind{number}/{Path(source).name}", target)
        for number, (source, target, is_directory) in enumerate(message["binds"])
    ]


def prepare_root(message: Message) -> list[str]:
    """Make a user namespace in which this process is root, and below ``stage`` the copy-on-write root.

    The image's binds are where ``bound_trees`` says, not yet where they appear. Leaves this process in ``stage``.
    Returns the places in the sandbox whose inodes are not its own: what it locks or watches there, others may see.
    """
    stage: str = message["stage"]
    mapping = message["mapping"]
    layers = {f"layer{number}": source for number, source in enumerate(message["layers"])}
    # Of a file its folder: an overlay is made of folders.
    binds = {
        f"bind{number}": source if is_directory else str(Path(source).parent)
        for number, (source, _, is_directory) in enumerate(message["binds"])
    }
    sources = {**layers, **binds}
    # Names in `stage` that are mounted there already, with the owners they have inside.
    mapped: set[str] = set()

    if mapping["by"] == "root":
        system.unshare(system.CLONE_NEWNS)
        system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
        _make_stage(stage, sources)
        make_own_devices(Path(stage), mapping["base"])
        namespace = mapped_namespace(mapping)
        for name, source in sources.items() if mapping["idmapped"] else ():
            # A file system that cannot: its files will seem to be nobody's, and are as readable.
            with contextlib.suppress(OSError):
                system.attach(source, f"{stage}/{name}", namespace)
                mapped.add(name)
        system.setns(namespace, system.CLONE_NEWUSER)
        system.unshare(system.CLONE_NEWNS)
        system.become(0, 0)
    else:
        join_mapped_namespace(mapping, system.CLONE_NEWNS)
        system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
        _make_stage(stage, sources)
    if mapping["by"] != "user":
        # In the nested namespace of the other case bubblewrap does this (--disable-userns).
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    limit_watches()

    os.chdir(stage)  # relative names: the overlay's options are shown in the sandbox's /proc/mounts
    for name, source in sources.items():
        if name not in mapped:
            system.attach(source, name)
    guarded = system.MS_NOSUID | system.MS_NODEV
    disk = f"size={message['disk']},nr_inodes={message['inodes']},mode=755"
    system.mount("tmpfs", "disk", "tmpfs", guarded, disk)
    for path, mode in (("disk/upper", 0o755), ("disk/work", 0o755), ("disk/shm", 0o1777)):
        Path(path).mkdir()
        Path(path).chmod(mode)
    Path("disk/nothing").mkdir(0o555)
    for path, mode, user, group in message["directories"]:
        _add_directory(Path("disk/upper"), [Path(layer) for layer in layers], path, mode, user, group)
    hidden: Mapping[str, list[str]] = message["hidden"]
    lower = [part for name, source in layers.items() for part in without(name, hidden.get(source, []))]
    options = f"lowerdir={':'.join(lower)},upperdir=disk/upper,workdir=disk/work,userxattr"
    system.mount("overlay", "root", "overlay", guarded, options)
    shared = [] if has_own_devices(Path()) else ["/dev"]
    for (name, source), (_, target, is_directory) in zip(binds.items(), message["binds"], strict=True):
        _make_point(target, directory=is_directory)
        if not overlay_own(name, hidden.get(source, [])):
            shared.append(target)
    _make_point(EXAMINATION, directory=True)
    if mapping["by"] != "user":
        make_nothing(Path("root"))
    return shared


def _make_stage(stage: str, sources: Mapping[str, str]) -> None:
    # Nothing of it is seen in the sandbox but its own devices, which have to work.
    system.mount("tmpfs", stage, "tmpfs", system.MS_NOSUID, f"size={_STAGE_SIZE},mode=755")
    for name, source in sources.items():
        if Path(source).is_dir():
            Path(f"{stage}/{name}").mkdir()
        else:
            Path(f"{stage}/{name}").touch()
    for name in ("disk", "root", "apptainer"):
        Path(f"{stage}/{name}").mkdir()


def _make_point(target: str, *, directory: bool) -> None:
    """Make what is mounted over at ``target`` where the image has no such thing.

    Raises ``OSError`` where a link of the image is on the way: it would lead to a place of the host.
    """
    parts = Path(target).parts[1:]
    for depth in range(1, len(parts) + 1):
        place = Path("root", *parts[:depth])
        if place.is_symlink():
            raise OSError(errno.ELOOP, f"the image has a link at /{place.relative_to('root')}, on the way to {target}")
        if place.exists():
            continue
        if directory or depth < len(parts):
            place.mkdir(mode=0o755)
        else:
            place.touch()


def _add_directory(upper: Path, layers: Sequence[Path], path: str, mode: int, user: int, group: int) -> None:
    """Put a directory that the image may lack into the upper layer; what the image has stays as it is."""
    tree = LayeredTree(layers)
    parts = Path(path).parts[1:]
    for depth in range(1, len(parts) + 1):
        relative = Path(*parts[:depth])
        if (upper / relative).is_dir():
            continue
        below = tree.find(str(relative))
        if below is not None and (depth == len(parts) or not stat.S_ISDIR(below.status.st_mode)):
            return
        new = upper / relative
        new.mkdir()
        if below is not None:
            new.chmod(stat.S_IMODE(below.status.st_mode))
            try:
                os.chown(new, below.status.st_uid, below.status.st_gid)
            except OSError:
                continue  # an owner without a number in here: root's, then
        elif depth == len(parts):
            new.chmod(mode)
            os.chown(new, user, group)
