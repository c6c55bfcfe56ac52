"""Functions that slime's command line names.

    --custom-generate-function-path  ors_clients.slime.generate
    --custom-rm-path                 ors_clients.slime.reward_func       (only with --group-rm, or to reward again)
    --dynamic-sampling-filter-path   ors_clients.slime.keep_group
    --custom-reward-post-process-path ors_clients.slime.post_process_rewards
    --custom-rollout-log-function-path ors_clients.slime.log_rollout_data
    --custom-eval-rollout-log-function-path ors_clients.slime.log_eval_rollout_data

``generate`` plays one episode for one sample and fills it. It keeps what slime's own ``generate`` keeps: the sampling
parameters it receives (also an evaluation's), the router and its routing key, the context length, and the sample's
rules (see ``samples``). When slime stops a batch, the session is closed and the sample is empty again with the status
ABORTED, because an environment's session cannot be resumed later.

A sample whose infrastructure failed is ABORTED, with ``remove_sample`` and a mask of zeros. slime's synchronous rollout
calls ``keep_group``, which drops the whole group. The fully asynchronous rollout calls no filter, and puts groups with
an aborted sample back to be generated again. Where a lost sample reaches a batch all the same,
``post_process_rewards`` leaves it out of its group's mean and deviation. ``log_eval_rollout_data`` leaves lost rollouts
out of an evaluation, where they would count as 0.

``generate`` raises the errors that end a run. The fully asynchronous rollout logs such an error and goes on, so there
the error is kept. ``log_rollout_data`` raises it once the batch is full of samples that cannot be trained on.

Sources: THUDM/slime ``slime/rollout/sglang_rollout.py``, ``slime/rollout/fully_async_rollout.py``,
``slime/ray/rollout.py``, ``slime/observability/rollout_metrics.py``, ``slime/utils/types.py``, ``docs/en/get_started``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.training.hooks import check_hooks
from ors_clients.training.process_state import group_filter
from ors_clients.training.sample_functions import (
    close,
    fill_or_end,
    fill_sample,
    filter_group,
    log_eval_rollout_data,
    log_rollout_data,
    post_process_rewards,
    reward_func,
    trainer_state,
)

__all__ = [
    "close",
    "generate",
    "keep_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "post_process_rewards",
    "reward_func",
]

INSTALL = "Install slime: pip install -e /path/to/slime"


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play the episode of ``sample`` and fill it; the same sample is returned.

    A sample without metadata gets a task of the training configuration's first environment, the same one as the rest of
    its group. Raises ``ConfigurationError`` and ``RequestRefused`` for an error that every sample would meet, and
    ``InfrastructureFailure`` for too many lost rollouts in a row. A fully asynchronous rollout would log the error and
    go on; there it is kept, and raised by ``log_rollout_data``.
    """
    if evaluation or not _is_fully_async(args):
        return await _generate(args, sample, sampling_params, evaluation)
    return await fill_or_end(args, sample, lambda: _generate(args, sample, sampling_params, evaluation))


def _is_fully_async(args: Any) -> bool:
    return "fully_async" in (getattr(args, "rollout_function_path", None) or "")


async def _generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool) -> Any:
    if not evaluation:
        check_hooks(args, "ors_clients.slime")
        if group_filter(args) is not None and _is_fully_async(args):
            raise ConfigurationError(
                "slime's fully asynchronous rollout calls no filter of groups",
                "Leave group_filter out of the training file, or --rollout-function-path out of the command line",
            )
    uses_routing_key = getattr(args, "router_policy", None) == "consistent_hashing"
    await fill_sample(
        args,
        sample,
        sampling_params,
        evaluation=evaluation,
        state=trainer_state(args, "slime.rollout.sglang_rollout"),
        routing_key=getattr(sample, "session_id", None) if uses_routing_key else None,
    )
    return sample


def keep_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """Keep a group for training, or drop it: a dynamic sampling filter (``filter_group``)."""
    return filter_group(args, samples, "slime.rollout.filter_hub.base_types", INSTALL, **kwargs)
