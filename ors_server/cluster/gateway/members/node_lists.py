"""Comparison of the nodes' lists of tasks, so that index *i* of a split is one task on all machines.

Workers of one node agree among themselves (``hosting.task_agreement``). A node whose list differs from that of an older
node gets no new sessions until the older node has left: so a new version can replace the old one, node by node. Nodes
are ordered by the time at which they started, by their own clocks, so that all gateways choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Difference", "Lists", "differences"]

#: The digests of a node's living workers, by environment and split.
Lists = Mapping[str, Mapping[str, Sequence[str]]]


class Difference(NamedTuple):
    """A split of which a node has another list than an older node."""

    environment: str
    split: str


def differences(nodes: Iterable[tuple[float, str, Lists]]) -> dict[str, Difference]:
    """Return the nodes that differ from older ones. Each node has its start, its instance and its lists."""
    agreed: dict[Difference, set[str]] = {}
    found: dict[str, Difference] = {}
    for _, instance, lists in sorted(nodes, key=lambda node: node[:2]):
        own = {
            Difference(name, split): set(digests) for name, splits in lists.items() for split, digests in splits.items()
        }
        differs = next(
            (place for place in own if own[place] and agreed.get(place, own[place]).isdisjoint(own[place])), None
        )
        if differs is not None:
            found[instance] = differs
            continue
        for place, digests in own.items():
            agreed[place] = agreed.get(place, digests) & digests
    return found
