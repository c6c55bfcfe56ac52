"""SGLang's ``/generate``, or a router before it: what slime and Miles run.

The ids are those of ``meta_info.output_token_logprobs``, where each stands beside its own log-probability; another
list of ids in the answer is not looked at, for a router need not send it. ``no_stop_trim`` keeps the tokens of a stop
string in the generation: they were sampled, so they are trained on and are what the next turn continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ors_clients.errors import SamplerFailed
from ors_clients.samplers.engine_requests import ROUTING_HEADER, EngineRequests
from ors_clients.samplers.generations import FinishReason, Generation, SamplingParameters

__all__ = ["SGLangSampler", "sglang_generation", "sglang_payload"]


class SGLangSampler:
    """An SGLang server at ``url``; ``headers`` go with each request."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.requests = EngineRequests(url, headers=headers)

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids``. Raises ``SamplerFailed``."""
        payload = sglang_payload(ids, parameters, images)
        return sglang_generation(await self.requests.post("/generate", payload, {ROUTING_HEADER: rollout_id}))

    async def close(self) -> None:
        """Close the connections."""
        await self.requests.close()


def sglang_payload(ids: Sequence[int], parameters: SamplingParameters, images: Sequence[str] = ()) -> dict[str, Any]:
    """Return the body of a ``/generate`` request."""
    payload: dict[str, Any] = {
        "input_ids": list(ids),
        "sampling_params": {
            "max_new_tokens": parameters.max_tokens,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "top_k": parameters.top_k,
            "stop": list(parameters.stop),
            "stop_token_ids": list(parameters.stop_token_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            **parameters.extra,
        },
        "return_logprob": True,
    }
    if images:
        payload["image_data"] = list(images)
    return payload


def sglang_generation(answer: Mapping[str, Any]) -> Generation:
    """Return the generation in an answer of ``/generate``. Raises ``SamplerFailed``."""
    try:
        meta = cast("dict[str, Any]", answer["meta_info"])
        finish = meta["finish_reason"]["type"]
        pairs = cast("list[list[Any]]", meta.get("output_token_logprobs") or [])
        ids = [int(pair[1]) for pair in pairs]
        logprobs = [float(pair[0]) for pair in pairs]
        text = answer.get("text") or ""
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SamplerFailed(f"SGLang's answer is not a generation: {type(error).__name__}: {error}") from None
    if not ids and meta.get("completion_tokens"):
        raise SamplerFailed(
            f"SGLang generated {meta['completion_tokens']} tokens and sent none with its log-probability",
            "Its answer needs meta_info.output_token_logprobs",
        )
    kept = {key: value for key, value in meta.items() if key not in ("output_token_logprobs", "input_token_logprobs")}
    return Generation(ids, logprobs, str(text), _FINISH.get(finish, "stop"), kept)


_FINISH: dict[Any, FinishReason] = {"length": "length", "abort": "abort"}
