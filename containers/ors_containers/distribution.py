"""The name under which this project is installed, and the command that installs its extras.

The packages and the command keep their names. The distribution has another, because `ors-server` on the package index
is another project with a package and a command of the same names: where both are installed, each overwrites files of
the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["DISTRIBUTION", "FORMER_DISTRIBUTION", "conflicting_distribution", "install_command"]

#: The name in the metadata of an installation.
DISTRIBUTION = "orsd"
#: The name of versions up to 0.2, and of the other project on the index.
FORMER_DISTRIBUTION = "ors-server"


def install_command(extra: str) -> str:
    """Return the command that installs the project with an extra.

    It names the checkout's path: until the distribution's name is registered, an index may have another project of it.
    """
    return f"pip install '/path/to/ors-server[{extra}]'"


def conflicting_distribution() -> tuple[str, str] | None:
    """Return cause and remedy where a distribution with the same package is installed beside this one."""
    metadata: Any = import_module("importlib.metadata")  # slow to import, and seldom needed
    try:
        found = metadata.distribution(FORMER_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    return (
        f"The distribution {FORMER_DISTRIBUTION} {found.version} is installed beside {DISTRIBUTION}, with a package "
        "and a command of the same names: another project, or this one before 0.3",
        f"Remove both and install this one again: pip uninstall {FORMER_DISTRIBUTION} {DISTRIBUTION}, then pip install "
        "/path/to/ors-server.",
    )
