"""Parsing of ``nvidia-smi``'s output; a missing ``nvidia-smi`` is not an error."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ors_benchmarks.rollout.gpu import GpuMeter, visible_gpus

#: Three GPUs, one of them without figures; no output unless the expected query is made.
SAYS = """#!/bin/sh
[ "$1" = "--id=2,5,7" ] || exit 1
while :; do
    echo "2, 50, 1000"
    echo "5, [N/A], [N/A]"
    echo "7, 100, 3000"
    sleep 0.02
done
"""


def test_the_gpus_that_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SAYS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    started = time.monotonic()
    meter = GpuMeter(["2", "5", "7"])
    try:
        deadline = started + 20
        while not meter.between(started, time.monotonic()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert meter.between(started, time.monotonic()) == {"gpu_utilisation": 0.75, "gpu_memory_mib": 4000.0}
        assert meter.between(started - 10, started - 5) == {}
    finally:
        meter.close()


def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for gpus in (["0"], []):
        meter = GpuMeter(gpus)
        assert meter.between(0.0, time.monotonic()) == {}
        meter.close()


def test_the_gpus_that_cuda_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc,1")
    assert visible_gpus(2) == ["3", "GPU-abc"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus(1) == []
