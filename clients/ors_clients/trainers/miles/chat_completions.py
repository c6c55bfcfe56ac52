"""Requests for chat completions of Miles' session server."""

from __future__ import annotations

from typing import Any

from ors_clients.errors import ResponseTooLarge, SamplerFailed
from ors_clients.training.process_state import http_client

__all__ = ["complete"]


async def complete(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Request one chat completion, once: the server has recorded it even if its answer was lost.

    Raises ``SamplerFailed``.
    """
    import httpx

    try:
        response = await http_client().post(url, json=body)
    except ResponseTooLarge as error:
        raise SamplerFailed(f"The model's endpoint cannot be used: {error.cause}") from error
    except httpx.HTTPError as error:
        raise SamplerFailed(f"The model's endpoint did not answer: {type(error).__name__}") from error
    if response.status_code != 200:
        raise SamplerFailed(f"The model's endpoint answered {response.status_code}: {response.text[:500]}")
    try:
        answer = response.json()
        _ = answer["choices"][0]["message"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SamplerFailed("The model's endpoint answered no chat completion") from error
    return answer
