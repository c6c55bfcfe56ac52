"""The start of a sandbox through bubblewrap: a child of the launcher prepares the root and becomes ``bwrap``.

bubblewrap 0.8 reads the whole mount table again for each mount, so this process makes the mounts that it can.
"""

from __future__ import annotations

import contextlib
import os
from typing import NoReturn

from ors_containers.launcher.messages import StartBubblewrap
from ors_containers.launcher.mounts.private_devices import DEVICES, OWN_DEVICES, has_own_devices
from ors_containers.launcher.mounts.rootfs import bound_trees, make_file, make_mount_point, prepare_root, shared_text
from ors_containers.launcher.privileges import default_signals, join_groups, place, sealed_file
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.proc_masks import masks
from ors_containers.linux.limits.kernel_limits import TERMINAL_OPTIONS
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["start_bubblewrap"]

#: Descriptors at which bwrap finds the program of process 1, the filter of system calls and the pipe for its status.
_PROGRAM_AT = 20
_FILTER_AT = 21
_INFO_AT = 22
_DEVICES_SIZE = 1 << 16
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def start_bubblewrap(message: StartBubblewrap, process_1: bytes, seccomp: bytes, groups: list[int]) -> NoReturn:
    """Become bwrap, which runs the program ``process_1`` under the filter ``seccomp``.

    ``groups`` are descriptors of control groups to join. Raises ``OSError``.
    """
    arguments, shared = _prepare(message)
    os.write(1, shared_text(shared))
    # Not sooner: the first process to join after a pause waits ten milliseconds for all processors. The child for the
    # first shell does so meanwhile (``enter``).
    join_groups(groups)
    # A file for each sandbox: a root inside can open process 1's program, and so lock it.
    program = sealed_file("ors-pause", process_1)
    place([(program, _PROGRAM_AT), (sealed_file("ors-filter", seccomp), _FILTER_AT), (1, _INFO_AT)])
    default_signals()
    os.execv(arguments[0], arguments)  # noqa: S606 - becoming it is the point


def _prepare(message: StartBubblewrap) -> tuple[list[str], list[str]]:
    """Make the namespaces and mounts that bubblewrap 0.8 cannot make, or makes slowly.

    Returns bwrap's command line, and the places whose inodes the sandbox shares (``prepare_root``).
    """
    root = message.root
    shared = prepare_root(root)
    for source, target in bound_trees(root):
        system.mount(source, f"root{target}", "", system.MS_BIND | system.MS_REC)
    # No process of the sandbox, its root included, can rename, remove or replace a mount point directly below /. An
    # examination mounts its files over this one.
    system.attach("disk/nothing", f"root{EXAMINATION}")
    _make_devices()
    # With one user the first process that enters may not mount anything there, as ``proc_masks.hide`` does.
    one_user = root.mapping.by == "user"
    hidden = list(masks(f"{root.stage}/disk/nothing", f"{root.stage}/disk", everything=one_user))
    with contextlib.suppress(OSError):  # a kernel that refuses it, or has too many already
        system.unshare(system.CLONE_NEWTIME)
    os.chdir("/")
    return [
        *(message.program, *message.arguments),
        *("--dev-bind", f"{root.stage}/root", "/", "--proc", "/proc"),
        # As ``proc_masks.mask`` does.
        *(("--ro-bind", "/proc/sys", "/proc/sys") if one_user else ()),
        *(word for source, target in hidden for word in ("--ro-bind", source, target)),
        *("--seccomp", str(_FILTER_AT), "--info-fd", str(_INFO_AT), "--", f"/proc/self/fd/{_PROGRAM_AT}"),
    ], shared


def _make_devices() -> None:
    """Mount /dev: bubblewrap would read the mount table ten times for it, and does not bound terminals."""
    make_mount_point("/dev", directory=True)
    guarded = system.MS_NOSUID | system.MS_NODEV
    if has_own_devices():
        guarded = system.MS_NOSUID
        system.mount(OWN_DEVICES, "root/dev", "", system.MS_BIND)
    else:
        system.mount("tmpfs", "root/dev", "tmpfs", guarded, f"size={_DEVICES_SIZE},mode=755")
        for name in DEVICES:
            make_file(f"root/dev/{name}")
            system.mount(f"/dev/{name}", f"root/dev/{name}", "", system.MS_BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"root/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"root/dev/{name}")
    system.mount("devpts", "root/dev/pts", "devpts", system.MS_NOSUID | system.MS_NOEXEC, TERMINAL_OPTIONS)
    system.mount("disk/shm", "root/dev/shm", "", system.MS_BIND)
    system.mount("", "root/dev", "", system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | guarded)
