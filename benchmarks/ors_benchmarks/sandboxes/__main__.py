"""``python -m ors_benchmarks.sandboxes`` is ``ors-server bench sandboxes``."""

from ors_benchmarks.harness.commands import run_program
from ors_benchmarks.sandboxes.command import main

run_program(main)
