"""The wheel of the running ors-server, for folders that become images elsewhere.

ors-server is installed from its checkout (the name on PyPI is another project), so a folder that is built into an image
contains it. It is built from the checkout, which an installation remembers.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ors_containers.distribution import DISTRIBUTION

import ors_server
from ors_server.errors import OrsError

__all__ = ["WHEEL_PATTERNS", "WheelError", "put_wheel", "wheel"]

#: Match the wheel of any version; the second, those up to 0.2.
WHEEL_PATTERNS = (f"{DISTRIBUTION}-*.whl", "ors_server-*.whl")


class WheelError(OrsError):
    """The wheel cannot be made."""


def put_wheel(folder: Path, name: str, content: bytes) -> list[str]:
    """Write the wheel into a folder; returns the names of the wheels that it replaced.

    The image installs every wheel of the folder, so one of another version must not stay.
    """
    wheels = sorted(file for pattern in WHEEL_PATTERNS for file in folder.glob(pattern))
    replaced = [file for file in wheels if file.name != name]
    (folder / name).write_bytes(content)
    for file in replaced:
        file.unlink()
    return [file.name for file in replaced]


def wheel() -> tuple[str, bytes]:
    """Return file name and content of the wheel. Raises ``WheelError``."""
    source = _source()
    if source.suffix == ".whl" and source.is_file():
        return source.name, source.read_bytes()
    if not (source / "pyproject.toml").is_file():
        raise WheelError(
            f"The checkout that ors-server was installed from is not on this machine: {source} is none",
            "Install ors-server from its checkout: pip install /path/to/ors-server.",
        )
    return _built(source)


def _source() -> Path:
    """Return the checkout or wheel of this package: the folder around it, or what its installer noted (PEP 610)."""
    around = Path(ors_server.__file__).resolve().parent.parent
    if (around / "pyproject.toml").is_file():
        return around
    try:
        written = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        written = None
    if written is None:
        return around
    url: str = json.loads(written)["url"]
    return Path(unquote(urlsplit(url).path))


def _built(checkout: Path) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        if importlib.util.find_spec("hatchling") is not None:
            command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
        else:
            # pip downloads the build backend.
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, "."]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob(WHEEL_PATTERNS[0]))
        if done.returncode or not wheels:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise WheelError(
                f"The wheel of the checkout {checkout} cannot be built: {last}",
                f"Install the build backend and try again: {sys.executable} -m pip install hatchling.",
            )
        return wheels[0].name, wheels[0].read_bytes()
