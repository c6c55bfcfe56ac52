"""Load the environment classes of a target of ``ors-server serve``.

| target | means |
|---|---|
| ``my_env/`` | the environments of the folder's ``environment.py``, ``server.py`` or the like |
| ``my_env/:Class`` | one class of it |
| ``server.py``, ``server.py:Class`` | the environments of a file, or one class of it |
| ``package.module:Class`` | a class of an importable module; the current folder is importable |
| ``echo``, ``echo:Class`` | an environment that comes with ors-server |

``module_environments`` decides which classes of a file are its environments. Every failure is a ``TargetError`` that
names the author's file and line, and the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ors_server.errors import OrsError
from ors_server.hosting.dialects import is_environment_class
from ors_server.hosting.errors import TargetError
from ors_server.hosting.loading.folder_imports import FolderPackage, folder_package
from ors_server.hosting.loading.module_environments import NoEnvironmentInModule, defined_environments, environments_of
from ors_server.hosting.loading.server_files import line_that_serves
from ors_server.hosting.start_guard import ServerStarted, refusing_servers
from ors_server.sandboxes import hide_code_from_sandboxes

__all__ = [
    "ENVIRONMENT_FILES",
    "building_of_authors_code",
    "bundled_environments",
    "environment_files",
    "load_target",
    "load_targets",
]

#: The files of an environment folder that may hold its classes; the first file that has classes is served.
ENVIRONMENT_FILES = ("environment.py", "server.py", "app.py", "main.py", "env.py", "__init__.py")

Result = TypeVar("Result")

_PACKAGE = Path(__file__).resolve().parents[2]
#: A module, or a class that may be nested in another.
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def load_targets(targets: Sequence[str]) -> list[type]:
    """Load the classes of all targets, in order; the first is the default environment.

    Raises ``TargetError`` for the first target that does not load.
    """
    return [environment for target in targets for environment in load_target(target)]


def load_target(target: str) -> list[type]:
    """Load the classes of one target, in the order in which they are served. Raises ``TargetError``."""
    location, class_name = _split(target)
    files = _files(target, location)
    if not files:
        module, source = _import_module(location)
        return [_named_class(module, class_name, source, location)]
    nothing: NoEnvironmentInModule | None = None
    for file in files:
        package, module = _import_file(file)
        try:
            if not class_name:
                return _explained(file, package, lambda module=module, file=file: environments_of(module, str(file)))
            if file is files[-1] or hasattr(module, class_name.partition(".")[0]):
                return [_named_class(module, class_name, str(file), location)]
        except NoEnvironmentInModule as error:
            nothing = nothing or error
    assert nothing is not None
    raise nothing


def bundled_environments() -> dict[str, Path]:
    """Return the name and the folder of every environment that is bundled with ors-server.

    A wheel has them inside the package, a checkout beside it.
    """
    for root in (_PACKAGE / "_bundled", _PACKAGE.parent / "environments"):
        if root.is_dir():
            return {
                folder.name: folder for folder in sorted(root.iterdir()) if (folder / ENVIRONMENT_FILES[0]).is_file()
            }
    return {}


def environment_files(folder: Path) -> list[Path]:
    """Return the files of a folder that may hold its environment classes, in the order of preference."""
    return [folder / name for name in ENVIRONMENT_FILES if (folder / name).is_file()]


# --- from target to module ---------------------------------------------------------------------


def _split(target: str) -> tuple[str, str]:
    """Split a target into location and class name ("" where none is given)."""
    location, separator, class_name = target.rpartition(":")
    if not separator or Path(target).exists():  # a path may have a colon in it
        return target, ""
    if not location or not _DOTTED_NAME.fullmatch(class_name):
        raise TargetError(f"{target!r} is not a target", "After it comes the name of a class, as in my_env/:MyEnv.")
    return location, class_name


def _files(target: str, location: str) -> list[Path]:
    """Return the files that a location may mean, in order; none where it is the name of a module."""
    path = Path(location)
    if location and (files := environment_files(path)):
        return files
    if location in (bundled := bundled_environments()):
        return environment_files(bundled[location])
    if location and path.is_dir():
        raise _no_environment_file(path)
    if path.suffix == ".py":
        if not path.is_file():
            raise TargetError(f"The file {location} does not exist", f"The current folder is {Path.cwd()}.")
        return [path]
    if path.is_file():
        raise TargetError(f"{location} is not a Python file", "Name a folder, file.py:Class or module:Class.")
    if target != location and _DOTTED_NAME.fullmatch(location):
        return []
    raise _nothing_there(location, sorted(bundled))


def _import_file(file: Path) -> tuple[FolderPackage, ModuleType]:
    module = file.stem
    if not module.isidentifier():
        proposal = re.sub(r"\W", "_", module)
        raise TargetError(f"{file} cannot be imported: {module!r} is not a Python name", f"Rename it to {proposal}.py.")
    package = folder_package(file.parent)
    hide_code_from_sandboxes(file)
    line = _explained(file, package, lambda: line_that_serves(file))
    if line is not None:
        raise _serves(f"{file}", line)
    return package, _explained(file, package, lambda: package.load(module))


def _explained(file: Path, package: FolderPackage, run: Callable[[], Result]) -> Result:
    """Run a function that imports the author's code. Raises ``TargetError`` for what that code raises."""
    try:
        with refusing_servers():
            return run()
    except (KeyboardInterrupt, TargetError):
        raise
    except ServerStarted as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file.resolve())]
        raise _serves(f"{file}", frames[0].lineno if frames else None) from error
    except BaseException as error:  # importing runs arbitrary code, which may even call sys.exit()
        # The folder's package name exists in this process only and would confuse the author.
        what = _description(error).replace(f"{package.name}.", "")
        missing = error.name.removeprefix(f"{package.name}.") if isinstance(error, ImportError) and error.name else ""
        remedy = _remedy(error, missing)
        if missing and missing.partition(".")[0] in {
            folder.name for folder in (package.folder, *package.folder.parents)
        }:
            remedy = "Modules above the folder are found when it is named as a module: package.environment:Class."
        raise TargetError(f"{file} cannot be imported: {what}", remedy) from error


def _import_module(name: str) -> tuple[ModuleType, str]:
    here = str(Path.cwd())
    if here not in sys.path:
        # As with `python -m`, a module of the current folder takes precedence over an installed module.
        sys.path.insert(0, here)
    try:
        with refusing_servers():
            return importlib.import_module(name), f"the module {name}"
    except KeyboardInterrupt:
        raise
    except ServerStarted as error:
        raise _serves(f"The module {name}", None) from error
    except BaseException as error:  # as above
        missing = error.name if isinstance(error, ImportError) and error.name else ""
        remedy = _remedy(error, missing)
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{missing}."):
            remedy = f"The current folder is {here}; run ors-server where the module can be imported from."
        raise TargetError(f"The module {name} cannot be imported: {_description(error)}", remedy) from error


@contextlib.contextmanager
def building_of_authors_code() -> Generator[None]:
    """Raise a ``TargetError`` where an author's code fails in this block, in which a server is built.

    Building a server runs the authors' list_splits, name and list_tools, which may even call sys.exit().
    """
    try:
        yield
    except OrsError:
        raise
    except (Exception, SystemExit) as error:
        explained = _failed_in_authors_code(error)
        if explained is None:
            raise
        raise explained from error


def _failed_in_authors_code(error: BaseException) -> TargetError | None:
    """Return the error to report for an exception that an author's code raised while a server was built.

    None where only code of this package and of libraries ran: that is a fault of this package and needs its traceback.
    A ``SystemExit`` always comes from the author: in this package only the command line ends the process.
    """
    ended = isinstance(error, SystemExit)
    if not (ended or _author_frame(error)):
        return None
    return TargetError(
        f"An environment cannot be served: {_description(error)}",
        "Raise an error instead of ending the process." if ended else "Correct it and start again.",
    )


def _description(error: BaseException) -> str:
    """Describe an exception in the author's code: type, message, file and line."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        # Its text repeats the file and line in another form.
        return f"{kind}: {error.msg}{_place(error.filename, error.lineno)}"
    text = error.cause.rstrip(".") if isinstance(error, OrsError) else str(error)
    # An installed environment has only frames of a library.
    frame = _author_frame(error) or _author_frame(error, installed=True)
    return (f"{kind}: {text}" if text else kind) + (_place(frame.filename, frame.lineno) if frame else "")


def _author_frame(error: BaseException, *, installed: bool = False) -> traceback.FrameSummary | None:
    """Return the innermost frame of the author's code: neither of this package nor of a library.

    With ``installed``, installed packages count as the author's.
    """
    libraries = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    standard = Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if frame.filename.startswith("<"):
            continue
        if file.is_relative_to(_PACKAGE) and not file.is_relative_to(_PACKAGE / "_bundled"):
            continue
        if any(file.is_relative_to(library) for library in libraries):
            if installed:
                return frame
        elif not file.is_relative_to(standard):
            return frame
    return None


def _place(file: str | None, line: int | None) -> str:
    if file is None:
        return ""
    path = Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}, line {line})"


def _remedy(error: BaseException, missing: str) -> str:
    if isinstance(error, OrsError):
        return error.remedy
    if missing.partition(".")[0] == "openreward":
        return "Install openreward beside ors-server, or import the same names from ors_server."
    if isinstance(error, ModuleNotFoundError) and missing:
        return f"Install what provides {missing!r} into the Python that runs ors-server: {sys.executable}."
    if isinstance(error, SystemExit):
        return 'Put what runs on start behind `if __name__ == "__main__":`.'
    return "Correct it and start again."


# --- one class by its name ---------------------------------------------------------------------


def _named_class(module: ModuleType, class_name: str, source: str, location: str) -> type:
    value: object = module
    for part in class_name.split("."):
        if not hasattr(value, part):
            found = [environment.__name__ for environment in defined_environments(module)]
            near = difflib.get_close_matches(class_name, found, n=1)
            remedy = f"Did you mean {location}:{near[0]}?" if near else _listing("It defines", found)
            raise TargetError(f"{_capitalised(source)} has no class {class_name}", remedy)
        value = getattr(value, part)
    if isinstance(value, type) and (is_environment_class(value) or hasattr(value, "list_splits")):
        return value
    if is_environment_class(type(value)):
        return type(value)
    kind = "class that does not derive from Environment" if isinstance(value, type) else type(value).__name__
    raise TargetError(f"{class_name} in {source} is a {kind}", "Derive it from ors_server.Environment.")


# --- messages ----------------------------------------------------------------------------------


def _serves(what: str, line: int | None) -> TargetError:
    return TargetError(
        f"{what} starts its server when it is imported" + (f" (line {line})" if line is not None else ""),
        'Put that line behind `if __name__ == "__main__":`; `ors-server serve` finds the classes there.',
    )


def _no_environment_file(folder: Path) -> TargetError:
    files = sorted(file.name for file in folder.glob("*.py"))
    if len(files) == 1:
        remedy = f"Name the file: {folder / files[0]}."
    elif files:
        remedy = f"Name one of its files, as in {folder / files[0]}; it has {_join(files)}."
    else:
        remedy = f"`ors-server init {folder}` writes one."
    *others, last = ENVIRONMENT_FILES
    return TargetError(f"The folder {folder} has no {_join(others)} or {last}", remedy)


def _nothing_there(location: str, bundled: Sequence[str]) -> TargetError:
    kinds = "A target is a folder, file.py:Class, module:Class or a bundled environment"
    remedy = f"{kinds} ({_join(bundled)})." if bundled else f"{kinds}."
    if near := difflib.get_close_matches(location, bundled, n=1):
        return TargetError(f"There is no target {location!r}", f"Did you mean {near[0]!r}? {remedy}")
    if "/" in location:
        return TargetError(f"The folder {location} does not exist", f"The current folder is {Path.cwd()}.")
    if "." in location and _DOTTED_NAME.fullmatch(location):
        return TargetError(
            f"There is no target {location!r}", f"If it is a module, name its class too: {location}:Class."
        )
    return TargetError(f"There is no target {location!r}", remedy)


def _listing(introduction: str, names: Sequence[str]) -> str:
    return f"{introduction}: {_join(names)}." if names else f"{introduction} no classes."


def _join(names: Sequence[str]) -> str:
    return ", ".join(names)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("the ") else text
