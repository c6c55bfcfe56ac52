"""Comparison of the workers' lists of tasks, for the log; the workers refuse differing lists themselves."""

from __future__ import annotations

import logging
from collections.abc import Mapping

__all__ = ["TaskLists"]

logger = logging.getLogger("ors_server.supervisor")

#: Digests by environment and split, of one worker.
Digests = Mapping[str, Mapping[str, str]]


class TaskLists:
    """The digests that the living workers report, by slot."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Digests] = {}
        #: Differences that were logged.
        self._logged = set[tuple[str, str, str]]()

    def report(self, slot: int, digests: Digests) -> None:
        """Take the report of a slot's worker; log what differs and was not logged before."""
        if self._by_slot.get(slot) == digests:
            return
        self._by_slot[slot] = digests
        for environment, splits in digests.items():
            for split in splits:
                self._compare(environment, split)

    def forget(self, slot: int) -> None:
        """Forget the worker of a slot, which has ended."""
        self._by_slot.pop(slot, None)

    def digests(self) -> dict[str, dict[str, list[str]]]:
        """Return the digests of all workers, by environment and split."""
        found: dict[str, dict[str, list[str]]] = {}
        for reported in self._by_slot.values():
            for environment, splits in reported.items():
                for split, digest in splits.items():
                    known = found.setdefault(environment, {}).setdefault(split, [])
                    if digest not in known:
                        known.append(digest)
        return found

    def _compare(self, environment: str, split: str) -> None:
        slots: dict[str, list[int]] = {}
        for slot, digests in sorted(self._by_slot.items()):
            if digest := digests.get(environment, {}).get(split):
                slots.setdefault(digest, []).append(slot)
        if len(slots) < 2:
            return
        groups = " | ".join(" ".join(map(str, group)) for group in sorted(slots.values()))
        if (environment, split, groups) not in self._logged:
            self._logged.add((environment, split, groups))
            logger.error(
                "workers have different lists of tasks; those that differ from the first refuse them",
                extra={"environment": environment, "split": split, "slots": groups},
            )
