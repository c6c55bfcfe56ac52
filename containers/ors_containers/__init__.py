"""Isolated sandboxes for untrusted commands: one interface, several runtimes.

    async with BubblewrapRuntime() as runtime:
        async with runtime.sandbox(runtime.host_image()) as sandbox:
            result = await sandbox.run("echo hello", timeout=10)

``Sandbox`` documents its guarantees and ``errors`` every exception; all of them can be imported from here. A name is
imported when it is first used, because the launcher, which imports this package, has to start in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_containers import errors as errors
    from ors_containers.container import Container as Container
    from ors_containers.container import ContainerPolicy as ContainerPolicy
    from ors_containers.container import ContainerSettings as ContainerSettings
    from ors_containers.container import HostAlias as HostAlias
    from ors_containers.container import Mount as Mount
    from ors_containers.container import Network as Network
    from ors_containers.container import Sidecar as Sidecar
    from ors_containers.errors import *  # noqa: F403 - every exception, by the `__all__` of the module
    from ors_containers.image import Directory as Directory
    from ors_containers.image import Image as Image
    from ors_containers.image import folder_image as folder_image
    from ors_containers.images import ImageStore as ImageStore
    from ors_containers.images import Recipe as Recipe
    from ors_containers.images import RecipeFile as RecipeFile
    from ors_containers.limits import LIMIT_NAMES as LIMIT_NAMES
    from ors_containers.limits import Enforcement as Enforcement
    from ors_containers.limits import LimitName as LimitName
    from ors_containers.limits import Limits as Limits
    from ors_containers.linux.confinement.hidden_paths import keep_from_sandboxes as keep_from_sandboxes
    from ors_containers.runtime import Description as Description
    from ors_containers.runtime import Runtime as Runtime
    from ors_containers.runtime import find_runtime as find_runtime
    from ors_containers.runtime import runtime_names as runtime_names
    from ors_containers.runtimes.apptainer import ApptainerRuntime as ApptainerRuntime
    from ors_containers.runtimes.bubblewrap import BubblewrapRuntime as BubblewrapRuntime
    from ors_containers.sandbox import EXAMINATION as EXAMINATION
    from ors_containers.sandbox import CommandResult as CommandResult
    from ors_containers.sandbox import ExecutionResult as ExecutionResult
    from ors_containers.sandbox import FileKind as FileKind
    from ors_containers.sandbox import FileStatus as FileStatus
    from ors_containers.sandbox import Sandbox as Sandbox
    from ors_containers.sandbox import WarmProgram as WarmProgram
    from ors_containers.self_check import Check as Check
    from ors_containers.self_check import self_check as self_check

    __version__: str

#: The names above by module; all names of ``errors``.
_MODULES = {
    "container": ("Container", "ContainerPolicy", "ContainerSettings", "HostAlias", "Mount", "Network", "Sidecar"),
    "linux.confinement.hidden_paths": ("keep_from_sandboxes",),
    "image": ("Directory", "Image", "folder_image"),
    "images": ("ImageStore", "Recipe", "RecipeFile"),
    "limits": ("LIMIT_NAMES", "Enforcement", "LimitName", "Limits"),
    "runtime": ("Description", "Runtime", "find_runtime", "runtime_names"),
    "runtimes.apptainer": ("ApptainerRuntime",),
    "runtimes.bubblewrap": ("BubblewrapRuntime",),
    "sandbox": ("EXAMINATION", "CommandResult", "ExecutionResult", "FileKind", "FileStatus", "Sandbox", "WarmProgram"),
    "self_check": ("Check", "self_check"),
    "errors": (),
}


def __getattr__(name: str) -> Any:
    from ors_containers.lazy_names import lazy_name

    return lazy_name(__name__, name, _MODULES)
