"""The interface to transformers' engine process, without the process; the long tests run the engine itself."""

from __future__ import annotations

import asyncio
import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from ors_benchmarks.rollout.engines.transformers import TransformersEngine
from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import SamplingParameters


class _Pipe:
    """The process's standard input: answers each request on its standard output."""

    def __init__(self, output: asyncio.StreamReader) -> None:
        self.requests: list[dict[str, Any]] = []
        self._output = output

    def write(self, line: bytes) -> None:
        request: dict[str, Any] = json.loads(line)
        self.requests.append(request)
        answer = {"id": request["id"], "ids": [7, 8], "logprobs": [-0.5, -0.5], "queue": 0.0, "engine": 0.1}
        self._output.feed_data(json.dumps(answer).encode() + b"\n")

    async def drain(self) -> None:
        """Do nothing: there is no buffer."""


def made(log: bytes = b"") -> tuple[TransformersEngine, _Pipe, asyncio.StreamReader]:
    async def wait() -> int:
        return -9

    output = asyncio.StreamReader()
    pipe = _Pipe(output)
    process: Any = SimpleNamespace(stdin=pipe, stdout=output, wait=wait, kill=lambda: None, pid=0)
    return TransformersEngine(process, {}, range(100), io.BytesIO(log)), pipe, output


async def test_a_new_run_shares_no_prefix_with_an_earlier_one() -> None:
    engine, pipe, _ = made()
    for _ in range(2):
        assert await engine.forget()
        for prompt in ([1, 2], [1, 2, 7, 8, 3]):
            generation = await engine.sampler.generate(prompt, SamplingParameters(max_tokens=2), rollout_id="a")
            assert generation.ids == [7, 8]
    await engine.close()
    first, second, third, fourth = (request["ids"] for request in pipe.requests)
    assert first[1:] == third[1:] == [1, 2]
    assert second[1:] == [1, 2, 7, 8, 3]
    # Turns of an episode have a common prefix; turns of two runs have none.
    assert first[0] == second[0] != third[0] == fourth[0]


async def test_a_process_that_dies_says_why() -> None:
    engine, pipe, output = made(b"loading\nCUDA error: out of memory\n")
    pipe.write = lambda line: output.feed_eof()
    with pytest.raises(SamplerFailed, match="killed by signal 9; its last words: CUDA error: out of memory"):
        await engine.sampler.generate([1], SamplingParameters(), rollout_id="a")
    await engine.close()
