"""transformers' continuous batching with paged attention: the engine for places where vLLM cannot be installed.

It has no structured output. A steered turn's tokens are therefore those of the turn's example, and the engine is held
to them one by one (``script_transformers.Forced``); it computes and samples them as it would any others.

Its prefix cache cannot be emptied. Instead each prompt gets one more token in front, another one after each ``forget``,
so that nothing which was computed before begins like it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import Generation, Sampler, SamplingParameters

from ors_benchmarks.rollout.engines.base import EngineFailed, EngineTotals, ModelFiles
from ors_benchmarks.rollout.gpu import visible_gpus
from ors_benchmarks.rollout.recording import times
from ors_benchmarks.rollout.steering import Turn

__all__ = ["TransformersEngine"]

_SCRIPT = Path(__file__).resolve().parent / "script_transformers.py"
#: Of an answer: the ids and log-probabilities of a long turn.
_LONGEST_LINE = 64 * 2**20
#: Bytes of its standard error that are searched for its last line.
_TAIL = 8192


class TransformersEngine:
    """See the module."""

    name = "transformers"

    def __init__(
        self, process: asyncio.subprocess.Process, said: dict[str, str], tokenizer: Any, log: IO[bytes]
    ) -> None:
        self._process = process
        self._said = said
        self._tokenizer = tokenizer
        self._sampler = _ProcessSampler(process, log)

    @classmethod
    async def open(
        cls,
        model: ModelFiles,
        tokenizer: Any,
        sampling: SamplingParameters,
        *,
        options: Mapping[str, Any],
        prefix_caching: bool,
        cores: Sequence[int] | None,
    ) -> TransformersEngine:
        """Start its process. ``options`` are further arguments of ``ContinuousBatchingConfig``.

        Sampling is the engine's, not a request's, here. Raises ``EngineFailed`` with the reason that it gave.
        """
        asked = {
            "model": str(model.folder),
            "weights": model.weights,
            "prefix_caching": prefix_caching,
            "options": dict(options),
            "threads": len(cores) if cores else 0,
            "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k},
        }
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(_SCRIPT),
            json.dumps(asked),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=_LONGEST_LINE,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "ready" not in answer:
            await process.wait()
            raise EngineFailed(
                f"transformers does not start with {model.name}: {answer.get('failed') or _last_words(log)}",
                answer.get("remedy")
                or "A smaller --model, or other --engine-option values (ContinuousBatchingConfig's).",
            )
        return cls(process, {**answer["ready"], "options": json.dumps(dict(options))}, tokenizer, log)

    @property
    def sampler(self) -> Sampler:
        """The sampler for rollouts."""
        return self._sampler

    def steered(self, parameters: SamplingParameters, turn: Turn) -> SamplingParameters:
        """Force the example's tokens and the end of the turn."""
        forced = [*self._tokenizer.encode(turn.example, add_special_tokens=False), self._tokenizer.eos_token_id]
        return replace(parameters, extra={**parameters.extra, "forced": forced})

    def exact(self, parameters: SamplingParameters, made: Sequence[int], *, steered: bool) -> SamplingParameters:
        """Force the same tokens; the engine cannot force a length alone."""
        return replace(parameters, max_tokens=len(made), extra={**parameters.extra, "forced": list(made)})

    async def forget(self) -> bool:
        """Begin all prompts with another token: no cached prefix matches them."""
        self._sampler.first = (self._sampler.first + 1) % len(self._tokenizer)
        return True

    async def totals(self) -> EngineTotals:
        """Return empty counters: each generation has its own times."""
        return EngineTotals()

    def processes(self) -> Mapping[str, int]:
        """Return the engine's process."""
        return {"engine": self._process.pid}

    def gpus(self) -> Sequence[str]:
        """Return the first visible GPU."""
        return visible_gpus(1) if self._said.get("device") == "cuda" else ()

    def description(self) -> dict[str, str]:
        """Versions and settings."""
        return self._said

    async def close(self) -> None:
        """End the process."""
        await self._sampler.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._sampler.log.close()


def _last_words(log: IO[bytes]) -> str:
    """Return the last line that a process wrote to its standard error."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _TAIL))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:400] if lines else "it ended without output"


@dataclass
class _ProcessSampler:
    """Requests to the engine's process, by their ids."""

    _process: asyncio.subprocess.Process
    #: Its standard error.
    log: IO[bytes]
    #: The token in front of every prompt.
    first: int = 0
    _waiting: dict[str, asyncio.Future[dict[str, Any]]] = field(
        default_factory=dict[str, asyncio.Future[dict[str, Any]]]
    )
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _reader: asyncio.Task[None] | None = None
    _ended: str | None = None

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Continue ``ids``. Raises ``SamplerFailed``."""
        if self._ended is not None:
            raise SamplerFailed(f"The engine has ended: {self._ended}")
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        name = f"{rollout_id}-{next(self._numbers)}"
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        request = {
            "id": name,
            "ids": [self.first, *ids],
            "max_tokens": parameters.max_tokens,
            "forced": parameters.extra.get("forced"),
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
            answer = await future
        except ConnectionError as error:
            raise SamplerFailed(f"The engine has ended: {error}") from error
        finally:
            self._waiting.pop(name, None)
        if "error" in answer:
            raise SamplerFailed(f"transformers failed: {answer['error']}")
        told = times.get()
        if told is not None:
            told.queue, told.engine = answer["queue"], answer["engine"]
        made: list[int] = answer["ids"]
        finish = "length" if len(made) >= parameters.max_tokens else "stop"
        return Generation(made, answer["logprobs"], "", finish)

    async def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            if "failed" in answer:
                self._ended = str(answer["failed"])
                break
            future = self._waiting.get(answer["id"])
            if future is not None and not future.done():
                future.set_result(answer)
        if self._ended is None:
            code = await self._process.wait()
            killed = f"it was killed by signal {-code}" if code < 0 else f"it ended with {code}"
            self._ended = f"{killed}; its last words: {_last_words(self.log)}"
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SamplerFailed(f"The engine has ended: {self._ended}"))
