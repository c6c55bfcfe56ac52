"""``python -m ors_benchmarks.scale`` is ``ors-server bench scale``."""

from ors_benchmarks.harness.commands import run_program
from ors_benchmarks.scale.command import main

run_program(main)
