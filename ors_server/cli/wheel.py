"""The wheel of the running ors-server, for folders that become images elsewhere.

ors-server is installed from its checkout (the name on PyPI is another project), so a folder that is built into an image
contains it. From a checkout the wheel is built with the project's build backend. From an installed wheel it is packed
again, with the files that its record lists.
"""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from ors_server.errors import OrsError

__all__ = ["WHEEL_PATTERN", "WheelError", "put_wheel", "wheel"]

#: Matches the wheel of any version.
WHEEL_PATTERN = "ors_server-*.whl"

_PACKAGE = Path(__file__).resolve().parent.parent
#: Files that an installer adds to the metadata: they describe the installation and not the package.
_INSTALLERS = frozenset({"INSTALLER", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"})


class WheelError(OrsError):
    """The wheel cannot be made."""


def put_wheel(folder: Path, name: str, content: bytes) -> list[str]:
    """Write the wheel into a folder; returns the names of the wheels that it replaced.

    The image installs every wheel of the folder, so one of another version must not stay.
    """
    replaced = [file for file in sorted(folder.glob(WHEEL_PATTERN)) if file.name != name]
    (folder / name).write_bytes(content)
    for file in replaced:
        file.unlink()
    return [file.name for file in replaced]


def wheel() -> tuple[str, bytes]:
    """Return file name and content of the wheel. Raises ``WheelError``."""
    installed = _installed()
    if installed is not None:
        return _packed_again(installed)
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file():
        return _built(checkout)
    raise WheelError(
        f"{_PACKAGE} is neither an installed wheel nor a checkout",
        "Install ors-server from its checkout: pip install /path/to/ors-server.",
    )


def _installed() -> Distribution | None:
    """Return the distribution that installed the files of this package; None for a checkout, editable or not."""
    try:
        found = distribution("ors-server")
    except PackageNotFoundError:
        return None
    recorded = next((file for file in found.files or () if file.as_posix() == "ors_server/__init__.py"), None)
    if recorded is None or Path(str(recorded.locate())).resolve() != _PACKAGE / "__init__.py":
        return None
    return found


def _packed_again(installed: Distribution) -> tuple[str, bytes]:
    """Return name and content of the wheel that an installation came from, with the hashes of its record."""
    kept = [
        file
        for file in sorted(installed.files or (), key=str)
        # Left out: the command, which the installer writes, its metadata, and caches.
        if file.parts[0] != ".." and "__pycache__" not in file.parts and file.name not in _INSTALLERS
    ]
    record = "".join(
        f"{file.as_posix()},,\n" if file.hash is None else f"{file.as_posix()},sha256={file.hash.value},{file.size}\n"
        for file in kept
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in kept:
            content = record.encode() if file.name == "RECORD" else Path(str(file.locate())).read_bytes()
            # A fixed date and mode: the same files make the same wheel.
            entry = zipfile.ZipInfo(file.as_posix(), date_time=(2020, 2, 2, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    tag = re.search(r"^Tag: *(.+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    return f"ors_server-{installed.version}-{tag[1] if tag else 'py3-none-any'}.whl", buffer.getvalue()


def _built(checkout: Path) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        if importlib.util.find_spec("hatchling") is not None:
            command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
        else:
            # pip downloads the build backend.
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, "."]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob(WHEEL_PATTERN))
        if done.returncode or not wheels:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise WheelError(
                f"The wheel of the checkout {checkout} cannot be built: {last}",
                f"Install the build backend and try again: {sys.executable} -m pip install hatchling.",
            )
        return wheels[0].name, wheels[0].read_bytes()
