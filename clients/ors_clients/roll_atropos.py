"""``ors_clients.roll.atropos_env`` under the name that configuration files of 0.1 have."""

from ors_clients.roll.atropos_env import AtroposEnv

__all__ = ["AtroposEnv"]
