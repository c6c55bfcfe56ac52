"""``/v1/completions`` with token ids, as vLLM serves it: the prompt is a list of ids, and so is the answer.

vLLM sends the generated ids (``return_token_ids``, from 0.10.2 on) and one log-probability each (``logprobs: 0``, the
sampled token's). It sends the prompt's ids too, which are compared with what was asked: a server that adds a token or
cuts the prompt would otherwise be trained on ids it never saw. A server that gives no ids cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ors_clients.errors import ConfigurationError, SamplerFailed
from ors_clients.samplers.engine_requests import ROUTING_HEADER, EngineRequests
from ors_clients.samplers.generations import FinishReason, Generation, SamplingParameters

__all__ = ["CompletionsSampler"]


class CompletionsSampler:
    """A vLLM server; ``url`` with or without its ``/v1``, ``model`` the name it serves the model by."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        sent = dict(headers or {})
        if api_key is not None:
            sent["Authorization"] = f"Bearer {api_key}"
        base = url.rstrip("/").removesuffix("/v1")
        self.requests = EngineRequests(base, headers=sent)
        self._model = model

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids``. Raises ``SamplerFailed``, and ``ConfigurationError`` for images, which this route has no
        place for."""
        if images:
            raise ConfigurationError(
                "/v1/completions takes no images", "Use VLLMSampler or SGLangSampler for a model with vision"
            )
        prompt = list(ids)
        answer = await self.requests.post(
            "/v1/completions",
            {
                "model": self._model,
                "prompt": prompt,
                "max_tokens": parameters.max_tokens,
                "temperature": parameters.temperature,
                "top_p": parameters.top_p,
                "top_k": parameters.top_k,
                "stop": list(parameters.stop),
                "stop_token_ids": list(parameters.stop_token_ids),
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                "logprobs": 0,
                "return_token_ids": True,
                **parameters.extra,
            },
            {ROUTING_HEADER: rollout_id},
        )
        return _generation(answer, prompt)

    async def close(self) -> None:
        """Close the connections."""
        await self.requests.close()


def _generation(answer: dict[str, Any], prompt: list[int]) -> Generation:
    try:
        choice = cast("dict[str, Any]", answer["choices"][0])
        ids = cast("list[int] | None", choice.get("token_ids"))
        listed = cast("dict[str, Any]", choice.get("logprobs") or {})
        logprobs = cast("list[float] | None", listed.get("token_logprobs"))
        seen = choice.get("prompt_token_ids")
        finish = choice.get("finish_reason")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise SamplerFailed(f"The answer is not a completion: {type(error).__name__}: {error}") from None
    if ids is None or logprobs is None:
        missing = "choices[0].token_ids" if ids is None else "choices[0].logprobs.token_logprobs"
        raise SamplerFailed(f"The engine gave no {missing}", "Serve the model with vLLM 0.10.2 or later")
    if seen is not None and seen != prompt:
        raise SamplerFailed(
            f"The engine continued {len(seen)} other ids than the {len(prompt)} it was sent",
            "Serve the model without truncation and without tokens added to the prompt",
        )
    return Generation(ids, logprobs, str(choice.get("text") or ""), _FINISH.get(finish, "stop"), {})


_FINISH: dict[Any, FinishReason] = {"length": "length", "abort": "abort", "error": "abort"}
