"""The interface of ROLL's environment managers, for all environments of this package.

``AgentNativeStepEnvManager`` (alibaba/ROLL, ``roll/pipeline/agentic/env_manager/agent_native_env_manager.py``) renders
the whole list of messages with the chat template before each turn, makes one training sample of each turn, sums the
rewards of the steps, and ends an episode when ``step`` says ``terminated`` and never by itself. It passes the model's
text, or ROLL's ``EpisodeStopReason`` where it ends the episode. So here every turn counts as a step, whatever the model
wrote; the step that reaches ``max_steps`` terminates; and the whole reward is given at the end, all other steps give 0.

ROLL's managers of text environments keep only the texts of a message's parts, and write a content of None as "None". So
here a remark stands for each image, with a warning in the log, and an empty text for None.

An episode whose infrastructure failed has no reward. ``failure`` says so, and ``OrsStepEnvManager``
(``ors_clients.roll.env_manager``) drops the sample; a manager that does not know it sees 0 and ``failure_mode``.

Everything is synchronous. ROLL calls an environment from a thread of its own; which thread may change.
"""

from __future__ import annotations

import copy
import enum
import logging
import random
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from ors_clients.errors import ClientError, ConfigurationError, DeadlineExceeded, InfrastructureFailure
from ors_clients.rollouts.chatml import without_images
from ors_clients.rollouts.episode import without_end_marks
from ors_clients.rollouts.messages import ChatMessage
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["RollEnvironment", "RollStep", "stop_reason_of"]

logger = logging.getLogger("ors_clients.roll")

_gem: Any = import_trainer_module("gem", "Install ROLL, or its environment interface alone: pip install gem-llm")

Observation = tuple[list[ChatMessage], dict[str, Any]]


def stop_reason_of(action: Any) -> str | None:
    """Return the reason if ``action`` is an ``EpisodeStopReason`` instead of the model's text, else None.

    Recognised by what it is, an enumeration's member, so that it may come from any copy of ROLL.
    """
    return str(action.value) if isinstance(action, enum.Enum) else None


@dataclass(frozen=True)
class RollStep:
    """The result of one turn."""

    #: The whole conversation.
    messages: list[ChatMessage]
    #: Why the episode is over; None while it goes on.
    stop_reason: str | None = None
    #: The episode's reward, at its end; None where there is nothing to train on.
    reward: float | None = None
    problems: list[str] = field(default_factory=list[str])
    failure: ClientError | None = None


class RollEnvironment(_gem.Env):
    """Base of the environments; a subclass says how an episode is opened, played, stopped and closed.

    ``retry_max_attempts`` more tries to open an episode follow a failed one, the first after
    ``retry_backoff_seconds``, each further one after twice the time. No subclass takes options it does not know: an
    ignored option would make another run than its configuration says.
    """

    def __init__(self, *, max_steps: int, retry_max_attempts: int, retry_backoff_seconds: float) -> None:
        _gem.Env.__init__(self)
        if max_steps < 1:
            raise ConfigurationError(f"max_steps is {max_steps}", "Give at least 1")
        self.max_steps = max_steps
        self.retry_max_attempts = retry_max_attempts
        self.retry_backoff_seconds = retry_backoff_seconds
        #: Read by ROLL's managers after ``reset`` and for their metrics.
        self.env_reset_failed = False
        self.env_timeout = False
        #: Why the episode must not be trained on.
        self.failure: ClientError | None = None
        self.current_step = 0
        #: ROLL's, where its manager is ``OrsStepEnvManager``: its control tokens are broken up in texts.
        self.tokenizer: Any = None
        self._random = random.Random()  # noqa: S311 - chooses tasks where no seed is given
        self._playing = False
        self._messages: list[ChatMessage] = []
        self._reward: float | None = None
        self._warned = False

    # --- what a subclass gives ---------------------------------------------------------------

    @abstractmethod
    def _open(self, number: int) -> tuple[list[ChatMessage], list[dict[str, Any]], str]:
        """Open an episode of task ``number`` modulo their count: messages, tools in the OpenAI form, the task's name.

        Raises ``InfrastructureFailure`` where another try may help."""

    @abstractmethod
    def _play(self, text: str) -> RollStep:
        """Play one turn of the model. The episode is over after turn ``max_steps``."""

    @abstractmethod
    def _stop(self, reason: str) -> RollStep:
        """End the episode for the trainer."""

    @abstractmethod
    def _close(self) -> None:
        """Release the episode, if one is open. Raises nothing for what the infrastructure does."""

    @abstractmethod
    def _counts(self) -> dict[str, float]:
        """Metrics of the episode so far."""

    @property
    @abstractmethod
    def env_info(self) -> dict[str, Any]:
        """The environment's name in the trajectory's log."""

    # --- gem.Env -----------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Observation:
        """Open an episode: the conversation and ``info`` (``tools``, ``task_name``, ``failure_mode``, ``error_msg``).

        The seed chooses the task, so that the members of a group, who share it, play the same one; without it the task
        is drawn at random. After a failure that outlasts the retries ``env_reset_failed`` is set and the conversation
        is empty. Raises ``ClientError`` for a mistake of configuration.
        """
        # gem.Env.reset would seed the random state of the whole process, which other environments' threads share.
        self.close()
        self.env_reset_failed = self.env_timeout = False
        self.failure = None
        self.current_step = 0
        self._messages, self._reward = [], None
        number = self._random.randrange(2**31) if seed is None else seed
        try:
            opened = self._retry(lambda: self._open(number))
        except InfrastructureFailure as failure:
            self.env_reset_failed = True
            self._note(failure)
            logger.warning("The environment could not be reset: %s", failure)
            return [], {"tools": [], "task_name": "", "failure_mode": _failure_mode(failure), "error_msg": str(failure)}
        self._messages, tools, name = opened
        self._playing = True
        info = {"tools": tools, "task_name": name, "failure_mode": "", "error_msg": ""}
        return self._observation(), info

    def step(self, action: Any) -> tuple[list[ChatMessage], float, bool, bool, dict[str, Any]]:
        """Take the model's text, or ROLL's reason to stop: conversation, reward, terminated, truncated, info.

        ``truncated``: the episode ended otherwise than by the environment. After the end it stays ended.
        """
        self.current_step += 1
        reason = stop_reason_of(action)
        if not self._playing:
            return self._observation(), 0.0, True, True, self._info("already_over", [])
        try:
            # ROLL decodes with the special tokens.
            done = self._play(without_end_marks(str(action)).rstrip()) if reason is None else self._stop(reason)
        except InfrastructureFailure as failure:
            done = RollStep(self._messages, "infrastructure", failure=failure)
        self._messages = done.messages
        if done.stop_reason is None:
            return self._observation(), 0.0, False, False, self._info("continue", done.problems)
        if done.failure is not None:
            self._note(done.failure)
            logger.warning("The episode is lost, not to be trained on: %s", done.failure)
        self._reward = done.reward
        self.close()
        truncated = done.stop_reason != "finished"
        info = self._info(reason or done.stop_reason, done.problems)
        return self._observation(), done.reward or 0.0, True, truncated, info

    def close(self) -> None:
        """Release the episode; more than once is fine, and ``reset`` opens another one."""
        self._playing = False
        self._close()

    # --- helpers -----------------------------------------------------------------------------

    def _observation(self) -> list[ChatMessage]:
        """Return the conversation in a copy for the manager, its contents as texts."""
        if not self._warned and any(map(_has_images, self._messages)):
            self._warned = True
            logger.warning("ROLL's environment manager takes no images: the model gets a note that it cannot see them")
        return [_as_text(message) for message in copy.deepcopy(self._messages)]

    def _retry(self, opening: Callable[[], Any]) -> Any:
        wait = self.retry_backoff_seconds
        for attempt in range(self.retry_max_attempts + 1):
            try:
                return opening()
            except InfrastructureFailure as failure:
                self._close()
                if attempt == self.retry_max_attempts:
                    raise
                logger.info("Opening an episode failed, another try in %.3g s: %s", wait, failure)
                time.sleep(wait)
                wait *= 2
            except BaseException:  # Ctrl-C too: what was opened halfway is closed, whatever came
                self._close()
                raise
        raise AssertionError("range has at least one element")

    def _note(self, failure: ClientError) -> None:
        self.failure = failure
        self.env_timeout = isinstance(failure, DeadlineExceeded)

    def _info(self, stop_reason: str, problems: list[str]) -> dict[str, Any]:
        # Metrics are running values of the episode: only the last one of each counts.
        metrics: dict[str, float] = {
            **self._counts(),
            "current_step": self.current_step,
            "env_timeout": float(self.env_timeout),
            "env_reset_failed": float(self.env_reset_failed),
            "infrastructure_failed": float(self.failure is not None),
            "raw_reward": self._reward or 0.0,
        }
        failures = [] if self.failure is None else [str(self.failure)]
        return {
            "metrics": metrics,
            "metrics_agg_mode": dict.fromkeys(metrics, "last"),
            "failure_mode": "" if self.failure is None else _failure_mode(self.failure),
            "error_messages": [*failures, *problems],
            "stop_reason": stop_reason,
            "test_output": "",
        }


def _has_images(message: ChatMessage) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part["type"] != "text" for part in cast("list[dict[str, Any]]", content))


def _as_text(message: ChatMessage) -> ChatMessage:
    content = message.get("content")
    if isinstance(content, str):
        return message
    return {**message, "content": "" if content is None else without_images(cast("list[dict[str, Any]]", content))}


def _failure_mode(failure: ClientError) -> str:
    return type(failure).__name__
