"""The user namespace and the copy-on-write root of a new sandbox, for every runtime.

A child of the launcher makes them before it becomes ``bwrap`` or starts Apptainer. It mounts everything below
``stage``, an empty directory of the host, in its own mount namespace, so no mount appears on the host.

Invariants: a layer of an image is mounted read-only before any process can write through it; writes go to one tmpfs of
the disk limit's size, or a container's to its disk (``loop_disk``); the inodes of a sandbox's files are its own
(``overlays``), except for the places that ``prepare_root`` returns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ors_containers.launcher.messages import Root, RootDirectory
from ors_containers.launcher.mounts.loop_disk import mount_disk, mount_frozen
from ors_containers.launcher.mounts.overlays import mount_overlay, overlay_own, without
from ors_containers.launcher.mounts.private_devices import has_own_devices, make_own_devices
from ors_containers.launcher.whole_files import copy_files
from ors_containers.layers.tree import LayeredTree
from ors_containers.linux import kernel_files
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.proc_masks import make_empty_file
from ors_containers.linux.confinement.user_namespaces import join_mapped_namespace, mapped_namespace
from ors_containers.linux.limits.kernel_limits import limit_watches
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["Joined", "bound_trees", "make_file", "make_mount_point", "make_stage", "prepare_root", "shared_text"]

_STAGE_SIZE = 1 << 20
_FOLDERS = ("disk", "root", "apptainer")
#: Without MS_NODEV: devices of the sandbox's own are made in the stage, and have to work.
_STAGE_FLAGS = system.MS_NOSUID


class Joined(NamedTuple):
    """A running container whose user namespace a new one joins."""

    #: A pidfd of its process 1, and the process id.
    process_1: int
    process: int


def shared_text(places: Sequence[str]) -> bytes:
    """Return the text by which a starting sandbox reports the places that ``prepare_root`` returned."""
    return f"[shared {json.dumps(places)}]".encode() if places else b""


def bound_trees(root: Root) -> list[tuple[str, str]]:
    """Return for each of the image's binds its path below ``stage`` after ``prepare_root``, and its target."""
    return [
        (f"bind{number}" if bind.is_directory else f"bind{number}/{os.path.basename(bind.source)}", bind.target)
        for number, bind in enumerate(root.binds)
    ]


def prepare_root(root: Root, *, disk: int = -1, joined: Joined | None = None) -> list[str]:
    """Make a user namespace in which this process is root, and below ``stage`` the copy-on-write root.

    ``disk`` is the content of a new disk, where ``root.disk_folder`` is one. With ``joined`` the user namespace is that
    container's, whose mapping is ``root.mapping`` too.

    The image's binds are mounted where ``bound_trees`` says, not yet at their targets. Leaves this process in
    ``stage``. Returns the places in the sandbox whose inodes are not its own: other sandboxes may notice its locks and
    watches there.
    """
    stage, mapping = root.stage, root.mapping
    layers = {f"layer{number}": source for number, source in enumerate(root.layers)}
    # The folder of a bound file: an overlay is made of folders.
    binds = {
        f"bind{number}": bind.source if bind.is_directory else os.path.dirname(bind.source)
        for number, bind in enumerate(root.binds)
    }
    sources = {**layers, **binds}
    frozen = {name: root.frozen[source] for name, source in layers.items() if source in root.frozen}
    # Names in `stage` that are mounted already, with mapped owners.
    mapped: set[str] = set()

    if mapping.by == "root":
        system.unshare(system.CLONE_NEWNS)
        system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
        for name in frozen:
            sources[name] = f"{stage}/{name}-disk/upper"
        others = {name: source for name, source in sources.items() if name not in frozen}
        make_stage(stage, others, (*_FOLDERS, *frozen, *(f"{name}-disk" for name in frozen)), _STAGE_FLAGS)
        for name, device in frozen.items():
            mount_frozen(device, f"{stage}/{name}-disk")
        make_own_devices(stage, mapping.base)
        if root.disk_folder:
            mount_disk(disk, root.disk_folder, f"{stage}/disk", mapping.base)
        if joined is None:
            namespace = mapped_namespace(mapping)
        else:
            namespace = os.open(f"/proc/{joined.process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        for name, source in sources.items() if mapping.idmapped else ():
            # On a file system without support, files appear to be owned by `nobody`, and stay as readable.
            with contextlib.suppress(OSError):
                system.attach(source, f"{stage}/{name}", namespace)
                mapped.add(name)
        os.chdir(stage)
        for name, source in sources.items():
            if name not in mapped:
                system.attach(source, name)
        _mount_overlay(root, list(layers.items()), owner=mapping.base)
        system.setns(namespace, system.CLONE_NEWUSER)
        system.unshare(system.CLONE_NEWNS)
        system.become(0, 0)
    else:
        if joined is None:
            join_mapped_namespace(mapping, system.CLONE_NEWNS)
        else:
            system.setns(joined.process_1, system.CLONE_NEWUSER)
            system.unshare(system.CLONE_NEWNS)
            if mapping.by != "user":
                system.become(0, 0)
        system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
        make_stage(stage, sources, _FOLDERS, _STAGE_FLAGS)
    if mapping.by != "user" or root.setuid:
        # For ``user``, bubblewrap does this in its nested namespace (--disable-userns).
        kernel_files.write("/proc/sys/user/max_user_namespaces", "0")
    limit_watches()

    os.chdir(stage)
    if mapping.by == "root":
        # The mounts that came along are locked: none could become the root of a mount namespace.
        system.mount("root", "root", "", system.MS_BIND)
    else:
        for name, source in sources.items():
            system.attach(source, name)
        _mount_overlay(root, list(layers.items()))
    shared = [] if has_own_devices() else ["/dev"]
    for (name, source), bind in zip(binds.items(), root.binds, strict=True):
        make_mount_point(bind.target, directory=bind.is_directory)
        if not overlay_own(name, root.hidden.get(source, [])):
            shared.append(bind.target)
    make_mount_point(EXAMINATION, directory=True)
    if mapping.by != "user" and not root.setuid:  # a container's processes enter when everything is covered
        make_empty_file("root")
    return shared


def _mount_overlay(root: Root, layers: Sequence[tuple[str, str]], owner: int = 0) -> None:
    """Mount the writable overlay of ``layers``, each a name in ``stage`` and its source; ``owner`` is root inside.

    Names are relative: the options are shown in the sandbox's /proc/mounts.
    """
    guarded = system.MS_NOSUID | system.MS_NODEV
    if not root.disk_folder:
        options = f"size={root.disk},nr_inodes={root.inodes},mode=755,uid={owner},gid={owner}"
        system.mount("tmpfs", "disk", "tmpfs", guarded, options)
    for path, mode in (("upper", 0o755), ("work", 0o755), ("shm", 0o1777), ("nothing", 0o555)):
        _make_folder(f"disk/{path}", mode, owner, owner)
    for directory in root.directories:
        _add_directory("disk/upper", [Path(name) for name, _ in layers], directory, owner)
    lower = [part for name, source in layers for part in without(name, root.hidden.get(source, []))]
    options = f"lowerdir={':'.join(lower)},upperdir=disk/upper,workdir=disk/work,userxattr"
    if root.mapping.by == "root":
        # A hard link to a file of the image has the file's inode and device. In a user namespace the kernel ignores it.
        options += ",index=on"
    else:
        copy_files("disk/upper", lower, root.object_stores, root.disk, root.inodes)
    if root.disk_folder:
        options += ",volatile"  # the disk ends with the container: nothing has to be synchronized
    mount_overlay("root", system.MS_NODEV if root.setuid else guarded, options)


def _make_folder(path: str, mode: int, user: int, group: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)
    os.chown(path, user, group)


def make_stage(
    stage: str, sources: Mapping[str, str], folders: Sequence[str], flags: int = system.MS_NOSUID | system.MS_NODEV
) -> None:
    """Mount an empty tmpfs at ``stage`` with ``folders`` and a mount point for each source, by name."""
    system.mount("tmpfs", stage, "tmpfs", flags, f"size={_STAGE_SIZE},mode=755")
    for name, source in sources.items():
        if os.path.isdir(source):
            os.mkdir(f"{stage}/{name}")
        else:
            make_file(f"{stage}/{name}")
    for name in folders:
        os.mkdir(f"{stage}/{name}")


def make_file(path: str) -> None:
    """Make an empty file to mount over, unless there is one."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))


def make_mount_point(target: str, *, directory: bool) -> None:
    """Make a file or directory at ``target`` to mount over, unless the image has one.

    Raises ``OSError`` where a link of the image is on the way: it would lead to a path of the host.
    """
    place = "root"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    for depth, part in enumerate(parts, 1):
        place = f"{place}/{part}"
        if os.path.islink(place):
            raise OSError(errno.ELOOP, f"the image has a link at /{'/'.join(parts[:depth])}, on the way to {target}")
        if os.path.exists(place):
            continue
        if directory or depth < len(parts):
            os.mkdir(place, 0o755)
        else:
            make_file(place)


def _add_directory(upper: str, layers: Sequence[Path], directory: RootDirectory, owner: int) -> None:
    """Make a directory in the upper layer unless the image has it; ``owner`` is root inside."""
    tree = LayeredTree(layers)
    parts = [part for part in directory.path.split("/") if part]
    for depth in range(1, len(parts) + 1):
        relative = "/".join(parts[:depth])
        new = f"{upper}/{relative}"
        if os.path.isdir(new):
            continue
        below = tree.find(relative)
        if below is not None and (depth == len(parts) or not stat.S_ISDIR(below.status.st_mode)):
            return
        if below is not None:
            _make_folder(new, stat.S_IMODE(below.status.st_mode), owner, owner)
            with contextlib.suppress(OSError):  # an owner that the namespace does not map: then the directory is root's
                os.chown(new, below.status.st_uid, below.status.st_gid)
        elif depth == len(parts):
            _make_folder(new, directory.mode, owner + directory.user, owner + directory.group)
        else:
            _make_folder(new, 0o755, owner, owner)
