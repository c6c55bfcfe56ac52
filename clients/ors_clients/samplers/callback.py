"""A trainer's own engine as a function: whatever it raises is the engine's failure, not the agent's."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from ors_clients.errors import ClientError, SamplerFailed
from ors_clients.samplers.generations import Generation, SamplingParameters

__all__ = ["CallbackSampler", "GenerateFunction"]


class GenerateFunction(Protocol):
    """Continues ids; see ``Sampler.generate``."""

    def __call__(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str]
    ) -> Awaitable[Generation]: ...


class CallbackSampler:
    """Samples by an asynchronous function."""

    def __init__(self, function: GenerateFunction) -> None:
        self._function = function

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids``. Raises ``SamplerFailed``."""
        try:
            return await self._function(ids, parameters, rollout_id=rollout_id, images=images)
        except ClientError:
            raise
        except Exception as error:  # the function is the trainer's, and so are its exceptions
            raise SamplerFailed(f"The trainer's engine failed: {type(error).__name__}: {error}") from error
