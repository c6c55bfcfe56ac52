"""Miles' agent function: an episode over an OpenAI-compatible endpoint that keeps the tokens by itself.

Miles' session server records ids, log-probabilities and masks of every chat completion, and makes the training samples
of them. So nothing here counts tokens; what is sent is the conversation, in which each of the model's messages goes
back exactly as it came, for the server matches it against what it has stored. The rewards travel in the sample's
metadata to ``reward_func``. The episode itself is ``TurnEpisode``, as in every other adapter, and what was said in it
goes to the sinks as well.

``generate_with_agent`` is around Miles' own generate function, which calls ``run``: it knows what ``run`` cannot tell
Miles (that a rollout was lost, or stopped, or that its prompt was too long) and what Miles does not tell ``run`` (that
the batch is complete, and that the session's tokens are not those of the chat template).

Source: radixark/miles ``miles/rollout/generate_hub/agentic_tool_call.py``, ``miles/rollout/generate_utils``,
``miles/rollout/session``, ``miles/utils/chat_template_utils/token_seq_comparator.py``.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ors_clients.client.tool_schemas import openai_tools
from ors_clients.errors import ClientError, PromptTooLong, SamplerFailed
from ors_clients.rollouts.chat_messages import MessageFormat, replies, wire_message
from ors_clients.rollouts.control_texts import control_texts_of
from ors_clients.rollouts.episode import TurnEpisode
from ors_clients.rollouts.messages import text_of
from ors_clients.rollouts.trajectory import UNTRAINABLE, Trajectory
from ors_clients.trainers.miles.chat_completions import complete
from ors_clients.training.arguments import max_total_tokens
from ors_clients.training.dataset import TaskRow, read_metadata
from ors_clients.training.episode_runner import SENT_PARAMETERS, episode_trajectory
from ors_clients.training.groups import flatten
from ors_clients.training.hooks import check_hooks, is_ours
from ors_clients.training.optional_imports import import_trainer_module
from ors_clients.training.process_state import episode_runner, run_ended
from ors_clients.training.sample_functions import fill_or_end
from ors_clients.training.samples import RECORD_KEYS, episode_record, reset_sample, withdraw_sample

__all__ = ["INSTALL", "ends_by_filter", "generate_with_agent", "run"]

INSTALL = "Install Miles: pip install -e /path/to/miles"

_log = logging.getLogger(__name__)

#: Differences between a session's tokens and the chat template's that no turn of the model makes by itself.
_SEVERE = ("special_token_count", "special_token_type", "non_assistant_text")


@dataclass
class _Rollout:
    """State that ``generate_with_agent`` shares with the ``run`` that Miles calls within it."""

    stopped: Callable[[], bool]
    #: What ``run`` returned.
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    #: What ended it; None for an episode that was played.
    error: Exception | None = None
    failure: ClientError | None = None
    #: Whether the prompt alone is over the limit.
    too_long: bool = False
    #: Miles' own, where it passes one.
    tokenizer: Any = None


_current: ContextVar[_Rollout | None] = ContextVar("_current", default=None)


async def generate_with_agent(input: Any) -> Any:
    """Miles' ``agentic_tool_call.generate`` with the agent function ``run``; a ``GenerateFnOutput``.

    A sample that was lost or stopped is ABORTED. With ``--tito-model default`` a rollout whose turn boundaries are not
    the chat template's is lost: the default merger only guesses them. In training it raises ``RunEnded`` alone, where
    ``keep_group`` would not raise.
    """
    args, evaluation = input.args, input.evaluation
    module = _agentic_tool_call()

    async def fill() -> Any:
        if not evaluation:
            check_hooks(args, "ors_clients.miles")
        reset_sample(input.sample)  # Miles keeps what an earlier attempt has left in it
        begun = time.monotonic()
        options = SimpleNamespace()
        runner, row = episode_runner(options), TaskRow.of_metadata(input.sample.metadata)
        rollout = _Rollout(lambda: run_ended() or (not evaluation and bool(getattr(input.state, "aborted", False))))
        rollout.tokenizer = getattr(input.state, "tokenizer", None)
        token = _current.set(rollout)
        samples: Any = input.sample
        try:
            samples = (await module.generate(input)).samples
        except Exception as error:  # noqa: BLE001 - Miles could not make samples of the session, for whatever reason
            _log.exception("Miles made no sample of a rollout")
            rollout.failure = rollout.failure or SamplerFailed(f"Miles made no sample of the session: {error}")
        finally:
            _current.reset(token)
        if rollout.error is not None:
            raise rollout.error
        for sample in flatten([samples]):
            _settle(args, sample, rollout)
        counted = rollout.record.get("stop_reason") != "aborted" and not evaluation
        runner.count_failure(row, rollout.failure, begun, counted=counted)
        return samples

    playing = fill() if evaluation else fill_or_end(args, input.sample, fill, noticed=lambda: ends_by_filter(args))
    samples = await playing
    base_types = import_trainer_module("miles.rollout.base_types", INSTALL)
    return base_types.GenerateFnOutput(samples=samples)


def ends_by_filter(args: Any) -> bool:
    """Return whether the end of a run is raised by its filter of groups, as ``keep_group`` does."""
    return is_ours(args, "--dynamic-sampling-filter-path")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of Miles' function to ``parser``."""
    _agentic_tool_call().generate.add_arguments(parser)


def _agentic_tool_call() -> Any:
    """Miles' module with the generate function that calls ``run``. Raises ``ConfigurationError`` without Miles."""
    return import_trainer_module("miles.rollout.generate_hub.agentic_tool_call", INSTALL)


# Where Miles looks for them.
generate_with_agent.add_arguments = _add_arguments  # pyright: ignore[reportFunctionMemberAccess]


def _settle(args: Any, sample: Any, rollout: _Rollout) -> None:
    """Make ``sample``, which Miles made of a session, what the episode of that session was."""
    sample.metadata = {**sample.metadata, **rollout.record}
    severe = [found for found in sample.metadata.get("tito_session_mismatch") or () if found.get("type") in _SEVERE]
    if severe and getattr(args, "tito_model", "default") == "default":
        rollout.failure = rollout.failure or SamplerFailed(
            f"Miles' session server does not write turns as the chat template does ({severe[0]['type']})",
            "Name the model's family with --tito-model",
        )
    if _turns(sample) > (rollout.record.get("num_turns") or 0):
        # Its answer came after `max_seconds`: nothing in it was run, so the reward is not that of these tokens.
        rollout.failure = rollout.failure or SamplerFailed("The session has a turn that the episode did not take")
    stopped = rollout.record.get("stop_reason") in UNTRAINABLE
    if not sample.response_length and not stopped and rollout.too_long:
        # Miles would generate it again, without end.
        withdraw_sample(sample)
        sample.status = sample.Status.TRUNCATED
        rollout.failure = PromptTooLong("The prompt alone is over --max-seq-len", "Give rollouts more tokens")
        reward = rollout.record.get("episode_reward")
    elif stopped or rollout.failure is not None or not sample.response_length:
        if rollout.failure is None and not stopped:
            rollout.failure = SamplerFailed("Miles' session server has no tokens of the rollout")
        withdraw_sample(sample)
        sample.status = sample.Status.ABORTED
        sample.metadata |= {"failure": str(rollout.failure) if rollout.failure else None, "episode_reward": None}
        reward = None
    else:
        return  # its reward is that of `reward_func`
    if not getattr(args, "group_rm", False):
        sample.reward = reward or 0.0


def _turns(sample: Any) -> int:
    """Count the model's turns in a sample: each is a run of tokens that are trained on."""
    mask: list[int] = sample.loss_mask or []
    return sum(kept and not before for kept, before in zip(mask, [0, *mask], strict=False))


async def run(
    base_url: str,
    prompt: Any,
    request_kwargs: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Play one episode with the model at ``base_url``; what is returned goes into the metadata of Miles' samples.

    ``prompt`` is the row's name of its task and not used. The training configuration is that of ``TRAIN_CONFIG``, the
    model's name ``AGENT_MODEL_NAME`` (``model``). Raises nothing: Miles would log it, and reward the sample by what an
    earlier attempt has left in its metadata. It is returned as a lost rollout, and ``generate_with_agent`` raises it.
    """
    rollout = _current.get() or _Rollout(run_ended)
    try:
        rollout.record = await _run(rollout, base_url, request_kwargs, metadata)
    except Exception as error:  # noqa: BLE001 - whatever it is, Miles would go on with an earlier attempt's metadata
        _log.exception("The agent function failed, and its sample is not trained on")
        rollout.error = error
        lost: dict[str, Any] = {
            "rewards": [],
            "stop_reason": "infrastructure",
            "failure": f"{type(error).__name__}: {error}",
        }
        rollout.record = {**dict.fromkeys(RECORD_KEYS), **lost}
    return rollout.record


async def _run(
    rollout: _Rollout, base_url: str, request_kwargs: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    """``run``, which raises whatever goes wrong."""
    begun = time.monotonic()
    rollout_id = str(uuid.uuid4())
    row = TaskRow.of_metadata(read_metadata(metadata))
    options = SimpleNamespace(rollout_max_context_len=(metadata or {}).get("max_seq_len"))
    runner = episode_runner(options)
    configuration = runner.configuration
    sampling = dict(request_kwargs or {})
    limits = runner.limits(
        row,
        max_total_tokens=max_total_tokens(options, configuration),
        max_response_tokens=int(sampling.get("max_tokens") or 4096),
    )
    form = MessageFormat(configuration.format)
    rule = configuration.environment(row.environment).reward_rule
    session = runner.session(row)
    episode = TurnEpisode(
        session,
        form,
        limits,
        rule,
        configuration.system_prompt,
        stopped=rollout.stopped,
        control_texts=control_texts_of(rollout.tokenizer),
    )
    async with episode.playing():
        await _play(rollout, episode, form, f"{base_url}/v1/chat/completions", configuration.thinking, sampling)
    parameters = {name: sampling[name] for name in SENT_PARAMETERS if name in sampling}
    trajectory = episode_trajectory(episode, rollout_id, row, time.monotonic() - begun)
    reward = trajectory.reward(rule)
    runner.send(row, trajectory, reward, parameters=parameters)
    rollout.failure = episode.failure
    return _record(row, trajectory, reward)


async def _play(
    rollout: _Rollout,
    episode: TurnEpisode,
    form: MessageFormat,
    url: str,
    thinking: bool,
    sampling: Mapping[str, Any],
) -> None:
    """Take turns until the episode is over. Raises ``ClientError``."""
    start = await episode.reset()
    body = {
        "model": os.environ.get("AGENT_MODEL_NAME", "model"),
        "chat_template_kwargs": {"enable_thinking": thinking},
        **sampling,
        **({"tools": openai_tools(start.tools)} if start.tools else {}),
    }
    messages = [wire_message(message) for message in start.messages]
    while episode.stop_reason is None:
        answer = await complete(url, {**body, "messages": messages})
        choice = answer["choices"][0]
        message: dict[str, Any] = {key: value for key, value in choice["message"].items() if value is not None}
        messages.append(message)
        form.message = message
        text, finish = text_of(message.get("content")), choice.get("finish_reason")
        usage: dict[str, Any] = answer.get("usage") or {}
        left = episode.limits.max_total_tokens - (usage.get("total_tokens") or 0)
        rollout.too_long |= (usage.get("prompt_tokens") or 0) >= episode.limits.max_total_tokens
        if finish == "abort":
            episode.abort(text)
        elif finish == "length" or left < 0:
            # Miles trains on no turn behind one that was cut off, and itself cuts off one that goes over the limit.
            # So a reward for what such a turn or a later one does would be the reward of other tokens.
            episode.abort(text, "max_tokens")
        else:
            result = await episode.step(text)
            messages.extend(replies(result.messages, message))
            if left == 0:
                episode.stop("max_tokens")


def _record(row: TaskRow, trajectory: Trajectory, reward: float | None) -> dict[str, Any]:
    seconds = sum(step.seconds for step in trajectory.steps)
    # What Miles subtracts from a rollout's time is in `agent_metrics`.
    return {
        **row.metadata,
        **episode_record(trajectory, reward),
        "generation_seconds": None,
        "tool_seconds": round(seconds, 6),
        "agent_metrics": {
            "turns": trajectory.turns,
            "tool_calls": trajectory.tool_calls,
            "total_tool_time": seconds,
        },
    }
