"""``python -m ors_benchmarks.harbor`` is ``ors-server bench harbor``."""

from ors_benchmarks.harbor.command import main
from ors_benchmarks.harness.commands import run_program

run_program(main)
