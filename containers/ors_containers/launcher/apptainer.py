"""The start of a sandbox through ``apptainer exec``, and the changes to its container right after that.

``start_apptainer`` runs in a child of the launcher. It makes the user namespace and the copy-on-write root that every
runtime uses (``rootfs``), so that Apptainer gets an unpacked root whose writable layer is one tmpfs of the disk limit's
size. Then Apptainer makes the container: mount, pid, net, ipc and uts namespaces, ``/dev``, ``/proc`` and a process 1
without privileges. Apptainer is a Go program of several processes, which do not end with the server; so it runs in an
outer pid namespace, whose process 1 ends with this child::

    launcher ─ this child ─┬─ process 1 of the outer pid namespace (``pause_program``), which ends with this child
                           └─ apptainer's master ─ process 1 of the sandbox (``pause_program``)

``settle_container`` then joins the container and removes what Apptainer leaves open for interactive use.

Invariants: when this child ends, for whatever reason, the kernel ends all processes below it. The child ends when the
sandbox's process 1 has ended. A settled container has no namespace of the host, and no mounts but the root, the image's
binds, ``/proc``, ``/dev`` and those in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ors_containers.launcher.messages import Done, SettleContainer, StartApptainer
from ors_containers.launcher.mounts.private_devices import DEVICES, OWN_DEVICES, has_own_devices
from ors_containers.launcher.mounts.rootfs import bound_trees, prepare_root, shared_text
from ors_containers.launcher.privileges import default_signals, place
from ors_containers.linux import kernel_files
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.proc_masks import masks
from ors_containers.linux.confinement.user_namespaces import map_one_id
from ors_containers.linux.limits.kernel_limits import TERMINAL_OPTIONS
from ors_containers.linux.limits.proc_stat import mount_points
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["settle_container", "start_apptainer"]

_HOST_NAME = "sandbox"
#: A directory of the container that is removed when the container is settled.
_HANDOVER = ".apptainer-handover"
_PAUSE = "pause"
#: The image's scripts in this directory would run first: before the container is settled, and outside of the sandbox's
#: control groups and filter. So it is covered. The image store has read the variables that they set.
_SCRIPTS = ".singularity.d"
_OWN_SIZE = 1 << 20

#: Apptainer's configuration for these containers, instead of the machine's: it mounts no path of the host by itself,
#: rewrites no file of the image, and makes no control groups (through D-Bus, many starts at once fail at random).
_CONFIGURATION = """\
allow setuid = no
allow pid ns = yes
allow net networks =
config passwd = no
config group = no
config resolv_conf = no
enable fusemount = no
enable overlay = no
enable underlay = no
max loop devices = 0
memory fs type = tmpfs
mount dev = minimal
mount devpts = yes
mount home = no
mount hostfs = no
mount proc = yes
mount slave = yes
mount sys = no
mount tmp = no
sessiondir max size = 8
shared loop devices = no
systemd cgroups = no
user bind control = yes
"""

#: Paths of /proc through which the machine could be changed; read-only in a sandbox.
_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi")
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")


def start_apptainer(message: StartApptainer, process_1: bytes) -> NoReturn:
    """Run Apptainer until its container has ended. ``process_1`` is the program of process 1.

    Raises ``OSError`` before a process was forked; Apptainer writes its own errors to standard error.
    """
    launcher = os.getppid()
    os.write(1, shared_text(prepare_root(message.root)))
    handover = Path("root", _HANDOVER)
    handover.mkdir(mode=0o755)
    pause = handover / _PAUSE
    pause.write_bytes(process_1)
    pause.chmod(0o555)
    devices = DEVICES if has_own_devices() else ("full",)  # otherwise Apptainer mounts the others
    for name in devices:
        (handover / name).touch()
    scripts = Path("root", _SCRIPTS)
    if scripts.is_symlink():
        raise OSError(errno.ELOOP, f"the image's /{_SCRIPTS} is a link")
    with contextlib.suppress(OSError):  # a kernel that refuses it, or has too many already
        system.unshare(system.CLONE_NEWTIME)
    flags = system.CLONE_NEWPID | system.CLONE_NEWCGROUP
    if message.user.one_id:
        # Apptainer keeps its user inside, with no option to change it: so it has to be the image's user already.
        system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWNS)
        map_one_id(message.user.id, 0, message.user.group, 0)
    system.unshare(flags)
    system.end_with_parent()  # after the last change of user, which undoes it
    if os.getppid() != launcher:
        os._exit(0)
    ours, theirs = os.pipe()  # closed when this child has ended, should it end before the fork's `end_with_parent`
    if os.fork() == 0:
        _become_outer_process_1(pause, ours, theirs)
    master = os.fork()
    if master == 0:
        os.close(theirs)
        _become_apptainer(message, devices, has_scripts=scripts.exists())
    # The launcher's socket, and pipes whose readers must see that the container has closed them.
    os.closerange(0, theirs)
    os.closerange(theirs + 1, 1 << 20)
    while True:
        process, status = os.waitpid(-1, 0)
        if process == master:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _become_outer_process_1(program: Path, alive: int, other: int) -> NoReturn:
    """Become process 1 of the outer pid namespace, unless the pipe ``alive`` says that the parent has ended."""
    os.close(other)
    system.end_with_parent()
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    if not poll.poll(0):
        null = os.open(os.devnull, os.O_RDWR)
        place([(null, 0), (null, 1), (null, 2)])
        os.execve(program, ["apptainer-sandbox"], {})  # noqa: S606 - becoming it is the point
    os._exit(0)


def _become_apptainer(message: StartApptainer, devices: Sequence[str], *, has_scripts: bool) -> NoReturn:
    stage = message.root.stage
    own = f"{stage}/apptainer"
    try:
        os.setsid()
        # Apptainer looks itself up in /proc by its process id, which is one of the new namespace.
        system.mount("proc", "/proc", "proc", system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC)
        system.mount("tmpfs", own, "tmpfs", system.MS_NOSUID | system.MS_NODEV, f"size={_OWN_SIZE},mode=755")
        Path(own, "apptainer.conf").write_text(_CONFIGURATION)
        home = Path(own, "home")
        home.mkdir()
        user, group = os.geteuid(), os.getegid()
        # Apptainer looks up its user's name and home, and the host's files have no user of this namespace.
        Path(own, "passwd").write_text(f"sandbox:x:{user}:{group}::{home}:/bin/sh\n")
        Path(own, "group").write_text(f"sandbox:x:{group}:\n")
        for name in ("passwd", "group"):
            with contextlib.suppress(FileNotFoundError):
                system.mount(f"{own}/{name}", f"/etc/{name}", "", system.MS_BIND)
        binds = [(f"{stage}/{source}", target, True) for source, target in bound_trees(message.root)]
        binds.append((f"{stage}/disk/nothing", EXAMINATION, True))
        if has_scripts:
            binds.append((f"{stage}/disk/nothing", f"/{_SCRIPTS}", True))  # until the container is settled
        binds.append((f"{stage}/disk/shm", "/dev/shm", False))  # noqa: S108 - the sandbox's own
        folder = f"{stage}/{OWN_DEVICES}" if devices == DEVICES else "/dev"
        binds += [(f"{folder}/{name}", f"/{_HANDOVER}/{name}", False) for name in devices]
        arguments = [
            message.program,
            *("--quiet", "--config", f"{own}/apptainer.conf", "exec"),
            *("--containall", "--no-home", "--no-privs", "--no-init", "--writable", "--pwd", "/"),
            *("--net", "--network", "none", "--hostname", _HOST_NAME),
            *(word for bind in binds for word in ("--mount", _mount_option(*bind))),
            *(f"{stage}/root", f"/{_HANDOVER}/{_PAUSE}"),
        ]
        os.chdir("/")
        default_signals()
        environment = {"HOME": str(home), "PATH": message.path, "LC_ALL": "C"}
        os.execve(arguments[0], arguments, environment)  # noqa: S606 - no shell is wanted
    except (OSError, ValueError) as error:
        os.write(2, str(error).encode())
    os._exit(70)


def _mount_option(source: str, target: str, read_only: bool) -> str:
    fields = ["type=bind", f"source={source}", f"destination={target}", *(["ro"] if read_only else [])]
    # The option is a line of CSV, and a path may hold a comma or a quote.
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def settle_container(message: SettleContainer, descriptors: list[int]) -> Done:
    """Give a container that has just come up the mounts and devices of a sandbox, and no more.

    Raises ``OSError`` (``EPERM``) for a container that shares a namespace with the host.
    """
    (process_1,) = descriptors
    for name in _NAMESPACES:
        if Path(f"/proc/{message.process_1}/ns/{name}").stat().st_ino == Path(f"/proc/self/ns/{name}").stat().st_ino:
            raise OSError(errno.EPERM, f"Apptainer left the host's {name} namespace to the container")
    system.refuse_inspection()
    system.setns(process_1, system.CLONE_NEWUSER | system.CLONE_NEWNS)
    if not message.one_id:
        system.become(0, 0)
    guarded = system.MS_REMOUNT | system.MS_BIND | system.MS_NOSUID
    kernel_files.write("/proc/sys/user/max_user_namespaces", "0")
    Path("/dev/full").touch()
    for name in DEVICES:
        if Path("/", _HANDOVER, name).exists():
            if name != "full":
                system.unmount(f"/dev/{name}")
            system.mount(f"/{_HANDOVER}/{name}", f"/dev/{name}", "", system.MS_MOVE)
    kept = {"/", "/proc", "/dev", "/dev/pts", "/dev/shm", EXAMINATION}  # noqa: S108 - inside
    kept |= {f"/dev/{name}" for name in DEVICES}
    bound = tuple(f"{target.rstrip('/')}/" for target in message.targets)  # with the host's mounts below
    # The table of process 1: this process has no id in that /proc.
    for point in reversed(mount_points(Path("/proc/1/mountinfo").read_text())):
        if point not in kept and not f"{point}/".startswith(bound):
            system.unmount(point)
    for name in DEVICES:
        # Read-only devices can still be written to, but a root inside, who owns them, cannot change their mode: graders
        # need them.
        system.mount("", f"/dev/{name}", "", guarded | system.MS_RDONLY)
    mqueue = Path("/dev/mqueue")
    if mqueue.is_dir():
        mqueue.rmdir()
    system.mount("", "/dev", "", guarded | system.MS_RDONLY)
    system.mount("", "/dev/pts", "", system.MS_REMOUNT | system.MS_NOSUID | system.MS_NOEXEC, TERMINAL_OPTIONS)
    for name in _READ_ONLY:
        path = f"/proc/{name}"
        if Path(path).exists():
            system.mount(path, path, "", system.MS_BIND)
            system.mount("", path, "", guarded | system.MS_RDONLY | system.MS_NODEV | system.MS_NOEXEC)
    handover = Path("/", _HANDOVER)
    for source, target in masks(EXAMINATION, str(handover), everything=message.one_id):
        system.mount(source, target, "", system.MS_BIND)
        system.mount("", target, "", guarded | system.MS_RDONLY | system.MS_NODEV | system.MS_NOEXEC)
    for path in list(handover.iterdir()):
        path.unlink()
    handover.rmdir()
    return Done()
