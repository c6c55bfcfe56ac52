"""slime: the functions that its command line names.

    --custom-generate-function-path  ors_clients.slime.generate
    --custom-rm-path                 ors_clients.slime.reward_func       (only with --group-rm, or to reward anew)
    --dynamic-sampling-filter-path   ors_clients.slime.keep_group
    --custom-rollout-log-function-path ors_clients.slime.log_rollout_data
    --custom-eval-rollout-log-function-path ors_clients.slime.log_eval_rollout_data

``generate`` plays one episode for one sample and fills it. What slime's own ``generate`` keeps, this keeps: the
sampling parameters it is given (also an evaluation's), the router and its routing key, the context length, the sample's
rules (see ``samples``), and what happens when slime stops a batch: the session is closed and the sample is empty again,
its status ABORTED, for an environment's session cannot be taken up later.

A sample whose infrastructure failed is ABORTED, with ``remove_sample`` and a mask of zeros. slime's synchronous rollout
asks ``keep_group``, which drops its whole group, whose mean reward would be no baseline; the fully asynchronous one
asks no filter, and puts groups with an aborted sample back to be generated anew. ``log_eval_rollout_data`` leaves lost
rollouts out of an evaluation, where they would count as 0.

What ends a run is raised by ``generate``. The fully asynchronous rollout logs what that raises and goes on, so there
the error is kept. ``log_rollout_data`` raises it once the batch is full of samples that cannot be trained on.

Sources: THUDM/slime ``slime/rollout/sglang_rollout.py``, ``slime/rollout/fully_async_rollout.py``,
``slime/ray/rollout.py``, ``slime/observability/rollout_metrics.py``, ``slime/utils/types.py``, ``docs/en/get_started``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from ors_clients.training.arguments import max_total_tokens, refuse_replay, sampling_parameters
from ors_clients.training.dataset import TaskRow, read_metadata
from ors_clients.training.groups import drop_reason, episode_metrics, flatten, leave_out_lost
from ors_clients.training.optional_imports import import_trainer_module
from ors_clients.training.process_state import (
    chat_renderer,
    close_all,
    end_run,
    engine,
    episode_runner,
    raise_end,
    run_ended,
)
from ors_clients.training.samples import reset_sample, spoil_sample, withdraw_sample, write_sample

__all__ = ["close", "generate", "keep_group", "log_eval_rollout_data", "log_rollout_data", "reward_func"]

_log = logging.getLogger(__name__)

INSTALL = "Install slime: pip install -e /path/to/slime"


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Play the episode of ``sample`` and fill it; the same sample is returned.

    A sample without metadata gets a task of the training configuration's first environment, the same one as the rest of
    its group. Raises ``ConfigurationError`` and ``RequestRefused`` for what would fail every sample alike, and
    ``InfrastructureFailure`` for too many lost rollouts in a row. A fully asynchronous rollout would log the error and
    go on; there it is kept, and raised by ``log_rollout_data``.
    """
    if evaluation or "fully_async" not in (getattr(args, "rollout_function_path", None) or ""):
        return await _generate(args, sample, sampling_params, evaluation)
    return await fill_or_end(args, sample, lambda: _generate(args, sample, sampling_params, evaluation))


async def _generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool) -> Any:
    state = _generate_state(args)
    uses_routing_key = getattr(args, "router_policy", None) == "consistent_hashing"
    await fill_sample(
        args,
        sample,
        sampling_params,
        evaluation=evaluation,
        state=state,
        stopped=lambda: bool(getattr(state, "aborted", False)),
        routing_key=getattr(sample, "session_id", None) if uses_routing_key else None,
    )
    return sample


async def fill_or_end(args: Any, sample: Any, fill: Callable[[], Awaitable[Any]]) -> Any:
    """Run ``fill`` for a trainer that logs exceptions and draws another group; return what ``fill`` returns.

    An exception is not raised. It is kept as the end of the run (``end_run``), and the spoilt ``sample`` is returned.
    """
    if not run_ended():
        try:
            return await fill()
        except Exception as error:  # noqa: BLE001 - whatever it is, the trainer would go on for ever
            end_run(error)
            spoil_sample(sample, args, error)
            return sample
    spoil_sample(sample, args, RuntimeError("The run has ended before"))
    return sample


async def fill_sample(
    args: Any,
    sample: Any,
    sampling_params: Mapping[str, Any],
    *,
    evaluation: bool,
    state: Any,
    stopped: Callable[[], bool],
    routing_key: str | None,
) -> None:
    """The part of ``generate`` that slime and Miles share: ``sample`` is reset, and filled with one episode.

    ``state``: the trainer's, for its tokenizer and processor; None if there is none. ``routing_key``: by which the
    router chooses the engine. The trainer keeps it when the sample is generated anew, so it names no rollout.
    """
    refuse_replay(args)
    reset_sample(sample)
    runner, renderer = episode_runner(args), chat_renderer(args, getattr(state, "tokenizer", None))
    # Each sample has an index of its own; its group's is what samples of one task share.
    place = sample.index if sample.group_index is None else sample.group_index
    row = TaskRow.of_metadata(sample.metadata) if sample.metadata else await runner.default_row(place or 0)
    episode = await runner.run(
        row,
        engine(args),
        renderer,
        sampling_parameters(sampling_params, args),
        max_total_tokens=max_total_tokens(args, runner.configuration, evaluation=evaluation),
        routing_key=routing_key,
        stopped=lambda: stopped() or run_ended(),
        metadata={"evaluation": evaluation, "sample_index": sample.index},
    )
    sample.metadata = {**row.metadata, **sample.metadata}
    write_sample(
        sample,
        args,
        episode.trajectory,
        episode.generations,
        reward=episode.reward,
        renderer=renderer,
        processor=getattr(state, "processor", None),
        mask_thinking=runner.configuration.thinking and not runner.configuration.train_on_thinking,
    )


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The reward of a sample that ``generate`` filled, or of each of a list of them (``--group-rm``).

    It is the one that ``generate`` has set; where that was taken away, the one in ``metadata["episode_reward"]``. 0.0
    for a sample without any, as its infrastructure lost it or it was aborted: it is withdrawn from training, and
    ABORTED.
    """
    if isinstance(sample, list):
        return [await reward_func(args, one, **kwargs) for one in flatten(cast("list[Any]", sample))]
    if sample.reward is not None:
        return sample.reward
    reward = read_metadata(sample.metadata).get("episode_reward")
    if reward is None and sample.status != sample.Status.FAILED:
        withdraw_sample(sample)
        sample.status = sample.Status.ABORTED
    return reward or 0.0


def keep_group(args: Any, samples: Sequence[Any], **kwargs: Any) -> Any:
    """A dynamic sampling filter: not the groups of which the infrastructure lost a sample, nor those whose prompt left
    the model nothing to write. The trainer draws others. Raises what ended the run."""
    raise_end()
    filters = import_trainer_module("slime.rollout.filter_hub.base_types", INSTALL)
    reason = drop_reason(samples)
    return filters.DynamicFilterOutput(keep=reason is None, reason=reason)


def log_rollout_data(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Add ``episode_metrics`` to what the trainer logs of a batch, say in Weights & Biases. False: it still logs it.
    Raises what ended the run."""
    raise_end()
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update(episode_metrics(samples))
    return False


def log_eval_rollout_data(
    rollout_id: int, args: Any, data: dict[str, dict[str, Any]], extra_metrics: dict[str, Any] | None = None
) -> bool:
    """Take lost rollouts out of an evaluation, for the trainer would count each of them as 0. False: it then logs it.

    How many there were is logged as ``eval/NAME/infrastructure_failures``. With ``--log-passrate`` a prompt that lost a
    rollout is left out whole. A data set of which everything was lost has no score. Raises what ended the run.
    """
    raise_end()
    group = args.n_samples_per_eval_prompt if getattr(args, "log_passrate", False) else 1
    for name, count in leave_out_lost(data, group).items():
        if count:
            _log.warning("%d rollouts of the evaluation %s were lost, and are not in its results", count, name)
        if extra_metrics is not None:
            extra_metrics[f"eval/{name}/infrastructure_failures"] = count
        else:  # a data set is all that the trainer logs; its score is the mean of these
            data[f"{name}/infrastructure_failures"] = {"rewards": [float(count)] * group}
    return False


async def close() -> None:
    """Send the rollouts that wait to be sent, and close the connections of the running event loop."""
    await close_all()


def _generate_state(args: Any) -> Any:
    """slime's own state of the generation process (tokenizer, whether it is stopping); None outside of slime."""
    module = sys.modules.get("slime.rollout.sglang_rollout")
    return None if module is None else module.GenerateState(args)
