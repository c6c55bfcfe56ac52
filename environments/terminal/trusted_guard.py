"""The audit hook of ``trusted_runner``: keeps the agent's code out of the grader and records what the tests do.

Two cases look alike and have different verdicts:

- Tests that would run the agent's code in the grader for every solution cannot grade (``refused``, and ``remote`` for
  a network they need).
- An agent that puts code where sound tests read data, or where they import a module of the standard library, fails
  (``planted``). The criterion: an honest solution could not have caused it in the same tests.
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
    """Return the frame that triggered an audit hook: the second frame up from here, because builtins have no frame."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - it is CPython's, as audit hooks are


class UntrustedCode(RuntimeError):
    """The tests were about to run code of the sandbox in the grader's own process."""


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

    def __init__(self, trusted: tuple[str, ...], tests: str, text: str) -> None:
        self._trusted = trusted
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
        changed = self._pickles.changed()
        return self._planted.read() or (changed and f"a pickle that changes {changed}")

    def install(self) -> None:
        """Start the audit. It lasts as long as the process."""
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
        frozen = name.startswith("<frozen ")
        if self._is_trusted(caller if frozen else name):
            return
        if not (name.startswith("<") and self._is_trusted(caller)):
            self._refuse_module(name, frame)
        objection, planted = self._texts.objection(code, frame)
        if objection:
            (self._plant if planted else self._refuse)(objection)

    def _check_compiled(self, frame: FrameType) -> None:
        """Refuse to load compiled code that does not come from a trusted path: code can claim any file name."""
        path: object = frame.f_locals.get("bytecode_path", frame.f_locals.get("pathname"))
        if isinstance(path, str) and frame.f_code.co_filename.startswith("<frozen "):
            if not self._is_trusted(path):
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
        if path and not self._is_trusted(path):
            self._refuse(path)

    def _is_trusted(self, path: str) -> bool:
        return (path.startswith((*self._trusted, "<frozen ")) and "/../" not in path) or path == self._tests

    def _refuse_module(self, path: str, frame: FrameType) -> NoReturn:
        """Refuse code at a path. It is planted if it replaces a standard module that the tests do not name."""
        name = re.sub(r"(/__pycache__)?(/__init__)?(\.[^/]*)?$", "", path).rpartition("/")[2]
        if (name in sys.stdlib_module_names and f"{name}.py" not in self._text) or self._is_imported_by_trusted(frame):
            self._plant(path)
        self._refuse(path)

    def _is_imported_by_trusted(self, frame: FrameType | None) -> bool:
        """Return whether a statement of a trusted module is importing something, which the tests have not asked for."""
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
