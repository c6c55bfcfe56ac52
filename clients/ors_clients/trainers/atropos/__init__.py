"""Atropos: an ORS environment for its trainers, and its environments for the trainers of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.trainers.atropos.base_env import OrsAtroposConfig as OrsAtroposConfig
    from ors_clients.trainers.atropos.base_env import OrsAtroposEnv as OrsAtroposEnv
    from ors_clients.trainers.atropos.base_env import scored_group as scored_group


def __getattr__(name: str) -> Any:
    from ors_containers.lazy_names import lazy_name

    return lazy_name(__name__, name, {"base_env": ("OrsAtroposConfig", "OrsAtroposEnv", "scored_group")})
