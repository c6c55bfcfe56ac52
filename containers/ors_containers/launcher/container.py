"""The start of a docker-like container: a child of the launcher makes its namespaces and forks process 1.

It needs no program of the host: the root is prepared as a sandbox's (``rootfs``), with an upper layer on a disk.
Process 1 only waits (``linux.pause_program``), under the filter of system calls and without a right; the parent that
stays is ``linux.monitor_program``. Commands enter later (``enter``), with Docker's default capabilities.

A sidecar joins the user and network namespaces of the main container; all other namespaces are its own.

Invariants: process 1 ends when its parent ends, the parent when the launcher ends. When process 1 executes its program,
no mount of the host is left in its mount namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import NoReturn

from ors_containers.launcher.messages import StartContainer
from ors_containers.launcher.mounts.private_devices import DEVICES, OWN_DEVICES, has_own_devices
from ors_containers.launcher.mounts.rootfs import (
    Joined,
    bound_trees,
    make_file,
    make_mount_point,
    prepare_root,
    shared_text,
)
from ors_containers.launcher.privileges import join_groups, place, sealed_file
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.interfaces import block_networks, bring_up
from ors_containers.linux.confinement.proc_masks import masks
from ors_containers.linux.limits.kernel_limits import TERMINAL_OPTIONS, limit_ipc

__all__ = ["REFUSING_SERVER", "start_container"]

#: Where a container asks for names that are all refused: Docker's address for it.
REFUSING_SERVER = "127.0.0.11"
_DEVICES_SIZE = 1 << 20
_LINKS = {
    "core": "/proc/kcore",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
#: Below /proc, read-only as in Docker.
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_GUARDED = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC


def start_container(
    message: StartContainer, others: list[int], programs: tuple[bytes, bytes], seccomp: bytes, groups: list[int]
) -> NoReturn:
    """Make the container and become the monitor of its process 1. Raises ``OSError``.

    ``others`` are the descriptors after the first two; ``programs`` those of process 1 and of the monitor; ``groups``
    descriptors of control groups to join.
    """
    launcher = os.getppid()
    holder = others.pop(0)
    disk = others.pop(0) if message.root.disk_folder else -1
    joined = None if message.main == 0 else Joined(others.pop(0), message.main)
    shared = prepare_root(message.root, disk=disk, joined=joined)
    for source, target in bound_trees(message.root):
        system.mount(source, f"root{target}", "", system.MS_BIND | system.MS_REC)
    _make_devices(message.shared_memory)
    kernel = os.open("/proc/sys/kernel", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    process_1, monitor = (sealed_file("ors-pause", program, readable=False) for program in programs)
    join_groups(groups)
    network = 0
    if joined is None:
        network = system.CLONE_NEWNET
    else:
        system.setns(joined.process_1, system.CLONE_NEWNET)
    with contextlib.suppress(OSError):  # a kernel that refuses it, or has too many already
        system.unshare(system.CLONE_NEWTIME)
    system.unshare((system.CLONE_NEWPID | system.CLONE_NEWIPC | system.CLONE_NEWUTS | system.CLONE_NEWCGROUP) | network)
    _send_files(holder, refuse_names=message.refuse_names)
    system.end_with_parent()  # after the last change of user, which undoes it
    if os.getppid() != launcher:
        os._exit(0)
    alive, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        try:
            _become_process_1(message, process_1, seccomp, kernel, alive, own_network=joined is None)
        except (OSError, ValueError) as error:
            os.write(2, str(error).encode())
        os._exit(70)
    os.write(1, shared_text(shared) + b'{"child-pid": %d}\n' % child)
    os.write(release, b"1")
    os.dup2(monitor, 3, inheritable=False)
    # The launcher's socket, and pipes whose readers must see that the container has closed them.
    os.closerange(0, 3)
    os.closerange(4, 1 << 20)
    os.execve(3, ["ors-container"], {})  # noqa: S606 - becoming it is the point


def _send_files(holder: int, *, refuse_names: bool) -> None:
    """Send the directory of the container's files: who has it can read them after the container's end.

    The end of process 1 does not wait for that of a disk then. With ``refuse_names`` send a socket of its network, too.
    """
    descriptors = [os.open("disk", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    if refuse_names:
        bring_up("lo")  # before the address is used, or answers come from another one
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((REFUSING_SERVER, 53))
        descriptors.append(names.detach())
    with socket.socket(fileno=holder) as connection:
        socket.send_fds(connection, [b"disk"], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _become_process_1(
    message: StartContainer, program: int, seccomp: bytes, kernel: int, alive: int, *, own_network: bool
) -> NoReturn:
    """Finish the container from inside its namespaces; execute ``program`` when the parent says that it watches."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if own_network:
        bring_up("lo")
        block_networks(message.blocked)
    socket.sethostname(message.host_name)
    limit_ipc(kernel)
    os.close(kernel)
    system.mount("proc", "root/proc", "proc", _GUARDED)
    for source, target in masks("disk/nothing", "disk"):
        _cover(source, f"root{target}")
    for name in _READ_ONLY:
        if os.path.exists(f"root/proc/{name}"):
            _cover(f"root/proc/{name}", f"root/proc/{name}")
    system.pivot("root")
    os.umask(0o022)
    for name, content in message.files.items():
        _write_file(Path("/etc", name), content)
    null = os.open(os.devnull, os.O_RDWR)
    place([(null, 0), (1, 1), (null, 2), (program, 3), (alive, 4)])
    os.setsid()
    system.drop_bounding_set()
    system.drop_capabilities()
    system.no_new_privileges()
    system.end_with_parent()
    system.set_seccomp(seccomp)
    if os.read(4, 1):  # empty: the parent has ended
        os.set_inheritable(3, False)
        os.closerange(4, 1 << 20)
        os.execve(3, ["pause"], {})  # noqa: S606 - becoming it is the point
    os._exit(0)


def _make_devices(shared_memory: int) -> None:
    """Mount /dev, which root inside may add links and folders to."""
    make_mount_point("/dev", directory=True)
    own = has_own_devices()
    guarded = system.MS_NOSUID | system.MS_NOEXEC
    system.mount(
        "tmpfs", "root/dev", "tmpfs", guarded | system.MS_NODEV, f"size={_DEVICES_SIZE},nr_inodes=256,mode=755"
    )
    for name in DEVICES:
        make_file(f"root/dev/{name}")
        system.mount(f"{OWN_DEVICES}/{name}" if own else f"/dev/{name}", f"root/dev/{name}", "", system.MS_BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"root/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"root/dev/{name}")
    system.mount("devpts", "root/dev/pts", "devpts", guarded, TERMINAL_OPTIONS)
    system.mount("tmpfs", "root/dev/shm", "tmpfs", guarded | system.MS_NODEV, f"size={shared_memory},nr_inodes=16384")


def _cover(source: str, target: str) -> None:
    system.mount(source, target, "", system.MS_BIND | system.MS_REC)
    system.mount("", target, "", system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | _GUARDED)


def _write_file(path: Path, content: str) -> None:
    """Replace a file of the container's own root, whatever the image has there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(content)
