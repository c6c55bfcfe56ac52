"""Support of this machine for sandboxes: bubblewrap, its version, the version of Linux, and how ids can be mapped.

Invariant: each missing requirement is a ``RuntimeUnavailable`` that names it and says what to install or set.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ors_containers.errors import RuntimeUnavailable
from ors_containers.linux.confinement.user_namespaces import IdMap
from ors_containers.linux.programs.pause_program import MACHINES

__all__ = [
    "IDS",
    "IdMapping",
    "bubblewrap_version",
    "check_machine",
    "find_bubblewrap",
    "find_mapping",
    "likely_remedy",
    "linux_version",
]

#: Ids a sandbox has inside, where it has more than one.
IDS = 65536
_LEAST_VERSION = (0, 8)
_LEAST_LINUX = (5, 12)  # mount_setattr
_MAPPED_LAYERS = (5, 19)
_CAP_SYS_PTRACE = 19


@dataclass(frozen=True, slots=True)
class IdMapping:
    """The way in which this server maps ids; ``runtimes.namespace_runtime`` says which is used when."""

    by: Literal["root", "helper", "user"]
    users: int = 0
    groups: int = 0
    #: As root: whether each sandbox's use of what the kernel counts by user is its own, and not root's.
    own_account: bool = False

    def of_sandbox(self, slot: int) -> IdMap:
        """Return the map of one sandbox; as root, ``slot`` is the first host id of its range."""
        if self.by == "root":
            # Overlays of trees with mapped owners: Linux 5.19.
            idmapped = linux_version() >= _MAPPED_LAYERS
            return IdMap("root", base=slot, size=IDS, own_account=self.own_account, idmapped=idmapped)
        if self.by == "helper":
            return IdMap(
                "helper",
                users=self.users,
                groups=self.groups,
                size=IDS - 1,
                newuidmap=shutil.which("newuidmap") or "newuidmap",
                newgidmap=shutil.which("newgidmap") or "newgidmap",
            )
        return IdMap("user")

    @property
    def one_id(self) -> bool:
        """True if a sandbox has a single user: files of other users in the image belong to ``nobody`` inside."""
        return self.by == "user"


def linux_version() -> tuple[int, ...]:
    """Return the kernel's version, major and minor."""
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def check_machine() -> None:
    """Raise ``RuntimeUnavailable`` on a machine where no sandbox can be made, whatever is installed."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in MACHINES:
        raise RuntimeUnavailable(f"Sandboxes are supported on Linux on {' and '.join(MACHINES)}, not on {machine}")
    if linux_version() < _LEAST_LINUX:
        raise RuntimeUnavailable(f"Linux {platform.release()} is too old", "Linux 5.12 or newer is needed")
    if _dumpable() == "1":
        # Graders execute files that they may not read, so that no process of the sandbox inspects them.
        raise RuntimeUnavailable(
            "fs.suid_dumpable is 1: every process can inspect programs whose file it may not read",
            "sysctl -w fs.suid_dumpable=0",
        )


def _dumpable() -> str:
    try:
        return Path("/proc/sys/fs/suid_dumpable").read_text().strip()
    except OSError:
        return "0"


def find_bubblewrap() -> str:
    """Return the path of bwrap on a machine that can run it. Raises ``RuntimeUnavailable``."""
    check_machine()
    program = shutil.which("bwrap")
    if program is None:
        raise RuntimeUnavailable(
            "bwrap is not installed", "Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap"
        )
    return program


def bubblewrap_version(program: str) -> str:
    """Return bubblewrap's version. Raises ``RuntimeUnavailable``."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeUnavailable(f"{program} does not run: {error}") from error
    version = said.split()[-1] if said.split() else ""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _LEAST_VERSION:
        raise RuntimeUnavailable(f"bubblewrap {version} is too old", "Version 0.8 or newer is needed")
    return version


def find_mapping() -> IdMapping:
    """Return the widest mapping that this process may set: a range as root, one by the helpers, or a single id."""
    if os.geteuid() == 0:
        whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
        return IdMapping("root", own_account=_may_enter_others()) if whole else IdMapping("user")
    users, groups = _subordinate("/etc/subuid"), _subordinate("/etc/subgid")
    if users and groups and shutil.which("newuidmap") and shutil.which("newgidmap"):
        return IdMapping("helper", users, groups)
    return IdMapping("user")


def _may_enter_others() -> bool:
    """Return whether this root has CAP_SYS_PTRACE, without which it enters only namespaces that are its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_PTRACE & 1)


def _subordinate(file: str) -> int:
    """Return the start of this user's range of at least 65535 ids, or 0."""
    names = {str(os.geteuid())}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if name in names and first.isdigit() and count.isdigit() and int(count) >= IDS - 1:
            return int(first)
    return 0


def likely_remedy(cause: str) -> str:
    """Return the remedy for what most likely keeps namespaces from being made here."""
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    with contextlib.suppress(OSError):
        if restricted.read_text().strip() == "1" and os.geteuid() != 0:
            return (
                "AppArmor refuses user namespaces to ordinary users: "
                "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            )
    with contextlib.suppress(OSError):
        if Path("/proc/sys/user/max_user_namespaces").read_text().strip() == "0":
            return "User namespaces are switched off: sysctl user.max_user_namespaces=100000"
    if any(sign in cause for sign in ("ermitted", "denied", "Read-only file system")):
        return (
            "In a container, allow namespaces: docker run --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined "
            "--cap-add SYS_ADMIN --cap-add SYS_PTRACE"
        )
    return "Run `ors-server sandbox doctor` for what this machine allows"
