"""Import the modules of an environment folder separately from those of every other folder.

Two folders may each have an ``environment.py`` and a ``helpers.py``. Each folder is therefore a package that exists in
this process only (``ors_environment_<folder>``), and its modules run with an ``__import__`` that looks in their own
folder first: ``import helpers`` finds the ``helpers.py`` beside the importing file, at the top of a module as well as
in a tool that runs an hour later. The author's files are unchanged, and so is ``sys.path``: a data folder called
``trl`` does not make another library believe that TRL is installed.

The modules of a folder that is a package (``__init__.py``) may also import each other by the folder's name.

Invariants: a module is loaded once; a name of the standard library always means the standard library; every other name
means the folder's own module where there is one.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

__all__ = ["FolderPackage", "folder_package"]

_PREFIX = "ors_environment_"


class FolderPackage:
    """A folder whose modules find each other before installed packages; made by ``folder_package``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        #: The ``builtins`` of the folder's modules, with an ``__import__`` of their own.
        self.builtins = {**vars(builtins), "__import__": self._import}
        self._owned: dict[str, bool] = {}

    def load(self, module: str) -> ModuleType:
        """Import ``<module>.py`` of the folder. Raises what the author's code raises."""
        return importlib.import_module(self.name if module == "__init__" else f"{self.name}.{module}")

    def owns(self, name: str) -> bool:
        """Return whether ``import <name>`` in this folder means a module of the folder."""
        owned = self._owned.get(name)
        if owned is None:
            owned = self._owned[name] = self._find(name)
        return owned

    def has_module(self, name: str) -> bool:
        """Return whether the folder has a module or a package with ``__init__.py`` of this name, not just a folder."""
        spec = PathFinder.find_spec(name, [str(self.folder)])
        return spec is not None and spec.loader is not None

    def _find(self, name: str) -> bool:
        if name in sys.stdlib_module_names:
            return False
        spec = PathFinder.find_spec(name, [str(self.folder)])
        if spec is None:
            return False
        # As in Python, a folder without __init__.py is a package only where no installed package has its name.
        return spec.loader is not None or not _installed(name)

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level == 0 and self.owns(top):
            whole, first = f"{self.name}.{name}", f"{self.name}.{top}"
        elif level == 0 and top == self.folder.name and self._is_package:
            whole, first = self.name + name[len(top) :], self.name
        else:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(whole, globals, locals, fromlist or (), 0)
        # As in the builtin: `import a.b` binds `a`, `from a.b import c` takes c out of `a.b`.
        return module if fromlist else sys.modules[first]

    @functools.cached_property
    def _is_package(self) -> bool:
        """True where its modules may import each other by the folder's name: the only package of that name."""
        init = self.folder / "__init__.py"
        if not init.is_file() or self.folder.name in sys.stdlib_module_names:
            return False
        spec = PathFinder.find_spec(self.folder.name)
        return spec is None or spec.origin is None or Path(spec.origin).resolve() == init


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, package: FolderPackage) -> None:
        super().__init__(fullname, path)
        self._package = package

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self._package.builtins
        super().exec_module(module)


class _PackageFinder:
    """Finder of ``ors_environment_<folder>`` and the modules in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = _packages_by_name.get(fullname.partition(".")[0])
        if package is None:
            return None
        if fullname == package.name:
            return _package_spec(package)
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, package)
        return spec


class _PlainNameFinder:
    """Finder for ``importlib.import_module("helpers")``, which does not name the importing module; the last finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        owners = [package for package in _packages_by_name.values() if package.owns(top) and package.has_module(top)]
        if not owners:
            return None
        if len(owners) > 1:
            folders = " and ".join(str(package.folder) for package in owners)
            raise ModuleNotFoundError(
                f"{top!r} is in {folders}, and import_module does not say which is meant; use an import statement",
                name=fullname,
            )
        alias = f"{owners[0].name}.{fullname}"
        return None if importlib.util.find_spec(alias) is None else ModuleSpec(fullname, _AliasLoader(alias))


class _AliasLoader(Loader):
    """Loader that puts a module of a folder package in ``sys.modules`` under its plain name too."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._alias)


_packages: dict[Path, FolderPackage] = {}
_packages_by_name: dict[str, FolderPackage] = {}


def folder_package(folder: Path) -> FolderPackage:
    """Return the package of a folder, the same for each call with the same folder."""
    folder = folder.resolve()
    package = _packages.get(folder)
    if package is None:
        if not _packages:
            sys.meta_path.insert(0, _PackageFinder())
            sys.meta_path.append(_PlainNameFinder())
        base = name = _PREFIX + (re.sub(r"\W", "_", folder.name) or "root")
        number = 1
        while name in _packages_by_name:
            number += 1
            name = f"{base}_{number}"
        package = _packages[folder] = _packages_by_name[name] = FolderPackage(folder, name)
    return package


def _package_spec(package: FolderPackage) -> ModuleSpec | None:
    init = package.folder / "__init__.py"
    if init.is_file():
        return importlib.util.spec_from_file_location(
            package.name,
            init,
            loader=_Loader(package.name, str(init), package),
            submodule_search_locations=[str(package.folder)],
        )
    spec = ModuleSpec(package.name, None, is_package=True)
    spec.submodule_search_locations = [str(package.folder)]
    return spec


def _installed(name: str) -> bool:
    try:
        spec = PathFinder.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.loader is not None
