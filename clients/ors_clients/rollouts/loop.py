"""The loop: one session, one sampler, one trajectory, token-exact.

Each request to the engine is the exact list of ids so far, and each answer's ids are appended to it unchanged. What the
environment says in between is encoded once and appended. So the ids of every request are a prefix of the ids that are
trained on, and the log-probabilities belong to the very tokens they were computed for.

``rollout`` never raises for what the model or the infrastructure does: the trajectory says what happened. It raises for
a mistake of configuration (``RequestRefused``: a wrong key, an unknown split), which would fail every rollout alike.
When it is cancelled, the session is closed first.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.episode import EpisodeSession, RolloutLimits, TurnEpisode
from ors_clients.rollouts.messages import images_of
from ors_clients.rollouts.trajectory import Segment, SegmentKind, Trajectory, TurnTimes
from ors_clients.samplers.generations import Sampler, SamplingParameters
from ors_clients.tool_calls import ToolCallFormat
from ors_server.wire.texts import replace_surrogates

__all__ = ["RolloutLimits", "rollout"]


async def rollout(
    session: EpisodeSession,
    sampler: Sampler,
    renderer: ChatRenderer,
    tool_format: ToolCallFormat,
    *,
    limits: RolloutLimits | None = None,
    sampling: SamplingParameters | None = None,
    system_prompt: str | None = None,
    task: Any = None,
    rollout_id: str | None = None,
    stopped: Callable[[], bool] | None = None,
) -> Trajectory:
    """Open ``session``, play its episode to the end, close it.

    ``session`` is not open yet. ``sampling.max_tokens`` and what is left of the limits bound each generation; ``task``
    is kept in the trajectory; ``stopped`` says, whenever it is asked, whether the trainer has no more use for the
    episode. Raises ``ConfigurationError`` and, while the session is opened, ``RequestRefused``.
    """
    limits = limits or RolloutLimits()
    begun = time.perf_counter()
    trajectory = Trajectory(rollout_id or uuid.uuid4().hex, task, decode=renderer.decode)
    episode = TurnEpisode(
        session,
        tool_format,
        limits,
        system_prompt=system_prompt,
        describe_tools=not renderer.describes_tools,
        stopped=stopped,
        control_texts=None,  # the renderer encodes them exactly
    )
    async with episode.playing():
        await _play(trajectory, episode, sampler, renderer, sampling or SamplingParameters())
    trajectory.session = episode.session_id
    trajectory.messages = episode.messages
    trajectory.steps = episode.steps
    trajectory.turns = episode.turns
    trajectory.stop_reason = episode.stop_reason or "stopped"
    trajectory.failure = episode.failure
    trajectory.seconds = time.perf_counter() - begun
    return trajectory


async def _play(
    trajectory: Trajectory,
    episode: TurnEpisode,
    sampler: Sampler,
    renderer: ChatRenderer,
    sampling: SamplingParameters,
) -> None:
    """Fill the trajectory turn by turn until its episode is over. Raises ``ClientError``."""
    limits = episode.limits
    begun = time.perf_counter()
    start = await episode.reset()
    prompt = renderer.start(start.messages, start.tools)
    ids, opens_thinking = list(prompt.ids), prompt.opens_thinking
    images = images_of(start.messages) if renderer.images else []
    trajectory.segments.append(_given("prompt", prompt.ids, prompt.text))
    trajectory.opening_seconds = time.perf_counter() - begun
    sampling = replace(
        sampling,
        max_tokens=min(sampling.max_tokens, limits.max_response_tokens_per_turn),
        stop=(*sampling.stop, *renderer.stop),
        stop_token_ids=(*sampling.stop_token_ids, *renderer.stop_token_ids),
    )
    while True:
        left = limits.max_total_tokens - len(ids)
        if left <= 0:
            episode.stop("max_tokens")
            return
        begun = time.perf_counter()
        generation = await sampler.generate(
            list(ids),
            sampling if sampling.max_tokens <= left else replace(sampling, max_tokens=left),
            rollout_id=trajectory.rollout_id,
            images=images,
        )
        generated = time.perf_counter() - begun
        text = replace_surrogates(generation.text or renderer.text_of_turn(generation.ids))
        trajectory.segments.append(Segment("model", generation.ids, generation.logprobs, True, text))
        ids += generation.ids
        if generation.finish == "abort":
            episode.abort(text)
            trajectory.times.append(TurnTimes(generated, 0.0))
            return
        turn = await episode.step(text, truncated=generation.finish == "length", thinking=opens_thinking)
        trajectory.times.append(TurnTimes(generated, sum(step.seconds for step in turn.steps)))
        if turn.over:
            return
        answer = renderer.after_turn(generation.ids, turn.messages)
        if len(ids) + len(answer.ids) >= limits.max_total_tokens:
            # The answer would leave the model nothing to write. Half of it would be no conversation.
            episode.stop("max_tokens")
            return
        kind = "tool" if turn.messages[0]["role"] == "tool" else "user"
        trajectory.segments.append(_given(kind, answer.ids, answer.text))
        ids += answer.ids
        opens_thinking = answer.opens_thinking
        if renderer.images:
            images += images_of(turn.messages)


def _given(kind: SegmentKind, ids: list[int], text: str) -> Segment:
    """Return a segment that the model was given."""
    return Segment(kind, ids, [0.0] * len(ids), False, text)
