"""Import of the generator as the server imports it."""

from __future__ import annotations

from types import ModuleType

from ors_server.hosting.loading.folder_imports import folder_package
from tests.support.paths import ROOT

__all__ = ["ENVIRONMENT", "load_generation", "load_program"]

ENVIRONMENT = ROOT / "environments" / "terminal"


def load_generation() -> ModuleType:
    """Return ``generation`` of the environment's folder, imported as ``ors-server serve`` imports it."""
    return folder_package(ENVIRONMENT).load("tasks.generation")


def load_program() -> ModuleType:
    """Return the module that writes the tests of a state."""
    return folder_package(ENVIRONMENT).load("states.program")
