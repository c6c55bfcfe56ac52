"""Settings of vLLM that the benchmark derives without importing it; the long tests run the engine itself."""

from __future__ import annotations

import os

import pytest
from ors_benchmarks.rollout.engines.vllm import sequences_for, set_environment


def test_as_many_requests_run_as_are_played_at_once() -> None:
    # AsyncLLM's own default is 128; the 129th request would wait.
    assert sequences_for(1) == {"max_num_seqs": 256}
    assert sequences_for(1024) == {"max_num_seqs": 1024}
    # vLLM refuses a step with fewer tokens than requests.
    assert sequences_for(4096) == {"max_num_seqs": 4096, "max_num_batched_tokens": 4096}


def test_cuda_is_not_started_by_asking_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    monkeypatch.setattr(os, "environ", environment)
    set_environment()
    assert environment["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"  # the user's value is kept
    del environment["VLLM_WORKER_MULTIPROC_METHOD"]
    set_environment()
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
