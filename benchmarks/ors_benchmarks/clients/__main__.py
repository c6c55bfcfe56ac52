"""``python -m ors_benchmarks.clients`` is ``ors-server bench clients``."""

from ors_benchmarks.clients.command import main
from ors_benchmarks.harness.commands import run_program

run_program(main)
