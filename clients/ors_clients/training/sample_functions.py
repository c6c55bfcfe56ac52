"""Functions that the command lines of slime and Miles name, in the part that both trainers share.

A trainer's own module (``ors_clients.slime``, ``ors_clients.miles``) adds the signature of its ``generate``, and the
names of its packages. Both fill the same ``Sample`` (``samples``), drop the same groups (``groups``), and end a run by
the same error (``process_state.end_run``).
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

__all__ = [
    "close",
    "fill_or_end",
    "fill_sample",
    "filter_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "reward_func",
    "trainer_state",
]

_log = logging.getLogger(__name__)


async def fill_sample(
    args: Any,
    sample: Any,
    sampling_params: Mapping[str, Any],
    *,
    evaluation: bool,
    state: Any,
    routing_key: str | None,
) -> None:
    """Reset ``sample`` and fill it with one episode.

    ``state``: the trainer's generation state, for its tokenizer and processor and for whether generation is stopping;
    None if there is none. ``routing_key``: the key by which the router chooses the engine. The trainer keeps it when it
    generates the sample again, so it does not name a rollout.
    """
    refuse_replay(args)
    reset_sample(sample)
    runner, renderer = episode_runner(args), chat_renderer(args, getattr(state, "tokenizer", None))
    # Each sample has an index of its own; samples of one task share the index of their group.
    place = sample.index if sample.group_index is None else sample.group_index
    row = TaskRow.of_metadata(sample.metadata) if sample.metadata else await runner.default_row(place or 0)
    episode = await runner.run(
        row,
        engine(args),
        renderer,
        sampling_parameters(sampling_params, args),
        max_total_tokens=max_total_tokens(args, runner.configuration, evaluation=evaluation),
        routing_key=routing_key,
        stopped=lambda: bool(getattr(state, "aborted", False)) or run_ended(),
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


async def fill_or_end(args: Any, sample: Any, fill: Callable[[], Awaitable[Any]]) -> Any:
    """Run ``fill`` for a trainer that logs exceptions and draws another group; return the result of ``fill``.

    An exception is not raised. It is kept as the end of the run (``end_run``), and the spoilt ``sample`` is returned.
    """
    if not run_ended():
        try:
            return await fill()
        except Exception as error:  # noqa: BLE001 - after any exception the trainer would go on without end
            end_run(error)
            spoil_sample(sample, args, error)
            return sample
    spoil_sample(sample, args, RuntimeError("The run has ended before"))
    return sample


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """Return the reward of a sample that ``generate`` filled, or of each of a list of them (``--group-rm``).

    The reward is the one that ``generate`` has set, else the one in ``metadata["episode_reward"]``. A sample that has
    neither was lost or aborted: its reward is 0.0, it is withdrawn from training, and its status is ABORTED.
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


def filter_group(samples: Sequence[Any], base_types: str, install: str) -> Any:
    """Decide whether a group is trained on; return the ``DynamicFilterOutput`` of the trainer's module ``base_types``.

    Dropped are groups of which the infrastructure lost a sample, and groups whose prompt left the model no tokens to
    write. The trainer draws others. Raises the error that ended the run.
    """
    raise_end()
    filters = import_trainer_module(base_types, install)
    reason = drop_reason(samples)
    return filters.DynamicFilterOutput(keep=reason is None, reason=reason)


def log_rollout_data(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Add ``episode_metrics`` to the numbers that the trainer logs of a batch. Return False: the trainer still logs.

    Raises the error that ended the run.
    """
    raise_end()
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update(episode_metrics(samples))
    return False


def log_eval_rollout_data(
    rollout_id: int, args: Any, data: dict[str, dict[str, Any]], extra_metrics: dict[str, Any] | None = None
) -> bool:
    """Take lost rollouts out of an evaluation: the trainer would count each as 0. Return False: the trainer still logs.

    Their number is logged as ``eval/NAME/infrastructure_failures``. With ``--log-passrate`` a prompt that lost a
    rollout is left out whole. A data set of which everything was lost has no score. Raises the error that ended the
    run.
    """
    raise_end()
    group = args.n_samples_per_eval_prompt if getattr(args, "log_passrate", False) else 1
    for name, count in leave_out_lost(data, group).items():
        if count:
            _log.warning("%d rollouts of the evaluation %s were lost, and are not in its results", count, name)
        if extra_metrics is not None:
            extra_metrics[f"eval/{name}/infrastructure_failures"] = count
        else:  # the trainer logs data sets only; the score of this one is the mean of its rewards
            data[f"{name}/infrastructure_failures"] = {"rewards": [float(count)] * group}
    return False


async def close() -> None:
    """Send the rollouts that wait to be sent, and close the connections of the running event loop."""
    await close_all()


def trainer_state(args: Any, module: str) -> Any:
    """Return the generation state of the trainer's ``module`` (tokenizer, stop flag); None if it is not loaded."""
    loaded = sys.modules.get(module)
    return None if loaded is None else loaded.GenerateState(args)
