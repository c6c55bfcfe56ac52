"""``python -m ors_clients.atropos``: Atropos commands (``serve``, ``process``, ``evaluate``)."""

from ors_clients.trainers.atropos.base_env import OrsAtroposEnv

OrsAtroposEnv.cli()
