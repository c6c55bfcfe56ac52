"""What ``ors-server serve`` can be pointed at, and how it becomes environment classes.

| target | means |
|---|---|
| ``my_env/`` | the environments of ``my_env/environment.py`` |
| ``my_env/:Class`` | one class of it |
| ``server.py``, ``server.py:Class`` | the environments of a file, or one class of it |
| ``package.module:Class`` | a class of an importable module; the current folder is importable |
| ``echo``, ``echo:Class`` | an environment that comes with ors-server |

The environments of a file are its list ``environments`` where it has one, else every class defined in it (not merely
imported) that derives from an ``Environment`` of ``ors_server``, ``openreward`` or ``ors``, in the order they are
written. The two SDKs are recognised by name and never imported from here. A base class that is not complete and from
which another class of the file derives is not an environment, nor is a class whose name begins with an underscore.

Whatever stands in the way is a ``TargetError`` that names the author's file and line, and what to do.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from ors_server.classes import is_environment_class, overrides
from ors_server.errors import OrsError, TargetError
from ors_server.folder_modules import folder_package

__all__ = ["ENVIRONMENT_FILE", "bundled_environments", "failed_in_authors_code", "load_target", "load_targets"]

#: The file of an environment folder that holds its classes.
ENVIRONMENT_FILE = "environment.py"

_PACKAGE = Path(__file__).resolve().parent
#: A module, or a class that may be nested in another.
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def load_targets(targets: Sequence[str]) -> list[type]:
    """The classes of all targets, in order; the first is the default environment.

    Raises ``TargetError`` for the first target that does not load.
    """
    return [environment for target in targets for environment in load_target(target)]


def load_target(target: str) -> list[type]:
    """The classes of one target, in the order they are served. Raises ``TargetError``."""
    location, class_name = _split(target)
    module, source = _import(target, location)
    if class_name:
        return [_named_class(module, class_name, source, location)]
    return _environments(module, source, location)


def bundled_environments() -> dict[str, Path]:
    """Name and folder of every environment that comes with ors-server.

    A wheel carries them inside the package, a checkout has them beside it.
    """
    for root in (_PACKAGE / "_bundled", _PACKAGE.parent / "environments"):
        if root.is_dir():
            return {folder.name: folder for folder in sorted(root.iterdir()) if (folder / ENVIRONMENT_FILE).is_file()}
    return {}


# --- from target to module ---------------------------------------------------------------------


def _split(target: str) -> tuple[str, str]:
    """Location and class name ("" where none is given)."""
    location, separator, class_name = target.rpartition(":")
    if not separator:
        return target, ""
    if not location or not _DOTTED_NAME.fullmatch(class_name):
        raise TargetError(f"{target!r} is no target", "After the colon comes the name of a class, as in my_env/:MyEnv.")
    return location, class_name


def _import(target: str, location: str) -> tuple[ModuleType, str]:
    """The module of a location, and what messages call it."""
    path = Path(location)
    if location and (path / ENVIRONMENT_FILE).is_file():
        return _import_file(path / ENVIRONMENT_FILE)
    if location in (bundled := bundled_environments()):
        return _import_file(bundled[location] / ENVIRONMENT_FILE)
    if location and path.is_dir():
        raise _no_environment_file(path)
    if path.suffix == ".py":
        if not path.is_file():
            raise TargetError(f"The file {location} does not exist", f"The current folder is {Path.cwd()}.")
        return _import_file(path)
    if path.is_file():
        raise TargetError(f"{location} is not a Python file", "Name a folder, file.py:Class or module:Class.")
    if target != location and _DOTTED_NAME.fullmatch(location):
        return _import_module(location)
    raise _nothing_there(location, sorted(bundled))


def _import_file(file: Path) -> tuple[ModuleType, str]:
    module = file.stem
    if not module.isidentifier():
        proposal = re.sub(r"\W", "_", module)
        raise TargetError(f"{file} cannot be imported: {module!r} is no Python name", f"Rename it to {proposal}.py.")
    package = folder_package(file.parent)
    try:
        return package.load(module), str(file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing runs arbitrary code, which may even call sys.exit()
        # The name that the folder has in this process says nothing to anybody.
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
        # As `python -m` does: a module of the current folder wins over an installed one.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name), f"the module {name}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as above
        missing = error.name if isinstance(error, ImportError) and error.name else ""
        remedy = _remedy(error, missing)
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{missing}."):
            remedy = f"The current folder is {here}; run ors-server where the module can be imported from."
        raise TargetError(f"The module {name} cannot be imported: {_description(error)}", remedy) from error


def failed_in_authors_code(error: BaseException) -> TargetError | None:
    """What to say of an exception that came while a server was built, where the author's code raised it.

    None where no code but ours and libraries' was running: that is a fault of ours, and its traceback is wanted. A
    ``SystemExit`` is never ours: nothing in this package but the command line itself ends the process.
    """
    ended = isinstance(error, SystemExit)
    if not (ended or _author_frame(error)):
        return None
    return TargetError(
        f"An environment cannot be served: {_description(error)}",
        "Raise an error instead of ending the process." if ended else "Correct it and start again.",
    )


def _description(error: BaseException) -> str:
    """Type, message and place of an exception in the author's code."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        # Its own text repeats the place, in another form.
        return f"{kind}: {error.msg}{_place(error.filename, error.lineno)}"
    text = error.cause.rstrip(".") if isinstance(error, OrsError) else str(error)
    # An installed environment has no frame but those of a library.
    frame = _author_frame(error) or _author_frame(error, installed=True)
    return (f"{kind}: {text}" if text else kind) + (_place(frame.filename, frame.lineno) if frame else "")


def _author_frame(error: BaseException, *, installed: bool = False) -> traceback.FrameSummary | None:
    """Where the author's code was when the exception came: the innermost frame that is neither ours nor a library's.

    ``installed`` takes installed packages for the author's.
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


# --- from module to classes --------------------------------------------------------------------


def _named_class(module: ModuleType, class_name: str, source: str, location: str) -> type:
    value: object = module
    for part in class_name.split("."):
        if not hasattr(value, part):
            found = [environment.__name__ for environment in _defined(module)]
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


def _environments(module: ModuleType, source: str, location: str) -> list[type]:
    """The environments of a module whose target names no class."""
    declared = getattr(module, "environments", None)
    if isinstance(declared, list | tuple):
        return _declared(cast("Sequence[object]", declared), source)
    defined = _defined(module)
    environments = [cls for cls in defined if not cls.__name__.startswith("_") and not _is_base(cls, defined)]
    if environments:
        return environments
    imported = [name for name, value in vars(module).items() if is_environment_class(value) and value not in defined]
    if imported:
        raise TargetError(
            f"{_capitalised(source)} defines no environment, it only imports {', '.join(imported)}",
            f"Name the class: {location}:{imported[0]}.",
        )
    others = [
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    raise TargetError(
        f"{_capitalised(source)} defines no class that derives from Environment",
        _listing("It defines", others)
        + " Derive the environment's class from ors_server.Environment, or start with `ors-server init my_env`.",
    )


def _declared(declared: Sequence[object], source: str) -> list[type]:
    classes: list[type] = []
    for entry in declared:
        entry_class = entry if isinstance(entry, type) else type(entry)
        if not is_environment_class(entry_class):
            raise TargetError(
                f"The list `environments` of {source} holds {entry!r}, which is no environment",
                "It holds classes that derive from Environment.",
            )
        classes.append(entry_class)
    if not classes:
        raise TargetError(f"The list `environments` of {source} is empty", "Put the classes to serve in it.")
    return classes


def _defined(module: ModuleType) -> list[type]:
    """The environment classes written in the module, in order."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        # An alias (`Default = MyEnv`) is no second class.
        and value.__name__ == name
        and is_environment_class(value)
    ]


def _is_base(cls: type, defined: Sequence[type]) -> bool:
    """Whether a class is there for others to derive from: it is not complete, and one of them does.

    An incomplete class from which nothing derives is a mistake, which the server explains when it is built.
    """
    complete = not inspect.isabstract(cls) and overrides(cls, "list_splits")
    return not complete and any(other is not cls and issubclass(other, cls) for other in defined)


# --- messages ----------------------------------------------------------------------------------


def _no_environment_file(folder: Path) -> TargetError:
    files = sorted(file.name for file in folder.glob("*.py"))
    if len(files) == 1:
        remedy = f"Name the file: {folder / files[0]}."
    elif files:
        remedy = f"Name one of its files, as in {folder / files[0]}; it has {_join(files)}."
    else:
        remedy = f"`ors-server init {folder}` writes one."
    return TargetError(f"The folder {folder} has no {ENVIRONMENT_FILE}", remedy)


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
