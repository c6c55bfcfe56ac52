"""``ors_clients.roll.group_filter`` under the name that configuration files of 0.1 have."""

from ors_clients.roll.group_filter import LostGroupFilter

__all__ = ["LostGroupFilter"]
