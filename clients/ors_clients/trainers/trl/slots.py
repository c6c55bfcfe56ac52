"""One rollout's environment, as TRL wants it: an object that is reset for every episode and has a method a tool.

Invariant: every episode ends with a number or with nothing. One that never scored is worth 0, unless
``EnvironmentSpec.reward`` says otherwise, so a model that stops calling tools sees it. One that the infrastructure
failed has no reward: TRL leaves it out of its group's baseline and of the gradient. A slot holds at most one session,
which ends when the reward is taken, at the next ``reset``, when the slot is garbage, or when the process ends.
"""

from __future__ import annotations

import base64
import functools
import importlib
import inspect
import io
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from ors_clients.client.sync_client import Environment, Session
from ors_clients.errors import ClientError, ConfigurationError, InfrastructureFailure, RequestRefused, ToolFailed
from ors_clients.rollouts.control_texts import ControlTexts
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.tool_calls.thinking import END_OF_THINKING, split_thinking
from ors_clients.training.losses import cause_of
from ors_clients.transport.error_responses import REFUSED_INPUTS
from ors_server.protocol import ImageBlock, TerminalToolSpec, TextBlock

__all__ = ["EnvironmentSlot", "EnvironmentSpec", "end_sessions", "environment_reward", "unless_failed"]

logger = logging.getLogger("ors_clients.trl")

_AFTER_THE_END = "Error: The episode has finished; further calls have no effect."
_AFTER_A_FAILURE = "Error: The environment has failed; this episode cannot go on."
#: Sessions are ended this many at once.
_ENDING_THREADS = 16


@dataclass(frozen=True)
class EnvironmentSpec:
    """One environment of a run: where it is, which of its tasks, and what its episodes are worth."""

    #: Its name on the server, or ``owner/Name``.
    environment: str
    #: Its name in the ``environment`` column; by default that on the server.
    name: str = ""
    split: str = "train"
    #: The first tasks of the split; None for all. Or ``indices``, not both.
    num_tasks: int | None = None
    indices: Sequence[int] | None = None
    #: The server; None for the mixture's.
    url: str | None = None
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    #: From the rewards of an episode's calls to its own: by default the last one given, and 0 where none was.
    reward: RewardRule = field(default_factory=lambda: RewardRule("last"))
    #: Which fields of the tasks become columns; None for all that the server publishes. Names that begin with ``_``
    #: are private, and become columns only where they are listed.
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.num_tasks is not None and self.indices is not None:
            raise ConfigurationError(f"{self.environment}: both num_tasks and indices", "Give one of them")
        if not self.name:
            object.__setattr__(self, "name", self.environment)


class EnvironmentSlot:
    """The state of a slot's episode, for reward functions. ``EnvironmentMixture`` makes a subclass an environment,
    whose other public methods are the tools."""

    _spec: ClassVar[EnvironmentSpec]
    _remote: ClassVar[Environment]
    #: The tool that takes a rollout's last message, where the environment has one.
    _terminal_tool: ClassVar[TerminalToolSpec | None]
    #: Whether the model takes images.
    _images: ClassVar[bool]
    #: Breaks up control tokens in what the environment says.
    _control_texts: ClassVar[ControlTexts]
    #: How many resets in a row may fail before one raises, and how many have.
    _failed_resets: ClassVar[int]
    _failed_in_a_row: ClassVar[int] = 0

    def __init__(self) -> None:
        self._session: Session | None = None
        self._clear()

    def _clear(self) -> None:
        self._close()
        #: The last reward that a call gave; None before the first.
        self.reward: float | None = None
        #: Of every call to a tool before the end its reward, None where it gave none.
        self.rewards: list[float | None] = []
        #: Of every such call its metadata.
        self.metadata: list[dict[str, Any] | None] = []
        self.finished = False
        #: The text of the last answer.
        self.last_output = ""
        #: What went wrong that is not the model's fault; the episode is then not to be trained on.
        self.failure: ClientError | None = None

    def reset(self, *, task_index: int = 0, split: str | None = None, **_: Any) -> str | list[dict[str, Any]]:
        """End the last episode and begin one of a row's task; its prompt.

        Raises what is wrong with the run, such as an unknown split or a refused key; and, once too many resets in a
        row have met one, an ``InfrastructureFailure``.
        """
        self._clear()
        try:
            session = self._remote.session(
                split=split or self._spec.split, index=task_index, secrets=self._spec.secrets
            )
            self._session = session.open()
            prompt = session.prompt()
        except InfrastructureFailure as failure:
            type(self)._failed_in_a_row += 1
            if self._failed_in_a_row > self._failed_resets:
                raise
            self._fail(failure)
            return ""
        type(self)._failed_in_a_row = 0
        return self._content(prompt)

    @property
    def episode_reward(self) -> float | None:
        """The reward of the episode for the trainer; None if it is to be left out."""
        return None if self.failure else self._spec.reward.total(self.rewards, terminal=self.finished)

    def _end(self, answer: str | None = None) -> float | None:
        """Submit the rollout's last message where the environment wants it, and end the session; the reward."""
        terminal = self._terminal_tool
        if terminal and answer is not None and self._session and not self.finished:
            self._call(terminal.name, {terminal.arg: answer} if terminal.arg else {})
        self._close()
        return self.episode_reward

    def _close(self) -> None:
        """End the session. One that is dropped instead, as with the process, is ended by the client."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _call(self, tool: str, input: dict[str, Any]) -> str | list[dict[str, Any]]:
        if self.failure:
            return _AFTER_A_FAILURE
        if self.finished:
            return _AFTER_THE_END
        if self._session is None:
            raise RuntimeError("The episode has not begun, or its reward was taken: call reset() first")
        try:
            result = self._session.call(tool, input)
        except ToolFailed as failed:
            return self._answered(f"Error: {failed.message}")
        except ClientError as failure:
            if isinstance(failure, RequestRefused) and failure.status_code in REFUSED_INPUTS:
                return self._answered(f"Error: {failure.text}")  # the model's input is not a request, or too large
            self._fail(failure)
            return _AFTER_A_FAILURE
        if result.error is not None:
            return self._answered(f"Error: {result.error}")
        self.finished = result.finished
        if result.reward is not None:
            self.reward = result.reward
        metadata = None if result.metadata is None else dict(result.metadata)
        self._answered(result.text or "(no output)", result.reward, metadata)
        return self._content(result.blocks) or self.last_output

    def _answered(self, text: str, reward: float | None = None, metadata: dict[str, Any] | None = None) -> str:
        self.rewards.append(reward)
        self.metadata.append(metadata)
        self.last_output = text
        return self._control_texts.in_text(text)

    def _fail(self, failure: ClientError) -> None:
        logger.warning("%s: an episode is left out of training: %s", self._spec.name, failure)
        self.failure = failure
        self.last_output = _AFTER_A_FAILURE
        self._close()

    def _content(self, blocks: Sequence[TextBlock | ImageBlock]) -> str | list[dict[str, Any]]:
        """Blocks as a message's content: a text, unless there are images and the model takes them."""
        if self._images and any(isinstance(block, ImageBlock) for block in blocks):
            return self._control_texts.in_content([_part(block) for block in blocks])
        text = "\n".join(block.text if isinstance(block, TextBlock) else "[image]" for block in blocks)
        return self._control_texts.in_text(text)


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    pillow = importlib.import_module("PIL.Image")
    return {"type": "image", "image": pillow.open(io.BytesIO(base64.b64decode(block.data)))}


def end_sessions(slots: Iterable[EnvironmentSlot]) -> None:
    """End the sessions of several slots at once. Their episodes' state stays readable."""
    with ThreadPoolExecutor(_ENDING_THREADS) as pool:
        list(pool.map(EnvironmentSlot._end, slots))  # pyright: ignore[reportPrivateUsage]


# --- rewards -------------------------------------------------------------------------------------


def environment_reward(
    environments: Sequence[Any] | None = None,
    completions: Sequence[Any] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Return a reward function of TRL: what each rollout's episode is worth, and None for one to be left out.

    Where the environment has a terminal tool, a rollout that ended with a plain message submits that first. Then the
    sessions are ended, so a reward function that still wants to use them goes before this one. It logs each
    environment's mean reward, and the share of its rollouts that the infrastructure failed, in all and by cause. A slot
    that owns its reward (``EnvironmentMixture.async_environment_factory``) has None here, for TRL adds the two up.

    Raises ``ConfigurationError`` where TRL gives no environments, as ``AsyncGRPOTrainer`` does.
    """
    if environments is None:
        raise ConfigurationError(
            "The trainer gives its reward functions no environments",
            "With AsyncGRPOTrainer pass environment_factory=mixture.async_environment_factory and no reward_funcs",
        )
    slots = [
        slot if isinstance(slot, EnvironmentSlot) and not hasattr(slot, "get_reward") else None for slot in environments
    ]
    answers = [_plain_answer(completion) for completion in completions] or [None] * len(slots)
    with ThreadPoolExecutor(_ENDING_THREADS) as pool:
        rewards = list(pool.map(_final_reward, slots, answers))
    if log_metric is not None:
        _log(log_metric, [(slot, reward) for slot, reward in zip(slots, rewards, strict=True) if slot is not None])
    return rewards


def _log(log_metric: Callable[[str, float], None], played: Sequence[tuple[EnvironmentSlot, float | None]]) -> None:
    """Log each rollout's reward, whether it failed, and of its environment's causes in this batch which one it was.

    TRL makes a mean of what a metric was logged as, so each rollout logs all causes.
    """
    causes: dict[str, set[str]] = {}
    names = [slot._spec.name for slot, _ in played]  # pyright: ignore[reportPrivateUsage]
    for name, (slot, _) in zip(names, played, strict=True):
        if slot.failure is not None:
            causes.setdefault(name, set()).add(cause_of(slot.failure))
    for name, (slot, reward) in zip(names, played, strict=True):
        log_metric(f"environments/{name}/failed", float(reward is None))
        found = None if slot.failure is None else cause_of(slot.failure)
        for cause in sorted(causes.get(name, ())):
            log_metric(f"environments/{name}/lost/{cause}", float(found == cause))
        if reward is not None:
            log_metric(f"environments/{name}/reward", reward)


def _final_reward(slot: EnvironmentSlot | None, answer: str | None) -> float | None:
    return None if slot is None else slot._end(answer)  # pyright: ignore[reportPrivateUsage]


def _plain_answer(completion: Any) -> str | None:
    """Return the last answer of a rollout without its thinking, which TRL leaves in the text of a model without tools.

    None if the rollout ended with a call or in the middle of its thinking, or is not a conversation.
    """
    messages = cast("list[Any]", completion) if isinstance(completion, list) else []
    if not messages or not isinstance(messages[-1], dict):
        return None
    message = cast("dict[str, Any]", messages[-1])
    content = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls") or not isinstance(content, str):
        return None
    thoughts, answer = split_thinking(content)
    return None if thoughts and END_OF_THINKING not in content else answer


def unless_failed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap your own reward function of the same run, with None for the rollouts that ``environment_reward`` leaves
    out: TRL leaves a rollout out only where every reward function says None.

    The function is not shown those rollouts. Whatever TRL gives with one entry a rollout (``prompts``, ``completions``,
    ``completion_ids``, ``environments``, the columns of the dataset) has the entries of the others alone, in their
    order, and its rewards are put back in their places. Where all rollouts failed it is not called. A coroutine
    function stays one. Raises ``ValueError`` for another number of rewards than of rollouts that it was shown.

    Source: TRL 1.16, ``GRPOTrainer._calculate_rewards``.
    """
    # A callable object has it on its class, as TRL looks for it.
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        @functools.wraps(function)
        async def rewards_later(*, environments: Sequence[Any], **columns: Any) -> list[float | None]:
            played = _played(environments)
            values: Sequence[Any] = await function(**_shown(played, environments, columns)) if played else ()
            return _put_back(played, len(environments), values)

        return rewards_later

    @functools.wraps(function)
    def rewards(*, environments: Sequence[Any], **columns: Any) -> list[float | None]:
        played = _played(environments)
        values: Sequence[Any] = function(**_shown(played, environments, columns)) if played else ()
        return _put_back(played, len(environments), values)

    return rewards


def _played(environments: Sequence[Any]) -> list[int]:
    """Return the places of the rollouts that did not fail."""
    return [place for place, slot in enumerate(environments) if not slot.failure]


def _shown(played: Sequence[int], environments: Sequence[Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reward function's arguments for these rollouts alone."""
    count = len(environments)
    shown = {**columns, "environments": list(environments)}
    for name, value in shown.items():
        if isinstance(value, list) and len(cast("list[Any]", value)) == count:
            shown[name] = [value[place] for place in played]
    if "log_extra" in columns:

        def log_extra(column: str, values: Sequence[Any]) -> None:
            """TRL prints these beside the completions, one for each of them all."""
            columns["log_extra"](column, _put_back(played, count, values))

        shown["log_extra"] = log_extra
    return shown


def _put_back(played: Sequence[int], count: int, values: Sequence[Any]) -> list[Any]:
    """Values of these rollouts in their places among all; None for the others."""
    whole: list[Any] = [None] * count
    for place, value in zip(played, values, strict=True):
        whole[place] = value
    return whole
