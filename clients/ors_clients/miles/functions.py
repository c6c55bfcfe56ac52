"""Miles: the functions that its command line names.

    --custom-generate-function-path  ors_clients.miles.generate
    --custom-rm-path                 ors_clients.miles.reward_func
    --dynamic-sampling-filter-path   ors_clients.miles.keep_group
    --custom-rollout-log-function-path ors_clients.miles.log_rollout_data
    --custom-eval-rollout-log-function-path ors_clients.miles.log_eval_rollout_data

``generate`` is both of Miles' forms: called with a ``GenerateFnInput`` it returns a ``GenerateFnOutput``; called with
``(args, sample, sampling_params)``, as Miles' older rollouts and slime do, it returns the sample. It does what
``ors_clients.slime.generate`` does. The other way is the agent function, in which Miles' session server keeps the
tokens:

    --custom-generate-function-path ors_clients.miles.generate_with_agent
    --custom-agent-function-path    ors_clients.miles.run
    --custom-rm-path                ors_clients.miles.reward_func

A rollout whose infrastructure failed is ABORTED, with ``remove_sample``: Miles' own filters reject groups with an
aborted sample, and so does ``keep_group``.

Miles' synchronous rollout logs what a generate function raises, and draws another group. So an error that no rollout
can escape is kept, and ``keep_group`` raises it, which Miles calls where nothing is caught. In an evaluation it is
raised.

Sources: radixark/miles ``miles/rollout/base_types.py``, ``miles/rollout/inference_rollout``,
``miles/rollout/generate_hub``, ``examples/experimental/openenv``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.miles.agent import INSTALL, generate_with_agent, run
from ors_clients.slime.functions import (
    close,
    fill_or_end,
    fill_sample,
    log_eval_rollout_data,
    log_rollout_data,
    reward_func,
)
from ors_clients.training.groups import drop_reason
from ors_clients.training.optional_imports import import_trainer_module
from ors_clients.training.process_state import raise_end

__all__ = [
    "add_arguments",
    "close",
    "generate",
    "generate_with_agent",
    "keep_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "reward_func",
    "run",
]


async def generate(
    input: Any, sample: Any = None, sampling_params: Mapping[str, Any] | None = None, evaluation: bool = False
) -> Any:
    """Play the episode of a sample and fill it.

    ``input``: a ``GenerateFnInput``, or the arguments where ``sample`` is given as well. Miles tells its two forms
    apart by the name of this parameter. Raises nothing in training: ``keep_group`` does.
    """
    if sample is None:
        sample = await _fill(input.args, input.sample, input.sampling_params, input.evaluation, input.state)
        base_types = import_trainer_module("miles.rollout.base_types", INSTALL)
        return base_types.GenerateFnOutput(samples=sample)
    return await _fill(input, sample, sampling_params or {}, evaluation, _generate_state(input))


async def _fill(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool, state: Any) -> Any:
    async def fill() -> Any:
        _refuse_adapters(args)
        await _fill_sample(args, sample, sampling_params, evaluation, state)
        return sample

    return await (fill() if evaluation else fill_or_end(args, sample, fill))


def _refuse_adapters(args: Any) -> None:
    """Raises ``ConfigurationError`` where Miles trains an adapter and samples with it."""
    has_adapter = getattr(args, "lora_rank", 0) or getattr(args, "lora_adapter_path", None) is not None
    if has_adapter and not getattr(args, "lora_train_only", False):
        raise ConfigurationError(
            "With --lora-rank or --lora-adapter-path each request has to name Miles' adapter, or the engine answers as"
            " the model without it",
            "Use the agent function (ors_clients.miles.generate_with_agent), where Miles makes the requests",
        )


async def _fill_sample(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool, state: Any
) -> None:
    await fill_sample(
        args,
        sample,
        sampling_params,
        evaluation=evaluation,
        state=state,
        stopped=lambda: bool(getattr(state, "aborted", False)),
        routing_key=getattr(sample, "routing_key", None) or getattr(sample, "session_id", None),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``generate``; Miles calls this. Without them ``TRAIN_CONFIG`` and ``ORS_URL`` are used."""
    parser.add_argument("--train-config", help="training configuration (YAML) of the environments")
    parser.add_argument("--ors-url", help="the environments' server")


# Where Miles looks for them.
generate.add_arguments = add_arguments  # pyright: ignore[reportFunctionMemberAccess]


def keep_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """A dynamic sampling filter: not the groups of which the infrastructure lost a sample, nor those whose prompt left
    the model nothing to write. The trainer draws others. Raises what ended the run."""
    raise_end()
    filters = import_trainer_module("miles.rollout.filter_hub.base_types", INSTALL)
    reason = drop_reason(samples)
    return filters.DynamicFilterOutput(keep=reason is None, reason=reason)


def _generate_state(args: Any) -> Any:
    """The state of Miles' older rollouts; None with its new ones, which hand it over."""
    module = sys.modules.get("miles.rollout.sglang_rollout")
    return None if module is None else module.GenerateState(args)
