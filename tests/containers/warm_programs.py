"""Programs that a test lets a copy of a warm Python run in a sandbox, and the warm Pythons of this process."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import marshal
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ors_containers import CommandResult, Image, Sandbox, WarmProgram
from ors_containers.graders.portable_python import Toolset
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.support.processes import parent, processes

__all__ = ["examine", "image_of", "start_warm", "warm_pythons"]


def compiled(text: str) -> bytes:
    code = compile(text, "probe.py", "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


async def examine(
    sandbox: Sandbox,
    toolset: Toolset,
    text: str,
    *,
    warm: bool,
    flags: Sequence[str] = ("-I", "-S", "-B"),
    timeout: float = 60,
    **options: Any,
) -> CommandResult:
    program = WarmProgram("probe", *toolset.bind, toolset.packages, ("json", "resource", "locale", "uuid"))
    return await sandbox.examine(
        [*toolset.command, *flags, "/.examination/probe.pyc"],
        files={"probe.pyc": compiled(text)},
        timeout=timeout,
        warm=program if warm else None,
        **options,
    )


async def start_warm(sandbox: Sandbox, toolset: Toolset, text: str) -> None:
    """Examine until a warm Python runs the program, which says ``executed`` first where it is executed."""
    async with asyncio.timeout(20):
        while (await examine(sandbox, toolset, text, warm=True)).text.startswith("executed"):
            pass


def warm_pythons() -> list[int]:
    """Return the warm Pythons below this process."""
    return [each for each in processes(lambda name: name == b"warm-python\n", "comm") if _is_below(each)]


def _is_below(process: int) -> bool:
    while process > 1 and process != os.getpid():
        process = parent(process)
    return process == os.getpid()


def image_of(runtime: NamespaceRuntime, toolset: Toolset, variables: Mapping[str, str]) -> Image:
    image = runtime.host_image()
    return dataclasses.replace(
        image, binds=(*image.binds, toolset.bind), environment={**image.environment, **variables}
    )
