"""ROLL: environments, the manager and the group filter that its configuration files name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.roll.atropos_env import AtroposEnv as AtroposEnv
    from ors_clients.roll.env_manager import OrsStepEnvManager as OrsStepEnvManager
    from ors_clients.roll.group_filter import LostGroupFilter as LostGroupFilter
    from ors_clients.roll.openreward_env import OpenRewardEnv as OpenRewardEnv
    from ors_clients.roll.openreward_env import register_environments as register_environments

_MODULE_OF = {
    "AtroposEnv": "atropos_env",
    "LostGroupFilter": "group_filter",
    "OpenRewardEnv": "openreward_env",
    "OrsStepEnvManager": "env_manager",
    "register_environments": "openreward_env",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, because its module needs the trainer's packages."""
    from importlib import import_module

    if name == "__all__":
        return list(_MODULE_OF)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
