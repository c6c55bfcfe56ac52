"""Isolated places to run untrusted commands in: one interface, several runtimes.

    async with BubblewrapRuntime() as runtime:
        async with runtime.sandbox(runtime.host_image()) as sandbox:
            result = await sandbox.run("echo hello", timeout=10)

What a sandbox promises is written at ``Sandbox``, every error at ``errors``. Names are imported when they are used: the
launcher, which is this package too, starts in milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_containers.errors import (
        BuildFailed,
        CallerError,
        DiskFull,
        ExaminationFailed,
        FileError,
        FileRefused,
        FileTooLarge,
        ImageTooLarge,
        InfrastructureFailure,
        InvalidArchive,
        InvalidCommand,
        InvalidDefinition,
        InvalidImage,
        InvalidLimits,
        NoSuchFile,
        NotAFile,
        Overloaded,
        ProcessesRemain,
        ProgramMissing,
        RuntimeUnavailable,
        SandboxBusy,
        SandboxDied,
        SandboxError,
        SandboxExpired,
        SandboxStopped,
        ShellFailed,
        StartFailed,
        StoreFailed,
        UnknownImage,
        UnknownRuntime,
    )
    from ors_containers.hidden_paths import keep_from_sandboxes
    from ors_containers.image import Directory, Image, folder_image
    from ors_containers.images import ImageStore, Recipe, RecipeFile
    from ors_containers.limits import LIMIT_NAMES, Enforcement, LimitName, Limits
    from ors_containers.runtime import Description, Runtime, find_runtime, runtime_names
    from ors_containers.runtimes.apptainer import ApptainerRuntime
    from ors_containers.runtimes.bubblewrap import BubblewrapRuntime
    from ors_containers.sandbox import EXAMINATION, CommandResult, FileKind, FileStatus, Sandbox
    from ors_containers.self_check import Check, self_check

    __version__: str

_MODULES = {
    "runtimes.apptainer": ("ApptainerRuntime",),
    "runtimes.bubblewrap": ("BubblewrapRuntime",),
    "errors": (
        "BuildFailed",
        "CallerError",
        "DiskFull",
        "ExaminationFailed",
        "FileError",
        "FileRefused",
        "FileTooLarge",
        "ImageTooLarge",
        "InfrastructureFailure",
        "InvalidArchive",
        "InvalidCommand",
        "InvalidDefinition",
        "InvalidImage",
        "InvalidLimits",
        "NoSuchFile",
        "NotAFile",
        "Overloaded",
        "ProcessesRemain",
        "ProgramMissing",
        "RuntimeUnavailable",
        "SandboxBusy",
        "SandboxDied",
        "SandboxError",
        "SandboxExpired",
        "SandboxStopped",
        "ShellFailed",
        "StartFailed",
        "StoreFailed",
        "UnknownImage",
        "UnknownRuntime",
    ),
    "hidden_paths": ("keep_from_sandboxes",),
    "image": ("Directory", "Image", "folder_image"),
    "images": ("ImageStore", "Recipe", "RecipeFile"),
    "limits": ("LIMIT_NAMES", "Enforcement", "LimitName", "Limits"),
    "runtime": ("Description", "Runtime", "find_runtime", "runtime_names"),
    "sandbox": ("EXAMINATION", "CommandResult", "FileKind", "FileStatus", "Sandbox"),
    "self_check": ("Check", "self_check"),
}
_HOME_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "EXAMINATION",
    "LIMIT_NAMES",
    "ApptainerRuntime",
    "BubblewrapRuntime",
    "BuildFailed",
    "CallerError",
    "Check",
    "CommandResult",
    "Description",
    "Directory",
    "DiskFull",
    "Enforcement",
    "ExaminationFailed",
    "FileError",
    "FileKind",
    "FileRefused",
    "FileStatus",
    "FileTooLarge",
    "Image",
    "ImageStore",
    "ImageTooLarge",
    "InfrastructureFailure",
    "InvalidArchive",
    "InvalidCommand",
    "InvalidDefinition",
    "InvalidImage",
    "InvalidLimits",
    "LimitName",
    "Limits",
    "NoSuchFile",
    "NotAFile",
    "Overloaded",
    "ProcessesRemain",
    "ProgramMissing",
    "Recipe",
    "RecipeFile",
    "Runtime",
    "RuntimeUnavailable",
    "Sandbox",
    "SandboxBusy",
    "SandboxDied",
    "SandboxError",
    "SandboxExpired",
    "SandboxStopped",
    "ShellFailed",
    "StartFailed",
    "StoreFailed",
    "UnknownImage",
    "UnknownRuntime",
    "find_runtime",
    "folder_image",
    "keep_from_sandboxes",
    "runtime_names",
    "self_check",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("ors-server")
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    # `self_check` is a module and a function in it; importing the one must not hide the other.
    globals()[name] = value
    return value
