"""Fixtures of the rollout benchmark's tests: an engine that speaks the wire format only, and the model it serves."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from ors_benchmarks.rollout import tiny_model
from ors_benchmarks.rollout.engines.base import ModelFiles

from tests.benchmarks.engine_stand_in import EngineStandIn, echo_policy


@pytest.fixture(scope="session")
def rollout_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache in which the model is made."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def served_engine(rollout_cache: Path) -> Generator[EngineStandIn]:
    """Serve the engine for the whole session."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import AutoTokenizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(rollout_cache))
        folder = tiny_model.cached("tiny", weights=False)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    with EngineStandIn(echo_policy, tokenizer).serve() as engine:
        assert isinstance(engine, EngineStandIn)
        yield engine


@pytest.fixture
def engine(served_engine: EngineStandIn, rollout_cache: Path, monkeypatch: pytest.MonkeyPatch) -> EngineStandIn:
    """Return the engine, reset."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(rollout_cache))
    served_engine.reset()
    return served_engine


@pytest.fixture(scope="session")
def tiny_files(rollout_cache: Path) -> ModelFiles:
    """Return the tiny model's files, without weights."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(rollout_cache))
        return ModelFiles("tiny", tiny_model.cached("tiny", weights=False), weights=False)
