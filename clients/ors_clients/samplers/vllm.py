"""vLLM in this process: an ``AsyncLLM`` engine, asked in token ids.

Only the last output of a request is asked for (``FINAL_ONLY``), and no text unless stop strings need it: at hundreds of
rollouts the engine's own front-end otherwise spends the processor on partial outputs. A rollout that is cancelled
cancels its request. Written for vLLM 0.11 and later.
"""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ors_clients.errors import ConfigurationError, SamplerFailed
from ors_clients.samplers.generations import FinishReason, Generation, SamplingParameters

__all__ = ["VLLMSampler"]


class VLLMSampler:
    """An engine of ``vllm.v1.engine.async_llm.AsyncLLM``. Raises ``ConfigurationError`` without vLLM."""

    def __init__(self, engine: Any) -> None:
        try:
            parameters: Any = import_module("vllm.sampling_params")
        except ImportError:
            raise ConfigurationError("vLLM is not installed", "pip install vllm") from None
        self._engine = engine
        self._parameters = parameters.SamplingParams
        self._final_only = parameters.RequestOutputKind.FINAL_ONLY
        self._requests = itertools.count()

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids``. Raises ``SamplerFailed``."""
        prompt: dict[str, Any] = {"prompt_token_ids": list(ids)}
        if images:
            prompt["multi_modal_data"] = {"image": [_picture(image) for image in images]}
        last: Any = None
        try:
            settings = self._parameters(
                max_tokens=parameters.max_tokens,
                temperature=parameters.temperature,
                top_p=parameters.top_p,
                top_k=parameters.top_k,
                stop=list(parameters.stop),
                stop_token_ids=list(parameters.stop_token_ids),
                include_stop_str_in_output=True,
                skip_special_tokens=False,
                spaces_between_special_tokens=False,
                detokenize=bool(parameters.stop),
                logprobs=0,
                output_kind=self._final_only,
                **parameters.extra,
            )
            # The engine wants an id of its own for each request.
            async for output in self._engine.generate(prompt, settings, f"{rollout_id}-{next(self._requests)}"):
                last = output
        except Exception as error:  # an engine in this process raises whatever its parts raise
            raise SamplerFailed(f"vLLM failed: {type(error).__name__}: {error}") from error
        if last is None or not last.outputs:
            raise SamplerFailed("vLLM ended a request without an output")
        return _generation(last.outputs[0])


def _generation(completion: Any) -> Generation:
    ids = list(completion.token_ids)
    if completion.logprobs is None:
        raise SamplerFailed("vLLM gave no log-probabilities")
    try:
        logprobs = [float(position[token].logprob) for token, position in zip(ids, completion.logprobs, strict=True)]
    except (KeyError, ValueError) as error:
        raise SamplerFailed(f"vLLM's log-probabilities do not belong to its tokens: {error!r}") from None
    return Generation(ids, logprobs, completion.text or "", _FINISH.get(completion.finish_reason, "stop"), {})


_FINISH: dict[Any, FinishReason] = {"length": "length", "abort": "abort", "error": "abort"}


def _picture(image: str) -> Any:
    """Return a data URL as the picture vLLM takes. Raises ``ConfigurationError`` without Pillow."""
    try:
        pillow: Any = import_module("PIL.Image")
    except ImportError:
        raise ConfigurationError("Images need Pillow", "pip install pillow") from None
    picture = pillow.open(io.BytesIO(base64.b64decode(image.partition(",")[2])))
    return picture.convert("RGB")
