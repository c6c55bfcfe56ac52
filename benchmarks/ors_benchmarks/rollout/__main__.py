"""``python -m ors_benchmarks.rollout`` is ``ors-server bench rollout``."""

from ors_benchmarks.harness.commands import run_program
from ors_benchmarks.rollout.command import main

run_program(main)
