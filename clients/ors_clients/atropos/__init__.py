"""Atropos: an ORS environment for its trainers, and its environments for the trainers of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.atropos.base_env import OrsAtroposConfig as OrsAtroposConfig
    from ors_clients.atropos.base_env import OrsAtroposEnv as OrsAtroposEnv
    from ors_clients.atropos.base_env import scored_group as scored_group

_NAMES = ("OrsAtroposConfig", "OrsAtroposEnv", "scored_group")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, because its module needs the trainer's packages."""
    from importlib import import_module

    if name == "__all__":
        return list(_NAMES)
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.base_env"), name)
