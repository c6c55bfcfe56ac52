"""The Apptainer runtime: for machines that have Apptainer, as most clusters do, and no bubblewrap.

Isolation, limits, shells, files and examinations are those of the bubblewrap runtime, and so is all of the code for
them; Apptainer takes bubblewrap's place in making the container. What it is started with is at ``apptainer_launch``.
Its image files (SIF) are unpacked into the image store once (``images``), like every other kind of image: to start from
the file itself would mount it through FUSE for every sandbox.

Invariant: as for bubblewrap, ``start`` tries a sandbox, so a runtime that has started isolates.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from typing import ClassVar

from ors_containers.errors import RuntimeUnavailable
from ors_containers.image import Image
from ors_containers.limits import Limits
from ors_containers.linux.host_support import check_machine
from ors_containers.runtimes.apptainer_sandbox import ApptainerSandbox
from ors_containers.runtimes.bubblewrap import BubblewrapRuntime

__all__ = ["ApptainerRuntime", "apptainer_version", "find_apptainer"]

_LEAST_VERSION = (1, 1)
_INSTALL = (
    "Debian 12: scripts/install-apptainer of the repository; Fedora, RHEL with EPEL: dnf install apptainer; Ubuntu and "
    "others: https://apptainer.org/docs/admin/main/installation.html"
)


class ApptainerRuntime(BubblewrapRuntime):
    """Sandboxes through Apptainer: no daemon and no setuid program, as root and as an ordinary user."""

    name: ClassVar[str] = "apptainer"

    def _find_program(self) -> tuple[str, str]:
        check_machine()
        program = find_apptainer()
        version = apptainer_version(program)
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _LEAST_VERSION:
            raise RuntimeUnavailable(f"Apptainer {version} is too old", "Version 1.1 or newer is needed")
        return program, version

    def _notes(self) -> Iterable[str]:
        yield from super()._notes()
        yield "Apptainer's own processes beside each sandbox take about 8 MiB that its memory limit does not count."

    def sandbox(self, image: Image, limits: Limits | None = None) -> ApptainerSandbox:
        """See ``Runtime``."""
        return ApptainerSandbox(self._require(), image, limits or Limits())


def find_apptainer() -> str:
    """The path of apptainer. Raises ``RuntimeUnavailable``."""
    program = shutil.which("apptainer")
    if program is None:
        raise RuntimeUnavailable("apptainer is not installed", _INSTALL)
    return program


def apptainer_version(program: str) -> str:
    """Apptainer's version. Raises ``RuntimeUnavailable``."""
    cause = ""
    # It wants to know its user's name even for this, and a user without one can only be somebody else to it.
    for prefix in ((), ("unshare", "--user", "--map-root-user")):
        try:
            done = subprocess.run([*prefix, program, "version"], capture_output=True, timeout=20, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            cause = cause or str(error)
            continue
        if done.returncode == 0:
            return done.stdout.decode(errors="replace").strip()
        said = done.stderr.decode(errors="replace").strip()
        cause = cause or said.rpartition("\n")[2] or f"it ended with {done.returncode}"
    raise RuntimeUnavailable(f"{program} does not run: {cause}", _INSTALL)
