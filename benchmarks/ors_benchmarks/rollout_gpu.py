"""How busy the GPU is, as ``nvidia-smi`` says it; nothing where there is none."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["GpuMeter"]

_INTERVAL_MS = 250


class _Reading(NamedTuple):
    #: By ``time.monotonic``.
    at: float
    #: From 0 to 1, and in MiB; mean and sum over the GPUs of the machine.
    utilisation: float
    memory: float


class GpuMeter:
    """Reads all the while from its making to ``close``, in a thread that sleeps between readings."""

    def __init__(self) -> None:
        self._readings: list[_Reading] = []
        self._process: subprocess.Popen[str] | None = None
        if shutil.which("nvidia-smi") is None:
            return
        self._process = subprocess.Popen(
            [
                "nvidia-smi",
                "--query-gpu=count,utilization.gpu,memory.used",
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
        # A line a GPU.
        lines: list[tuple[float, float]] = []
        for line in self._process.stdout:
            try:
                count, utilisation, memory = (float(part) for part in line.split(","))
            except ValueError:  # "[N/A]": a GPU that does not tell
                continue
            lines.append((utilisation / 100, memory))
            if len(lines) >= count:
                mean = statistics.fmean(utilisation for utilisation, _ in lines)
                self._readings.append(_Reading(time.monotonic(), mean, sum(memory for _, memory in lines)))
                lines.clear()
