"""The part of a new sandbox that bubblewrap 0.8 cannot make: the user namespace and the copy-on-write root.

Runs in a child of the launcher that becomes ``bwrap`` afterwards. Everything is mounted below ``stage``, an empty
directory of the host, in a mount namespace of this process's own, so nothing is ever mounted on the host.

Invariant: a layer of an image is mounted read-only before anything can write through it; what is written goes to one
tmpfs of the disk limit's size.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ors_containers import system_calls as system

__all__ = ["FILTER_AT", "HOLDER_AT", "NEWS_AT", "Message", "prepare"]

Message = dict[str, Any]

#: Where a sandbox's bwrap finds the holder program, the filter and the pipe for its news.
HOLDER_AT = 20
FILTER_AT = 21
NEWS_AT = 22
_STAGE_SIZE = 1 << 20
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the sandbox's


def prepare(message: Message) -> list[str]:
    """Make the namespaces and mounts that bubblewrap 0.8 cannot make, and return its command line.

    The result is a user namespace in which this process is root, and below ``stage`` the copy-on-write root.
    """
    stage: str = message["stage"]
    mapping = message["mapping"]
    layers = {f"layer{number}": source for number, source in enumerate(message["layers"])}
    binds = {f"bind{number}": source for number, (source, _) in enumerate(message["binds"])}
    sources = {**layers, **binds}
    # Names in `stage` that are mounted there already, with the owners they have inside.
    mapped: set[str] = set()

    if mapping["by"] == "root":
        system.unshare(system.CLONE_NEWNS)
        system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
        _make_stage(stage, sources)
        namespace = _mapped_namespace(mapping["base"], mapping["count"])
        for name, source in sources.items():
            # A file system that cannot: its files will seem to be nobody's, and are as readable.
            with contextlib.suppress(OSError):
                system.attach(source, f"{stage}/{name}", namespace)
                mapped.add(name)
        system.setns(namespace, system.CLONE_NEWUSER)
        system.unshare(system.CLONE_NEWNS)
        system.become(0, 0)
    else:
        user, group = os.getuid(), os.getgid()
        finish = _helped_mapping(mapping) if mapping["by"] == "helper" else None
        system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWNS)
        if finish is not None:
            finish()
            system.become(0, 0)
        else:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        system.mount("", "/", "", system.MS_REC | system.MS_SLAVE)
        _make_stage(stage, sources)
    if mapping["by"] != "user":
        # In the nested namespace of the other case bubblewrap does this (--disable-userns).
        Path("/proc/sys/user/max_user_namespaces").write_text("0")

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
    for path, mode, user, group in message["directories"]:
        _add_directory(Path("disk/upper"), [Path(layer) for layer in layers], path, mode, user, group)
    options = f"lowerdir={':'.join(layers)},upperdir=disk/upper,workdir=disk/work,userxattr"
    system.mount("overlay", "root", "overlay", guarded, options)
    for name, (_, target) in zip(binds, message["binds"], strict=True):
        # Here and not by bubblewrap, which reads the whole mount table again for each.
        system.mount(name, f"root{target}", "", system.MS_BIND | system.MS_REC)
    os.chdir("/")

    return [
        *(message["program"], *message["arguments"]),
        *("--bind", f"{stage}/root", "/"),
        *("--proc", "/proc", "--dev", "/dev", "--bind", f"{stage}/disk/shm", _SHARED_MEMORY, "--remount-ro", "/dev"),
        *("--seccomp", str(FILTER_AT), "--info-fd", str(NEWS_AT), "--", f"/proc/self/fd/{HOLDER_AT}"),
    ]


def _make_stage(stage: str, sources: Mapping[str, str]) -> None:
    system.mount("tmpfs", stage, "tmpfs", system.MS_NOSUID | system.MS_NODEV, f"size={_STAGE_SIZE},mode=755")
    for name, source in sources.items():
        if Path(source).is_dir():
            Path(f"{stage}/{name}").mkdir()
        else:
            Path(f"{stage}/{name}").touch()
    Path(f"{stage}/disk").mkdir()
    Path(f"{stage}/root").mkdir()


def _mapped_namespace(base: int, count: int) -> int:
    """A user namespace whose ids 0 … ``count`` - 1 are the host's from ``base`` on; as the host's root."""
    ready, unshared = os.pipe()
    go, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        try:
            system.unshare(system.CLONE_NEWUSER)
            os.write(unshared, b"1")
            os.read(go, 1)
        finally:
            os._exit(0)
    os.close(unshared)
    os.close(go)
    try:
        if not os.read(ready, 1):
            raise OSError(errno.EPERM, "user namespaces cannot be made here")
        Path(f"/proc/{child}/uid_map").write_text(f"0 {base} {count}")
        Path(f"/proc/{child}/gid_map").write_text(f"0 {base} {count}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(release)
        os.waitpid(child, 0)


def _helped_mapping(mapping: Message) -> Callable[[], None]:
    """Start a child that stays in the host's namespace and maps this process's ids with newuidmap and newgidmap."""
    go, release = os.pipe()
    process = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(release)
        if not os.read(go, 1):
            os._exit(0)
        for program, own, first in (
            (mapping["newuidmap"], os.getuid(), mapping["users"]),
            (mapping["newgidmap"], os.getgid(), mapping["groups"]),
        ):
            arguments = [program, str(process), "0", str(own), "1", "1", str(first), str(mapping["count"])]
            helper = os.posix_spawn(program, arguments, {})
            if os.waitpid(helper, 0)[1] != 0:
                os._exit(1)
        os._exit(0)
    os.close(go)

    def finish() -> None:
        os.write(release, b"1")
        os.close(release)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError(errno.EPERM, "newuidmap or newgidmap refused the ranges of /etc/subuid and /etc/subgid")

    return finish


def _add_directory(upper: Path, layers: Sequence[Path], path: str, mode: int, user: int, group: int) -> None:
    """Put a directory that the image may lack into the upper layer; what the image has stays as it is."""
    parts = Path(path).parts[1:]
    for depth in range(1, len(parts) + 1):
        relative = Path(*parts[:depth])
        if (upper / relative).is_dir():
            continue
        below = next((found for layer in layers if (found := _lstat(layer / relative)) is not None), None)
        if below is not None and (depth == len(parts) or not stat.S_ISDIR(below.st_mode)):
            return
        new = upper / relative
        new.mkdir()
        if below is not None:
            new.chmod(stat.S_IMODE(below.st_mode))
            try:
                os.chown(new, below.st_uid, below.st_gid)
            except OSError:
                continue  # an owner without a number in here: root's, then
        elif depth == len(parts):
            new.chmod(mode)
            os.chown(new, user, group)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
