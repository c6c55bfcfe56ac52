"""The record of one attempt: an episode of one sample of a task that has ended, scored or lost.

A sample is played until an attempt is scored, or its retries are used up. ``Loss`` says whose fault a lost attempt is:
the environment's server, or the model's endpoint. It is never the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from ors_clients.errors import ClientError, SamplerFailed
from ors_clients.evaluation.endpoints.endpoint import EndpointFailed, Usage
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.tool_calls import MalformedCall
from ors_server.rollouts.reports.task_scores import LARGEST_REWARD
from ors_server.wire.texts import shorten

__all__ = ["Attempt", "Loss", "mistakes_of", "usage_of"]

_LONGEST_TEXT = 500


@dataclass(frozen=True)
class Loss:
    """The failure of the infrastructure that an attempt was lost to."""

    side: Literal["environment", "model endpoint"]
    kind: str
    text: str

    @classmethod
    def of(cls, failure: ClientError | None, redacted: Callable[[str], str] = str) -> Loss:
        """Return the loss of an episode that ended with this failure; None is an engine's abort.

        ``redacted`` takes secrets out of the text, which is whole for it: half a secret would not be found.
        """
        if failure is None:
            return cls("model endpoint", "aborted", "The engine broke a generation off")
        text = shorten(redacted(failure.text), _LONGEST_TEXT)
        if isinstance(failure, SamplerFailed):
            return cls("model endpoint", failure.kind if isinstance(failure, EndpointFailed) else "engine", text)
        return cls("environment", type(failure).__name__, text)


@dataclass(frozen=True)
class Attempt:
    """One attempt. ``task`` is its position in the run's list of tasks; samples and attempts count from 0."""

    task: int
    sample: int
    attempt: int
    rollout_id: str
    #: How the episode ended: a stop reason of the rollout, or ``context_overflow``.
    stop: str
    #: Under the run's rule; None if it was lost.
    reward: float | None
    lost: Loss | None
    #: Turns that the model took.
    turns: int
    tool_calls: int
    mistakes: dict[str, int]
    requests: int
    retried: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    #: Answers whose tokens the endpoint did not say.
    uncounted: int
    #: Wall-clock seconds, by a clock that no one sets.
    seconds: float
    generation_seconds: float
    tool_seconds: float
    #: In UTC, by the machine's clock; used for nothing.
    ended: str = ""
    #: Times the sample had been begun before without an end: the run was killed or interrupted.
    interrupted: int = field(default=0)
    #: The environment's reservation about its verdict; empty for none.
    mark: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the attempt as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Attempt:
        """Return an attempt as ``as_json`` wrote it. Raises ``ValueError`` for anything else."""
        attempt = _ATTEMPT.validate_python(value)
        if (attempt.lost is None) != (attempt.reward is not None):
            raise ValueError("an attempt has either a reward or a failure")
        if attempt.reward is not None and not abs(attempt.reward) <= LARGEST_REWARD:
            raise ValueError("a reward is a number that can be added")
        return attempt


_ATTEMPT = TypeAdapter(Attempt)


def usage_of(trajectory: Trajectory) -> Usage:
    """Return the tokens of an episode that was played with a token engine, which are known exactly."""
    usage = Usage()
    given = 0
    for segment in trajectory.segments:
        if segment.kind == "model":
            usage.requests += 1
            usage.prompt_tokens += given
            usage.completion_tokens += len(segment.ids)
        given += len(segment.ids)
    return usage


def mistakes_of(trajectory: Trajectory, *, cut_turns: int) -> dict[str, int]:
    """Count the mistakes of an episode, by the names of ``MISTAKES``, without those that did not happen."""
    steps = trajectory.steps
    malformed = sum(isinstance(step.call, MalformedCall) for step in steps)
    reasons = [step.result.reason for step in steps if step.result is not None and step.result.error is not None]
    unknown = reasons.count("not_found")
    raised = sum(step.result is None and not isinstance(step.call, MalformedCall) for step in steps)
    counts = {
        "malformed_calls": malformed,
        "unknown_tools": unknown,
        "invalid_inputs": len(reasons) - unknown,
        "failed_tools": raised,
        "cut_turns": cut_turns,
        "turns_without_call": trajectory.turns - len({step.turn for step in steps}),
    }
    return {name: count for name, count in counts.items() if count}
