"""An ORS environment as an environment of ROLL: ``env_type: openreward_env``, from any ORS server.

Options and behaviour are those of ROLL's own integration with OpenReward (alibaba/ROLL, pull request 401), on top of
the episode that all our adapters share (``rollouts.episode``): Qwen XML calls with values typed by the tool's schema,
JSON calls, several calls in a turn, nudges for turns without one, images.

``register_environments`` gives ROLL's registry both of our environments instead of its own. No file of ROLL is edited
for that: ``env_manager_cls: ors_clients.roll.env_manager.OrsStepEnvManager`` does it in each worker.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from ors_clients.api_keys import server_key
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.tool_schemas import openai_tools
from ors_clients.errors import ConfigurationError, DeadlineExceeded
from ors_clients.rollouts.control_texts import control_texts_of
from ors_clients.rollouts.episode import RolloutLimits, TurnEpisode, TurnResult
from ors_clients.rollouts.messages import ChatMessage
from ors_clients.rollouts.rewards import Reduction, RewardRule
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.rollouts.upload_events import RolloutLabels
from ors_clients.tool_calls import MalformedCall, find_format
from ors_clients.trainers.roll.base import RollEnvironment, RollStep
from ors_clients.training.config import EnvironmentConfiguration, resolve_secrets
from ors_clients.training.episode_runner import episode_trajectory
from ors_clients.training.optional_imports import import_trainer_module
from ors_clients.transport.loop_thread import LoopThread

__all__ = ["OpenRewardEnv", "register_environments"]

Value = TypeVar("Value")

#: How long closing a session may keep the trainer's thread, in seconds; the server ends what is left behind.
_CLOSING = 30.0

_clients: dict[tuple[str | None, str | None], AsyncClient] = {}
_sinks: dict[tuple[str | None, str | None], RolloutsSink] = {}
_loop = LoopThread("ors-roll", after_fork=_clients.clear)


def register_environments() -> None:
    """Put ``openreward_env`` and ``atropos_env`` into gem's registry, over the entries of these names.

    Raises ``MissingPackage`` without gem.
    """
    registration: Any = import_trainer_module("gem.envs.registration", "Install ROLL, or pip install gem-llm")
    for name, entry_point in (
        ("openreward_env", "ors_clients.roll:OpenRewardEnv"),
        ("atropos_env", "ors_clients.roll.atropos_env:AtroposEnv"),
    ):
        registration.ENV_REGISTRY.pop(name, None)  # gem refuses a name that is taken
        registration.register(name, entry_point)


class OpenRewardEnv(RollEnvironment):
    """``env_type: openreward_env``.

    Args:
        environment_name: ``owner/Name`` or ``Name``.
        split: The split to take tasks from; the seed chooses the task.
        mode: ``train`` or ``val``, as ROLL's configurations have it; what is played is said by ``split``.
        max_steps: Turns after which the episode is cut short; turns without a readable call count.
        system_prompt_template: A system prompt; ``{tools}`` in it stands for the tools, which are then not passed to
            the chat template. None: the chat template alone describes the tools.
        reward_reduction: ``sum``, ``mean``, ``max``, ``min``, ``last`` or ``terminal``.
        nonterminal_reward: One more reward at the end of an episode that the environment did not end.
        retry_max_attempts: Further tries to open an episode.
        retry_backoff_seconds: Wait before the first of them; doubled each time.
        base_url: The server. Default: ``ORS_URL``, else ``OPENREWARD_SESSION_URL``, else http://127.0.0.1:8080.
        api_key: Its API key, if it wants one. Default: ``OPENREWARD_API_KEY`` for OpenReward's platform and for the
            server of ``OPENREWARD_SESSION_URL``, ``ORS_API_KEY`` for others (``ors_clients.api_keys``).
        secrets: Passed to each session; null takes the value of the environment variable of that name or its capitals.
        min_reward: Lower bound of the episode's reward.
        max_reward: Upper bound of the episode's reward.
        tool_call_format: ``auto``, ``qwen_xml``, ``hermes`` or ``json``.
        max_tool_output_characters: A longer tool output loses its middle.
        timeout_seconds: How long a step, or opening an episode, may take; None: as long as it does.
        upload_run_name: Upload every finished episode to the rollout API of ``OPENREWARD_API_URL`` if that is set, else
            to the server's own store of rollouts, as part of this run.

    Raises ``ConfigurationError``, here or at the first ``reset``.
    """

    def __init__(
        self,
        environment_name: str,
        split: str = "train",
        mode: str = "train",
        max_steps: int = 16,
        system_prompt_template: str | None = None,
        reward_reduction: Reduction = "sum",
        nonterminal_reward: float | None = None,
        retry_max_attempts: int = 3,
        retry_backoff_seconds: float = 5.0,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        secrets: Mapping[str, str | None] | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        tool_call_format: str = "auto",
        max_tool_output_characters: int | None = None,
        timeout_seconds: float | None = None,
        upload_run_name: str | None = None,
    ) -> None:
        super().__init__(
            max_steps=max_steps, retry_max_attempts=retry_max_attempts, retry_backoff_seconds=retry_backoff_seconds
        )
        self.environment_name = environment_name
        self.split = split
        self.mode = mode
        self.system_prompt_template = system_prompt_template
        self.reward_rule = RewardRule(reward_reduction, nonterminal_reward, min_reward, max_reward)
        self.limits = RolloutLimits(max_turns=max_steps, max_tool_output_characters=max_tool_output_characters)
        self.tool_call_format = find_format(tool_call_format)
        self.timeout_seconds = timeout_seconds
        self.upload_run_name = upload_run_name
        #: The episode being played, or the last one.
        self.episode: TurnEpisode | None = None
        self._server = (base_url, api_key)
        self._secrets = resolve_secrets(EnvironmentConfiguration(secrets={}), secrets or {})
        self._count: int | None = None
        self._task = -1
        self._begun = 0.0

    @property
    def env_info(self) -> dict[str, Any]:
        return {
            "environment_name": self.environment_name,
            "split": self.split,
            "task_index": self._task,
            "current_step": self.current_step,
            **self._counts(),
        }

    def _open(self, number: int) -> tuple[list[ChatMessage], list[dict[str, Any]], str]:
        async def open_episode() -> tuple[list[ChatMessage], list[dict[str, Any]]]:
            environment = _client(*self._server).environment(self.environment_name)
            if self._count is None:
                self._count = await environment.num_tasks(self.split)
            if self._count == 0:
                raise ConfigurationError(f"Split {self.split!r} of {self.environment_name} has no tasks")
            self._task = number % self._count
            self._begun = time.monotonic()
            session = environment.session(split=self.split, index=self._task, secrets=self._secrets or None)
            self.episode = TurnEpisode(
                session,
                self.tool_call_format,
                self.limits,
                self.reward_rule,
                self.system_prompt_template,
                control_texts=control_texts_of(self.tokenizer),
            )
            start = await self.episode.reset()
            return start.messages, openai_tools(start.tools)

        messages, tools = self._run(open_episode())
        return messages, tools, f"{self.environment_name}:{self.split}:{self._task}"

    def _play(self, text: str) -> RollStep:
        assert self.episode is not None
        return self._step_of(self._run(self.episode.step(text)))

    def _stop(self, reason: str) -> RollStep:
        assert self.episode is not None
        return self._step_of(self.episode.stop("stopped"))

    def _step_of(self, turn: TurnResult) -> RollStep:
        assert self.episode is not None
        reason = "max_steps" if turn.stop_reason == "max_turns" else turn.stop_reason
        if turn.over and self.upload_run_name is not None:
            self._upload(self.episode, turn, self.upload_run_name)
        return RollStep(list(self.episode.shown), reason, turn.reward, turn.problems, turn.failure)

    def _upload(self, episode: TurnEpisode, turn: TurnResult, run_name: str) -> None:
        """Hand the episode over in the background. ROLL has its tokens; here are its messages, calls and rewards."""
        trajectory = episode_trajectory(episode, uuid.uuid4().hex, self._task, time.monotonic() - self._begun)
        labels = RolloutLabels(
            run_name,
            reward=turn.reward,
            environment=self.environment_name,
            split=self.split,
            rollout_info={"task_index": self._task},
        )
        _sink(*self._server).submit(trajectory, labels)

    def _close(self) -> None:
        if self.episode is not None:
            with contextlib.suppress(TimeoutError):
                _loop.run(self.episode.close(), _CLOSING)

    def _counts(self) -> dict[str, float]:
        steps = [] if self.episode is None else self.episode.steps
        malformed = sum(isinstance(step.call, MalformedCall) for step in steps)
        return {
            "num_tool_calls": len(steps) - malformed,
            "num_failed_tool_calls": sum(step.problem is not None for step in steps) - malformed,
            "num_malformed_tool_calls": malformed,
            "success": float(any((step.reward or 0) > 0 for step in steps)),
        }

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        try:
            return _loop.run(work, self.timeout_seconds)
        except DeadlineExceeded:
            raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"The environment took more than {self.timeout_seconds} s", "Raise timeout_seconds"
            ) from None


def _sink(base_url: str | None, api_key: str | None) -> RolloutsSink:
    """Return this process's upload: to the rollout API of ``OPENREWARD_API_URL`` if set, else to the server itself."""
    key = (base_url, api_key)
    if key not in _sinks and os.environ.get("OPENREWARD_API_URL"):
        _sinks[key] = RolloutsSink()  # the server's key is not that API's
    elif key not in _sinks:
        url = _client(base_url, api_key).url
        _sinks[key] = RolloutsSink(url, api_key=server_key(url) if api_key is None else api_key)
    return _sinks[key]


def _client(base_url: str | None, api_key: str | None) -> AsyncClient:
    """Return this process's client of a server; call it on the background loop only."""
    key = (base_url, api_key)
    if key not in _clients:
        _clients[key] = AsyncClient(base_url, api_key=api_key)
    return _clients[key]
