"""A stand-in for a vLLM server with its wire format, whose turns suit echo and counting environments.

It honours ``min_tokens`` as vLLM does, so that a replay has the requested lengths. It has the routes by which the
benchmark queries the model and the counters, and empties the prefix cache. Each of them can be made wrong, and the
engine can be made to die.
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
    """Return a wrong answer in an episode's first turn, a right one in its second."""
    [word] = re.findall(r"with the text (\w+) to finish", prompt)
    text = word if "is not the word." in prompt else "nothing"
    return f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'


@dataclass
class EngineStandIn(ScriptedEngine):
    """The stand-in's state: its answers, its faults, and a record of its work."""

    #: The response of the models' route: a JSON value or text, and a status.
    models: Any = field(default_factory=lambda: {"data": [{"id": "tiny"}]})
    version: Any = field(default_factory=lambda: {"version": "0.0"})
    models_status: int = 200
    #: Status of its route that empties the prefix cache: 404 outside of vLLM's development mode.
    reset_status: int = 200
    #: Whether it generates exactly as many tokens as requested.
    exact: bool = True
    #: Whether it is dead: it drops every connection.
    gone: bool = False
    #: Its actions in order: "forget", ("live", generated tokens) or ("replay", generated tokens).
    done: list[Any] = field(default_factory=list[Any])

    def reset(self) -> None:
        """Restore the initial state."""
        fresh = EngineStandIn(echo_policy, self.tokenizer)
        for name, value in vars(fresh).items():
            if name != "url":
                setattr(self, name, value)

    def generate(self, ids: list[int], maximum: int) -> tuple[list[int], list[float], str, str]:
        """Return at least the minimum of tokens."""
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
        """Return the application, with vLLM's routes besides generation."""
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
        """Return the requests of episodes."""
        return [body for _, body in self.requests if "min_tokens" not in body]

    @property
    def replayed(self) -> list[dict[str, Any]]:
        """Return the requests of replays."""
        bodies = [body for _, body in self.requests if "min_tokens" in body]
        assert all(body["structured_outputs"] == {"regex": REPLAYED} for body in bodies)
        assert all(body["min_tokens"] == body["max_tokens"] and body["ignore_eos"] for body in bodies)
        return bodies


class _Mortal:
    """Middleware that drops every response once the engine is dead."""

    def __init__(self, app: ASGIApp, engine: EngineStandIn) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._engine.gone:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
        else:
            await self._app(scope, receive, send)
