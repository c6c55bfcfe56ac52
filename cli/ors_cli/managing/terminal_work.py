"""The terminal environment's own modules, as commands use them, and the loop that their work runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import ModuleType
from typing import Any, TypeVar

from ors_server.errors import InfrastructureFailure
from ors_server.hosting.errors import TargetError
from ors_server.hosting.loading.folder_imports import folder_package
from ors_server.hosting.loading.targets import bundled_environments

__all__ = ["run_work", "terminal_module"]

_Result = TypeVar("_Result")


def terminal_module(module: str) -> ModuleType:
    """Load a module of the terminal environment: an environment is a folder, also for us. Raises ``TargetError``."""
    folder = bundled_environments().get("terminal")
    if folder is None:
        raise TargetError(
            "This installation lacks the terminal environment", "Install ors-server from its checkout again."
        )
    return folder_package(folder).load(module)


def run_work(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run work with sandboxes, and return its result. Raises ``InfrastructureFailure`` for a sandbox's error."""
    from ors_containers import SandboxError

    try:
        return asyncio.run(work)
    except SandboxError as error:
        raise InfrastructureFailure(error.cause, error.remedy) from error
