"""A vLLM server in wire format and in nothing else: it says what an echo or counting environment wants to hear.

It keeps to ``min_tokens`` as vLLM does, so that a replay has the lengths it asks for, and it has the routes by which
the benchmark finds out what it serves and what it has counted.
"""

import re
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from ors_benchmarks.rollout_steering import REPLAYED
from ors_clients.samplers.scripted import scripted_logprob

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

    def generate(self, ids: list[int], maximum: int) -> tuple[list[int], list[float], str, str]:
        """As many tokens as were asked for at least."""
        least: int = self.requests[-1][1].get("min_tokens", 0)
        if not least:
            return super().generate(ids, maximum)
        sampled = [300] * least
        return sampled, [scripted_logprob(len(ids) + position) for position in range(least)], "", "length"

    def application(self) -> FastAPI:
        """With what vLLM has besides generating."""
        app = super().application()

        @app.get("/v1/models")
        async def _models() -> dict[str, Any]:
            return {"data": [{"id": "stand-in"}]}

        @app.get("/version")
        async def _version() -> dict[str, str]:
            return {"version": "0.0"}

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
