"""A rollout's requests to an inference engine and its answers: ids in, ids out, one log-probability each.

A sampler never sees text and never makes text that is used for training. Each answer of an engine is checked once,
here: one whose ids and log-probabilities differ in number is refused with ``SamplerFailed``
instead of shifting every later token of the sample by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ors_clients.errors import SamplerFailed

__all__ = ["FinishReason", "Generation", "Sampler", "SamplingParameters"]

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParameters:
    """Sampling parameters that all engines share; ``extra`` goes to the engine unchanged, under its own names."""

    #: Tokens a generation may have at most.
    max_tokens: int = 4096
    temperature: float = 1.0
    top_p: float = 1.0
    #: -1: no limit.
    top_k: int = -1
    #: Texts after which the engine stops; they stay in the generation.
    stop: tuple[str, ...] = ()
    #: Tokens after which the engine stops, besides its own end of turn; they stay in the generation.
    stop_token_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Generation:
    """One turn of the model. Raises ``SamplerFailed`` unless each id has its own finite log-probability."""

    ids: list[int]
    logprobs: list[float]
    #: The engine's own text of ``ids``, special tokens included; empty where it gives none, and is then decoded.
    text: str
    #: ``stop``: end of turn or a stop string. ``length``: ``max_tokens``. ``abort``: the engine broke it off.
    finish: FinishReason
    #: What else the engine said: weight version, cached tokens.
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise SamplerFailed(
                f"The engine gave {len(self.ids)} token ids and {len(self.logprobs)} log-probabilities",
                "Each generated token needs its own; see the sampler's requirements on the engine",
            )
        try:
            finite = math.isfinite(math.fsum(self.logprobs))
        except (TypeError, ValueError, OverflowError):
            finite = False
        if not finite:
            raise SamplerFailed("The engine gave a log-probability that is not a finite number")


class Sampler(Protocol):
    """An inference engine, however it is reached."""

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids``. ``rollout_id`` lets a router keep a rollout where its prefix is cached; ``images`` are the
        data URLs of the images in ``ids``, in order. Raises ``SamplerFailed``. Cancelling it frees the engine."""
        ...
