"""Turn what an author's tools and judges return into the events of a call."""

from __future__ import annotations

import importlib
from typing import Any

from ors_server.hosting.call_overrides import OverridingRunner
from ors_server.hosting.dialects import Dialect
from ors_server.hosting.stopwatch import Stopwatch, timed
from ors_server.hosting.tool_runner import RefusedCall, ToolRunner
from ors_server.protocol import GroupScore, ScoreGroup, ScoreGroupOutput
from ors_server.rollouts.verdicts import split_verdict, split_verdict_of
from ors_server.sessions.environment_instance import EnvironmentInstance
from ors_server.sessions.errors import OutputTooLarge
from ors_server.wire.encoding import encode_tool_error, encode_tool_output
from ors_server.wire.sse import result_frames

__all__ = ["outcome_frames", "score_group"]


def outcome_frames(
    runner: ToolRunner | OverridingRunner, name: str, outcome: Any, limit: int
) -> tuple[bytes, bytes | None]:
    """Encode a tool's ``ToolOutput`` or ``RefusedCall`` as events; ``limit`` is the size of the output in bytes.

    A verdict in its metadata is in the second value only, the events to be recorded; None where it has none. Raises
    ``NonFiniteReward`` and ``OutputTooLarge``.
    """
    if isinstance(outcome, RefusedCall):
        return result_frames(encode_tool_error(outcome.error, outcome.reason)), None
    try:
        shown, kept = split_verdict_of(outcome)
        data = encode_tool_output(name, shown)
        if len(data) > limit:
            raise OutputTooLarge(
                f"{name!r} returned {len(data)} bytes, over the limit of {limit}",
                "Cut the output in the tool, or raise ORS_MAX_OUTPUT.",
            )
    except Exception:
        if outcome.finished:
            # Otherwise a retry would be refused because the episode has finished, and its reward would be lost.
            runner.reopen()
        raise
    return result_frames(data), None if kept is None else result_frames(encode_tool_output(name, kept))


async def score_group(
    environment: EnvironmentInstance, request: ScoreGroup, stopwatch: Stopwatch | None = None
) -> ScoreGroupOutput:
    """Score the candidates, in their order.

    Raises what the author's method raises, and ``ValueError`` for a wrong number of scores or one that is not finite.
    """
    candidates = _candidates(environment, request)
    function = timed(environment.instance.score_group, stopwatch)
    scores = list(await environment.tools_execution.run(function, candidates))
    if len(scores) != len(request.candidates):
        raise ValueError(f"score_group returned {len(scores)} scores for {len(request.candidates)} candidates")
    return ScoreGroupOutput(scores=[_score(score, index) for index, score in enumerate(scores)])


def _candidates(environment: EnvironmentInstance, request: ScoreGroup) -> list[Any]:
    """Convert the candidates to the models of the SDK that the environment was written for."""
    if environment.hosted.dialect is not Dialect.OPENREWARD:
        return list(request.candidates)
    model = importlib.import_module("openreward.environments.types").GroupCandidate
    return [model.model_validate(candidate.model_dump()) for candidate in request.candidates]


def _score(score: Any, index: int) -> GroupScore:
    value = score if hasattr(score, "reward") else GroupScore(reward=float(score))
    value = GroupScore(reward=float(value.reward), metadata=split_verdict(value.metadata)[0])
    if value.reward != value.reward or value.reward in (float("inf"), float("-inf")):
        raise ValueError(f"score_group returned the score {value.reward} for candidate {index}; it must be finite")
    return value
