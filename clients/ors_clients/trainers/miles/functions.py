"""Functions that Miles' command line names.

    --custom-generate-function-path  ors_clients.miles.generate
    --custom-rm-path                 ors_clients.miles.reward_func
    --dynamic-sampling-filter-path   ors_clients.miles.keep_group
    --custom-reward-post-process-path ors_clients.miles.post_process_rewards
    --custom-rollout-log-function-path ors_clients.miles.log_rollout_data
    --custom-eval-rollout-log-function-path ors_clients.miles.log_eval_rollout_data

``generate`` has both of Miles' forms: called with a ``GenerateFnInput`` it returns a ``GenerateFnOutput``; called with
``(args, sample, sampling_params)``, as Miles' older rollouts and slime do, it returns the sample. It does what
``ors_clients.slime.generate`` does. With the agent function instead, Miles' session server keeps the tokens:

    --custom-generate-function-path ors_clients.miles.generate_with_agent
    --custom-agent-function-path    ors_clients.miles.run
    --custom-rm-path                ors_clients.miles.reward_func

A rollout whose infrastructure failed is ABORTED, with ``remove_sample``. ``keep_group`` rejects its group; of Miles'
own filters only ``check_no_aborted`` does. Where a lost sample reaches a batch all the same, ``post_process_rewards``
leaves it out of its group's mean and deviation.

Miles' synchronous rollout logs an exception of a generate function, and draws another group. So an error that every
rollout would meet is kept, and ``keep_group`` raises it, which Miles calls where it does not catch exceptions. With
another filter, or none, ``RunEnded`` is raised, which is not an ``Exception``. An evaluation raises the error at once.

Sources: radixark/miles ``miles/rollout/base_types.py``, ``miles/rollout/inference_rollout``,
``miles/rollout/generate_hub``, ``examples/experimental/openenv``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.trainers.miles.agent import INSTALL, ends_by_filter, generate_with_agent, run
from ors_clients.training.hooks import check_hooks
from ors_clients.training.optional_imports import import_trainer_module
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
    "add_arguments",
    "close",
    "generate",
    "generate_with_agent",
    "keep_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "post_process_rewards",
    "reward_func",
    "run",
]


async def generate(
    input: Any, sample: Any = None, sampling_params: Mapping[str, Any] | None = None, evaluation: bool = False
) -> Any:
    """Play the episode of a sample and fill it.

    ``input``: a ``GenerateFnInput``, or the arguments where ``sample`` is given as well. Miles tells its two forms
    apart by the name of this parameter. In training it raises ``RunEnded`` alone, where ``keep_group`` would not raise.
    """
    if sample is None:
        sample = await _fill(input.args, input.sample, input.sampling_params, input.evaluation, input.state)
        base_types = import_trainer_module("miles.rollout.base_types", INSTALL)
        return base_types.GenerateFnOutput(samples=sample)
    state = trainer_state(input, "miles.rollout.sglang_rollout")  # None with the new rollouts, which pass it
    return await _fill(input, sample, sampling_params or {}, evaluation, state)


async def _fill(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool, state: Any) -> Any:
    async def fill() -> Any:
        _refuse_adapters(args)
        if not evaluation:
            check_hooks(args, "ors_clients.miles")
        await fill_sample(
            args,
            sample,
            sampling_params,
            evaluation=evaluation,
            state=state,
            routing_key=getattr(sample, "routing_key", None) or getattr(sample, "session_id", None),
        )
        return sample

    return await (fill() if evaluation else fill_or_end(args, sample, fill, noticed=lambda: ends_by_filter(args)))


def _refuse_adapters(args: Any) -> None:
    """Raise ``ConfigurationError`` where Miles trains an adapter and samples with it."""
    has_adapter = getattr(args, "lora_rank", 0) or getattr(args, "lora_adapter_path", None) is not None
    if has_adapter and not getattr(args, "lora_train_only", False):
        raise ConfigurationError(
            "With --lora-rank or --lora-adapter-path each request has to name Miles' adapter, or the engine answers as"
            " the model without it",
            "Use the agent function (ors_clients.miles.generate_with_agent), where Miles makes the requests",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``generate``; Miles calls this. Their defaults are ``TRAIN_CONFIG`` and ``ORS_URL``."""
    parser.add_argument("--train-config", help="training configuration (YAML) of the environments")
    parser.add_argument("--ors-url", help="the environments' server")


# Where Miles looks for them.
generate.add_arguments = add_arguments  # pyright: ignore[reportFunctionMemberAccess]


def keep_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """Keep a group for training, or drop it: a dynamic sampling filter (``filter_group``)."""
    return filter_group(args, samples, "miles.rollout.filter_hub.base_types", INSTALL, **kwargs)
