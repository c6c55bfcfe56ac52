"""State of a trainer's process between the samples: connections, renderer and sinks, one set for each event loop.

slime and Miles call a function for each sample and give it nothing to keep things in. Here they are made at first use,
for the event loop that asks, and found again by the arguments they were made from. What waits to be sent when the
process ends is sent then.

Some trainers log what a function raises and draw another group, so that an error which every rollout would meet never
ends their run. ``end_run`` keeps it, for the whole process; ``raise_end`` raises it where the trainer does not catch.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.sinks import JsonlSink, RolloutsSink, TrajectorySink
from ors_clients.samplers import Sampler, SGLangSampler
from ors_clients.training.arguments import router_url, server_url, tokenizer_name, training_file
from ors_clients.training.config import TrainingConfiguration
from ors_clients.training.episode_runner import EpisodeRunner
from ors_clients.training.hooks import load_hook
from ors_clients.training.losses import Losses
from ors_clients.training.optional_imports import INSTALL_TRAIN, import_trainer_module

if TYPE_CHECKING:
    from ors_clients.transport.bounded_httpx import BoundedAsyncClient

__all__ = [
    "chat_renderer",
    "close_all",
    "end_run",
    "engine",
    "episode_runner",
    "group_filter",
    "http_client",
    "raise_end",
    "run_ended",
    "take_losses",
]

_log = logging.getLogger(__name__)

Kept = TypeVar("Kept")

_kept: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Any]] = WeakKeyDictionary()


def _keep(key: Hashable, make: Callable[[], Kept]) -> Kept:
    """Return the object for ``key`` on the running event loop; make it at first use."""
    kept = _kept.setdefault(asyncio.get_running_loop(), {})
    if key not in kept:
        kept[key] = make()
    return cast("Kept", kept[key])


def episode_runner(args: Any) -> EpisodeRunner:
    """Return the runner for the training file and server that ``args`` name. Raises ``ConfigurationError``."""
    file, url = training_file(args), server_url(args)

    def make() -> EpisodeRunner:
        configuration = TrainingConfiguration.load(file)
        sinks, uploads = _sinks(configuration), _uploads(configuration)
        return EpisodeRunner(configuration, base_url=url, sinks=sinks, uploads=uploads, losses=_losses)

    return _keep(("runner", file, url), make)


def chat_renderer(args: Any, tokenizer: Any = None) -> ChatRenderer:
    """Return the renderer of the model's chat template, for the trainer's tokenizer if given, else for a loaded one.

    Raises ``ConfigurationError`` if there is none to load.
    """
    thinking = episode_runner(args).configuration.thinking
    if tokenizer is None:
        name = tokenizer_name(args)
        tokenizer = _keep(("tokenizer", name), lambda: _load_tokenizer(name))
    return _keep(("renderer", id(tokenizer), thinking), lambda: ChatRenderer(tokenizer, thinking=thinking))


def engine(args: Any) -> Sampler:
    """Return the SGLang router that ``args`` name."""
    url = router_url(args)
    return _keep(("engine", url), lambda: SGLangSampler(url))


def http_client() -> BoundedAsyncClient:
    """Return the client for inference endpoints. Generations may take long, so only connecting has a time limit."""
    import httpx

    from ors_clients.transport.bounded_httpx import BoundedAsyncClient

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return _keep("http", lambda: BoundedAsyncClient(timeout=httpx.Timeout(None, connect=30.0), limits=limits))


def group_filter(args: Any) -> Callable[..., Any] | None:
    """Return the user's own filter of groups, which the training file names. Raises ``ConfigurationError``."""
    return _group_filter(training_file(args))


@functools.cache
def _group_filter(file: str) -> Callable[..., Any] | None:
    path = TrainingConfiguration.load(file).group_filter
    return None if path is None else load_hook("group_filter", path)


#: Of all event loops, for a batch is logged outside of them.
_losses = Losses()


def take_losses(prefix: str) -> dict[str, float]:
    """Return the counts of the process's training rollouts since the last call (``Losses.take``)."""
    return _losses.take(prefix)


#: Why the run has to end: at most one error, the first.
_end: list[Exception] = []


def end_run(error: Exception) -> None:
    """Keep an error that no later rollout of this process can escape. The first one stands."""
    if not _end:
        _log.error("The run cannot go on: %s", error, exc_info=error)
        _end.append(error)


def run_ended() -> bool:
    """Return whether ``end_run`` was called."""
    return bool(_end)


def raise_end() -> None:
    """Raise the error that ended the run, if one did."""
    if _end:
        raise _end[0]


async def close_all() -> None:
    """Close what was made for the running event loop, and forget what ended the run, the losses and the filters."""
    _end.clear()
    _losses.take("")
    _group_filter.cache_clear()
    for kept in _kept.pop(asyncio.get_running_loop(), {}).values():
        close = getattr(kept, "close", None) or getattr(kept, "aclose", None)
        if close is not None:
            await close()


def _load_tokenizer(name: str) -> Any:
    transformers = import_trainer_module("transformers", INSTALL_TRAIN)
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        remedy = "Name a checkpoint with --hf-checkpoint"
        raise ConfigurationError(f"No tokenizer in {name}: {str(error).splitlines()[0]}", remedy) from error


def _sinks(configuration: TrainingConfiguration) -> list[TrajectorySink]:
    """Return the sinks of every rollout: a file, and the rollout API of ``OPENREWARD_API_URL`` if that is set."""
    sinks: list[TrajectorySink] = []
    if configuration.rollouts_file is not None:
        sinks.append(JsonlSink(configuration.rollouts_file))
    if configuration.upload_rollouts and os.environ.get("OPENREWARD_API_URL"):
        sinks.append(RolloutsSink())
    return sinks


def _uploads(configuration: TrainingConfiguration) -> Callable[[str], TrajectorySink] | None:
    """Return the function that makes a sink for an environment's own server; None with ``OPENREWARD_API_URL``."""
    return RolloutsSink if configuration.upload_rollouts and not os.environ.get("OPENREWARD_API_URL") else None
