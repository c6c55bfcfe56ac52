"""Utilisation and memory of an engine's GPUs, as ``nvidia-smi`` reports them; empty without a GPU.

Only the GPUs that the engine uses are asked: the others of a machine would halve the figures, and whatever else runs
there would be in them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["GpuMeter", "visible_gpus"]

_INTERVAL_MS = 250


def visible_gpus(count: int) -> Sequence[str]:
    """Return the first GPUs that CUDA shows to this process, by their ``nvidia-smi`` ids."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(number) for number in range(count)] if listed is None else listed.split(",")
    return [gpu.strip() for gpu in found[:count] if gpu.strip()]


class _Reading(NamedTuple):
    #: By ``time.monotonic``.
    at: float
    #: From 0 to 1, and in MiB; mean and sum over the GPUs.
    utilisation: float
    memory: float


class GpuMeter:
    """Read the GPUs from construction to ``close``, in a thread that sleeps between readings."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._readings: list[_Reading] = []
        self._process: subprocess.Popen[str] | None = None
        if not gpus or shutil.which("nvidia-smi") is None:
            return
        self._process = subprocess.Popen(
            [
                "nvidia-smi",
                f"--id={','.join(gpus)}",
                "--query-gpu=index,utilization.gpu,memory.used",
                "--format=csv,noheader,nounits",
                f"--loop-ms={_INTERVAL_MS}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name="gpu-meter", daemon=True)
        self._thread.start()

    def between(self, started: float, ended: float) -> Mapping[str, float]:
        """Figures of a stretch of time, by ``time.monotonic``; none without a GPU or a reading."""
        found = [reading for reading in self._readings if started <= reading.at <= ended]
        if not found:
            return {}
        return {
            "gpu_utilisation": statistics.fmean(reading.utilisation for reading in found),
            "gpu_memory_mib": max(reading.memory for reading in found),
        }

    def close(self) -> None:
        """Stop reading."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._thread.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        # A line a GPU, in the same order each time.
        seen: set[str] = set()
        told: list[tuple[float, float]] = []
        for line in self._process.stdout:
            gpu, _, figures = line.partition(",")
            if gpu in seen:
                if told:
                    mean = statistics.fmean(utilisation for utilisation, _ in told)
                    self._readings.append(_Reading(time.monotonic(), mean, sum(memory for _, memory in told)))
                seen.clear()
                told.clear()
            seen.add(gpu)
            with contextlib.suppress(ValueError):  # "[N/A]": a GPU without that reading
                utilisation, memory = (float(part) for part in figures.split(","))
                told.append((utilisation / 100, memory))
