"""``python -m ors_benchmarks.server`` is ``ors-server bench server``."""

from ors_benchmarks.harness.commands import run_program
from ors_benchmarks.server.command import main

run_program(main)
