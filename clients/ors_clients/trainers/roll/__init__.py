"""ROLL: environments, the manager and the group filter that its configuration files name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.trainers.roll.atropos_env import AtroposEnv as AtroposEnv
    from ors_clients.trainers.roll.env_manager import OrsStepEnvManager as OrsStepEnvManager
    from ors_clients.trainers.roll.group_filter import LostGroupFilter as LostGroupFilter
    from ors_clients.trainers.roll.openreward_env import OpenRewardEnv as OpenRewardEnv
    from ors_clients.trainers.roll.openreward_env import register_environments as register_environments

_MODULES = {
    "atropos_env": ("AtroposEnv",),
    "env_manager": ("OrsStepEnvManager",),
    "group_filter": ("LostGroupFilter",),
    "openreward_env": ("OpenRewardEnv", "register_environments"),
}


def __getattr__(name: str) -> Any:
    from ors_containers.lazy_names import lazy_name

    return lazy_name(__name__, name, _MODULES)
