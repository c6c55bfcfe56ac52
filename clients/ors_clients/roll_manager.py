"""``ors_clients.roll.env_manager`` under the name that configuration files of 0.1 have."""

from ors_clients.roll.env_manager import OrsStepEnvManager

__all__ = ["OrsStepEnvManager"]
