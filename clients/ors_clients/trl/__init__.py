"""TRL: one or several ORS environments in one ``GRPOTrainer`` run (``EnvironmentMixture``)."""

from ors_clients.trl.mixture import EnvironmentMixture
from ors_clients.trl.slots import EnvironmentSlot, EnvironmentSpec, environment_reward, unless_failed

__all__ = ["EnvironmentMixture", "EnvironmentSlot", "EnvironmentSpec", "environment_reward", "unless_failed"]
