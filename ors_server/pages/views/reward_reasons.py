"""Why a rollout has its reward: the rule of its run, the rewards of its steps, and what the graders found out.

A client that uploads the session it has played does not know the verdict: that is read from the server's record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ors_server.rollouts.verdicts import Verdict, read_verdict

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ors_server.rollouts.aggregates.reward_rule import RewardRule
    from ors_server.rollouts.queries.conversations import RolloutDetail

__all__ = ["RewardReason", "Step", "reward_reason"]

#: Steps that are listed; the others are counted.
_MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Step:
    """A message with a reward, with its place in the conversation."""

    number: int
    tool: str
    #: Whether it is a tool's result: else the trainer that uploaded it has counted it.
    of_tool: bool
    reward: float
    finished: bool


@dataclass(frozen=True, slots=True)
class RewardReason:
    """Rule, steps and verdicts of one rollout."""

    rule: RewardRule
    steps: Sequence[Step]
    #: The number of steps, those that are not listed included.
    num_steps: int
    verdicts: Sequence[Verdict]
    #: Whether the verdicts are from the server's record of the session that was uploaded.
    recorded: bool
    #: That of the grading again, where the episode was.
    regraded: Verdict | None
    #: Whether names and outputs of tests are kept from this reader.
    hidden: bool


def reward_reason(
    connection: Connection, found: RolloutDetail, *, owner: str | None = None, hidden: bool = False
) -> RewardReason:
    """Read why a rollout has its reward. With ``hidden``, verdicts have numbers only."""
    from ors_server.rollouts.aggregates.reward_rule import RunRules
    from ors_server.rollouts.queries.conversations import messages_of

    verdicts, recorded, other = _verdicts(found.messages), False, found.summary.counterpart
    if not verdicts and other is not None and found.summary.source == "upload":
        verdicts = _verdicts(messages_of(connection, other.id, "session"))
        recorded = bool(verdicts)
    again = None if found.content["regrade"] is None else read_verdict(found.content["regrade"]["verdict"])
    steps = list(_steps(found.messages))
    return RewardReason(
        RunRules(connection, owner).of(found.summary.run_id),
        steps[:_MOST_STEPS],
        len(steps),
        [verdict.without_texts() for verdict in verdicts] if hidden else verdicts,
        recorded,
        again.without_texts() if hidden and again is not None else again,
        hidden,
    )


def _steps(messages: Iterable[Mapping[str, Any]]) -> Iterable[Step]:
    tools: dict[str, str] = {}
    for number, message in enumerate(messages):
        call, name = message.get("call_id"), message.get("name") or ""
        if call and name:
            tools[call] = name
        if message.get("reward") is not None:
            tool, of_tool = name or tools.get(call or "", ""), message["type"] == "tool_result"
            yield Step(number, tool, of_tool, message["reward"], bool(message["is_finished"]))


def _verdicts(messages: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    return [verdict for message in messages if (verdict := read_verdict(message.get("verdict"))) is not None]
