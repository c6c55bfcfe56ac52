"""Convert folders of Terminal-Bench 1 with Harbor's own mapper; run by a Python that has the package ``harbor``.

Converts the tasks in its first argument into its second and writes the list of those that failed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

# By a string: the Python that checks types has no harbor.
mapper: Any = importlib.import_module("harbor.mappers.terminal_bench").TerminalBenchMapper()
with contextlib.redirect_stdout(sys.stderr):
    result = mapper.map(Path(sys.argv[1]), Path(sys.argv[2]))
json.dump(result.failed, sys.stdout)
