"""ROLL's manager of an environment, which drops the samples that must not be trained on.

``env_manager_cls: ors_clients.roll_manager.OrsStepEnvManager`` in a YAML of ROLL. Each worker imports the class by this
name, and the import registers our environments there, so that ROLL itself stays as it is.

ROLL has a way to say that an episode is void: a placeholder without a response, flagged ``drop_flag``, for its group
filter (``group_filter_cls: roll.pipeline.agentic.env_manager.agent_native_env_manager.GroupFilter``). ROLL uses it when
an environment could not be reset. Here it is used, too, when the infrastructure failed in the middle of an episode, and
when the first prompt was too long for any turn to be taken.
"""

from __future__ import annotations

from typing import Any

from ors_clients.roll import register_environments
from ors_clients.trainer_packages import import_trainer_module

__all__ = ["OrsStepEnvManager"]

_native: Any = import_trainer_module(
    "roll.pipeline.agentic.env_manager.agent_native_env_manager", "Run it where ROLL is: PYTHONPATH=<ROLL's checkout>"
)

register_environments()


class OrsStepEnvManager(_native.AgentNativeStepEnvManager):
    """``AgentNativeStepEnvManager`` whose void episodes are dropped instead of scored."""

    def formulate_rollouts(self, rollout_cache: Any) -> Any:
        """The training samples of an episode, or the placeholder of one that has none."""
        failure = getattr(self.env, "failure", None)
        taken = any("response_ids" in step for step in rollout_cache.history)
        if failure is None and taken:
            return _native.AgentNativeStepEnvManager.formulate_rollouts(self, rollout_cache)
        self.failure_mode = type(failure).__name__ if failure is not None else "No turn was taken"
        rollout: Any = self.create_placeholder_rollout(self.episode_id)
        rollout.meta_info["drop_flag"] = True
        return rollout
