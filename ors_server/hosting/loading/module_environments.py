"""Find the environment classes of an imported module whose target names no class.

In this order: the classes that the file passes to its own ``Server([...])``; its list ``environments``; the classes
defined in it; the classes it imports. The two SDKs are recognised by name and never imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import cast

from ors_server.hosting.dialects import is_environment_class, is_sdk_class, overrides
from ors_server.hosting.errors import TargetError
from ors_server.hosting.loading.server_files import classes_given_to_server

__all__ = ["NoEnvironmentInModule", "defined_environments", "environments_of"]


class NoEnvironmentInModule(TargetError):
    """A module has no environment class, neither its own nor an imported one."""


def environments_of(module: ModuleType, source: str) -> list[type]:
    """Return the classes to serve, in order; ``source`` is the module's name in messages.

    Raises ``TargetError`` (``NoEnvironmentInModule`` where there is no class at all), and what imports in the file's
    ``if __name__ == "__main__"`` block raise.
    """
    handed = classes_given_to_server(module)
    if handed is not None:
        return handed
    declared = getattr(module, "environments", None)
    if isinstance(declared, list | tuple):
        return _declared(cast("Sequence[object]", declared), source)
    defined = defined_environments(module)
    own = [cls for cls in defined if not cls.__name__.startswith("_") and not _is_unfinished_base(cls, defined)]
    if own:
        return own
    if imported := _imported(module):
        return imported
    others = [
        name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__
    ]
    raise NoEnvironmentInModule(
        f"{source} has no class that derives from Environment",
        (f"It defines: {', '.join(others)}." if others else "It defines no classes.")
        + " Derive the environment's class from ors_server.Environment, or start with `ors-server init my_env`.",
    )


def defined_environments(module: ModuleType) -> list[type]:
    """Return the environment classes defined in the module, in order."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        # An alias (`Default = MyEnv`) is not a second class.
        and value.__name__ == name
        and is_environment_class(value)
    ]


def _imported(module: ModuleType) -> list[type]:
    """Return the environment classes that a module imports, without base classes of others."""
    found = dict.fromkeys(
        value
        for name, value in vars(module).items()
        if is_environment_class(value) and not is_sdk_class(value) and not name.startswith("_")
    )
    leaves = [cls for cls in found if not cls.__name__.startswith("_") and not _has_subclass(cls, found)]
    return [cls for cls in leaves if _is_complete(cls)] or leaves


def _declared(declared: Sequence[object], source: str) -> list[type]:
    classes: list[type] = []
    for entry in declared:
        entry_class = entry if isinstance(entry, type) else type(entry)
        if not is_environment_class(entry_class):
            raise TargetError(
                f"The list `environments` of {source} holds {entry!r}, which is not an environment",
                "It holds classes that derive from Environment.",
            )
        classes.append(entry_class)
    if not classes:
        raise TargetError(f"The list `environments` of {source} is empty", "Put the classes to serve in it.")
    return classes


def _is_unfinished_base(cls: type, defined: Sequence[type]) -> bool:
    """Return whether a class is an incomplete base class of another.

    An incomplete class without derived classes is a mistake, which the server explains when it is built.
    """
    return not _is_complete(cls) and _has_subclass(cls, defined)


def _has_subclass(cls: type, classes: Iterable[type]) -> bool:
    """Return whether one of the classes derives from ``cls`` and is not ``cls`` itself."""
    return any(other is not cls and issubclass(other, cls) for other in classes)


def _is_complete(cls: type) -> bool:
    return not inspect.isabstract(cls) and overrides(cls, "list_splits")
