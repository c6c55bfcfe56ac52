"""Checkpoints before they are loaded, and the engine that plays with them; vLLM itself is a stand-in."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.learning.checkpoint.engine import Engine
from ors_clients.learning.checkpoint.files import check_folder, find_folder
from ors_clients.learning.checkpoint.memory import Shape, budget_of, check_disk, check_memory
from ors_clients.learning.plan import Recipe

GIB = 1 << 30
#: Qwen3-0.6B.
SMALL = Shape(596_049_920, 28, 1024, 3072, 8, 128, 151_936, 40_960)


# --- memory --------------------------------------------------------------------------------------


def test_the_memory_of_a_training_is_known_from_the_shape() -> None:
    budget = budget_of(SMALL, Recipe(), "cuda", 24 * GIB)
    assert budget.parts["weights"] == budget.parts["gradients"] == 4 * SMALL.weights
    assert budget.parts["Adam"] == 8 * SMALL.weights
    # 16 episodes of 4,096 tokens, a quarter of them: keys and values of 28 layers, 8 heads of 128, in 16 bits.
    assert budget.kv_cache == 16 * 4096 // 4 * 2 * 28 * 8 * 128 * 2
    assert 14 * GIB < budget.memory < 20 * GIB
    check_memory(budget, 24 * GIB, "cuda")
    with pytest.raises(ConfigurationError, match=r"The training needs 16\.2 GiB of memory: .*Adam 4\.4 GiB.*has 12\.0"):
        check_memory(budget, 12 * GIB, "cuda")
    with pytest.raises(ConfigurationError, match=r"take 22\.2 GiB, and /data has 5\.0 GiB free"):
        check_disk(budget, 5 * GIB, "/data")
    assert budget_of(SMALL, Recipe(context=8192), "cuda", 24 * GIB).memory > budget.memory
    assert budget_of(SMALL, Recipe(), "cpu", 64 * GIB).parts["vLLM's weights"] == 4 * SMALL.weights


@pytest.mark.parametrize(("context", "groups", "samples"), [(4096, 8, 8), (512, 3, 5), (100_000, 8, 8), (1, 1, 2)])
def test_episodes_are_computed_in_equal_parts(context: int, groups: int, samples: int) -> None:
    recipe = Recipe(context=context, groups=groups, group_size=samples)
    micro_batch = budget_of(SMALL, recipe, "cuda", 80 * GIB).micro_batch
    assert recipe.episodes % micro_batch == 0
    assert micro_batch == 1 or micro_batch * context <= 4096


def test_a_configuration_without_a_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="The memory of a mamba is not known"):
        Shape.of(SimpleNamespace(model_type="mamba"), 1)


# --- the folder ----------------------------------------------------------------------------------


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no config\.json\. Give"):
        find_folder(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="it holds an adapter, to be merged first"):
        check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="has no weights"):
        check_folder(tmp_path)
    (tmp_path / "model.safetensors").write_text("")
    assert find_folder(str(tmp_path)) == tmp_path


# --- the engine ----------------------------------------------------------------------------------


class StandIn:
    """vLLM's engine: each request ends after as many steps as it asks for tokens."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.llm_engine = self
        self.running: dict[str, int] = {}
        self.aborted: list[str] = []
        #: Requests of each step.
        self.steps: list[int] = []
        self.breaks_at = 10**9
        self.has_run, self.has_ended = threading.Event(), threading.Event()

    def add_request(self, key: str, prompt: Any, parameters: int) -> None:
        if prompt == "too long":
            raise ValueError("the prompt is longer than the context")
        self.running[key] = parameters

    def abort_request(self, keys: list[str]) -> None:
        self.aborted += keys
        self.has_ended.set()
        for key in keys:
            self.running.pop(key, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> list[Any]:
        self.steps.append(len(self.running))
        self.has_run.set()
        if len(self.steps) >= self.breaks_at:
            raise RuntimeError("CUDA error")
        self.running = {key: left - 1 for key, left in self.running.items()}
        ended = [key for key, left in self.running.items() if left <= 0]
        for key in ended:
            del self.running[key]
        return [SimpleNamespace(request_id=key, finished=True) for key in ended]

    def apply_model(self, work: Callable[[Any], Any]) -> list[Any]:
        return [work(self)]

    def named_parameters(self) -> list[tuple[str, int]]:
        return [("a", 0), ("b", 0)]

    def load_weights(self, weights: Iterable[tuple[str, int]]) -> set[str]:
        return {name for name, _ in weights}

    def reset_prefix_cache(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=StandIn))  # pyright: ignore[reportArgumentType]
    return Engine(Path("model"), Recipe(), "cuda", budget_of(SMALL, Recipe(), "cuda", 80 * GIB), 0)


def stand_in(engine: Engine) -> StandIn:
    return engine._llm  # pyright: ignore[reportPrivateUsage]


async def ask(engine: Engine, key: str, tokens: int, prompt: str = "prompt") -> str:
    async for output in engine.generate(prompt, tokens, key):
        return output.request_id
    raise AssertionError("no output")


def test_requests_are_stepped_together_and_end_each_by_itself(engine: Engine) -> None:
    async def run() -> list[Any]:
        asked = [ask(engine, f"r{number}", number + 1) for number in range(8)]
        return await asyncio.gather(*asked, ask(engine, "long", 1, "too long"), return_exceptions=True)

    *answers, refused = asyncio.run(run())
    assert answers == [f"r{number}" for number in range(8)]
    assert isinstance(refused, ValueError)
    assert max(stand_in(engine).steps) == 8
    assert len(stand_in(engine).steps) <= 10
    assert engine.failure is None
    assert stand_in(engine).settings["kv_cache_memory_bytes"] > 0
    assert asyncio.run(ask(engine, "again", 1)) == "again"  # on another loop


def test_an_episode_that_ends_frees_the_engine(engine: Engine) -> None:
    async def run() -> None:
        task = asyncio.create_task(ask(engine, "gone", 10**9))
        assert await asyncio.to_thread(stand_in(engine).has_run.wait, 60)
        task.cancel()
        assert await asyncio.to_thread(stand_in(engine).has_ended.wait, 60)

    asyncio.run(run())
    assert stand_in(engine).aborted == ["gone"]


def test_an_engine_that_breaks_fails_all_requests_and_the_next(engine: Engine) -> None:
    stand_in(engine).breaks_at = 3

    async def run() -> list[Any]:
        return await asyncio.gather(*(ask(engine, str(number), 10) for number in range(4)), return_exceptions=True)

    failures = asyncio.run(run())
    assert all(isinstance(failure, InfrastructureFailure) for failure in failures)
    assert engine.failure is not None
    assert "CUDA error" in engine.failure.cause
    with pytest.raises(InfrastructureFailure, match="vLLM failed: RuntimeError: CUDA error"):
        asyncio.run(ask(engine, "next", 1))


def test_weights_that_the_engine_does_not_get_are_said(engine: Engine) -> None:
    engine.load([("a", 1), ("b", 2)])
    with pytest.raises(ConfigurationError, match="vLLM has 1 weights that the trained model does not: b"):
        engine.load([("a", 1)])


def test_an_engine_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise ValueError("Model architectures ['OddModel'] are not supported")

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=fail))  # pyright: ignore[reportArgumentType]
    small = replace(SMALL, weights=1)
    with pytest.raises(ConfigurationError, match=r"vLLM does not start with model: ValueError: .*OddModel"):
        Engine(Path("model"), Recipe(), "cuda", budget_of(small, Recipe(), "cuda", GIB), 0)
