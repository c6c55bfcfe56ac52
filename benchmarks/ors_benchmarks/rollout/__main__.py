"""Run the rollout benchmark: ``python -m ors_benchmarks.rollout``, in the Python that has vLLM.

On a machine without a network, install wheels beside its vLLM that were made, for its Python, on one with a network:

    pip wheel --no-deps --wheel-dir wheels .
    pip download --dest wheels --only-binary :all: --python-version 3.12 \\
        --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \\
        "$(echo wheels/orsd-*.whl)[bench]" jinja2 pyyaml
    python -m venv --system-site-packages bench
    bench/bin/pip install --no-index --find-links wheels "$(echo wheels/orsd-*.whl)[bench]" jinja2 pyyaml
    bench/bin/python -m ors_benchmarks.rollout --model qwen3-0.6b-random --concurrency 256

If that Python is itself of a virtual environment, use ``pip install --no-deps --target FOLDER`` and
``PYTHONPATH=FOLDER`` instead. vLLM's own wheel requires one version of torch, which its metadata names.
"""

from ors_benchmarks.harness.commands import run_program
from ors_benchmarks.rollout.command import main

run_program(main)
