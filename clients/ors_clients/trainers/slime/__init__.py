"""slime: the functions that its command line names."""

from ors_clients.trainers.slime.functions import *  # noqa: F403 - every name of its `__all__`
