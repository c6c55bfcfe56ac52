"""TRL: one or several ORS environments in one ``GRPOTrainer`` run (``EnvironmentMixture``)."""

from ors_clients.trainers.trl.mixture import EnvironmentMixture
from ors_clients.trainers.trl.slots import EnvironmentSlot, EnvironmentSpec, environment_reward, unless_failed

__all__ = ["EnvironmentMixture", "EnvironmentSlot", "EnvironmentSpec", "environment_reward", "unless_failed"]
