"""The drains of a cluster's nodes, one node after the other: the others take the sessions meanwhile.

A gateway hands each drain to its node in the response to a registration. The next one follows when a new worker serves
in each slot, or when its node has gone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ors_server.cluster.gateway.members.workers import Member

__all__ = ["Drains"]

logger = logging.getLogger("ors_server.gateway")

#: Seconds that a slot gets for its next worker, beyond those for its sessions.
_RESTART = 120.0


class _Drain:
    def __init__(self, instance: str, slots: Sequence[int], deadline: float) -> None:
        self.instance = instance
        self.slots = slots
        #: Seconds until the sessions of a slot are ended.
        self.deadline = deadline
        #: The incarnations when the node got the drain; None before.
        self.before: dict[int, int] | None = None
        self.waited = 0.0


class Drains:
    """The drains that are to come, and the one that goes on now."""

    def __init__(self) -> None:
        self._queue: deque[_Drain] = deque()

    def add(self, instance: str, slots: Sequence[int], deadline: float) -> None:
        """Drain slots of a node after those that were added before."""
        self._queue.append(_Drain(instance, slots, deadline))

    def take(
        self, instance: str, members: Sequence[Member], rows: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Sequence[int], float]]:
        """Return the drain that a node is to begin now, with its deadline, given its workers as they are now."""
        given_up = {row.get("slot") for row in rows if row.get("state") == "out"}
        current = {member.slot: member for member in members}
        while self._queue and self._queue[0].instance == instance:
            drain = self._queue[0]
            if drain.before is None:
                drain.slots = [slot for slot in drain.slots if slot not in given_up]
                drain.before = {slot: member.incarnation for slot, member in current.items()}
                return [(drain.slots, drain.deadline)]
            if not given_up.isdisjoint(drain.slots):
                # The other nodes would be emptied as well, by a version that cannot serve.
                logger.error("drain ends: a new worker was abandoned", extra={"slots": sorted(map(str, given_up))})
                self._queue.clear()
            elif all(slot in current and _is_new(current[slot], drain.before) for slot in drain.slots):
                self._queue.popleft()
            else:
                break
        return []

    def pass_time(self, seconds: float, is_present: Callable[[str], bool]) -> None:
        """Count seconds; go on to the next drain where a node has gone or takes too long."""
        while self._queue:
            drain = self._queue[0]
            drain.waited += seconds if drain.before is not None else 0.0
            if is_present(drain.instance) and drain.waited <= len(drain.slots) * (drain.deadline + _RESTART):
                return
            self._queue.popleft()


def _is_new(member: Member, before: Mapping[int, int]) -> bool:
    return not member.draining and member.incarnation != before.get(member.slot)
