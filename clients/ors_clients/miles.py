"""Miles: the functions that its command line names.

    --custom-generate-function-path  ors_clients.miles.generate
    --custom-rm-path                 ors_clients.miles.reward_func
    --dynamic-sampling-filter-path   ors_clients.miles.keep_group
    --custom-rollout-log-function-path ors_clients.miles.log_rollout_data

``generate`` is both of Miles' forms: called with a ``GenerateFnInput`` it returns a ``GenerateFnOutput``; called with
``(args, sample, sampling_params)``, as Miles' older rollouts and slime do, it returns the sample. It does what
``ors_clients.slime.generate`` does. The other way is the agent function, in which Miles' session server keeps the
tokens:

    --custom-generate-function-path miles.rollout.generate_hub.agentic_tool_call.generate
    --custom-agent-function-path    ors_clients.miles.run
    --custom-rm-path                ors_clients.miles.reward_func

A rollout whose infrastructure failed is ABORTED, with ``remove_sample``: Miles' own filters reject groups with an
aborted sample, and so does ``keep_group``.

Sources: radixark/miles ``miles/rollout/base_types.py``, ``miles/rollout/inference_rollout``,
``miles/rollout/generate_hub``, ``examples/experimental/openenv``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.miles_agent import run
from ors_clients.sample_groups import group_failed
from ors_clients.slime import close, fill_sample, log_rollout_data, reward_func
from ors_clients.trainer_packages import import_trainer_module

__all__ = ["add_arguments", "close", "generate", "keep_group", "log_rollout_data", "reward_func", "run"]

INSTALL = "Install Miles: pip install -e /path/to/miles"


async def generate(
    input: Any, sample: Any = None, sampling_params: Mapping[str, Any] | None = None, evaluation: bool = False
) -> Any:
    """Play the episode of a sample and fill it.

    ``input``: a ``GenerateFnInput``, or the arguments where ``sample`` is given as well. Miles tells its two forms
    apart by the name of this parameter. Raises as ``ors_clients.slime.generate``.
    """
    if sample is None:
        await _fill(input.args, input.sample, input.sampling_params, input.evaluation, input.state)
        base_types = import_trainer_module("miles.rollout.base_types", INSTALL)
        return base_types.GenerateFnOutput(samples=input.sample)
    await _fill(input, sample, sampling_params or {}, evaluation, _generate_state(input))
    return sample


async def _fill(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool, state: Any) -> None:
    if getattr(args, "lora_rank", 0):
        raise ConfigurationError(
            "With --lora-rank each request has to name Miles' adapter, or the engine answers as the model without it",
            "Use the agent function (ors_clients.miles.run), where Miles makes the requests",
        )
    await fill_sample(
        args,
        sample,
        sampling_params,
        evaluation=evaluation,
        state=state,
        stopped=lambda: bool(getattr(state, "aborted", False)),
        routing_key=getattr(sample, "routing_key", None) or getattr(sample, "session_id", None),
        failed_status="ABORTED",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``generate``; Miles calls this. Without them ``TRAIN_CONFIG`` and ``ORS_URL`` are used."""
    parser.add_argument("--train-config", help="training configuration (YAML) of the environments")
    parser.add_argument("--ors-url", help="the environments' server")


# Where Miles looks for them.
generate.add_arguments = add_arguments  # pyright: ignore[reportFunctionMemberAccess]


def keep_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """A dynamic sampling filter: not the groups of which the infrastructure lost a sample. The trainer draws others."""
    filters = import_trainer_module("miles.rollout.filter_hub.base_types", INSTALL)
    failed = group_failed(samples)
    return filters.DynamicFilterOutput(keep=not failed, reason="infrastructure_failure" if failed else None)


def _generate_state(args: Any) -> Any:
    """The state of Miles' older rollouts; None with its new ones, which hand it over."""
    module = sys.modules.get("miles.rollout.sglang_rollout")
    return None if module is None else module.GenerateState(args)
