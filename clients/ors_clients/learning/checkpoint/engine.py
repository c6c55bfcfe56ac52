"""vLLM in the process that trains, on the same device: it plays with the weights that the trainer has.

Requests of many episodes at once are stepped together in a thread of their own, so that the episodes' sessions go on
meanwhile; nothing is computed while none is asked for. New weights are copied into the engine's, tensor by tensor.

Written for vLLM 0.32. Its build for processors packs weights in a form that cannot be written to; it is kept from that
here, and computes more slowly.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.learning.checkpoint.memory import Budget
from ors_clients.learning.plan import Recipe
from ors_clients.samplers.vllm import VLLMSampler
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["INSTALL_VLLM", "Engine", "EngineSampler", "weights_in"]

INSTALL_VLLM = "Use a Python with TRL and vLLM, as that of scripts/vllm-venv."
#: Read by vLLM when it is imported.
_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_T = TypeVar("_T")


class EngineSampler(VLLMSampler):
    """The engine as a sampler."""

    #: Of a sampler behind HTTP, its connections.
    requests: Any = None


@dataclass
class _Waiting:
    """Requests that the engine has not been given yet, and those whose episodes have ended."""

    added: list[tuple[str, Any, Any]] = field(default_factory=list[tuple[str, Any, Any]])
    aborted: list[str] = field(default_factory=list[str])


class Engine:
    """An engine with the weights of a folder. Raises ``ConfigurationError`` where it does not start."""

    def __init__(self, folder: Path, recipe: Recipe, device: str, budget: Budget, seed: int) -> None:
        self._thread = ThreadPoolExecutor(1, "vllm")
        #: Why it can do no more; None as long as it can.
        self.failure: InfrastructureFailure | None = None
        self._waiting = _Waiting()
        self._lock = threading.Lock()
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._stepping: asyncio.Task[None] | None = None
        os.environ.update(_VARIABLES)
        settings: dict[str, Any] = {
            "model": str(folder),
            "max_model_len": recipe.context,
            "max_num_seqs": recipe.concurrency,
            "max_num_batched_tokens": max(2048, recipe.concurrency),
            "kv_cache_memory_bytes": budget.kv_cache,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "seed": seed,
            **({"dtype": "float32", "enforce_eager": True} if device == "cpu" else {"dtype": "bfloat16"}),
        }
        if device != "cpu":
            settings["gpu_memory_utilization"] = budget.engine_share

        def start() -> Any:
            if device == "cpu":
                import_trainer_module("vllm._custom_ops", INSTALL_VLLM)._supports_onednn = False
            return import_trainer_module("vllm", INSTALL_VLLM).LLM(**settings)

        try:
            self._llm = self._do(start)
        except ConfigurationError:
            raise
        except Exception as error:  # whatever vLLM, torch or the driver raise
            raise ConfigurationError(
                f"vLLM does not start with {folder}: {type(error).__name__}: {error}",
                "Give a model that vLLM knows, or less to do: --context, --concurrency.",
            ) from error

    def sampler(self) -> EngineSampler:
        """Return the engine as a sampler."""
        return EngineSampler(self)

    def load(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Take other weights, by their names in the checkpoint. Raises ``ConfigurationError`` if some are missing."""

        def into(model: Any) -> set[str]:
            taken = model.load_weights(weights)
            return {name for name, _ in model.named_parameters()} - taken

        def load() -> set[str]:
            [missing] = self._llm.apply_model(into)
            self._llm.reset_prefix_cache()
            return missing

        if missing := self._do(load):
            raise ConfigurationError(
                f"vLLM has {len(missing)} weights that the trained model does not: {', '.join(sorted(missing)[:3])}",
                "Train a model whose weights have the same names in transformers and in vLLM.",
            )

    async def generate(self, prompt: Any, parameters: Any, request_id: str) -> AsyncGenerator[Any]:
        """Yield the last output of a request, as ``AsyncLLM`` does."""
        if self.failure is not None:
            raise self.failure
        future = asyncio.get_running_loop().create_future()
        self._asked[request_id] = future
        with self._lock:
            self._waiting.added.append((request_id, prompt, parameters))
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step_all())
        try:
            yield await future
        finally:
            del self._asked[request_id]
            if future.cancelled():  # with the episode that waited for it
                with self._lock:
                    self._waiting.aborted.append(request_id)

    async def _step_all(self) -> None:
        """Step the engine until nothing is asked of it."""
        loop = asyncio.get_running_loop()
        while self._asked or self._waiting.aborted:
            try:
                for key, output in await loop.run_in_executor(self._thread, self._step):
                    if (future := self._asked.get(key)) is not None and not future.done():
                        if isinstance(output, Exception):
                            future.set_exception(output)
                        else:
                            future.set_result(output)
            except Exception as error:  # noqa: BLE001 - whatever vLLM, torch or the driver raise; none of it can be mended
                self.failure = InfrastructureFailure(
                    f"vLLM failed: {type(error).__name__}: {error}", "See why, then go on with the run."
                )
                for future in self._asked.values():
                    if not future.done():
                        future.set_exception(self.failure)
                return

    def _step(self) -> list[tuple[str, Any]]:
        """Give the engine what has come, and take a step. Return what has ended, by the ids of the requests."""
        engine = self._llm.llm_engine
        with self._lock:
            waiting, self._waiting = self._waiting, _Waiting()
        ended: list[tuple[str, Any]] = []
        for key, prompt, parameters in waiting.added:
            try:
                engine.add_request(key, prompt, parameters)
            except ValueError as error:  # this request, and not the engine
                ended.append((key, error))
        if waiting.aborted:
            engine.abort_request(waiting.aborted)
        if engine.has_unfinished_requests():
            ended += [(output.request_id, output) for output in engine.step() if output.finished]
        return ended

    def _do(self, work: Callable[[], _T]) -> _T:
        return self._thread.submit(work).result()


def weights_in(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the weights of a checkpoint by their names."""
    safetensors = import_trainer_module("safetensors", INSTALL_VLLM)
    for file in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it does not iterate
                yield name, opened.get_tensor(name)
