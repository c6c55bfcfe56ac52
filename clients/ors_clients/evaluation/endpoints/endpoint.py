"""An OpenAI-compatible endpoint of chat completions, asked once a turn: its answers, its refusals and its failures.

It keeps three things apart. An answer is the model's, however bad it is. A conversation that no longer fits the model's
context is the model's as well (``ContextOverflow``, told by ``overflow``). All else is the endpoint's: a request that
may succeed later (429, 5xx, a lost connection, half a stream, an answer that is not a chat completion) is sent again a
few times and then becomes ``EndpointFailed`` of a kind; a refusal that every request would get (401, 402, 403, 404) is
``EndpointRefused``.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from ors_clients.errors import ConfigurationError, ResponseTooLarge, SamplerFailed
from ors_clients.evaluation.endpoints.completions import BadAnswer, Completion, StreamedAnswer, read_completion
from ors_clients.evaluation.endpoints.overflow import FINAL, PASSING, error_text, is_overflow
from ors_clients.transport.base import response_limit
from ors_clients.transport.bounded_httpx import BoundedAsyncClient, read_body
from ors_clients.transport.error_responses import redact
from ors_clients.transport.http11 import reason_of
from ors_clients.transport.json_codec import read_json

__all__ = [
    "ChatEndpoint",
    "ContextOverflow",
    "EndpointFailed",
    "EndpointRefused",
    "Usage",
    "connect",
    "refused_endpoint",
]

#: Seconds between two tries, unless the endpoint says how long; and the longest that it may say.
_FIRST_PAUSE, _LAST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0, 60.0
#: Connections to an endpoint that may fail before the run begins.
_CONNECTIONS = 3


class EndpointFailed(SamplerFailed):
    """The model's endpoint gave no answer of the model after every try; ``kind`` is a word for the report."""

    def __init__(self, kind: str, cause: str, remedy: str = "Look at the endpoint's own log.") -> None:
        super().__init__(cause, remedy)
        self.kind = kind


class EndpointRefused(ConfigurationError):
    """The model's endpoint refuses what every request of the run has in common: its key, its model, its address."""


class ContextOverflow(Exception):
    """The conversation no longer fits into the model's context."""


@dataclass
class Usage:
    """The requests of one episode and their tokens."""

    requests: int = 0
    #: Of requests that were sent again: how often, by kind.
    retried: Counter[str] = field(default_factory=Counter[str])
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Of ``prompt_tokens``.
    cached_tokens: int = 0
    #: Answers that did not say their tokens.
    uncounted: int = 0

    def add(self, completion: Completion) -> None:
        """Count an answer."""
        if completion.prompt_tokens is None or completion.completion_tokens is None:
            self.uncounted += 1
            return
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        self.cached_tokens += completion.cached_tokens


class ChatEndpoint:
    """Chat completions of ``model`` at ``base_url``, an address as the openai package takes it.

    ``parameters`` go into each request. ``api_key`` is in no error. Raises ``ConfigurationError`` for an address or a
    key that cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "",
        parameters: Mapping[str, Any] | None = None,
        stream: bool = False,
        timeout: float = 600.0,
        attempts: int = 6,
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigurationError(
                f"{base_url!r} is not an address of an endpoint", "Write it as http://host:8000/v1."
            )
        if address.username is not None or address.query or address.fragment:
            raise ConfigurationError(
                "The endpoint's address holds a user, a query or a fragment", "Give a key in the environment."
            )
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigurationError(
                "The endpoint's key holds a character that no header can carry", "Look at the variable with the key."
            )
        self._base_url = base_url
        self._root = f"{base_url.rstrip('/')}{'' if address.path.strip('/') else '/v1'}"
        self._url = f"{self._root}/chat/completions"
        self._body = {"model": model, **(parameters or {})}
        if stream:
            self._body |= {"stream": True, "stream_options": {"include_usage": True}}
        self._secrets = (api_key,) if api_key else ()
        self._attempts = attempts
        self._first_pause = first_pause
        self._limit = response_limit()
        # A generation takes as long as it takes, but a connection is there at once or not at all.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=4.0)
        self._client = BoundedAsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout, connect=30.0),
            limits=limits,
            verify=address.scheme == "https",  # loading certificates takes longer than many an episode
        )

    async def connect(self) -> None:
        """Ask for the list of models; any answer will do. Raises ``EndpointRefused`` if there is no connection."""
        await connect(self._base_url, self._connect_once, self._first_pause)

    async def _connect_once(self) -> str | None:
        try:
            await self._client.get(f"{self._root}/models", timeout=10.0)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return _root_cause(error)
        except (httpx.HTTPError, ResponseTooLarge):
            return None  # it was reached, and the requests of the run show the rest
        return None

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, usage: Usage, **more: Any
    ) -> Completion:
        """Return the model's next message. ``more`` goes into the request.

        Raises ``ContextOverflow``, ``EndpointFailed`` and ``EndpointRefused``; ``ConfigurationError`` for what JSON
        does not have.
        """
        body: dict[str, Any] = {**self._body, **more, "messages": messages}
        if tools:
            body["tools"] = tools
        failure = EndpointFailed("none", "The endpoint was not asked")
        pause = self._first_pause
        for attempt in range(self._attempts):
            if attempt:
                usage.retried[failure.kind] += 1
            usage.requests += 1
            wait: float | None = None
            try:
                completion = await self._once(body)
                usage.add(completion)
                return completion
            except (_Refused, BadAnswer) as bad:
                if is_overflow(bad.status, bad.error, body):
                    limit = next((name for name in ("max_tokens", "max_completion_tokens") if name in body), None)
                    if limit is None:
                        raise ContextOverflow from None
                    # Prompt and limit together do not fit, or the prompt alone: without the limit the endpoint takes
                    # what is left of the context, which is less.
                    del body[limit]
                    failure = EndpointFailed("limit over the context", self._redacted(error_text(bad.error)))
                    continue
                if isinstance(bad, _Refused):
                    failure, wait = self._failure(bad), bad.wait
                else:
                    text = self._redacted(str(bad))
                    failure = EndpointFailed(bad.kind, f"The endpoint's answer is not usable: {text}")
            except httpx.TimeoutException as late:
                failure = EndpointFailed("timeout", f"The endpoint did not answer in time ({type(late).__name__})")
            except httpx.HTTPError as lost:
                text = self._redacted(str(lost))
                failure = EndpointFailed("connection", f"The connection failed ({type(lost).__name__}: {text})")
            if attempt + 1 < self._attempts:
                growing = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not all episodes at the same moment
                await asyncio.sleep(min(_LONGEST_PAUSE, wait) if wait is not None else growing)
                pause = min(_LAST_PAUSE, pause * 2)
        raise failure

    def _failure(self, refused: _Refused) -> EndpointFailed:
        """Return the failure of a refusal that may pass. Raises the others."""
        status, text = refused.status, self._redacted(error_text(refused.error))
        if status in FINAL:
            raise refused_endpoint(f"The model's endpoint answers {status}: {text}") from None
        failure = EndpointFailed(f"status {status}", f"The endpoint answers {status}: {text}")
        if status < 500 and status not in PASSING:
            raise failure from None
        return failure

    async def _once(self, body: dict[str, Any]) -> Completion:
        """Send one request. Raises ``_Refused``, ``BadAnswer`` and httpx's errors."""
        try:
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except ValueError as error:
            raise ConfigurationError(
                f"A request cannot be written as JSON: {error}", "Look at --extra and at the tools' schemas."
            ) from None
        headers = {"content-type": "application/json"}
        async with self._client.stream("POST", self._url, content=content, headers=headers) as response:
            if response.status_code != 200:
                error = _json_or_text(await self._whole(response))
                raise _Refused(response.status_code, error, _retry_after(response))
            if "text/event-stream" not in response.headers.get("content-type", ""):
                return read_completion(_json(await self._whole(response)))
            answer = StreamedAnswer()
            received = 0
            async for piece in response.aiter_bytes():
                received += len(piece)
                if received > self._limit:
                    raise self._too_large(ResponseTooLarge(self._limit))
                answer.feed(piece)
            return answer.completion()

    async def _whole(self, response: httpx.Response) -> bytes:
        try:
            return await read_body(response, self._limit)
        except ResponseTooLarge as error:
            raise self._too_large(error) from None

    def _too_large(self, error: ResponseTooLarge) -> EndpointFailed:
        """Return the failure of an answer that was cut: it is not asked for again."""
        return EndpointFailed("answer too large", f"The endpoint's answer cannot be used: {error.cause}")

    def _redacted(self, text: str) -> str:
        return redact(" ".join(text.split()), self._secrets)[:500]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def connect(base_url: str, once: Callable[[], Awaitable[str | None]], pause: float) -> None:
    """Call ``once`` until it connects, a few times; it returns the reason if it did not. Raises ``EndpointRefused``."""
    reason: str | None = None
    for attempt in range(_CONNECTIONS):
        if attempt:
            await asyncio.sleep(pause * attempt)
        if (reason := await once()) is None:
            return
    raise EndpointRefused(f"No endpoint answers at {base_url}: {reason}", "Start it, or look at --base-url.")


def _root_cause(error: BaseException) -> str:
    """Return the text of the error of the operating system that a client's error came from."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return reason_of(error)


def refused_endpoint(cause: str) -> EndpointRefused:
    """Return the error for a refusal of what every request of the run has in common."""
    return EndpointRefused(
        cause, "Look at --base-url and --model, and at the key in the environment (docs/evaluation.md)."
    )


class _Refused(Exception):
    """Another status than 200; ``wait`` is what the endpoint asks for, in seconds."""

    def __init__(self, status: int, error: Any, wait: float | None) -> None:
        super().__init__(status)
        #: The value of its JSON, or its text.
        self.error = error
        self.status, self.wait = status, wait


def _json(content: bytes) -> Any:
    try:
        return read_json(content)
    except ValueError:
        raise BadAnswer("no JSON", f"no JSON: {content[:10_000].decode('utf-8', 'replace')!r}") from None


def _json_or_text(content: bytes) -> Any:
    try:
        return read_json(content)
    except ValueError:
        return content.decode("utf-8", "replace")


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return None
