"""What ``nvidia-smi`` says, read; and that its absence is no fault."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ors_benchmarks.rollout_gpu import GpuMeter

#: Two GPUs, one of which does not tell now and then.
SAYS = """#!/bin/sh
while :; do
    echo "2, 50, 1000"
    echo "2, [N/A], [N/A]"
    echo "2, 100, 3000"
    sleep 0.02
done
"""


def test_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SAYS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    started = time.monotonic()
    meter = GpuMeter()
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
    meter = GpuMeter()
    assert meter.between(0.0, time.monotonic()) == {}
    meter.close()
