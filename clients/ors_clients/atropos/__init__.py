"""Atropos: an ORS environment for its trainers, and its environments for ours."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.atropos.base_env import OrsAtroposConfig, OrsAtroposEnv, scored_group

_MODULE_OF = {
    "OrsAtroposConfig": "base_env",
    "OrsAtroposEnv": "base_env",
    "scored_group": "base_env",
}
__all__ = ["OrsAtroposConfig", "OrsAtroposEnv", "scored_group"]


def __getattr__(name: str) -> Any:
    """Import a name when it is used: its module needs the trainer's packages."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
