"""A Python with pytest that runs in any image of this machine's architecture, and that no image can change.

Graders must not use an interpreter, a library or a configuration that the agent could have installed. So the
interpreter of this process is copied, with its standard library, every shared library it needs, the dynamic loader
and pytest, into a folder that sandboxes get read-only at ``AT``:

    bin/python3            uses the loader below; runs without arguments for it, so ``sys.executable`` works
    lib/                   the loader (``ld.so``) and the shared libraries
    lib/pythonX.Y/         the standard library, compiled
    packages/              pytest and what it needs, the modules of graders; a program puts them on its ``sys.path``
    l.cache, nss.conf      files that the loader and the C library read instead of files in /etc
    locale/                the locale C.UTF-8

The copies of the loader and the C library look for ``/etc/ld.so.preload``, ``/etc/ld.so.cache``,
``/etc/nsswitch.conf``, locales and character sets elsewhere: a root inside a sandbox could load code of its own by
these. For the same reason there is no OpenSSL (``ssl``; ``hashlib`` does without it), which reads a configuration that
can name libraries.

Invariant: a folder's name is the hash of its sources, and the folder gets its name when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

from ors_containers.errors import RuntimeUnavailable, StoreFailed
from ors_containers.graders import elf
from ors_containers.linux.file_locks import locked
from ors_containers.linux.public_folders import make_folder

__all__ = ["AT", "Toolset", "python_toolset"]

#: Its path in sandboxes: directly below the root, and short enough for the C library's constants.
AT = "/.grader"
_FORMAT = 1
_LOADER = f"{AT}/lib/ld.so"
#: Constants of the loader and the C library (patterns), and what they are in the copies (which may not be longer).
_LOADERS_FILES = {r"/etc/ld\.so\.preload": f"{AT}/lib/.none", r"/etc/ld\.so\.cache": f"{AT}/l.cache"}
_LIBRARYS_FILES = {
    r"/etc/nsswitch\.conf": f"{AT}/nss.conf",
    r"/[^\0]*/gconv": f"{AT}/none",
    r"/[^\0]*/gconv/gconv-modules\.cache": f"{AT}/none",
    r"/usr/lib/locale": f"{AT}/locale",
    r"/usr/lib/locale/locale-archive": f"{AT}/locale/archive",
}
_LOCALE = Path("/usr/lib/locale/C.utf8")
_NSS = "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\nprotocols: files\nnetworks: files\n"

_NOT_COPIED = shutil.ignore_patterns(
    *("__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "config-*", "lib2to3"),
    *("site-packages", "dist-packages", "lib-dynload", "*.a", "*.exe"),
)
#: Extension modules left out: tests, what needs a terminal or a display, and what reads configurations that load code.
_NO_MODULES = re.compile(r"_ssl|_hashlib|_tkinter|readline|nis|_test.*|_ctypes_test|xx.*|_xx(?!subinterpreters).*")
_PACKAGE = "pytest"
#: Modules of this package that a program imports by their last name: ``process_isolation``.
_MODULES = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in (
        *("elf", "process_isolation", "program_rights", "python_commands", "read_only_commands", "read_only_git"),
        *("read_only_programs", "reader_variables", "sealed_programs", "stray_processes", "unchanged_places"),
    )
)
#: Loaded by name when a thread ends; ``ldd`` does not know.
_ALSO_NEEDED = "libgcc_s.so.1"
_ALSO_WELCOME = "libnss_files.so.2"  # part of the C library from glibc 2.34 on
_COMPILE_PATIENCE = 600.0
#: Roughly, for people.
_SIZE = "about 80 MB"


@dataclass(frozen=True, slots=True)
class Toolset:
    """A folder with a Python, and its paths in a sandbox."""

    folder: Path

    @property
    def bind(self) -> tuple[Path, str]:
        """One of ``Image.binds``."""
        return (self.folder, AT)

    @property
    def command(self) -> tuple[str, ...]:
        """The command before the interpreter's own arguments: ``[*toolset.command, "-I", "-S", "-B", script]``."""
        return (_LOADER, "--library-path", f"{AT}/lib", self.python)

    @property
    def python(self) -> str:
        """``sys.executable`` of this Python. It runs without a loader's arguments, but reads ``LD_LIBRARY_PATH``."""
        return f"{AT}/bin/python3"

    @property
    def packages(self) -> str:
        """The folder to put first on ``sys.path`` to import ``pytest``, ``process_isolation`` and the others."""
        return f"{AT}/packages"


async def python_toolset(folder: Path, on_make: Callable[[], None] | None = None) -> Toolset:
    """Return the toolset of this interpreter below ``folder``; make it if it does not exist (about ten seconds).

    ``on_make`` is called, in a thread, before it is made. Raises ``RuntimeUnavailable`` where this interpreter cannot
    be copied: a C library other than glibc, no ``ldd``; and ``StoreFailed`` where ``folder`` cannot be written.
    """
    return await asyncio.to_thread(_toolset, folder, on_make)


def _toolset(folder: Path, on_make: Callable[[], None] | None) -> Toolset:
    with _store_errors(folder):
        return _found_or_made(folder, on_make)


@contextlib.contextmanager
def _store_errors(folder: Path) -> Generator[None]:
    """Convert errors of the disk to a ``StoreFailed`` of one sentence, those of ``copytree`` and programs too."""
    try:
        yield
    except (OSError, RuntimeUnavailable) as error:
        if any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT)):
            raise StoreFailed(
                f"There is no space left in {folder} for the grader's Python, which takes {_SIZE}",
                "Free some space (`ors-server image prune`), or set ORS_IMAGES to a folder on another disk",
            ) from error
        if isinstance(error, RuntimeUnavailable):
            raise
        # `copytree` collects tuples of source, target and text.
        said = error.args[0][0][2] if isinstance(error, shutil.Error) else str(error)
        raise StoreFailed(
            f"The grader's Python cannot be written to {folder}: {said}",
            "Set ORS_IMAGES to a folder that can be written",
        ) from error


def _found_or_made(folder: Path, on_make: Callable[[], None] | None) -> Toolset:
    make_folder(folder)
    packages = [importlib.metadata.distribution(name) for name in sorted(_needed(_PACKAGE))]
    root = folder / f"python-{_key(packages)}"
    with locked(folder / ".toolset.lock"):
        if not root.is_dir():
            if on_make is not None:
                on_make()
            # Its own name within a new directory: `ldconfig` writes names as they are below a root.
            new = Path(tempfile.mkdtemp(dir=folder, prefix=".new-"))
            try:
                _fill(new / AT[1:], packages)
                _list_libraries(new)
                (new / AT[1:]).rename(root)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return Toolset(root)


def _interpreter() -> Path:
    """Return the program of this interpreter, outside of a virtual environment."""
    name = f"python{sysconfig.get_python_version()}"
    candidates = (getattr(sys, "_base_executable", sys.executable), f"{sys.base_prefix}/bin/{name}", sys.executable)
    for candidate in candidates:
        path = Path(candidate).resolve()
        if path.is_file() and elf.is_elf(path.read_bytes()[:16]):
            return path
    raise RuntimeUnavailable("The interpreter of this process was not found", "Use an installed CPython")


def _key(packages: Iterable[importlib.metadata.Distribution]) -> str:
    program = _interpreter()
    files = [program, Path(__file__), *_MODULES, Path(sysconfig.__file__)]
    files += [Path(path) for path in _libraries(program).values()]
    described = [
        _FORMAT,
        platform.machine(),
        sys.version,
        [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files],
        [(package.name, package.version) for package in packages],
    ]
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def _fill(new: Path, packages: Iterable[importlib.metadata.Distribution]) -> None:
    version = f"python{sysconfig.get_python_version()}"
    library = new / "lib"
    standard = library / version
    for directory in (new, new / "bin", library, new / "packages"):
        directory.mkdir(mode=0o755)
    shutil.copytree(sysconfig.get_path("stdlib"), standard, symlinks=False, ignore=_NOT_COPIED)
    modules = Path(sysconfig.get_config_var("DESTSHARED") or "")
    (standard / "lib-dynload").mkdir()
    program = _interpreter()
    needed = dict(_libraries(program))
    if modules.is_dir():
        for module in sorted(modules.glob("*.so")):
            if not _NO_MODULES.fullmatch(module.name.partition(".")[0]):
                _copy_program(module, standard / "lib-dynload" / module.name)
                needed.update(_libraries(module))
    _copy_program(program, new / "bin" / "python3")
    loader = elf.interpreter(program.read_bytes())
    if not Path(loader).name.startswith("ld-linux"):
        raise RuntimeUnavailable(
            f"This Python runs on {loader or 'no C library of its own'}, and its loader is not one that can be copied",
            "Run the server with a CPython for glibc (Debian, Ubuntu, Fedora, …)",
        )
    places = {Path(path).parent for path in needed.values()}
    for name in (_ALSO_NEEDED, _ALSO_WELCOME):
        found = next((place / name for place in places if (place / name).exists()), None)
        if found is not None:
            needed[name] = str(found)
        elif name == _ALSO_NEEDED:
            raise RuntimeUnavailable(f"{name} is not beside the C library", "Debian, Ubuntu: apt install libgcc-s1")
    for name, path in needed.items():
        if name.startswith("ld-linux"):
            continue
        _copy_program(Path(path), library / name, _LIBRARYS_FILES if name == "libc.so.6" else {})
    _copy_program(Path(loader), library / "ld.so", _LOADERS_FILES)
    # Some libraries name the loader as a library they need.
    (library / Path(loader).name).symlink_to("ld.so")
    (new / "nss.conf").write_text(_NSS)
    (new / "locale").mkdir()
    if _LOCALE.is_dir():  # without it Python is in its UTF-8 mode
        shutil.copytree(_LOCALE, new / "locale" / _LOCALE.name)
    for package in packages:
        _copy_package(package, new / "packages")
    for module in _MODULES:
        shutil.copyfile(module, new / "packages" / module.name)
    _compile(new)
    for path in (new, *new.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _copy_program(source: Path, target: Path, texts: dict[str, str] | None = None) -> None:
    """Copy a program or library so that it finds what it needs in the toolset alone."""
    content = bytearray(source.read_bytes())
    try:
        if elf.interpreter(content):
            elf.replace_interpreter(content, _LOADER)
        elf.forget_search_paths(content)
        for old, new in (texts or {}).items():
            elf.replace_text(content, old, new)
    except ValueError as error:
        raise RuntimeUnavailable(f"{source} cannot be made safe for graders: {error}") from error
    target.write_bytes(content)
    target.chmod(0o755)


def _libraries(program: Path) -> dict[str, str]:
    """Return the shared libraries of a program or library: paths by name."""
    try:
        said = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeUnavailable(
            f"The libraries of {program} cannot be listed: {error}", "Debian, Ubuntu: apt install libc-bin"
        ) from error
    if "not found" in said:
        raise RuntimeUnavailable(f"{program} lacks libraries: {said}")
    return {match[1]: match[2] for match in re.finditer(r"^\s*(\S+) => (/\S+) \(0x", said, re.MULTILINE)}


def _list_libraries(root: Path) -> None:
    """Write the loader's list of libraries, as they are named when the toolset is in its place."""
    configuration = root / "ld.so.conf"
    configuration.write_text(f"{AT}/lib\n")
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    arguments = [program or "ldconfig", "-X", "-r", root, "-f", "/ld.so.conf", "-C", f"{AT}/l.cache"]
    try:
        subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeUnavailable(
            f"ldconfig failed: {getattr(error, 'stderr', '') or error}", "Debian, Ubuntu: apt install libc-bin"
        ) from error


def _copy_package(package: importlib.metadata.Distribution, target: Path) -> None:
    for file in package.files or []:
        if ".." in file.parts or "__pycache__" in file.parts or file.parts[0].endswith(".dist-info"):
            continue
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(str(package.locate_file(file))), place)


def _needed(name: str) -> set[str]:
    """Return the name of a distribution and of all its requirements on this interpreter."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        for text in importlib.metadata.requires(current) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name.lower())
    return found


def _compile(new: Path) -> None:
    """Compile everything: nothing can be written there later, and starting without takes five times as long."""
    options = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(new), "-p", AT]
    done = subprocess.run(
        [sys.executable, "-I", "-m", "compileall", *options, str(new)],
        capture_output=True,
        text=True,
        timeout=_COMPILE_PATIENCE,
    )
    if done.returncode != 0:
        raise RuntimeUnavailable(f"Python's standard library does not compile: {done.stdout}{done.stderr}")
