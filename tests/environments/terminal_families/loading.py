"""Import of the generator as the server imports it."""

from __future__ import annotations

from types import ModuleType

from ors_server.hosting.folder_imports import folder_package
from tests.support.paths import ROOT

__all__ = ["ENVIRONMENT", "load_alternatives", "load_generation", "load_requirements"]

ENVIRONMENT = ROOT / "environments" / "terminal"


def load_generation() -> ModuleType:
    """Return ``generation`` of the environment's folder, imported as ``ors-server serve`` imports it."""
    return folder_package(ENVIRONMENT).load("generation")


def load_alternatives() -> ModuleType:
    """Return the module of honest ways for every family."""
    return folder_package(ENVIRONMENT).load("families.alternatives")


def load_requirements() -> ModuleType:
    """Return the module of requirements and ways."""
    return folder_package(ENVIRONMENT).load("families.requirements")
