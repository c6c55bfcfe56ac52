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

from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.training.arguments import max_total_tokens, refuse_replay, sampling_parameters
from ors_clients.training.baselines import normalized_rewards
from ors_clients.training.dataset import TaskRow, read_metadata
from ors_clients.training.groups import drop_reason, episode_metrics, flatten, leave_out_lost, sample_withdrawn
from ors_clients.training.optional_imports import import_trainer_module
from ors_clients.training.process_state import (
    chat_renderer,
    close_all,
    end_run,
    engine,
    episode_runner,
    group_filter,
    raise_end,
    run_ended,
    take_losses,
)
from ors_clients.training.samples import reset_sample, spoil_sample, withdraw_sample, write_sample

__all__ = [
    "RunEnded",
    "close",
    "fill_or_end",
    "fill_sample",
    "filter_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "post_process_rewards",
    "reward_func",
    "trainer_state",
]

_log = logging.getLogger(__name__)


class RunEnded(BaseException):
    """The reason why a run ends, for a trainer that logs every ``Exception`` and draws another group without end."""


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


async def fill_or_end(
    args: Any, sample: Any, fill: Callable[[], Awaitable[Any]], *, noticed: Callable[[], bool] = lambda: True
) -> Any:
    """Run ``fill`` for a trainer that logs exceptions and draws another group; return the result of ``fill``.

    An exception is kept as the end of the run (``end_run``), and the spoilt ``sample`` is returned. ``noticed``:
    whether it then reaches a function that raises the end. If not, it could be dropped and drawn again without end, so
    ``RunEnded`` is raised, which the trainer does not catch.
    """
    reason: Exception = RuntimeError("The run has ended before")
    if not run_ended():
        try:
            return await fill()
        except Exception as error:  # noqa: BLE001 - after any exception the trainer would go on without end
            end_run(error)
            reason = error
    if not noticed():
        try:
            raise_end()
        except Exception as error:  # whatever ended the run
            raise RunEnded(f"{type(error).__name__}: {error}") from error
    spoil_sample(sample, args, reason)
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


def filter_group(args: Any, samples: Sequence[Any], base_types: str, install: str, **options: Any) -> Any:
    """Decide whether a group is trained on; return the ``DynamicFilterOutput`` of the trainer's module ``base_types``.

    Dropped are groups of which the infrastructure lost a sample, and groups whose prompt left the model no tokens to
    write. The trainer draws others. About the remaining ones the training file's ``group_filter`` decides, with the
    same arguments. Raises the error that ended the run.
    """
    raise_end()
    filters = import_trainer_module(base_types, install)
    reason = drop_reason(samples)
    if reason is not None:
        return filters.DynamicFilterOutput(keep=False, reason=reason)
    own = group_filter(args)
    return filters.DynamicFilterOutput(keep=True) if own is None else own(args, samples, **options)


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the rewards of a batch as they were earned and as they are trained on, without lost samples
    (``normalized_rewards``).

    Raises the error that ended the run; ``InfrastructureFailure`` for a batch in which nothing can be trained on; and
    ``ConfigurationError`` for a lost sample with ``reinforce_plus_plus``, which takes no sample that is masked.
    """
    raise_end()
    batch = list(flatten(samples))
    lost = [sample for sample in batch if sample_withdrawn(sample)]
    if lost and len(lost) == len(batch):
        causes = {str(read_metadata(sample.metadata).get("failure") or "the prompt is too long") for sample in lost}
        raise InfrastructureFailure(
            f"Every rollout of a batch was lost: {sorted(causes)[0]}",
            "Look at the environments' server and at the engine, then start the run again",
        )
    if lost and getattr(args, "advantage_estimator", None) == "reinforce_plus_plus":
        raise ConfigurationError(
            "--advantage-estimator reinforce_plus_plus takes no batch with a lost rollout",
            "Let a filter drop its group: --dynamic-sampling-filter-path with keep_group of ors_clients",
        )
    return normalized_rewards(args, batch)


def log_rollout_data(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Add ``episode_metrics`` to the numbers that the trainer logs of a batch. Return False: the trainer still logs.

    Lost rollouts are among them, by environment and cause: all since the last batch, those in dropped groups too.
    Raises the error that ended the run.
    """
    raise_end()
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update({**episode_metrics(samples), **take_losses("rollout/episodes")})
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
