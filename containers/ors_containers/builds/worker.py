"""The process of a build sandbox: root of an image, with an upper layer on disk that is kept.

It is a process of its own (``python -I -S``), makes the namespaces and the overlay, and stays outside of the sandbox as
its supervisor: it measures what is written and ends the sandbox above the limit. Its child is process 1 inside and runs
the scripts one after the other, each as root with the capabilities that package managers need, or as the image's user
with none, under the same filter of system calls as any sandbox.

Invariants: when the server ends, this process is killed, and with process 1 every process of the sandbox. A script sees
no file, process or network of the host, except for the network where the build has one. A script cannot inspect process
1 or the supervisor.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ors_containers.builds.messages import OVER_LIMIT, SCRIPT_AT, BuildRequest, BuildScript, HomeOwner
from ors_containers.launcher.mounts.private_devices import DEVICES
from ors_containers.launcher.mounts.rootfs import make_stage
from ors_containers.launcher.privileges import enter_directory, limit_resources, place, sealed_file
from ors_containers.launcher.records import from_json
from ors_containers.layers.tree import LayeredTree, clean_layer, measure_layer
from ors_containers.layers.writer import LayerWriter
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.seccomp import seccomp_filter
from ors_containers.linux.confinement.user_namespaces import join_mapped_namespace, map_one_id, mapped_namespace
from ors_containers.linux.programs.enter_program import REPORT_AT, enter_program

__all__ = ["main"]

_FAILED = 70

#: The descriptor of the program that executes a script's program.
_PROGRAM_AT = REPORT_AT + 1

#: Capabilities that package managers need to make files of any owner and to run helpers as other users: CAP_CHOWN,
#: DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETFCAP, NET_BIND_SERVICE, SYS_CHROOT.
_CAPABILITIES = frozenset((0, 1, 3, 4, 5, 6, 7, 31, 10, 18))
_MEASURE_EVERY = 1.0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def main(machine: str) -> NoReturn:
    """Read the request from standard input, build, and end with the status of the first script that failed."""
    request = from_json(BuildRequest, json.loads(sys.stdin.buffer.read()))
    system.end_with_parent()
    if os.getppid() != request.server:
        os._exit(_FAILED)
    errors = os.dup(2)
    os.dup2(1, 2)
    try:
        for path in request.groups:
            Path(path).write_text("0")
        _prepare(request)
        child = os.fork()
        if child == 0:
            os.close(errors)
            _inside(request, seccomp_filter(machine))
        status, over = _supervise(child, request.limit)
        if over:
            os.write(errors, OVER_LIMIT.encode())
        elif status == 0 and request.mapping.by != "root":
            # The files have their final owners already; as the host's root, the server has to set them.
            os.write(1, f"\n{request.mark} size {clean_layer(Path('disk/upper'))}\n".encode())
    except (OSError, ValueError) as error:
        os.write(errors, str(error).encode())
        status = _FAILED
    os._exit(status)


def _prepare(request: BuildRequest) -> None:
    """Make the namespaces, and below ``stage`` the root of the sandbox. Leaves this process in ``stage``."""
    stage, mapping = request.stage, request.mapping
    sources = {f"layer{number}": source for number, source in enumerate(request.layers)}
    sources |= {f"bind{number}": bind.source for number, bind in enumerate(request.binds)}
    others = system.CLONE_NEWPID | system.CLONE_NEWIPC | system.CLONE_NEWUTS | system.CLONE_NEWCGROUP
    others |= 0 if request.network else system.CLONE_NEWNET
    if mapping.by == "root":
        system.unshare(system.CLONE_NEWNS)
        _prepare_stage(request, sources)
        namespace = mapped_namespace(mapping)
        for name, source in sources.items():
            try:
                system.attach(source, f"{stage}/{name}", namespace if mapping.idmapped else None)
            except OSError:
                system.attach(source, f"{stage}/{name}")
        system.setns(namespace, system.CLONE_NEWUSER)
        system.unshare(system.CLONE_NEWNS | others)
        system.become(0, 0)
    else:
        join_mapped_namespace(mapping, system.CLONE_NEWNS | others)
        _prepare_stage(request, sources)
        for name, source in sources.items():
            system.attach(source, f"{stage}/{name}")
    # Again, since the change of user undid it. No process inside may inspect this process or its children.
    system.end_with_parent()
    if os.getppid() != request.server:
        os._exit(_FAILED)
    system.refuse_inspection()
    socket.sethostname("build")
    os.chdir(stage)  # relative names: the overlay's options are shown in the sandbox's /proc/mounts
    layers = [f"layer{number}" for number in range(len(request.layers))]
    writer = LayerWriter(Path("disk/upper"), [Path(layer) for layer in layers], owners=mapping.by != "user")
    for directory in request.directories:
        writer.provide(directory.path, directory.mode, directory.user, directory.group)
    for bind in request.binds:
        if bind.is_directory:
            writer.provide(bind.target, 0o755, 0, 0)
    writer.finish()
    options = f"lowerdir={':'.join(layers)},upperdir=disk/upper,workdir=disk/work,userxattr"
    system.mount("overlay", "root", "overlay", system.MS_NOSUID | system.MS_NODEV, options)
    for number, bind in enumerate(request.binds):
        system.mount(f"bind{number}", f"root{bind.target}", "", system.MS_BIND | system.MS_REC)


def _prepare_stage(request: BuildRequest, sources: Mapping[str, str]) -> None:
    system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
    make_stage(request.stage, sources, ("disk", "root"))
    system.mount(request.disk, f"{request.stage}/disk", "", system.MS_BIND)


def _supervise(child: int, limit: int) -> tuple[int, bool]:
    """Wait for process 1; return its exit status, and whether more than ``limit`` bytes were written."""
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    over = False
    pause = _MEASURE_EVERY
    while not poll.poll(1000 * pause):
        begun = time.monotonic()
        if limit and measure_layer(Path("disk")) > limit:  # scratch directories take space as well
            over = True
            os.kill(child, signal.SIGKILL)
        # Measuring a large tree takes long: it gets a tenth of the time at most.
        pause = max(_MEASURE_EVERY, 10 * (time.monotonic() - begun))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    over = over or bool(limit and measure_layer(Path("disk/upper")) > limit)
    return (code if code >= 0 else 128 - code), over


def _inside(request: BuildRequest, refused: bytes) -> NoReturn:
    """Be process 1: mount /proc, /dev and the like, and run the scripts."""
    status = 0
    try:
        system.end_with_parent()
        system.unshare(system.CLONE_NEWNS)
        _mount_system(request)
        if not request.network:
            _raise_loopback()
        system.pivot("root")
        os.setsid()
        for script in request.scripts:
            status = _run(script, request, refused)
            if status != 0:
                break
        if status == 0 and request.own is not None:
            _chown_home(request.own)
    except (OSError, ValueError) as error:
        os.write(1, f"\n{request.mark} failed {error}\n".encode())
        status = _FAILED
    os._exit(status)


def _mount_system(request: BuildRequest) -> None:
    guarded = system.MS_NOSUID | system.MS_NODEV
    system.mount("proc", "root/proc", "proc", guarded)
    system.mount("tmpfs", "root/dev", "tmpfs", system.MS_NOSUID, "mode=755,size=64k")
    for name in DEVICES:
        Path("root/dev", name).touch()
        system.mount(f"/dev/{name}", f"root/dev/{name}", "", system.MS_BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        Path("root/dev", name).symlink_to(f"/proc/self/fd{target}")
    Path("root/dev/shm").mkdir()
    system.mount("tmpfs", "root/dev/shm", "tmpfs", guarded, "mode=1777,size=64m")
    Path("root/dev/pts").mkdir()
    system.mount("devpts", "root/dev/pts", "devpts", system.MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
    Path("root/dev/ptmx").symlink_to("pts/ptmx")
    for path in request.temporary:
        if Path(f"root{path}").is_dir() and not Path(f"root{path}").is_symlink():
            system.mount("tmpfs", f"root{path}", "tmpfs", guarded, f"mode=1777,size={request.memory}")
    for number, scratch in enumerate(request.scratch):
        place = Path("root", LayeredTree([Path("root")]).resolve(scratch, last=True))
        place.mkdir(parents=True, exist_ok=True)
        system.mount(f"disk/scratch{number}", str(place), "", system.MS_BIND)
    for name in request.network_files:
        # Where the image lacks the file, an empty file and its directory stay in the layer.
        place = Path("root", LayeredTree([Path("root")]).resolve(name, last=True))
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.touch()
        system.mount(name, str(place), "", system.MS_BIND)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, name))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _run(script: BuildScript, request: BuildRequest, refused: bytes) -> int:
    """Run one script to its end; return its exit status as a shell counts."""
    os.write(1, f"\n{request.mark} start\n".encode())
    problem, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_script(script, request, refused, report)
        except (OSError, ValueError) as error:
            os.write(1, f"{script.arguments[0]}: {error}\n".encode())
        os._exit(127)
    os.close(report)
    while True:
        # This process also reaps the orphans of scripts.
        process, ended = os.wait()
        if process == child:
            break
    number = os.read(problem, 1)  # the child closed it at the latest when it ended
    os.close(problem)
    if number:
        os.write(1, f"{script.arguments[0]}: {os.strerror(number[0])}\n".encode())
        return 127
    code = os.waitstatus_to_exitcode(ended)
    return code if code >= 0 else 128 - code


def _become_script(script: BuildScript, request: BuildRequest, refused: bytes, report: int) -> None:
    if script.capture:
        os.dup2(request.answer, 1)
    # The image's shell may lead to /proc/self/exe, which must not be the server's interpreter.
    through = sealed_file("ors-enter", enter_program(os.uname().machine))
    text = os.memfd_create("script")
    os.write(text, script.text.encode("utf-8", "surrogateescape"))
    os.fchmod(text, 0o444)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    readable = os.open(f"/proc/self/fd/{text}", os.O_RDONLY | os.O_CLOEXEC)
    place([(readable, SCRIPT_AT), (report, REPORT_AT), (through, _PROGRAM_AT)])
    os.set_inheritable(_PROGRAM_AT, False)
    for first, last in ((3, SCRIPT_AT), (SCRIPT_AT + 1, REPORT_AT), (_PROGRAM_AT + 1, 4096)):
        os.closerange(first, last)
    os.setsid()
    limit_resources(request.resources)
    user, group = script.user, script.group
    if user == 0:
        system.keep_only(_CAPABILITIES)
    else:
        if request.mapping.by == "user":
            system.unshare(system.CLONE_NEWUSER)
            system.allow_inspection()  # otherwise only root could write the maps
            map_one_id(user, 0, group, 0)
        system.drop_bounding_set()
        if request.mapping.by != "user":
            system.become(user, group, script.others)
        system.drop_capabilities()
    system.no_new_privileges()
    os.umask(0o022)
    enter_directory(script.directory)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    system.set_seccomp(refused)
    program = _find_program(script.arguments[0], script.environment.get("PATH", os.defpath))
    os.execve(_PROGRAM_AT, ["ors-enter", program, *script.arguments[1:]], script.environment)  # noqa: S606 - becoming it is the point


def _find_program(name: str, path: str) -> str:
    """Return the path of a program; the name itself where ``path`` has none."""
    if "/" not in name:
        for folder in path.split(":"):
            found = Path(folder, name)
            if found.is_file() and os.access(found, os.X_OK):
                return str(found.absolute())
    return name


def _chown_home(owner: HomeOwner) -> None:
    """Chown files that root created in the user's home to the user, as Apptainer would."""
    name, user, home = owner
    group = user
    with contextlib.suppress(OSError):
        for line in Path("/etc/passwd").read_text(errors="replace").splitlines():
            fields = line.split(":")
            if fields[0] == name and len(fields) > 5 and fields[2].isdigit() and fields[3].isdigit():
                user, group, home = int(fields[2]), int(fields[3]), fields[5]
                break
    if home in ("", "/") or Path(home).is_symlink() or not Path(home).is_dir():
        return
    for folder, directories, files in os.walk(home):
        for path in (Path(folder), *(Path(folder, name) for name in (*directories, *files))):
            if path.lstat().st_uid == 0:
                os.chown(path, user, group, follow_symlinks=False)
