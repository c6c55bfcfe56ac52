"""Count of a process's rollouts and of those that were lost, by environment and cause, since a batch was last logged.

A trainer logs a batch after it has dropped and redrawn groups, so numbers made of the batch do not have what was lost.
Every rollout is counted here when it ends, before any filter.
"""

from __future__ import annotations

import re
import threading
from collections import Counter

from ors_clients.errors import ClientError

__all__ = ["Losses", "cause_of"]


def cause_of(failure: ClientError) -> str:
    """Return the kind of a failure as a part of a metric's name: ``server_unavailable``, ``session_lost``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(failure).__name__).lower()


class Losses:
    """Counts of rollouts; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._played: Counter[str] = Counter()
        self._lost: Counter[tuple[str, str]] = Counter()

    def count(self, environment: str, failure: ClientError | None) -> None:
        """Note a rollout that has ended, lost or not."""
        with self._lock:
            self._played[environment] += 1
            if failure is not None:
                self._lost[environment, cause_of(failure)] += 1

    def take(self, prefix: str) -> dict[str, float]:
        """Return the counts since the last call, for each environment and for ``all``.

        ``PREFIX/ENVIRONMENT/played`` counts all rollouts, ``…/infrastructure_failures`` those that were lost, and
        ``…/lost/CAUSE`` those of each cause.
        """
        with self._lock:
            played, lost = self._played, self._lost
            self._played, self._lost = Counter(), Counter()
        metrics: Counter[str] = Counter()
        for environment, count in played.items():
            for name in ("all", environment):
                metrics[f"{prefix}/{name}/played"] += count
                metrics[f"{prefix}/{name}/infrastructure_failures"] += 0
        for (environment, cause), count in lost.items():
            for name in ("all", environment):
                metrics[f"{prefix}/{name}/infrastructure_failures"] += count
                metrics[f"{prefix}/{name}/lost/{cause}"] += count
        return dict(metrics)
