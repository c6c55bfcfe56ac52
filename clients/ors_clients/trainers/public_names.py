"""The public names of the adapters: ``ors_clients.slime`` is ``ors_clients.trainers.slime``, and so are its modules.

Configurations of trainers name them, so they stay whatever the folder is. Under both names it is the same module. An
import by a name that has changed says the new one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType

__all__ = ["install"]

_NAMES = frozenset(("atropos", "miles", "roll", "slime", "trl"))
#: Modules that configurations of versions up to 0.2 name, with their names since then.
_RENAMED = {
    "ors_clients.roll_atropos": "ors_clients.roll.atropos_env",
    "ors_clients.roll_groups": "ors_clients.roll.group_filter",
    "ors_clients.roll_manager": "ors_clients.roll.env_manager",
    "ors_clients.roll_start": "ors_clients.roll.start",
    "ors_clients.sync_client": "ors_clients, with Session and Environment for SyncSession and SyncEnvironment",
}


class _Finder(MetaPathFinder, InspectLoader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if new := _RENAMED.get(fullname):
            raise ModuleNotFoundError(f"Since 0.3.0, {fullname} is {new}", name=fullname)
        package, _, rest = fullname.partition(".")
        if package != "ors_clients" or rest.partition(".")[0] not in _NAMES:
            return None
        found = find_spec(_place(fullname))
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return spec_from_loader(fullname, self, origin=found.origin, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(_place(module.__name__))

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module, for ``python -m``."""
        return _loader(fullname).get_code(_place(fullname))

    def get_source(self, fullname: str) -> str | None:
        """Return the text of a module, for tracebacks."""
        return _loader(fullname).get_source(_place(fullname))


def _place(name: str) -> str:
    return name.replace("ors_clients.", "ors_clients.trainers.", 1)


def _loader(name: str) -> InspectLoader:
    found = find_spec(_place(name))
    assert found is not None and isinstance(found.loader, InspectLoader)
    return found.loader


def install() -> None:
    """Let the public names be found."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
