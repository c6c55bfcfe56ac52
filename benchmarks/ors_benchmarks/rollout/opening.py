"""The engine and the model that the options of the rollout benchmark name."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ors_benchmarks.harness.machine import Observer
from ors_benchmarks.harness.processes import cpu_seconds
from ors_benchmarks.rollout import tiny_model
from ors_benchmarks.rollout.engines.base import Engine, EngineFailed, ModelFiles, UrlEngine
from ors_benchmarks.rollout.engines.emulated.profile import Profile
from ors_benchmarks.rollout.engines.hosted.engine import HostedEngine
from ors_benchmarks.rollout.engines.hosted.frames import Start

__all__ = ["ENGINES", "check_available", "counted", "load_tokenizer", "model_files", "open_engine"]

#: With the packages that each needs in this process; with each, transformers reads or makes the tokenizer.
ENGINES = {
    "vllm": ("torch", "transformers", "vllm"),
    "url": ("transformers",),
    "emulated": ("transformers",),
}


def check_available(engine: str, model: str, *, with_charts: bool) -> None:
    """Raise ``EngineFailed`` or ``ModelUnavailable`` if a run cannot succeed."""
    if model not in tiny_model.SHAPES and not (Path(model) / "config.json").is_file():
        raise tiny_model.ModelUnavailable(
            f"{model} is not a model: neither a folder with a config.json nor a shape",
            f"Shapes are {', '.join(tiny_model.SHAPES)}.",
        )
    needed = sorted({*ENGINES[engine], *(("matplotlib",) if with_charts else ())})
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise EngineFailed(
            f"--engine {engine} needs {_listed(missing)}, which {verb} not installed here", _remedy(missing)
        )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]])


def _remedy(missing: Sequence[str]) -> str:
    ways = [f"`pip install {' '.join(missing)}` installs what is missing"]
    if "vllm" in missing or "torch" in missing:
        ways.append("`$(scripts/vllm-venv) -m ors_benchmarks.rollout …` makes and uses an environment that has all")
    if "matplotlib" in missing:
        ways.append("--no-charts draws no charts, which matplotlib is for")
    return ". ".join(ways) + "."


def model_files(name: str, engine: str) -> ModelFiles:
    """Return the files of a folder or a shape; a shape's are made the first time."""
    if name in tiny_model.SHAPES:
        # An engine somewhere else has weights of its own; here the tokenizer is needed.
        weights = name == "tiny" and engine == "vllm"
        return ModelFiles(name, tiny_model.cached(name, weights=weights), weights=weights)
    folder = Path(name).resolve()
    return ModelFiles(folder.name, folder, weights=True)


def load_tokenizer(files: ModelFiles) -> Any:
    """Return the model's tokenizer. Raises ``ModelUnavailable``."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(files.folder)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except (OSError, ValueError) as error:
        raise tiny_model.ModelUnavailable(f"{files.name} has no tokenizer that can be read: {error}") from error


async def open_engine(
    name: str,
    files: ModelFiles,
    url: str | None,
    options: dict[str, Any],
    prefix_caching: bool,
    cores: Sequence[int] | None,
    front_end_cores: Sequence[int] | None,
    concurrency: int,
    profile: Profile | None,
) -> Engine:
    """Start the engine in processes of its own, or connect to the one at ``url``. Raises ``EngineFailed``."""
    if name == "url":
        assert url is not None
        return await UrlEngine.open(url, files.name, os.environ.get("ORS_ENGINE_API_KEY"))
    start = Start(files, profile, options, prefix_caching, concurrency, cores, front_end_cores)
    return await HostedEngine.open(name, start)


@asynccontextmanager
async def counted(engine: Engine, observer: Observer) -> AsyncGenerator[None]:
    """Close the engine at the end, and count its CPU time as ours: its workers are not our children."""
    try:
        yield
    finally:
        used = 0.0
        for process in engine.processes().values():
            with contextlib.suppress(OSError):  # it has died
                used += cpu_seconds(process)
        before = os.times()
        await engine.close()
        after = os.times()
        known = after.children_user + after.children_system - before.children_user - before.children_system
        observer.unaccounted = max(0.0, used - known)
