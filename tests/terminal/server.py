"""``ors-server serve terminal`` in a process of its own."""

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

__all__ = ["serving"]


@contextlib.contextmanager
def serving(folder: Path, images: Path, *arguments: str | Path, **variables: str) -> Generator[str]:
    """The address of a server that writes its log to ``folder``; afterwards it must have ended as asked."""
    folder.mkdir(parents=True, exist_ok=True)
    output, errors = folder / "output", folder / "errors"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    command = [sys.executable, "-m", "ors_server", "serve", *map(str, arguments), "--port", "0"]
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=clean | {"ORS_IMAGES": str(images)} | variables)
        try:
            yield _address(process, errors)
        finally:
            process.terminate()
            try:
                status = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    said = errors.read_text()
    assert status in (0, -signal.SIGTERM), f"status {status}: {said}"
    assert "Traceback" not in said, said


def _address(process: subprocess.Popen[bytes], errors: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = re.search(r"listens on (http://\S+);", errors.read_text())
        if found is not None:
            return found[1]
        assert process.poll() is None, errors.read_text()
        time.sleep(0.05)
    raise AssertionError(f"no address within 120 s: {errors.read_text()}")
