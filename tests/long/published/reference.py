"""Run a published environment's own ``server.py`` with the server of its SDK, on a port of the loopback device.

python reference.py FOLDER PORT
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

from openreward.environments.server import Server

_run = Server.run


def _run_here(self: Server, *_: Any, **__: Any) -> None:
    _run(self, host="127.0.0.1", port=int(sys.argv[2]))


if __name__ == "__main__":
    Server.run = _run_here
    os.chdir(sys.argv[1])
    sys.path.insert(0, sys.argv[1])
    runpy.run_path("server.py", run_name="__main__")
