"""A vLLM server in wire format and in nothing else: it says what an echo or counting environment wants to hear.

It keeps to ``min_tokens`` as vLLM does, so that a replay has the lengths it asks for, and it has the routes by which
the benchmark finds out what it serves and what it has counted, and empties its prefix cache. It can be wrong in each of
them, and it can die.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from ors_benchmarks.rollout.steering import REPLAYED
from ors_clients.samplers.scripted import scripted_logprob
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.clients.scripted_engine import ScriptedEngine

__all__ = ["EngineStandIn", "echo_policy"]


def echo_policy(prompt: str) -> str:
    """Wrong in an episode's first turn, right in its second."""
    [word] = re.findall(r"with the text (\w+) to finish", prompt)
    text = word if "is not the word." in prompt else "nothing"
    return f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


@dataclass
class EngineStandIn(ScriptedEngine):
    """See the module."""

    #: What it answers: a JSON value or text, and a status.
    models: Any = field(default_factory=lambda: {"data": [{"id": "tiny"}]})
    version: Any = field(default_factory=lambda: {"version": "0.0"})
    models_status: int = 200
    #: Of its route that empties the prefix cache: 404 outside of vLLM's development mode.
    reset_status: int = 200
    #: Whether it makes as many tokens as it is asked for.
    exact: bool = True
    #: Whether it is gone: it drops every connection.
    gone: bool = False
    #: What it did, in order: "forget", ("live", tokens made) or ("replay", tokens made).
    done: list[Any] = field(default_factory=list[Any])

    def reset(self) -> None:
        """As new."""
        fresh = EngineStandIn(echo_policy, self.tokenizer)
        for name, value in vars(fresh).items():
            if name != "url":
                setattr(self, name, value)

    def generate(self, ids: list[int], maximum: int) -> tuple[list[int], list[float], str, str]:
        """As many tokens as were asked for at least."""
        least: int = self.requests[-1][1].get("min_tokens", 0)
        if not least:
            made = super().generate(ids, maximum)
            self.done.append(("live", len(made[0])))
            return made
        sampled = [300] * (least if self.exact else least + 1)
        least = len(sampled)
        self.done.append(("replay", least))
        return sampled, [scripted_logprob(len(ids) + position) for position in range(least)], "", "length"

    def application(self) -> FastAPI:
        """With what vLLM has besides generating."""
        app = super().application()
        app.add_middleware(_Mortal, engine=self)

        def said(answer: Any, status: int = 200) -> Response:
            text = isinstance(answer, str)
            return PlainTextResponse(answer, status) if text else JSONResponse(answer, status)

        @app.get("/v1/models")
        async def _models() -> Response:
            return said(self.models, self.models_status)

        @app.get("/version")
        async def _version() -> Response:
            return said(self.version)

        @app.post("/reset_prefix_cache")
        async def _reset() -> Response:
            self.done.append("forget")
            return said("", self.reset_status)

        @app.get("/metrics")
        async def _metrics() -> PlainTextResponse:
            count = len(self.requests)
            return PlainTextResponse(
                f"vllm:request_queue_time_seconds_count {count}\nvllm:request_queue_time_seconds_sum {count * 0.001}\n"
                f"vllm:request_inference_time_seconds_sum {count * 0.002}\n"
                f"vllm:prefix_cache_queries_total {count * 100}\nvllm:prefix_cache_hits_total {count * 50}\n"
            )

        return app

    @property
    def live(self) -> list[dict[str, Any]]:
        """The requests of episodes."""
        return [body for _, body in self.requests if "min_tokens" not in body]

    @property
    def replayed(self) -> list[dict[str, Any]]:
        """The requests of replays."""
        bodies = [body for _, body in self.requests if "min_tokens" in body]
        assert all(body["structured_outputs"] == {"regex": REPLAYED} for body in bodies)
        assert all(body["min_tokens"] == body["max_tokens"] and body["ignore_eos"] for body in bodies)
        return bodies


class _Mortal:
    """Cuts off every answer once the engine is gone."""

    def __init__(self, app: ASGIApp, engine: EngineStandIn) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._engine.gone:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
        else:
            await self._app(scope, receive, send)
