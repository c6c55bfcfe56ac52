"""An Atropos environment as an environment of ROLL, each of its requests answered by one step.

The environment's coroutine is suspended at each request of its model and resumed with the text of the next ``step``
(``atropos.interception``): nothing is played again, so any number of turns is right and costs each turn once.
The score of the episode goes through the Universal Reward Bridge (``ors_clients.rollouts.rewards``), configured by
``reward_config`` in the YAML; an episode that was cut short counts there as a failed answer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

from ors_clients.errors import ConfigurationError, DeadlineExceeded, InfrastructureFailure
from ors_clients.rollouts.control_texts import control_texts_of
from ors_clients.rollouts.messages import ChatMessage
from ors_clients.rollouts.rewards import FormatMarker, RewardBridge, shape_reward
from ors_clients.trainers.atropos.host import AtroposSettings, shared_host
from ors_clients.trainers.atropos.interception import InterceptedEpisode, Turn
from ors_clients.trainers.roll.base import RollEnvironment, RollStep
from ors_clients.trainers.roll.fork_locks import prepare_worker

__all__ = ["AtroposEnv", "reward_bridge"]

logger = logging.getLogger("ors_clients.roll.atropos_env")

#: How long an abandoned episode may take to clean up, in seconds.
_CLOSING = 10.0


def reward_bridge(config: Mapping[str, Any] | None) -> RewardBridge:
    """``reward_config`` of the YAML; what is left out has the bridge's default. Raises ``ConfigurationError``."""
    given = dict(config or {})
    unknown = set(given) - {"format_markers", "length_bounty_max"}
    if unknown:
        raise ConfigurationError(f"reward_config has no key {', '.join(sorted(unknown))}")
    options: dict[str, Any] = {}
    try:
        if (markers := given.get("format_markers")) is not None:
            options["format_markers"] = tuple(
                FormatMarker(str(marker["marker"]), float(marker["reward"])) for marker in markers
            )
        if (bounty := given.get("length_bounty_max")) is not None:
            options["length_bounty_max"] = float(bounty)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"reward_config cannot be read: {error!r}",
            "format_markers is a list of {marker: text, reward: number}, length_bounty_max a number",
        ) from None
    return RewardBridge(**options)


class AtroposEnv(RollEnvironment):
    """``env_type: atropos_env``.

    Args:
        atropos_env_path: ``package.module:Class`` of the Atropos environment.
        max_steps: Turns after which the episode is cut short.
        env_config: Fields of the environment's own configuration.
        debug: Log every turn.
        reward_config: The reward bridge: ``format_markers`` and ``length_bounty_max``. False: the raw score.
        companions: Failing answers as further members of the group, for environments that drop groups of equal scores.
        unscored: The score where the environment gives none; None: the sample is dropped.
        num_items: How many items of the environment's stream are tasks.
        timeout_seconds: How long the environment may take between two requests.
        retry_max_attempts: Further tries to open an episode.
        retry_backoff_seconds: Wait before the first of them; doubled each time.
        mode: ``train`` or ``val``, as ROLL's configurations have it; both play the same tasks.

    Raises ``ConfigurationError``, here or at the first ``reset``.
    """

    def __init__(
        self,
        atropos_env_path: str,
        max_steps: int = 16,
        env_config: Mapping[str, Any] | None = None,
        debug: bool = False,
        reward_config: Mapping[str, Any] | bool | None = None,
        *,
        companions: Sequence[str] = (),
        unscored: float | None = None,
        num_items: int | None = None,
        timeout_seconds: float = 600.0,
        retry_max_attempts: int = 3,
        retry_backoff_seconds: float = 5.0,
        mode: str = "train",
    ) -> None:
        super().__init__(
            max_steps=max_steps, retry_max_attempts=retry_max_attempts, retry_backoff_seconds=retry_backoff_seconds
        )
        prepare_worker()
        if reward_config is True:
            reward_config = None
        self.bridge = None if reward_config is False else reward_bridge(reward_config)
        self.debug = debug
        self.timeout_seconds = timeout_seconds
        self.mode = mode
        settings = AtroposSettings(atropos_env_path, _plain(env_config or {}), tuple(companions), unscored, num_items)
        self._host = shared_host(settings)
        self._episode: InterceptedEpisode[float] | None = None
        self._replies: list[str] = []
        self._task = -1

    @property
    def env_info(self) -> dict[str, Any]:
        return {
            "environment_name": self._host.settings.environment,
            "task_index": self._task,
            "current_step": self.current_step,
        }

    def _open(self, number: int) -> tuple[list[ChatMessage], list[dict[str, Any]], str]:
        async def open_episode() -> Turn[float]:
            self._task = number % await self._host.count()
            self._episode = await self._host.episode(self._task)
            self._replies = self._episode.replies
            return await self._episode.start()

        turn = self._run(open_episode())
        if turn.over:
            raise InfrastructureFailure(
                f"{self._host.settings.environment} scored task {self._task} without asking its model"
            )
        return self._to_show(turn), turn.tools, f"{self._host.settings.environment}:{self._task}"

    def _play(self, text: str) -> RollStep:
        episode = self._episode
        assert episode is not None
        turn = self._run(episode.answer(text))
        if self.debug:
            logger.info("Step %d of task %d: %r", self.current_step, self._task, text[:200])
        if turn.over:
            assert turn.outcome is not None
            return RollStep(self._to_show(turn), "finished", self._reward_of(turn.outcome, text))
        if self.current_step >= self.max_steps:
            return RollStep(self._to_show(turn), "max_steps", self._reward_of(0.0, text))
        return RollStep(self._to_show(turn))

    def _to_show(self, turn: Turn[float]) -> list[ChatMessage]:
        """Return a turn's conversation without control tokens in what is not the model's."""
        return control_texts_of(self.tokenizer).in_messages(turn.messages, of_model=True)

    def _stop(self, reason: str) -> RollStep:
        return RollStep(self._messages, reason, self._reward_of(0.0, self._replies[-1] if self._replies else ""))

    def _reward_of(self, score: float, text: str) -> float:
        reward = score if self.bridge is None else shape_reward(score, text, self.bridge)
        if self.debug:
            logger.info("Score %g, reward %g", score, reward)
        return reward

    def _close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            # An environment that does not let itself be cancelled keeps its task, not the trainer's thread.
            with contextlib.suppress(TimeoutError):
                self._host.loop.run(episode.close(), _CLOSING)

    def _counts(self) -> dict[str, float]:
        return {"num_turns": len(self._replies)}

    def _run(self, work: Coroutine[Any, Any, Turn[float]]) -> Turn[float]:
        try:
            return self._host.loop.run(work, self.timeout_seconds)
        except InfrastructureFailure:
            raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"The environment took more than {self.timeout_seconds:g} s", "Raise timeout_seconds"
            ) from None


def _plain(value: Any) -> Any:
    """Return a configuration without OmegaConf's types, which ROLL passes on inside ``env_config``."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value
