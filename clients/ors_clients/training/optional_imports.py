"""Packages that only one trainer's users have: imported where they are used, with a remedy where they are missing.

They carry no types that a checker here could see, so what is imported is ``Any``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ors_containers.distribution import install_command

from ors_clients.errors import ConfigurationError

__all__ = ["INSTALL_ATROPOS", "INSTALL_TRAIN", "MissingPackage", "import_trainer_module"]

INSTALL_TRAIN = f"Install it: {install_command('train')}"
INSTALL_ATROPOS = "Install it beside ors-server: pip install atroposlib"


class MissingPackage(ConfigurationError, ImportError):
    """A module needs a package that is not installed."""


def import_trainer_module(name: str, install: str) -> Any:
    """Return the module ``name``. Raises ``MissingPackage`` with how to ``install`` it."""
    try:
        return import_module(name)
    except ImportError as error:
        # Another module than the one asked for may be the missing one: say which.
        raise MissingPackage(f"Cannot import {name}: {error}", install) from error
