"""Copies of trusted programs that no process can inspect, in a domain in which nothing else can be executed.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import
sealed_programs``).

A program that reads what the agent left may be led by it to start another: ``git`` by a promisor remote, a filter or a
hook. Such a child would have all that its parent has. Two things prevent it:

- The process executes its program in a domain of Landlock that permits to execute the copies of this folder and no
  other file: no program of the agent, no interpreter and no shell, whatever a configuration names. The copies ask for
  a copy of the loader, because a loader that may be executed executes any file. Its path cannot be guessed, and no
  program of the agent can list the folder.
- The copies are executable and not readable. The kernel makes a process whose program it may not read non-dumpable, so
  that its memory, descriptors and environment are closed to every process without CAP_SYS_PTRACE, its own children
  included. This needs 0 in ``fs.suid_dumpable``.

On a kernel without Landlock the second alone holds.

Invariant: a copy is made once an examination, from a file that the agent cannot write.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_containers.graders import elf
else:
    import elf

__all__ = ["SealedPrograms"]

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _REFER = 1, 1 << 13
_PATH_BENEATH = 1
#: Letters of a loader's name: with the folder it must fit where ``/lib/ld-musl-x86_64.so.1`` stood.
_NAME = 10
_EMPTY = (".curlrc", ".sqliterc", "sqlite3/sqliterc")
#: Programs larger than this are not copied.
_LARGEST = 16 * 2**20


def random_name() -> str:
    """Return a name that cannot be guessed."""
    return os.urandom(_NAME // 2).hex()


class SealedPrograms:
    """The folder of copies, and the domains in which they are executed."""

    def __init__(self, folder: str, keep: Callable[[str], None]) -> None:
        self._folder = folder
        self._keep = keep
        self.programs = f"{folder}/{random_name()}"
        os.mkdir(self.programs, 0o711)  # noqa: PTH102 - one import less, here and below
        keep(self.programs)
        #: The folder in which a git that reads looks programs up: it contains git alone.
        self.alone = f"{folder}/{random_name()}"
        os.mkdir(self.alone, 0o711)  # noqa: PTH102 - as above
        keep(self.alone)
        #: The home of readers. Some find the agent's by the password database unless there is a file here.
        self.home = f"{folder}/{random_name()}"
        os.mkdir(self.home, 0o700)  # noqa: PTH102
        keep(self.home)
        os.mkdir(f"{self.home}/sqlite3", 0o700)  # noqa: PTH102
        for name in _EMPTY:
            os.close(os.open(f"{self.home}/{name}", os.O_WRONLY | os.O_CREAT, 0o400))
        #: The working folder of readers.
        self.empty = f"{folder}/{random_name()}"
        os.mkdir(self.empty, 0o700)  # noqa: PTH102
        keep(self.empty)
        self._loaders: dict[str, str] = {}
        self._copies: dict[str, str] = {}
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self.has_landlock = self._syscall(_CREATE, None, ctypes.c_size_t(0), 1) >= 2

    def copy(self, path: str, name: str) -> str:
        """Return the path of a program's copy; empty where it cannot be copied.

        Its name is one that a shell may look up in ``programs``.
        """
        if name not in self._copies:
            self._copies[name] = self._copied(path, name)
            if name == "git" and self._copies[name]:
                os.link(self._copies[name], f"{self.alone}/{name}")
        return self._copies[name]

    def _copied(self, path: str, name: str) -> str:
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                content = bytearray(file.read(_LARGEST + 1))
        except OSError:
            return ""
        if not elf.is_elf(content) or len(content) > _LARGEST:
            return ""
        try:
            if elf.has_search_path(content):
                return ""  # it may be relative to the program's own folder
            loader = elf.interpreter(content)
            if loader:
                if loader not in self._loaders:
                    self._loaders[loader] = self._written(f"{self._folder}/{random_name()}", _read(loader))
                    self._keep(self._loaders[loader])
                elf.replace_interpreter(content, self._loaders[loader])
            return self._written(f"{self.programs}/{name}", content)
        except (OSError, ValueError, struct.error):
            return ""

    def _written(self, path: str, content: bytes | bytearray) -> str:
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(content)
        os.chmod(path, 0o111)  # noqa: PTH101, S103 - not readable, which is the point
        return path

    def loader(self, path: str) -> str:
        """Return the path of a program's own loader; empty for a static program and where it cannot be read."""
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                content = file.read(_LARGEST)
            return elf.interpreter(content) if elf.is_elf(content) else ""
        except (OSError, struct.error):
            return ""

    def domain(self, paths: Iterable[str]) -> int:
        """Return a descriptor of a domain in which these files can be executed, and the copies' loaders.

        It is -1 on a kernel without Landlock. The caller closes it.
        """
        if not self.has_landlock:
            return -1
        attributes = ctypes.c_uint64(_EXECUTE | _REFER)
        ruleset = self._syscall(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(8), 0)
        if ruleset < 0:
            raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
        for path in (*paths, *self._loaders.values()):
            self._permit(ruleset, path, _EXECUTE)
        self._permit(ruleset, "/", _REFER)
        return ruleset

    def _permit(self, ruleset: int, path: str, access: int) -> None:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = ctypes.create_string_buffer(struct.pack("<Qi", access, place))
            if self._syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0) < 0:
                raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
        finally:
            os.close(place)

    def enter(self, ruleset: int) -> None:
        """Restrict this process and all after it, for good. Raises ``OSError``."""
        if ruleset != -1 and self._syscall(_RESTRICT, ruleset, 0) < 0:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()
