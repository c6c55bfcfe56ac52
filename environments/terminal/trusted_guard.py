"""The audit hook of ``trusted_runner``: keeps the agent's code out of the grader, and notes what the tests do.

Two things look alike and are not. Tests that by themselves would run the agent's code in the grader cannot grade anyone
(``refused``, and ``remote`` for a network they need). An agent that puts code where sound tests read data or import a
module of the standard library has done that itself, and it fails (``planted``). So whatever an honest solution could
not have caused in the same tests is ``planted``.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from opcode import opmap
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from .trusted_data import Pickles, restrict_logging
    from .trusted_texts import Texts
else:
    from trusted_data import Pickles, restrict_logging
    from trusted_texts import Texts

__all__ = ["Guard", "UntrustedCode", "host_of", "is_local", "names_host"]


def caller() -> FrameType:
    """The frame that did what an audit hook was called for: the second one up from here, builtins have none."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - it is CPython's, as audit hooks are


class UntrustedCode(RuntimeError):
    """The tests were about to run code of the sandbox in the grader's own process."""


class _Note:
    """A text that processes share which the tests fork, the first that any of them has written."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, text: str) -> None:
        """Write, unless there is a text."""
        if not self._memory[0]:
            line = text.encode("utf-8", "replace")[: mmap.PAGESIZE - 1]
            self._memory[: len(line)] = line

    def read(self) -> str:
        """The text; empty before there is one."""
        return self._memory[:].partition(b"\0")[0].decode("utf-8", "replace")


class Guard:
    """The audit hook: it cannot be removed again, and what it saw once is remembered."""

    def __init__(self, trusted: tuple[str, ...], tests: str, text: str) -> None:
        self._trusted = trusted
        self._tests = tests
        self._text = text
        self._source = text.encode("utf-8", "surrogatepass")
        #: Whether the tests have asked a service of the sandbox's: what they look for then may be its idea.
        self._asked = False
        #: The first code that was refused, and the first that the agent put in the way of sound tests.
        self._refused = _Note()
        self._planted = _Note()
        self._texts = Texts(text)
        self._pickles = Pickles()
        #: The first host that the tests by themselves wanted to reach: a sandbox has no network but its own.
        self.remote = ""
        #: Processes that the tests have sent signals to.
        self.signalled: set[int] = set()

    @property
    def refused(self) -> str:
        """The first code that was refused."""
        return self._refused.read()

    @property
    def planted(self) -> str:
        """What the agent has put in the way of sound tests, the first of it."""
        changed = self._pickles.changed()
        return self._planted.read() or (changed and f"a pickle that changes {changed}")

    def install(self) -> None:
        """Look at everything from now on."""
        restrict_logging(self._text, self._plant)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":
            self._check_code(arguments[0], caller())
        elif event == "compile":
            if arguments[1] == self._tests and arguments[0] not in (self._text, self._source):
                self._refuse("text that is called the tests")
        elif event in ("marshal.loads", "marshal.load"):
            self._check_compiled(caller())
        elif event == "function.__new__":
            if not self._is_trusted(arguments[0].co_filename):
                self._refuse("a function made of code")
        elif event == "object.__setattr__":
            if arguments[1] == "__code__" and not self._is_trusted(arguments[2].co_filename):
                self._refuse("code put into a function")
        elif event == "import":
            if isinstance(arguments[1], str) and not self._is_trusted(arguments[1]):
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
                # Its author is the agent, whatever the tests had hoped for.
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
        frozen = name.startswith("<frozen ")
        if self._is_trusted(caller if frozen else name):
            return
        if not (name.startswith("<") and self._is_trusted(caller)):
            self._refuse_module(name, frame)
        objection, planted = self._texts.objection(code, frame)
        if objection:
            (self._plant if planted else self._refuse)(objection)

    def _check_compiled(self, frame: FrameType) -> None:
        """Look at who reads compiled code: it may claim to come from anywhere."""
        path: object = frame.f_locals.get("bytecode_path", frame.f_locals.get("pathname"))
        if isinstance(path, str) and frame.f_code.co_filename.startswith("<frozen "):
            if not self._is_trusted(path):
                self._refuse_module(path, frame)
        elif frame.f_globals.get("__name__") != "pstats":  # which reads numbers
            self._refuse("what marshal reads")

    def _check_library(self, name: object) -> None:
        """Look at a shared library: the toolset's own come first where no folder is named, and others not at all."""
        try:
            path = os.fsdecode(cast("Any", name)) if name is not None else ""
        except TypeError:
            return  # no path, so it is not loaded
        if path and "/" not in path:
            path = next((own for folder in self._trusted if os.path.exists(own := f"{folder}lib/{path}")), path)  # noqa: PTH110 - pathlib is one import more
        if path and not self._is_trusted(path):
            self._refuse(path)

    def _is_trusted(self, path: str) -> bool:
        return (path.startswith((*self._trusted, "<frozen ")) and "/../" not in path) or path == self._tests

    def _refuse_module(self, path: str, frame: FrameType) -> NoReturn:
        """Refuse code at a path: planted if it took the place of a module that the tests do not look for there."""
        name = re.sub(r"(/__pycache__)?(/__init__)?(\.[^/]*)?$", "", path).rpartition("/")[2]
        if (name in sys.stdlib_module_names and f"{name}.py" not in self._text) or self._is_imported_by_trusted(frame):
            self._plant(path)
        self._refuse(path)

    def _is_imported_by_trusted(self, frame: FrameType | None) -> bool:
        """Whether a statement of a trusted module is importing something: the tests have not asked for that."""
        while frame is not None and frame.f_code.co_filename.startswith("<frozen "):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename == self._tests or not self._is_trusted(frame.f_code.co_filename):
            return False
        return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_NAME"]

    def _refuse(self, what: str) -> NoReturn:
        self._refused.write(what)
        raise UntrustedCode(f"{what} would run inside the grader")

    def _plant(self, what: str) -> NoReturn:
        self._planted.write(what)
        raise UntrustedCode(f"{what} would run inside the grader")


def host_of(address: object) -> object:
    """The host of a socket's address, which may be the address itself."""
    return (
        cast("tuple[object, ...]", address)[0]
        if isinstance(address, tuple) and address != ()
        else cast("object", address)
    )


def names_host(text: str, host: str) -> bool:
    """Whether a text has a host's name by itself, not as a part of a longer one."""
    return re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", text, re.IGNORECASE) is not None


def is_local(host: object) -> bool:
    """Whether a socket's host, or its whole address, is of the sandbox itself."""
    if not isinstance(host, str):
        return True  # bytes and numbers: Unix sockets, netlink
    return host in ("", "localhost", "::1", "0.0.0.0", "::") or host.startswith(("127.", "/"))  # noqa: S104 - compared
