"""What happens between the launcher and an ``apptainer exec`` that holds one sandbox, and right after it.

``start_apptainer`` runs in a child of the launcher. It makes the user namespace and the copy-on-write root that every
runtime of ours has (``preparation``), so that Apptainer is given an unpacked root whose writable layer is one tmpfs of
the disk limit's size, and then has Apptainer make the container: mount, pid, net, ipc and uts namespaces, ``/dev``,
``/proc`` and a process 1 without privileges. Apptainer is a Go program of several processes, so "it ends when the
server ends" cannot be asked of it; it runs in a pid namespace of its own, whose process 1 ends with this child::

    launcher ─ this child ─┬─ process 1 of the outer pid namespace (``holder``), which ends with this child
                           └─ apptainer's master ─ process 1 of the sandbox (``holder``)

``settle_container`` then joins the container and takes away what Apptainer leaves open for interactive use.

Invariants: when this child ends, for whatever reason, the kernel ends all below it. The child ends when the sandbox's
process 1 has. No namespace of the host's is left in a settled container, and nothing is mounted there but the root, the
image's binds, ``/proc``, ``/dev`` and what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ors_containers.launcher.private_inodes import DEVICES, OWN_DEVICES, has_own_devices
from ors_containers.launcher.privileges import default_signals, join_groups, place
from ors_containers.launcher.rootfs import bound_trees, prepare_root, shared_text
from ors_containers.launcher.trusted_exec import EXAMINATION
from ors_containers.linux import syscalls as system
from ors_containers.linux.kernel_limits import TERMINAL_OPTIONS, replacements
from ors_containers.linux.proc_stat import mount_points
from ors_containers.linux.user_namespaces import map_one_id

__all__ = ["settle_container", "start_apptainer"]

Message = dict[str, Any]

_HOST_NAME = "sandbox"
#: A directory of the container that is gone when it has been settled.
_HANDOVER = ".apptainer-handover"
#: Scripts in it, of the image, are run by Apptainer before anything else: before the container is settled, and outside
#: of the sandbox's control groups and filter. The image store has read the variables they set.
_SCRIPTS = ".singularity.d"
_OWN_SIZE = 1 << 20

#: Apptainer's own configuration for our containers, in place of the machine's: nothing of the host comes in unasked,
#: no file of the image is rewritten, and control groups are ours (through D-Bus, many starts at once fail at random).
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

#: Of /proc, what could change the machine if its owner were let; written by nobody in a sandbox.
_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi")
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")


def start_apptainer(message: Message, program: bytes, groups: Iterable[int]) -> NoReturn:
    """Run Apptainer until its container has ended. ``program`` is that of process 1; ``groups`` are to be joined.

    Raises ``OSError`` before anything was started; errors of Apptainer itself go to its standard error.
    """
    launcher = os.getppid()
    os.write(1, shared_text(prepare_root(message)))
    join_groups(groups)
    handover = Path("root", _HANDOVER)
    handover.mkdir(mode=0o755)
    (handover / "holder").write_bytes(program)
    (handover / "holder").chmod(0o555)
    devices = DEVICES if has_own_devices(Path()) else ("full",)  # else Apptainer brings the others
    for name in devices:
        (handover / name).touch()
    scripts = Path("root", _SCRIPTS)
    if scripts.is_symlink():
        raise OSError(errno.ELOOP, f"the image's /{_SCRIPTS} is a link")
    with contextlib.suppress(OSError):  # a kernel that refuses it, or has too many already
        system.unshare(system.CLONE_NEWTIME)
    flags = system.CLONE_NEWPID | system.CLONE_NEWCGROUP
    if message["one_id"]:
        # Apptainer cannot be told which user to be inside: it stays who it is, so it has to be the image's already.
        system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWNS)
        map_one_id(message["user"], 0, message["group"], 0)
    system.unshare(flags)
    system.end_with_parent()  # after the last change of user, which undoes it
    if os.getppid() != launcher:
        os._exit(0)
    ours, theirs = os.pipe()  # closed when this child has ended: for the moment before `end_with_parent` there
    if os.fork() == 0:
        _hold(handover / "holder", ours, theirs)
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


def _hold(holder: Path, alive: int, other: int) -> NoReturn:
    """Be the outer pid namespace's process 1."""
    os.close(other)
    system.end_with_parent()
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    if not poll.poll(0):
        null = os.open(os.devnull, os.O_RDWR)
        place([(null, 0), (null, 1), (null, 2)])
        os.execve(holder, ["apptainer-sandbox"], {})  # noqa: S606 - becoming it is the point
    os._exit(0)


def _become_apptainer(message: Message, devices: Sequence[str], *, has_scripts: bool) -> NoReturn:
    stage: str = message["stage"]
    own = f"{stage}/apptainer"
    try:
        os.setsid()
        # Apptainer looks itself up by its own process id, which is one of the new namespace.
        system.mount("proc", "/proc", "proc", system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC)
        system.mount("tmpfs", own, "tmpfs", system.MS_NOSUID | system.MS_NODEV, f"size={_OWN_SIZE},mode=755")
        Path(own, "apptainer.conf").write_text(_CONFIGURATION)
        home = Path(own, "home")
        home.mkdir()
        user, group = os.geteuid(), os.getegid()
        # It asks for its user's name and home, and the host's files know nobody of this namespace.
        Path(own, "passwd").write_text(f"sandbox:x:{user}:{group}::{home}:/bin/sh\n")
        Path(own, "group").write_text(f"sandbox:x:{group}:\n")
        for name in ("passwd", "group"):
            with contextlib.suppress(FileNotFoundError):
                system.mount(f"{own}/{name}", f"/etc/{name}", "", system.MS_BIND)
        binds = [(f"{stage}/{source}", target, True) for source, target in bound_trees(message)]
        binds.append((f"{stage}/disk/nothing", EXAMINATION, True))
        if has_scripts:
            binds.append((f"{stage}/disk/nothing", f"/{_SCRIPTS}", True))  # until the container is settled
        binds.append((f"{stage}/disk/shm", "/dev/shm", False))  # noqa: S108 - the sandbox's own
        folder = f"{stage}/{OWN_DEVICES}" if devices == DEVICES else "/dev"
        binds += [(f"{folder}/{name}", f"/{_HANDOVER}/{name}", False) for name in devices]
        arguments = [
            message["program"],
            *("--quiet", "--config", f"{own}/apptainer.conf", "exec"),
            *("--containall", "--no-home", "--no-privs", "--no-init", "--writable", "--pwd", "/"),
            *("--net", "--network", "none", "--hostname", _HOST_NAME),
            *(word for bind in binds for word in ("--mount", _mount_option(*bind))),
            *(f"{stage}/root", f"/{_HANDOVER}/holder"),
        ]
        os.chdir("/")
        default_signals()
        environment = {"HOME": str(home), "PATH": message["path"], "LC_ALL": "C"}
        os.execve(arguments[0], arguments, environment)  # noqa: S606 - no shell is wanted
    except (OSError, ValueError) as error:
        os.write(2, str(error).encode())
    os._exit(70)


def _mount_option(source: str, target: str, read_only: bool) -> str:
    fields = ["type=bind", f"source={source}", f"destination={target}", *(["ro"] if read_only else [])]
    # The option is a line of CSV, and a path may hold a comma or a quote.
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def settle_container(message: Message, descriptors: list[int]) -> Message:
    """Close a container that has just come up to what a sandbox is; see the module's docstring.

    Raises ``OSError`` (``EPERM``) for a container that shares a namespace with the host.
    """
    (holder,) = descriptors
    process = message["holder"]
    for name in _NAMESPACES:
        if Path(f"/proc/{process}/ns/{name}").stat().st_ino == Path(f"/proc/self/ns/{name}").stat().st_ino:
            raise OSError(errno.EPERM, f"Apptainer left the host's {name} namespace to the container")
    system.refuse_inspection()
    system.setns(holder, system.CLONE_NEWUSER | system.CLONE_NEWNS)
    if not message["one_id"]:
        system.become(0, 0)
    guarded = system.MS_REMOUNT | system.MS_BIND | system.MS_NOSUID
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    Path("/dev/full").touch()
    for name in DEVICES:
        if Path("/", _HANDOVER, name).exists():
            if name != "full":
                system.unmount(f"/dev/{name}")
            system.mount(f"/{_HANDOVER}/{name}", f"/dev/{name}", "", system.MS_MOVE)
    kept = {"/", "/proc", "/dev", "/dev/pts", "/dev/shm", EXAMINATION}  # noqa: S108 - inside
    kept |= {f"/dev/{name}" for name in DEVICES}
    bound = tuple(f"{target.rstrip('/')}/" for target in message["targets"])  # with the host's mounts below it
    # Process 1's table: this process has no number in there.
    for point in reversed(mount_points(Path("/proc/1/mountinfo").read_text())):
        if point not in kept and not f"{point}/".startswith(bound):
            system.unmount(point)
    for name in DEVICES:
        # Devices can be written nonetheless; but a root inside, whose own they are, could close them to graders.
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
    for source, target in replacements(EXAMINATION, handover, everything=message["one_id"]):
        system.mount(source, target, "", system.MS_BIND)
        system.mount("", target, "", guarded | system.MS_RDONLY | system.MS_NODEV | system.MS_NOEXEC)
    for path in list(handover.iterdir()):
        path.unlink()
    handover.rmdir()
    return {}
