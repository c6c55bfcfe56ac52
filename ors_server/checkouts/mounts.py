"""The namespaces of hosted environments that this machine allows: a data folder of each, and processes kept apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ors_containers.linux.isolated_program import View, apart

from ors_server.checkouts.errors import HostError
from ors_server.checkouts.loaded_checkouts import Failures, FoundCheckout
from ors_server.checkouts.system_needs import DATA_MOUNT
from ors_server.sandbox_service.data_folders import DataFolder

__all__ = ["kept_apart", "mounted_data"]


def mounted_data(environments: Sequence[FoundCheckout], failures: Failures) -> set[str]:
    """Return the names of the environments whose data folder is mounted; ``failures`` gets those where it cannot be."""
    # An environment with no data of its own on this machine may fall back to files of its checkout.
    wanting = [
        each for each in environments if each.data_named or (each.needs.data and not DataFolder(each.data).empty)
    ]
    if not wanting:
        return set()
    program = (sys.executable, "-m", "ors_containers.linux.bound_folder", str(wanting[0].data), DATA_MOUNT, "true")
    tried = subprocess.run(program, capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return {each.checkout.name for each in wanting}
    refusal = f"this machine does not let a process have mounts of its own: {tried.stderr.strip()}"
    owner = ""
    for each in wanting:
        name = each.checkout.name
        if owner:
            cause = f"{name} and {owner} both want {DATA_MOUNT}, and {refusal}"
            failures.add(name, HostError(cause, f"Host {name} on another machine, or allow user namespaces here."))
        elif not Path(DATA_MOUNT).exists() or not Path(DATA_MOUNT).samefile(each.data):
            cause = f"{name} wants {each.data} at {DATA_MOUNT}, and {refusal}"
            failures.add(name, HostError(cause, f"As root, `ln -s {each.data} {DATA_MOUNT}`."))
        else:
            owner = name
    return set()


def kept_apart(say: Callable[[str], None]) -> bool:
    """Return whether this machine can keep environments apart; ``say`` gets why where it cannot."""
    tried = subprocess.run((*apart(View()), "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        say(f"environments can read and end each other's processes: {' '.join(tried.stderr.split())}")
    return not tried.returncode
