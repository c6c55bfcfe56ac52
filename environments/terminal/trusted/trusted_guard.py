"""The audit hook of ``trusted_runner``: keeps the agent's code out of the grader and records what the tests do.

Two cases look alike and have different verdicts:

- Code of the agent that the tests would run in the grader, and that an honest solution might have put there as well
  (``refused``). It earns nothing; tasks with such tests are turned away when they are loaded and verified. Where the
  operator has allowed it (``ran``), this code runs, and its first piece is reported before it does.
- Code that an agent put where sound tests read data, or where they import a module of the standard library
  (``planted``). The criterion: an honest solution could not have caused it in the same tests.

``remote`` is a network that tests need. Opening a FIFO or a device raises where the agent put it: tests would wait for
a FIFO's writer until their time is over.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import sys
from collections.abc import Callable
from functools import cached_property
from opcode import opmap
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from .trusted_data import Pickles, restrict_logging
    from .trusted_texts import Texts
else:
    from trusted_data import Pickles, restrict_logging
    from trusted_texts import Texts

__all__ = ["Guard", "UntrustedCode", "host_of", "is_local", "names_host"]


def caller() -> FrameType:
    """Return the frame that triggered an audit hook: the second frame up from here, because builtins have no frame."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - it is CPython's, as audit hooks are


class UntrustedCode(RuntimeError):
    """The tests were about to run code of the sandbox in the grader's own process."""


#: Words of tests that are about special files, and folders whose special files are the system's.
_ABOUT_SPECIAL = re.compile(r"(?i)fifo|named.pipe|S_ISCHR|S_ISBLK|S_ISSOCK|is_char_device|is_block_device|is_socket")
_SYSTEM = re.compile(r"/dev/(?!shm/|mqueue/)|/proc/|/sys/")
#: The device that can be read to its end at once.
_NULL = (1, 3)
_MOST_WORDS = 200


class _Note:
    """A text in memory that is shared with the processes the tests fork. The first write is kept."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, text: str) -> None:
        """Write the text, unless one has been written already."""
        if not self._memory[0]:
            line = text.encode("utf-8", "replace")[: mmap.PAGESIZE - 1]
            self._memory[: len(line)] = line

    def read(self) -> str:
        """Return the text; empty before the first write."""
        return self._memory[:].partition(b"\0")[0].decode("utf-8", "replace")


class Guard:
    """The audit hook. It cannot be removed, and its findings cannot be taken back."""

    def __init__(
        self, trusted: tuple[str, ...], tests: str, text: str, ran: Callable[[str], None] | None = None
    ) -> None:
        self._trusted = trusted
        #: Reports the agent's code that is about to run; None where none may.
        self._report = ran
        self._code_ran = False
        self._tests = tests
        self._text = text
        self._source = text.encode("utf-8", "surrogatepass")
        #: Whether the tests have connected to a service in the sandbox. If so, it may determine which hosts they look
        #: up.
        self._asked = False
        #: The first code that was refused, and the first code that the agent planted.
        self._refused = _Note()
        self._planted = _Note()
        self._texts = Texts(text)
        self._pickles = Pickles()
        #: The first remote host that the tests wanted to reach of their own accord: a sandbox has only its own network.
        self.remote = ""
        #: Processes that the tests have sent signals to.
        self.signalled: set[int] = set()

    @property
    def refused(self) -> str:
        """Return the first code that was refused."""
        return self._refused.read()

    @property
    def planted(self) -> str:
        """Return the first code that the agent planted; empty for none."""
        if self._code_ran:
            return self._planted.read()
        changed = self._pickles.changed()
        return self._planted.read() or (changed and f"a pickle that changes {changed}")

    def install(self) -> None:
        """Start the audit. It lasts as long as the process."""
        restrict_logging(self._text, self._plant)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":
            self._check_code(arguments[0], caller())
        elif event == "open":
            self._check_file(arguments[0], arguments[2])
        elif event == "subprocess.Popen":
            self._check_arguments(arguments[1], arguments[2])
        elif event == "compile":
            if arguments[1] == self._tests and arguments[0] not in (self._text, self._source):
                self._refuse("text that is called the tests")
        elif event in ("marshal.loads", "marshal.load"):
            self._check_compiled(caller())
        elif event == "function.__new__":
            if not self.is_trusted(arguments[0].co_filename):
                self._refuse("a function made of code")
        elif event == "object.__setattr__":
            if arguments[1] == "__code__" and not self.is_trusted(arguments[2].co_filename):
                self._refuse("code put into a function")
        elif event == "import":
            if isinstance(arguments[1], str) and not self.is_trusted(arguments[1]):
                self._refuse_module(arguments[1], caller())  # a shared library
        elif event == "ctypes.dlopen":
            self._check_library(arguments[0])
        elif event == "sqlite3.enable_load_extension":
            if arguments[1]:
                self._refuse("what SQL loads")
        elif event == "cpython.PyInterpreterState_New":
            self._refuse("another interpreter, in which nobody looks,")
        elif event == "pickle.find_class":
            module, name = arguments
            if not self._pickles.allows(module, name):
                # The agent wrote the pickle, whatever the tests expected to find in it.
                self._plant(f"a pickle that names {module}.{name}")
        elif event in ("os.kill", "os.killpg"):
            self.signalled.add(arguments[0])
        elif event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
            address: Any = arguments[1] if event == "socket.connect" else arguments[0]
            host = host_of(address)
            if is_local(host):
                self._asked = self._asked or event == "socket.connect"
            elif not self._asked and names_host(self._text, str(host)):
                self.remote = self.remote or str(host)

    def _check_code(self, code: CodeType, frame: FrameType) -> None:
        caller, name = frame.f_code.co_filename, code.co_filename
        if caller == self._tests:
            self._refuse("text given to exec or eval")
            return
        frozen = name.startswith("<frozen ")
        if self.is_trusted(caller if frozen else name):
            return
        if not (name.startswith("<") and self.is_trusted(caller)):
            self._refuse_module(name, frame)
            return
        objection, planted = self._texts.objection(code, frame)
        if objection:
            (self._plant if planted else self._refuse)(objection)

    def _check_compiled(self, frame: FrameType) -> None:
        """Refuse to load compiled code that does not come from a trusted path: code can claim any file name."""
        path: object = frame.f_locals.get("bytecode_path", frame.f_locals.get("pathname"))
        if isinstance(path, str) and frame.f_code.co_filename.startswith("<frozen "):
            if not self.is_trusted(path):
                self._refuse_module(path, frame)
        elif frame.f_globals.get("__name__") != "pstats":  # pstats reads numbers only
            self._refuse("what marshal reads")

    def _check_library(self, name: object) -> None:
        """Refuse a shared library that is not the toolset's. A bare name is looked up in the toolset first."""
        try:
            path = os.fsdecode(cast("Any", name)) if name is not None else ""
        except TypeError:
            return  # not a path, so nothing is loaded
        if path and "/" not in path:
            path = next((own for folder in self._trusted if os.path.exists(own := f"{folder}lib/{path}")), path)  # noqa: PTH110 - pathlib is one import more
        if path and not self.is_trusted(path):
            self._refuse(path)

    def is_trusted(self, path: str) -> bool:
        """Return whether a path belongs to the toolset or is that of the tests."""
        return (path.startswith((*self._trusted, "<frozen ")) and "/../" not in path) or path == self._tests

    def _refuse_module(self, path: str, frame: FrameType) -> None:
        """Refuse code at a path. It is planted if it replaces a standard module that the tests do not name."""
        name = re.sub(r"(/__pycache__)?(/__init__)?(\.[^/]*)?$", "", path).rpartition("/")[2]
        if (name in sys.stdlib_module_names and f"{name}.py" not in self._text) or self._is_imported_by_trusted(frame):
            self._plant(path)
        self._refuse(path)

    def _is_imported_by_trusted(self, frame: FrameType | None) -> bool:
        """Return whether a statement of a trusted module is importing something, which the tests have not asked for."""
        while frame is not None and frame.f_code.co_filename.startswith("<frozen "):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename == self._tests or not self.is_trusted(frame.f_code.co_filename):
            return False
        return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_NAME"]

    def _refuse(self, what: str) -> None:
        if self._report is None:
            self._refused.write(what)
            raise UntrustedCode(f"{what} would run inside the grader")
        if not self._code_ran:
            self._report(what)
            self._code_ran = True  # from here on no check holds: the code can do what the tests can

    def _plant(self, what: str) -> None:
        if not self._code_ran:
            self._planted.write(what)
            raise UntrustedCode(f"{what} would run inside the grader")

    # ── files that are not files ──

    @cached_property
    def _are_about_special(self) -> bool:
        return _ABOUT_SPECIAL.search(self._text) is not None

    def _check_file(self, path: object, flags: int) -> None:
        """Raise ``OSError`` for a FIFO or a device where the agent put it, unless the tests are about such files."""
        opened = not isinstance(path, int) and not flags & os.O_NONBLOCK
        if opened and is_special(path) and not self._are_about_special:
            raise OSError(errno.ENXIO, "It is not a regular file", path)

    def _check_arguments(self, arguments: Any, folder: Any) -> None:
        """Raise ``OSError`` if a program is to read such a file."""
        if isinstance(arguments, int):
            return
        words: list[Any] = [arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else list(arguments)
        place = os.fsdecode(folder) if folder is not None else "."
        for word in words[:_MOST_WORDS]:
            try:
                text = os.fsdecode(word)
            except TypeError:
                continue
            for piece in {text, *text.split()[:_MOST_WORDS]}:
                path = piece.strip("'\"<;|&()")
                path = path if path.startswith("/") else f"{place}/{path}"
                if path and is_special(path) and not self._are_about_special:
                    raise OSError(errno.ENXIO, "It is not a regular file", path)


def is_special(path: Any) -> bool:
    """Return whether a path leads to a FIFO or a device although it is not one of the system's own paths."""
    try:
        name = os.fsdecode(path)
        found = os.stat(name)  # noqa: PTH116 - pathlib is one import more
    except (OSError, TypeError, ValueError):
        return False
    mode, device = found.st_mode, (os.major(found.st_rdev), os.minor(found.st_rdev))
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) or device == _NULL:
        return False
    return _SYSTEM.match(name) is None


def host_of(address: object) -> object:
    """Return the host of a socket's address; the address may itself be the host."""
    return (
        cast("tuple[object, ...]", address)[0]
        if isinstance(address, tuple) and address != ()
        else cast("object", address)
    )


def names_host(text: str, host: str) -> bool:
    """Return whether a text contains a host's name as a whole, not as a part of a longer name."""
    return re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", text, re.IGNORECASE) is not None


def is_local(host: object) -> bool:
    """Return whether a socket's host, or its whole address, belongs to the sandbox itself."""
    if not isinstance(host, str):
        return True  # bytes and numbers: Unix sockets, netlink
    return host in ("", "localhost", "::1", "0.0.0.0", "::") or host.startswith(("127.", "/"))  # noqa: S104 - compared
