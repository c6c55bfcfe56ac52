"""Import the public names of a package when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from ors_containers.distribution import DISTRIBUTION

__all__ = ["lazy_name"]


def lazy_name(package: str, name: str, modules: Mapping[str, Iterable[str]]) -> Any:
    """Return the attribute ``name`` of ``package``, whose ``__getattr__`` calls this.

    ``modules`` has the public names by module. A module without names is public itself, with all names of its
    ``__all__``. ``__all__``, the list of all these names, and a top-level package's ``__version__`` are attributes too.
    Raises ``AttributeError``.
    """
    if name == "__version__" and "." not in package:
        return import_module("importlib.metadata").version(DISTRIBUTION)
    public: list[str] = []
    for path, listed in modules.items():
        names = list(listed) or list(import_module(f"{package}.{path}").__all__)
        if name in names:
            module = import_module(f"{package}.{path}")
            # All names of the module at once: importing `self_check` binds that name to the module, not its function.
            vars(sys.modules[package]).update({each: getattr(module, each) for each in names})
            return getattr(module, name)
        public += names if listed else [path, *names]
    if name == "__all__":
        return public
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
