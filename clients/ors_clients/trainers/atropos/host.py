"""One Atropos environment hosted in this process, its episodes played by the caller that answers their requests.

The environment lives on an event loop of its own thread, because Atropos environments compute on their loop. It is made
once for each configuration and serves any number of episodes at a time. Its items come from a stream
(``get_next_item``); the host keeps what it has read, so that an index names the same item each time. The same index is
then the same task for every member of a group, in every process, as far as the environment's own ``setup`` is
deterministic.

The score of an episode is the score Atropos would have sent to its trainer. Many environments send nothing for a group
whose members all scored the same, and so nothing at all for a group of one. For those there are ``companions``: fixed,
failing answers as the group's further members. Where the environment still gives no score, ``unscored`` is the score,
and without that the episode has none and is not to be trained on, which is what Atropos itself would have done.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.rewards import check_reward
from ors_clients.trainers.atropos.interception import EpisodeFailed, InterceptedEpisode, current_episode
from ors_clients.trainers.atropos.math_verify_timeouts import bound_math_verify
from ors_clients.training.optional_imports import import_trainer_module
from ors_clients.transport.loop_thread import LoopThread

__all__ = ["AtroposHost", "AtroposSettings", "shared_host"]

#: Atropos's mask of a token that is not trained on.
_NOT_TRAINED = -100
#: Items kept of an environment that does not say how many there are.
_ITEMS = 256


@dataclass(frozen=True)
class AtroposSettings:
    """Class, configuration and companions of one environment."""

    #: ``package.module:Class``.
    environment: str
    #: Fields of the environment's own configuration; they replace those of its ``config_init``.
    env_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Answers of the further members of a group.
    companions: Sequence[str] = ()
    #: The score of an episode that the environment gives none; None: it is not to be trained on.
    unscored: float | None = None
    #: How many items of the stream count as tasks. None: as many as ``environment.train`` has, else 256.
    num_items: int | None = None

    @property
    def key(self) -> str:
        """Equal for equal settings."""
        return json.dumps([vars(self) | {"env_config": dict(self.env_config)}], sort_keys=True, default=repr)


class AtroposHost:
    """The environment and its items. All coroutine methods belong to the loop of ``loop``."""

    def __init__(self, settings: AtroposSettings) -> None:
        self.settings = settings
        self.loop = LoopThread("ors-atropos")
        self._environment: Any = None
        self._opening = asyncio.Lock()
        self._items: list[Any] = []
        self._count = 0
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Make the environment and set it up, once. Raises ``ConfigurationError``; ``EpisodeFailed`` where the
        environment's own code raised, and the next call tries again."""
        async with self._opening:
            if self._environment is not None:
                return
            environment = _make(self.settings)
            try:
                await environment.setup()
            except Exception as error:  # the author's code may raise anything
                raise EpisodeFailed(f"{self.settings.environment} raised {type(error).__name__} in setup") from error
            self._count = self.settings.num_items or len(getattr(environment, "train", ())) or _ITEMS
            self._environment = environment

    async def count(self) -> int:
        """Return the number of tasks."""
        await self.open()
        return self._count

    async def _item(self, index: int) -> Any:
        """Return the item of a task; reads the stream up to it."""
        async with self._reading:
            while len(self._items) <= index % self._count:
                item = await self._environment.get_next_item()
                if item is None:
                    if not self._items:
                        raise EpisodeFailed("The environment's stream of items is empty")
                    self._count = len(self._items)
                    continue
                self._items.append(item)
        # An episode may write into its item; the next one of the same task gets it clean.
        return copy.deepcopy(self._items[index % self._count])

    async def episode(self, index: int) -> InterceptedEpisode[float]:
        """Return an episode of the task, not started yet. Its outcome is the score. Raises ``ConfigurationError``."""
        await self.open()

        async def play() -> float:
            collected: Any = await self._environment.collect_trajectories(await self._item(index))
            groups: Any = collected[0]
            if groups:
                groups = await self._environment.postprocess_histories(groups)
            score = self._score(groups)
            check_reward(score)
            return score

        return InterceptedEpisode(play)

    def _score(self, groups: Any) -> float:
        episode = current_episode()
        assert episode is not None
        # Environments that train on each step send a list of groups; the last one scores the end of the episode.
        found: list[Any] = list(cast("list[Any]", groups)) if isinstance(groups, list) else [groups]
        for group in reversed(found):
            if isinstance(group, Mapping):
                score = self._score_of_policy(cast("Mapping[str, Any]", group), episode.replies[-1:])
                if score is not None:
                    return score
        if self.settings.unscored is None:
            raise EpisodeFailed(
                "The environment gave the episode no score",
                "If it drops groups that all scored the same, give companions, or say with unscored what that is worth",
            )
        return self.settings.unscored

    def _score_of_policy(self, group: Mapping[str, Any], last_reply: Sequence[str]) -> float | None:
        """Return the score of the member with the policy's answer; environments shuffle groups and drop members."""
        scores = cast("list[Any]", group.get("scores") or [])
        if len(scores) == 1 and not self.settings.companions:
            return float(scores[0])
        ids = cast("list[list[int]]", group.get("tokens") or [])
        masks = cast("list[list[int]]", group.get("masks") or ids)
        spoken = [self._spoken(tokens, mask) for tokens, mask in zip(ids, masks, strict=False)]
        wanted = [self._respelled(reply) for reply in last_reply]
        others = [text for text in map(self._respelled, self.settings.companions) if text not in wanted]
        for score, text in zip(scores, spoken, strict=False):
            if all(reply in text for reply in wanted) and not any(other in text for other in others):
                return float(score)
        return None

    def _spoken(self, tokens: list[int], mask: list[int]) -> str:
        """Return the part of a sequence that the model wrote: the prompt may hold the same words."""
        return self._environment.tokenizer.decode(
            [token for token, trained in zip(tokens, mask, strict=False) if trained != _NOT_TRAINED]
        )

    def _respelled(self, text: str) -> str:
        """Return a text as it comes back from the tokenizer."""
        tokenizer = self._environment.tokenizer
        return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))).strip()


def _make(settings: AtroposSettings) -> Any:
    """Return the environment, whose requests for a model are held. Raises ``ConfigurationError``."""
    from ors_clients.trainers.atropos.intercepting_server import InterceptingServerManager, member

    environment_class = _load(settings.environment)
    # The environment runs on the thread of its loop, and may score with math_verify there.
    bound_math_verify()
    base_config, servers = environment_class.config_init()
    members = 1 + len(settings.companions)
    given = {"group_size": members, "use_wandb": False, **settings.env_config}
    if given["group_size"] != members:
        raise ConfigurationError(
            f"group_size is {given['group_size']} with {len(settings.companions)} companions",
            "A group is the policy and its companions: give one companion for each further member, or group_size 1",
        )
    known: set[str] = set(cast(Any, type(base_config)).model_fields)
    if unknown := set(given) - known:
        raise ConfigurationError(
            f"{settings.environment} has no configuration field {', '.join(sorted(unknown))}",
            f"It has {', '.join(sorted(known))}",
        )
    try:
        config = type(base_config)(**{**base_config.model_dump(), **given})
        # testing: no connection to an inference server is set up; the stand-in for it is replaced below.
        environment = environment_class(config=config, server_configs=servers, slurm=False, testing=True)
    except Exception as error:  # the author's code, its configuration, and a tokenizer that is to be found
        raise ConfigurationError(f"{settings.environment} cannot be made: {error}", "Correct env_config") from error
    environment.server = InterceptingServerManager(environment.tokenizer, settings.companions)

    if settings.companions:
        collect_one = environment.collect_trajectory

        async def collect_as_member(item: Any) -> Any:
            """Note the number of the member: Atropos's default group makes one such call for each, side by side."""
            episode = current_episode()
            member.set(next(episode.members) if episode else 0)
            return await collect_one(item)

        environment.collect_trajectory = collect_as_member
    return environment


def _load(path: str) -> Any:
    module, separator, name = path.partition(":")
    if not separator:
        raise ConfigurationError(f"{path!r} names no environment", "Write it as package.module:Class")
    loaded = import_trainer_module(
        module, "The module has to be importable: install it or put its folder on PYTHONPATH"
    )
    found = getattr(loaded, name, None)
    if found is None or not hasattr(found, "collect_trajectories"):
        raise ConfigurationError(f"{module} has no Atropos environment {name!r}")
    return found


_hosts: dict[str, AtroposHost] = {}
_hosts_lock = threading.Lock()


def _forget_hosts() -> None:
    global _hosts_lock
    _hosts_lock = threading.Lock()
    _hosts.clear()


os.register_at_fork(after_in_child=_forget_hosts)


def shared_host(settings: AtroposSettings) -> AtroposHost:
    """Return this process's host for these settings: all episodes share one copy of the data set."""
    with _hosts_lock:
        host = _hosts.get(settings.key)
        if host is None:
            # Not by setdefault: what is registered for forks, as each host's loop is, is never removed.
            host = _hosts[settings.key] = AtroposHost(settings)
        return host
