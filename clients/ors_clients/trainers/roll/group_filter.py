"""The group filter of ROLL's recipes: a group with a lost episode is drawn again, never trained on.

``group_filter_cls: ors_clients.roll.group_filter.LostGroupFilter`` in ROLL's YAML. ROLL's own ``GroupFilter`` keeps a
group with a void episode as soon as it has filtered half of all groups. The void episode then counts as a score of 0 in
its group's mean, which shifts the advantage of every other member.

What was lost is counted before its group is dropped, and added to the metrics of the next group that is kept:
``env/TAG/lost/CAUSE@sum``, which ROLL adds up over the batch, as the name says.

Source: alibaba/ROLL, ``roll/distributed/scheduler/rollout_scheduler.py`` (``GroupQueue.put``) and
``roll/pipeline/agentic/env_manager/agent_native_env_manager.py`` (``GroupFilter``).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ors_clients.errors import ConfigurationError, InfrastructureFailure

__all__ = ["LOST", "LostGroupFilter"]

logger = logging.getLogger("ors_clients.roll")

#: Key of a placeholder's ``meta_info``: the tag of the environment, and the cause of the loss.
LOST = "ors_lost"

#: Losses of one group in a row that end the run, where the configuration does not say.
_MAX_LOST_IN_ROW = 16


class LostGroupFilter:
    """Filter every group that has an episode with ROLL's ``drop_flag``, and end a run that only has such groups.

    ROLL plays its groups side by side, so an outage loses one episode group in each of them at once. The filter
    therefore counts for each ``group_id``, and starts over when any group is kept: the count is the number of tries,
    one after another, that failed. ``max_lost_groups_in_row`` of an entry in ``custom_envs`` sets the limit, which is
    16 by default; of several entries the smallest limit holds.
    """

    def __init__(self, config: Any, env_manager_config: Any, mode: str) -> None:
        """Take the arguments of ROLL's ``GroupQueueManager``. Raises ``ConfigurationError``."""
        limits = [
            config.custom_envs[tag].get("max_lost_groups_in_row", _MAX_LOST_IN_ROW) for tag in env_manager_config.tags
        ]
        if not all(isinstance(limit, int) and limit >= 1 for limit in limits):
            raise ConfigurationError(f"max_lost_groups_in_row is {limits}", "Give a whole number of at least 1")
        self.limit = min(limits, default=_MAX_LOST_IN_ROW)
        self.mode = mode
        self._lost: Counter[int] = Counter()
        #: Lost episodes by their metric, since the last group that was kept.
        self._causes: Counter[str] = Counter()

    def filter(self, group_id: int, episode_id: int, group: list[Any]) -> bool:
        """Return whether ROLL has to draw the group again.

        Raises ``InfrastructureFailure`` at the limit, and empties the group. ROLL's queue passes the error on to the
        thread of the environment, and the pipeline raises it when it asks for the next batch.
        """
        if not any(rollout is not None and rollout.meta_info.get("drop_flag", False) for rollout in group):
            self._lost.clear()
            self._report(group)
            return False
        for rollout in group:
            if rollout is not None and rollout.meta_info.get("drop_flag", False):
                tag, cause = rollout.meta_info.get(LOST, ("unknown", "unknown"))
                self._causes[f"env/{tag}/lost/{cause}@sum"] += 1
        self._lost[group_id] += 1
        logger.warning("Episode %d of %s group %d was lost and is drawn again", episode_id, self.mode, group_id)
        if self._lost[group_id] >= self.limit:
            group.clear()  # ROLL keeps a group whose filter raised, and could still put it into a batch
            raise InfrastructureFailure(
                f"ROLL's {self.mode} group {group_id} was lost {self.limit} times in a row, and no group was kept",
                "Look at the environments' server, and at the warnings of ors_clients.roll in the workers' logs",
            )
        return True

    def _report(self, group: list[Any]) -> None:
        """Add the counts to the metrics of a group that is kept."""
        kept = next((rollout for rollout in group if rollout is not None), None)
        if kept is not None and self._causes:
            kept.meta_info["metrics"] = {**kept.meta_info.get("metrics", {}), **self._causes}
            self._causes.clear()
