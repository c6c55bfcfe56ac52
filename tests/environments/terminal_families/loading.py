"""The generator, as the server loads it."""

from __future__ import annotations

from types import ModuleType

from ors_server.hosting.folder_imports import folder_package
from tests.support.paths import ROOT

__all__ = ["ENVIRONMENT", "load_alternatives", "load_generation", "load_requirements"]

ENVIRONMENT = ROOT / "environments" / "terminal"


def load_generation() -> ModuleType:
    """``generation`` of the environment's folder, imported as ``ors-server serve`` imports it."""
    return folder_package(ENVIRONMENT).load("generation")


def load_alternatives() -> ModuleType:
    """The honest ways of every family."""
    return folder_package(ENVIRONMENT).load("families.alternatives")


def load_requirements() -> ModuleType:
    """What the ways of a task are."""
    return folder_package(ENVIRONMENT).load("families.requirements")
