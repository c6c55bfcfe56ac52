"""``ors-server serve terminal`` in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from tests.support.servers import served

__all__ = ["serving"]


@contextlib.contextmanager
def serving(folder: Path, images: Path, *arguments: str | Path, **variables: str) -> Generator[str]:
    """Run a server that keeps images in ``images``. Yield its address; afterwards fail if its log has a traceback."""
    with served(folder, *arguments, ORS_IMAGES=str(images), **variables) as url:
        yield url
    log = (folder / "log").read_text()
    assert "Traceback" not in log, log
