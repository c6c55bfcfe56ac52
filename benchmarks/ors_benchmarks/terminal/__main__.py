"""``python -m ors_benchmarks.terminal`` is ``ors-server bench terminal``."""

from ors_benchmarks.harness.commands import run_program
from ors_benchmarks.terminal.command import main

run_program(main)
