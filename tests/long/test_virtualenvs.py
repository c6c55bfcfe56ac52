"""``scripts/*-venv`` make their environments whole from a Python without packages; a second call finds them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.virtualenvs import SCRIPTS, made_by, run_bare

pytestmark = pytest.mark.long

#: What each environment is for, as modules to import in it.
MODULES = {
    "openreward-venv": ("openreward", "ors_server"),
    "plugins-venv": ("harbor", "inspect_ai", "verifiers", "ors_containers.plugins"),
    "trainers-venv": ("atroposlib", "torch", "ors_clients"),
    "trl-venv": ("trl", "torch", "ors_clients"),
    "upstream-venv": ("torch", "transformers", "ors_clients"),
    "vllm-venv": ("vllm", "ors_benchmarks.rollout.command"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_environment_is_whole(script: str) -> None:
    made = run_bare(script, timeout=3600.0)
    # vLLM needs a build of PyTorch that not every index has, Harbor a newer Python.
    if made.returncode and script in ("vllm-venv", "plugins-venv"):
        pytest.skip(f"{script} cannot make its environment: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    python = Path(made.stdout.strip())
    assert made_by(script) == python
    for module in MODULES[script]:
        command = [str(python), "-c", f"import importlib.util; assert importlib.util.find_spec({module!r})"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (module, done.stderr)
