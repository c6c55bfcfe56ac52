"""A trajectory as the events of the openreward rollout API: what ``POST /v1/rollouts`` takes (protocol, section 7).

One ``rollout`` event, and one ``message`` event for each thing that was said: reasoning, text, a tool call, a result.
A whole run may have a ``run_report``, which ors-server alone knows.
Ids are made from the rollout's id and the event's place, so that sending a trajectory again adds nothing.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ors_clients.rollouts.messages import ChatMessage, text_of
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.rollouts.trajectory import Segment, ToolStep, Trajectory
from ors_clients.tool_calls import ToolCall, split_thinking
from ors_server.rollouts.reports.formats import VERSION

__all__ = ["RolloutLabels", "report_event", "rollout_events"]

_NAMESPACE = uuid.UUID("6f1c52b4-9f1b-5d0a-8d5e-0d3f6b0c7a11")


@dataclass(frozen=True)
class RolloutLabels:
    """A trainer's labels of a rollout, beside its trajectory."""

    run_name: str
    #: The episode's reward as the trainer uses it; None where there is none to train on.
    reward: float | None = None
    rollout_name: str | None = None
    environment: str | None = None
    variant: str | None = None
    split: str | None = None
    step: int | None = None
    task_spec: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Constant for a run: model_name, rl_algorithm, lr, …
    run_info: Mapping[str, Any] | None = None
    #: Of this rollout: task_index, temperature, max_tokens, …
    rollout_info: Mapping[str, Any] | None = None


def rollout_events(trajectory: Trajectory, labels: RolloutLabels, *, tokens: bool = False) -> list[dict[str, Any]]:
    """Return the events, the ``rollout`` one first. Keys without a value are left out, as in the API's own client.

    The rewards of the messages make ``labels.reward``, so that a store counts what the trainer scored. With ``tokens``,
    the metadata of the first message of each turn, and of the first that answers it, has their tokens.
    """
    rollout = uuid.uuid5(_NAMESPACE, trajectory.rollout_id)
    now = int(time.time() * 1000)
    head: dict[str, Any] = {
        "eventType": "rollout",
        "eventId": str(rollout),
        "timestamp": now,
        "runName": labels.run_name,
        "rolloutName": labels.rollout_name,
        "environment": labels.environment,
        "variant": labels.variant,
        "split": labels.split,
        "step": labels.step,
        "task_spec": labels.task_spec,
        "run_info": labels.run_info,
        "rollout_info": {
            "duration_ms": round(trajectory.seconds * 1000),
            "harness": "ors-clients",
            **outcome(trajectory.stop_reason, trajectory.failure and trajectory.failure.text),
            **(labels.rollout_info or {}),
        },
        "metadata": {**summary(trajectory), "reward": labels.reward, **labels.metadata},
    }
    events = [head]
    for index, message in enumerate(_messages(trajectory, tokens)):
        events.append(
            {
                "eventType": "message",
                "eventId": str(uuid.uuid5(rollout, str(index))),
                "timestamp": now,
                "rolloutEventId": str(rollout),
                "index": index,
                "isFinished": False,
                **message,
            }
        )
    return _with_reward([_without_none(event) for event in events], labels)


def report_event(run_name: str, kind: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of a run as an event; ``kind`` is one of ``ors_server.rollouts.reports.formats.KINDS``."""
    now = int(time.time() * 1000)
    return {
        "eventType": "run_report",
        "eventId": str(uuid.uuid5(_NAMESPACE, f"{run_name}/{now}")),
        "timestamp": now,
        "runName": run_name,
        "kind": kind,
        "version": VERSION,
        "report": report,
    }


def _with_reward(events: list[dict[str, Any]], labels: RolloutLabels) -> list[dict[str, Any]]:
    """Return events from whose rewards a store makes the reward of ``labels``.

    A store takes their sum, or the highest one where the run says so. A rollout has no reward if none of its events has
    one.
    """
    rewards = [event["reward"] for event in events if "reward" in event]
    highest = (labels.run_info or {}).get("reward") == "max"
    rule = RewardRule("max" if highest else "sum")
    if labels.reward == (rule.total(rewards, terminal=True) if rewards else None):
        return events
    # The step's own reward stays readable in the metadata. An episode without any still counts, often 0.
    head, *messages = [_without_reward(event) for event in events]
    if labels.reward is not None and messages:
        messages[-1]["reward"] = labels.reward
    return [head, *messages]


def _without_reward(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with the reward of its step in its metadata only."""
    if "reward" not in event:
        return event
    others = {key: value for key, value in event.items() if key != "reward"}
    return {**others, "metadata": {**(event.get("metadata") or {}), "step_reward": event["reward"]}}


def outcome(stop: str, lost: str | None) -> dict[str, str]:
    """Return how an episode ended, in the words of rollout stores; ``lost`` is the reason of one that was lost."""
    if lost is not None:
        return {"outcome": "lost", "outcome_reason": lost}
    if stop == "finished":
        return {"outcome": "finished"}
    return {"outcome": "deleted", "outcome_reason": stop}


def summary(trajectory: Trajectory) -> dict[str, Any]:
    """Return the numbers of a trajectory that a reader of many wants."""
    return {
        "rollout_id": trajectory.rollout_id,
        **({} if trajectory.session is None else {"session": trajectory.session}),
        "stop_reason": trajectory.stop_reason,
        "trainable": trajectory.trainable,
        "failure": None if trajectory.failure is None else trajectory.failure.text,
        "turns": trajectory.turns,
        "tool_calls": trajectory.tool_calls,
        "failed_tool_calls": trajectory.failed_calls,
        "malformed_tool_calls": trajectory.malformed_calls,
        "prompt_tokens": len(trajectory.segments[0].ids) if trajectory.segments else 0,
        "response_tokens": sum(len(segment.ids) for segment in trajectory.segments[1:]),
        "generation_seconds": round(trajectory.generation_seconds, 3),
        "tool_seconds": round(trajectory.tool_seconds, 3),
        **({"verdict_mark": trajectory.verdict_mark} if trajectory.verdict_mark else {}),
    }


def _messages(trajectory: Trajectory, tokens: bool) -> Iterator[dict[str, Any]]:
    assistants = [index for index, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    # The environment's opening may hold turns of its own; the model's are the last ones.
    turns = {index: turn for turn, index in enumerate(assistants[len(assistants) - trajectory.turns :])}
    steps = {step.call.id: step for step in trajectory.steps if isinstance(step.call, ToolCall)}
    segments = iter(trajectory.segments[1:] if tokens else ())
    #: The segment that answers the last turn, until a message has it.
    answer: Segment | None = None
    for index, message in enumerate(trajectory.messages):
        role = message["role"]
        if index in turns:
            turn = turns[index]
            events = _turn(message, [step for step in trajectory.steps if step.turn == turn])
            spoken = next((segment for segment in segments if segment.kind == "model"), None)
            if turn < len(trajectory.times):
                _add(events[0], {"seconds": round(trajectory.times[turn].generation, 3)})
            if spoken is not None:
                _add(events[0], {"tokens": _tokens(trajectory, spoken)})
                answer = next(segments, None)
            yield from events
            continue
        event = (
            _result(message, steps.get(message["tool_call_id"]))
            if role == "tool"
            else {"type": f"{role}_message", "content": _text(message)}
        )
        if answer is not None:
            _add(event, {"tokens": _tokens(trajectory, answer)})
            answer = None
        yield event


def _add(event: dict[str, Any], metadata: dict[str, Any]) -> None:
    # What the environment says stays.
    event["metadata"] = {**metadata, **(event.get("metadata") or {})}


def _tokens(trajectory: Trajectory, segment: Segment) -> dict[str, Any]:
    tokens: dict[str, Any] = {"ids": segment.ids, "mask": [int(segment.trainable)] * len(segment.ids)}
    if segment.kind == "model":
        tokens["logprobs"] = [round(value, 4) if math.isfinite(value) else None for value in segment.logprobs]
    decode = trajectory.decode
    if decode is not None:
        tokens["pieces"] = [decode([token]) for token in segment.ids]
    return tokens


def _turn(message: ChatMessage, steps: list[ToolStep]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    reasoning, text = split_thinking(text_of(message["content"]))
    if reasoning:
        events.append({"type": "reasoning", "content": reasoning})
    for step in steps:
        if isinstance(step.call, ToolCall) and step.call.raw:
            text = text.replace(step.call.raw, "", 1)
    if text.strip() or not (reasoning or steps):
        events.append({"type": "assistant_message", "content": text.strip()})
    events += [
        {
            "type": "tool_call",
            "name": step.call.name,
            "callId": step.call.id,
            "content": json.dumps(step.call.input, ensure_ascii=False),
        }
        for step in steps
        if isinstance(step.call, ToolCall)
    ]
    # A turn that is malformed calls and nothing else has their text.
    return events or [{"type": "assistant_message", "content": text_of(message["content"])}]


def _result(message: ChatMessage, step: ToolStep | None) -> dict[str, Any]:
    event: dict[str, Any] = {"type": "tool_result", "callId": message["tool_call_id"], "content": _text(message)}
    if step is not None and step.result is not None:
        event |= {"reward": step.result.reward, "isFinished": step.result.finished, "metadata": step.result.metadata}
    if step is not None:
        _add(event, {"seconds": round(step.seconds, 3)})
    return event


def _text(message: ChatMessage) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    images = sum(part["type"] == "image" for part in content)
    return "\n".join([text_of(content), *["[image]"] * images]).strip()


def _without_none(event: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in event.items():
        if isinstance(value, Mapping):
            inner = cast("Mapping[str, Any]", value)
            kept[key] = {name: held for name, held in inner.items() if held is not None}
        elif value is not None:
            kept[key] = value
    return kept
