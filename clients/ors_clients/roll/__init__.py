"""ROLL: environments, the manager and the group filter that its configuration files name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.roll.atropos_env import AtroposEnv
    from ors_clients.roll.env_manager import OrsStepEnvManager
    from ors_clients.roll.group_filter import LostGroupFilter
    from ors_clients.roll.openreward_env import OpenRewardEnv, register_environments

_MODULE_OF = {
    "OpenRewardEnv": "openreward_env",
    "register_environments": "openreward_env",
    "AtroposEnv": "atropos_env",
    "OrsStepEnvManager": "env_manager",
    "LostGroupFilter": "group_filter",
}
__all__ = ["AtroposEnv", "LostGroupFilter", "OpenRewardEnv", "OrsStepEnvManager", "register_environments"]


def __getattr__(name: str) -> Any:
    """Import a name when it is used: its module needs the trainer's packages."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
