"""The audit hook of ``trusted_runner``: keeps the agent's code out of the grader, and notes what the tests do.

Two things look alike and are not. Tests that by themselves would run the agent's code in the grader cannot grade anyone
(``refused``, and ``remote`` for a network they need). An agent that puts code where sound tests read data or import a
module of the standard library has done that itself, and it fails (``planted``). So whatever an honest solution could
not have caused in the same tests is ``planted``.
"""

from __future__ import annotations

import re
import sys
from types import CodeType, FrameType
from typing import Any, NoReturn, cast

__all__ = ["Guard", "UntrustedCode", "host_of", "is_local", "names_host"]

#: What a pickle of plain data may name, by module.
_BUILTINS = frozenset(
    (
        "bytearray",
        "complex",
        "dict",
        "frozenset",
        "int",
        "list",
        "object",
        "range",
        "set",
        "slice",
        "str",
        "tuple",
        "xrange",
    )
)
_DATA = {
    "_codecs": {"encode"},
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
    "copyreg": {"_reconstructor"},
    "copy_reg": {"_reconstructor"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID", "SafeUUID"},
}
#: Modules of the standard library that execute the text they are given: a README with doctests, say.
_RUN_TEXT = ("bdb", "cProfile", "code", "doctest", "profile", "timeit", "trace")


def caller() -> FrameType:
    """The frame that did what an audit hook was called for: the second one up from here, builtins have none."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - it is CPython's, as audit hooks are


class UntrustedCode(RuntimeError):
    """The tests were about to run code of the sandbox in the grader's own process."""


class Guard:
    """The audit hook: it cannot be removed again, and what it saw once is remembered."""

    def __init__(self, trusted: tuple[str, ...], tests: str, text: str) -> None:
        self._trusted = trusted
        self._tests = tests
        self._text = text
        #: Whether the tests have asked a service of the sandbox's: what they look for then may be its idea.
        self._asked = False
        #: The first code that was refused, and the first that the agent put in the way of sound tests.
        self.refused = ""
        self.planted = ""
        #: The first host that the tests by themselves wanted to reach: a sandbox has no network but its own.
        self.remote = ""
        #: Processes that the tests have sent signals to.
        self.signalled: set[int] = set()

    def install(self) -> None:
        """Look at everything from now on."""
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec":
            self._check_code(arguments[0], caller())
        elif event == "marshal.loads":
            # A .pyc without its source: its code may claim to come from anywhere.
            path: object = caller().f_locals.get("bytecode_path")
            if isinstance(path, str) and not self._is_trusted(path):
                self._refuse_module(path)
        elif event == "import":
            if isinstance(arguments[1], str) and not self._is_trusted(arguments[1]):
                self._refuse_module(arguments[1])  # a shared library
        elif event in ("ctypes.dlopen", "sqlite3.load_extension"):
            path = arguments[-1]
            if isinstance(path, str) and "/" in path and not self._is_trusted(path):
                self._refuse(path)
        elif event == "pickle.find_class":
            module, name = arguments
            if name not in _DATA.get(module, ()):
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
        caller = frame.f_code.co_filename
        if caller == self._tests:
            self._refuse("text given to exec or eval")
        name = code.co_filename
        generated = name.startswith("<") and (caller.startswith("<frozen") or self._is_trusted(caller))
        if generated and caller.endswith("/logging/config.py"):
            self._refuse("a configuration of logging, which is evaluated,")
        module = frame.f_globals.get("__name__")
        if generated and module in _RUN_TEXT and not _times_functions(frame):
            self._refuse(f"text given to {module}")
        if not (generated or name == self._tests or self._is_trusted(name)):
            self._refuse_module(name)

    def _is_trusted(self, path: str) -> bool:
        return path.startswith((*self._trusted, "<frozen ")) or path == self._tests

    def _refuse_module(self, path: str) -> NoReturn:
        """Refuse code at a path: planted if it took the place of a module that the tests do not look for there."""
        name = re.sub(r"(/__pycache__)?(/__init__)?(\.[^/]*)?$", "", path).rpartition("/")[2]
        if name in sys.stdlib_module_names and f"{name}.py" not in self._text:
            self._plant(path)
        self._refuse(path)

    def _refuse(self, what: str) -> NoReturn:
        self.refused = self.refused or what
        raise UntrustedCode(f"{what} would run inside the grader")

    def _plant(self, what: str) -> NoReturn:
        self.planted = self.planted or what
        raise UntrustedCode(f"{what} would run inside the grader")


def _times_functions(frame: FrameType) -> bool:
    """Whether a frame is that of a ``timeit.Timer`` which was given functions, and no text but its own."""
    given = frame.f_locals.get("local_ns", ())
    return "_stmt" in given and ("_setup" in given or frame.f_locals.get("setup") == "pass")


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
