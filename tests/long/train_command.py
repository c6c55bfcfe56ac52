"""``ors-server train`` as a process of its own, for the tests of both kinds of model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.paths import ROOT

__all__ = ["Train", "train_in"]

Train = Callable[..., "subprocess.Popen[str]"]


def train_in(folder: Path, python: Path) -> Train:
    """Return a function that begins ``ors-server train``; what it prints goes to the file ``output`` of a folder."""

    def begin(*arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        options = ["--python", str(python), "--data-dir", str(folder / "data")]
        with (folder / "output").open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "ors_cli", "train", *map(str, arguments), *options],
                env=os.environ | variables,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    return begin
