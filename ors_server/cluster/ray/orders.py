"""Orders of the launcher for the driver, and of the driver for a holder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["REFUSED", "DriverOrder", "HolderFailed", "NodeOrder", "refuse_subreaper"]

#: Exit status of a driver that would fail again.
REFUSED = 3
#: Flag of Ray with which a raylet also kills detached processes of its workers.
_SUBREAPER = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"


class DriverOrder(NamedTuple):
    """The nodes that a driver places."""

    #: Address of Ray.
    address: str
    #: Name of the cluster: the same after a restart with the same key and gateways.
    cluster: str
    key: str
    #: Addresses of the gateways.
    join: Sequence[str]
    #: Arguments of ``ors-server`` on each node, less those that differ from node to node.
    arguments: Sequence[str]
    variables: Mapping[str, str]
    #: Working directory, where a machine has it.
    folder: str
    #: Labels that a node must have.
    labels: Mapping[str, str]
    #: Resources of Ray that each node takes.
    cpus: float
    memory: int | None


class NodeOrder(NamedTuple):
    """The node that a holder keeps."""

    cluster: str
    #: Ray's id of the node.
    node: str
    key: str
    arguments: Sequence[str]
    variables: Mapping[str, str]
    folder: str


class HolderFailed(RuntimeError):
    """A node cannot be held; the text has the cause and the remedy."""


def refuse_subreaper(variables: Mapping[str, str]) -> None:
    """Raise ``HolderFailed`` where Ray kills detached processes with the worker that started them."""
    if variables.get(_SUBREAPER, "0").lower() in ("1", "true"):
        raise HolderFailed(
            f"{_SUBREAPER} is set: Ray would kill nodes with their holders. Start Ray without it; "
            "RAY_process_group_cleanup_enabled also ends what other actors leave"
        )
