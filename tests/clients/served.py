"""``ors-server serve`` in a process of its own, for tests whose environments may fail as they like."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

__all__ = ["served"]


@contextlib.contextmanager
def served(folder: Path, *targets: str | Path, **variables: str) -> Generator[str]:
    """The address of a server that writes its log, and rollouts that it is sent, to ``folder``; the variables are added
    to its surroundings."""
    output, errors = folder / "output", folder / "errors"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    clean["ORS_DATA_DIR"] = str(folder / "data")
    command = [sys.executable, "-m", "ors_server", "serve", *map(str, targets), "--port", "0"]
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=clean | variables)
        try:
            deadline = time.monotonic() + 120
            while (found := re.search(r"listens on (http://\S+);", errors.read_text())) is None:
                assert process.poll() is None, errors.read_text()
                assert time.monotonic() < deadline, f"no address within 120 s: {errors.read_text()}"
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            try:
                status = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    assert status in (0, -signal.SIGTERM), f"status {status}: {errors.read_text()}"
