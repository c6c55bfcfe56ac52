"""One interface for engines: sampling, steering a turn, forcing a recorded length, counters.

An engine lives as long as the benchmark, so that every run meets the same one. ``steered`` makes the parameters of a
live turn, ``exact`` those of its replay: as many tokens as were recorded, no more, no fewer, with the same kind of work
for the engine, an expression to sample within where the live turn had one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
from ors_clients.errors import ResponseTooLarge
from ors_clients.samplers import CompletionsSampler
from ors_clients.samplers.generations import Sampler, SamplingParameters
from ors_clients.transport.bounded_httpx import BoundedAsyncClient

from ors_benchmarks.rollout.steering import REPLAYED, Turn
from ors_server.errors import OrsError

__all__ = [
    "Engine",
    "EngineFailed",
    "EngineTotals",
    "ModelFiles",
    "UrlEngine",
    "difference",
    "read_counters",
    "without_user",
]

#: Errors of reading an answer that has not vLLM's form.
_NOT_OF_VLLM = (ValueError, LookupError, TypeError, AttributeError)


class EngineFailed(OrsError):
    """The engine does not start, is missing or has ended."""


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk."""

    name: str
    folder: Path
    #: False: a configuration without weights, for which the engine makes random ones.
    weights: bool


@dataclass(frozen=True)
class EngineTotals:
    """Counters of an engine since its start; None for a counter it does not have."""

    requests: float | None = None
    #: Seconds that requests waited, and that they ran.
    queue: float | None = None
    running: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None


def difference(before: EngineTotals, after: EngineTotals) -> EngineTotals:
    """Subtract two readings of the counters."""
    counts = {
        name: None if start is None or (end := getattr(after, name)) is None else end - start
        for name, start in vars(before).items()
    }
    return EngineTotals(**counts)


class Engine(Protocol):
    """An inference engine for the whole benchmark."""

    @property
    def name(self) -> str:
        """``vllm`` or ``url``."""
        ...

    @property
    def sampler(self) -> Sampler:
        """The sampler for rollouts."""
        ...

    def steered(self, parameters: SamplingParameters, turn: Turn) -> SamplingParameters:
        """Return the parameters of a turn that says what ``turn`` allows."""
        ...

    def exact(self, parameters: SamplingParameters, made: Sequence[int], *, steered: bool) -> SamplingParameters:
        """Return the parameters of a turn of exactly as many tokens, the same ones or others."""
        ...

    async def forget(self) -> bool:
        """Empty the prefix cache; returns whether it is empty. Raises ``EngineFailed``."""
        ...

    async def totals(self) -> EngineTotals:
        """Return its counters; empty ones if each generation has its own times. Raises ``EngineFailed``."""
        ...

    def processes(self) -> Mapping[str, int]:
        """Its processes on this machine except this one, by name."""
        ...

    def gpus(self) -> Sequence[str]:
        """Return the GPUs of this machine that it uses, by their ``nvidia-smi`` ids."""
        ...

    def description(self) -> dict[str, str]:
        """Versions and settings, for the report."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


@dataclass
class UrlEngine:
    """An OpenAI-compatible server that takes and returns token ids (vLLM's ``/v1/completions``)."""

    url: str
    model: str
    sampler: CompletionsSampler
    _http: BoundedAsyncClient
    _version: str
    name: str = field(default="url", init=False)

    @classmethod
    async def open(cls, url: str, model: str, api_key: str | None = None) -> UrlEngine:
        """Check that it serves ``model``, by that name or from a folder of that name.

        Raises ``EngineFailed`` if no engine answers, or an engine with another model.
        """
        said_url = without_user(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            _ = urlsplit(url).port  # which httpx does not look at
            http = BoundedAsyncClient(base_url=url.rstrip("/").removesuffix("/v1"), timeout=30.0, headers=headers)
        except (httpx.InvalidURL, ValueError) as error:
            raise EngineFailed(f"{said_url!r} is not an address: {error}", "Write it as http://host:port.") from None
        try:
            answer = await http.get("/v1/models")
            answer.raise_for_status()
            served = {str(entry["id"]): str(entry.get("root") or entry["id"]) for entry in answer.json()["data"]}
            version = ""
            # Its version is for the report only, and other servers have no such route, or a page of theirs there.
            with contextlib.suppress(httpx.HTTPError, ResponseTooLarge, *_NOT_OF_VLLM):
                version = str((await http.get("/version")).raise_for_status().json()["version"])
        except (httpx.HTTPError, httpx.InvalidURL, ResponseTooLarge, *_NOT_OF_VLLM) as error:
            await http.aclose()
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise EngineFailed(
                    f"The engine at {said_url} refuses the key it was sent ({error.response.status_code})"
                    if api_key
                    else f"The engine at {said_url} wants a key ({error.response.status_code})",
                    "Put it into ORS_ENGINE_API_KEY.",
                ) from None
            raise EngineFailed(
                f"No engine answers at {said_url}: {type(error).__name__}: {str(error).replace(url, said_url)}",
                "Start one, such as `python -m vllm.entrypoints.openai.api_server --model …`, and give its address.",
            ) from None
        found = [name for name, root in served.items() if model.lower() in (_last(name), _last(root))]
        if not found:
            await http.aclose()
            raise EngineFailed(
                f"The engine at {said_url} serves {', '.join(served) or 'nothing'}, and not {model}",
                "Give --model the folder it was started with, or start it with --served-model-name.",
            )
        return cls(said_url, found[0], CompletionsSampler(url, found[0], api_key=api_key), http, version)

    def steered(self, parameters: SamplingParameters, turn: Turn) -> SamplingParameters:
        """Steer by structured output."""
        return _with(parameters, structured_outputs={"regex": turn.regex})

    def exact(self, parameters: SamplingParameters, made: Sequence[int], *, steered: bool) -> SamplingParameters:
        """Force the length by equal minimum and maximum numbers of tokens."""
        if steered:
            parameters = _with(parameters, structured_outputs={"regex": REPLAYED})
        return replace(_with(parameters, min_tokens=len(made), ignore_eos=True), max_tokens=len(made))

    async def forget(self) -> bool:
        """Reset the cache through vLLM's development route; without it live runs and replays share the cache."""
        return (await self._ask("POST", "/reset_prefix_cache")).is_success

    async def totals(self) -> EngineTotals:
        """Read vLLM's metrics; empty for an engine without them."""
        answer = await self._ask("GET", "/metrics")
        if not answer.is_success:
            return EngineTotals()
        found = read_counters(answer.text)
        return EngineTotals(
            requests=found.get("vllm:request_queue_time_seconds_count"),
            queue=found.get("vllm:request_queue_time_seconds_sum"),
            running=found.get("vllm:request_inference_time_seconds_sum"),
            prompt_tokens=found.get("vllm:prefix_cache_queries_total"),
            cached_tokens=found.get("vllm:prefix_cache_hits_total"),
        )

    async def _ask(self, method: str, path: str) -> httpx.Response:
        try:
            return await self._http.request(method, path)
        except (httpx.HTTPError, ResponseTooLarge) as error:
            raise EngineFailed(
                f"The engine at {self.url} does not answer any more: {type(error).__name__}", "Its own log says why."
            ) from None

    def processes(self) -> Mapping[str, int]:
        """Unknown."""
        return {}

    def gpus(self) -> Sequence[str]:
        """Unknown: it may be on another machine."""
        return ()

    def description(self) -> dict[str, str]:
        """Return model and version, as the server reports them."""
        return {"url": self.url, "model": self.model, **({"version": self._version} if self._version else {})}

    async def close(self) -> None:
        """Close the connections; the server goes on."""
        await self.sampler.close()
        await self._http.aclose()


def without_user(url: str) -> str:
    """Return the address without a user and password, as reports may show it."""
    scheme, slashes, rest = url.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _with(parameters: SamplingParameters, **extra: Any) -> SamplingParameters:
    return replace(parameters, extra={**parameters.extra, **extra})


def read_counters(text: str) -> dict[str, float]:
    """Prometheus counters by name, summed over their labels."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([\w:]+)(?:\{[^}]*\})? ([-+.\deE]+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found
