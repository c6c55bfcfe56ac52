"""ROLL's manager of an environment, corrected where it would train on something that did not happen.

``env_manager_cls: ors_clients.roll.env_manager.OrsStepEnvManager`` in ROLL's YAML. Each worker imports it by this
name, and the import registers our environments there, so that ROLL itself stays as it is. What differs from ROLL's
``AgentNativeStepEnvManager``:

- An episode that the infrastructure lost, or in which no turn was taken, becomes ROLL's placeholder with ``drop_flag``.
  ``ors_clients.roll.group_filter.LostGroupFilter`` then draws the group again.
- A conversation that outgrows ``sequence_length`` ends the episode. ROLL since v0.3.0 raises ``KeyError`` there.
- The reward of a step without a generation goes to the last turn. ROLL makes no sample of such a step, so its reward,
  and with it the reward of the whole episode, would be lost.
- Each trajectory has a name of its own. An environment that is faster than its siblings plays several episodes of one
  group; ROLL names them all alike, and adds up the returns of trajectories of one name.
- ``adv_estimator`` must be one that credits every turn of an episode, if episodes can have several turns.
- ``group_filter_cls`` must be ``LostGroupFilter`` or derived from it: ROLL's own keeps groups with a lost episode.

Source: alibaba/ROLL 8eb27cc2, ``roll/pipeline/agentic/env_manager/agent_native_env_manager.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.trainers.roll.base import RollEnvironment
from ors_clients.trainers.roll.group_filter import LOST, LostGroupFilter
from ors_clients.trainers.roll.openreward_env import register_environments
from ors_clients.training.losses import cause_of
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["OrsStepEnvManager"]

_native: Any = import_trainer_module(
    "roll.pipeline.agentic.env_manager.agent_native_env_manager", "Run it where ROLL is: PYTHONPATH=<ROLL's checkout>"
)

#: Estimators that give each turn the return of its episode. The others give a turn the reward of its own step alone,
#: which is 0 for all turns but the last.
_EPISODE_ESTIMATORS = ("step_reinforce", "gigpo")

register_environments()


class OrsStepEnvManager(_native.AgentNativeStepEnvManager):
    """``AgentNativeStepEnvManager`` that trains on what happened in the episode."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ROLL's arguments. Raises ``ConfigurationError`` for an estimator that does not fit the turns."""
        _native.AgentNativeStepEnvManager.__init__(self, *args, **kwargs)
        self._trajectories = 0
        if isinstance(self.env, RollEnvironment):
            self.env.tokenizer = getattr(self, "tokenizer", None)
        if self.mode == "train":
            _check_estimator(self.pipeline_config, getattr(self.env, "max_steps", 1))
            _check_filter(getattr(self.worker_config, "group_filter_cls", None))

    def step(self, llm_output: Any) -> Any:
        """Play the model's turn, or end the episode if the prompt left no room for a turn."""
        if llm_output.batch is None or "responses" not in llm_output.batch:
            # ROLL recognizes such an output by `batch is None`, which no output of its own is since v0.3.0.
            llm_output = SimpleNamespace(batch=None)
        return _native.AgentNativeStepEnvManager.step(self, llm_output)

    def formulate_rollouts(self, rollout_cache: Any) -> Any:
        """Return the training samples of an episode, or the placeholder of an episode that has none."""
        failure = getattr(self.env, "failure", None)
        taken = any("response_ids" in step for step in rollout_cache.history)
        if failure is None and taken:
            _credit_last_turn(rollout_cache.history)
            samples = _native.AgentNativeStepEnvManager.formulate_rollouts(self, rollout_cache)
            # `run_rollout_loop` ends the trajectory's name with this id, which it does not use otherwise.
            self._trajectories += 1
            rollout_cache.env_id = f"{rollout_cache.env_id}_{self._trajectories}"
            return samples
        self.failure_mode = type(failure).__name__ if failure is not None else "No turn was taken"
        rollout: Any = self.create_placeholder_rollout(self.episode_id)
        rollout.meta_info["drop_flag"] = True
        cause = "no_turn" if failure is None else cause_of(failure)
        rollout.meta_info[LOST] = (self.env_config["tag"], cause)
        return rollout


def _credit_last_turn(history: Sequence[dict[str, Any]]) -> None:
    """Move the rewards of steps without a generation to the last step that has one. Their sum stays the same."""
    last = [step for step in history if "response_ids" in step][-1]
    for step in history:
        if "response_ids" not in step and "reward" in step:
            last["reward"] += step["reward"]
            step["reward"] = 0.0


def _check_filter(path: str | None) -> None:
    if path is None:
        return
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, LostGroupFilter)):
        raise ConfigurationError(
            f"group_filter_cls is {path}, under which a lost episode can be a score of 0 in its group's mean",
            "Set group_filter_cls: ors_clients.roll.group_filter.LostGroupFilter, or a class of your own derived from"
            " it whose filter() begins with `if super().filter(group_id, episode_id, group): return True`",
        )


def _check_estimator(pipeline_config: Any, max_steps: int) -> None:
    estimator = pipeline_config.adv_estimator
    distilled = getattr(pipeline_config, "is_pure_opd", False)  # rewards are not used at all
    if max_steps > 1 and estimator not in _EPISODE_ESTIMATORS and not distilled:
        raise ConfigurationError(
            f"adv_estimator is {estimator!r} and episodes may have {max_steps} turns: ROLL makes a sample of each turn,"
            f" and {estimator!r} would compare the last turn's reward with the 0 of all turns before it, which punishes"
            " the early turns of successful episodes",
            "Set adv_estimator: step_reinforce and step_reward_gamma: 1.0 (or adv_estimator: gigpo), or max_steps: 1",
        )
