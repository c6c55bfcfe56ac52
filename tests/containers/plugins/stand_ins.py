"""Stand-ins for the parts of Harbor, Inspect and verifiers that our plug-ins use: what the base classes keep and call.

The long tests run the plug-ins under the runners themselves (``tests/long/test_plugins.py``).
"""

from __future__ import annotations

import importlib
import io
import logging
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest

__all__ = ["RunnerError", "install_harbor", "install_inspect", "install_verifiers"]

C = TypeVar("C", bound=type)


class RunnerError(Exception):
    """An error of a runner."""


class BaseEnvironment:
    """Harbor's, for a task on one phase."""

    default_user: str | int | None = None

    def __init__(
        self, folder: Path, *, callback: Any = None, mounts: Any = (), closed: bool = True, **config: Any
    ) -> None:
        self.environment_dir = folder
        self.environment_id = "0123"
        self.trial_paths = SimpleNamespace(trial_dir=folder / "trial")
        defaults = {"docker_image": None, "storage_mb": 64, "workdir": None}
        self.task_env_config = SimpleNamespace(**(defaults | config))
        self.logger = logging.getLogger("stand_in")
        self._mounts, self._callback, self._network_disabled = list(mounts), callback, closed
        self._effective_memory_mb = self._effective_cpus = None
        self._validate_definition()

    def _validate_definition(self) -> None:
        raise NotImplementedError

    def _startup_env(self) -> dict[str, str]:
        return {"TASK": "t", "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin"}

    def _merge_env(self, env: Mapping[str, str] | None) -> Mapping[str, str] | None:
        return env

    def _resolve_user(self, user: str | int | None) -> str | int | None:
        return user if user is not None else self.default_user

    def _resource_limit_value(self, resource: str, *, auto_mode: None) -> int | None:
        return None

    def _output_callback(self) -> Any:
        return self._callback

    def _mount_targets(self, *, writable_only: bool) -> list[str]:
        return ["/logs/verifier"]

    async def ensure_dirs(self, folders: list[str]) -> None:
        for folder in folders:
            await self.exec(f"mkdir -p {folder} && chmod 777 {folder}", user="root")

    async def exec(self, command: str, **more: Any) -> Any:
        raise NotImplementedError

    async def _upload_environment_dir_after_start(self) -> None:
        pass


def _extract(content: bytes, target: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(target, filter="data")


@dataclass
class Result:
    """The result of a command, of any runner: their fields have other names."""

    success: bool = True
    returncode: int = 0
    stdout: str = ""
    stderr: str = ""
    return_code: int = 0
    exit_code: int = 0


def install_harbor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the plug-in for Harbor, imported beside the stand-in."""

    def require(folder: Path, *, docker_image: str | None) -> None:
        if docker_image is None and not any(folder.iterdir()):
            raise FileNotFoundError(folder)

    def use_prebuilt(_folder: Path, *, docker_image: str | None, force_build: bool) -> bool:
        return docker_image is not None and not force_build

    parts = "harbor.environments"
    _module(monkeypatch, f"{parts}.base", BaseEnvironment=BaseEnvironment, ExecResult=Result,
            SandboxBuildFailedError=RunnerError)  # fmt: skip
    _module(monkeypatch, f"{parts}.capabilities", EnvironmentCapabilities=SimpleNamespace,
            EnvironmentResourceCapabilities=SimpleNamespace)  # fmt: skip
    _module(monkeypatch, f"{parts}.definition", DOCKERFILE_NAME="Dockerfile", COMPOSE_FILE_NAME="docker-compose.yaml",
            require_agent_environment_definition=require, should_use_prebuilt_docker_image=use_prebuilt)  # fmt: skip
    _module(monkeypatch, f"{parts}.tar_transfer", extract_dir_from_bytes=_extract)
    return _plugin(monkeypatch, "harbor")


def install_inspect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the plug-in for Inspect, imported beside the stand-in."""

    class SandboxEnvironment:
        def as_type(self, _: type) -> Any:
            return self

    class Limits:
        MAX_EXEC_OUTPUT_SIZE = MAX_READ_FILE_SIZE = 1000
        MAX_EXEC_OUTPUT_SIZE_STR = MAX_READ_FILE_SIZE_STR = "1000 bytes"

    def register(name: str) -> Callable[[C], C]:
        assert name == "ors"
        return lambda kind: kind

    names = {"SandboxEnvironment": SandboxEnvironment, "SandboxEnvironmentLimits": Limits, "sandboxenv": register}
    errors = dict.fromkeys(("OutputLimitExceededError", "SandboxUserUnsupportedError"), RunnerError)
    _module(monkeypatch, "inspect_ai.util", ExecResult=Result, **names, **errors)
    _module(monkeypatch, "inspect_ai.util._sandbox.environment", SandboxUnavailableError=RunnerError)
    return _plugin(monkeypatch, "inspect")


def install_verifiers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the plug-in for verifiers, imported beside the stand-in."""

    class Runtime:
        def __init__(self, name: str | None) -> None:
            self.user: str | None = None

        def process_env(self, env: dict[str, str]) -> dict[str, str]:
            return {"TASK": "t", **env}

    _module(monkeypatch, "verifiers.v1.runtimes", Runtime=Runtime, ProgramResult=Result, DockerRuntime=None,
            DockerRuntimeInfo=SimpleNamespace)  # fmt: skip
    _module(monkeypatch, "verifiers.v1.errors", SandboxError=RunnerError)
    return _plugin(monkeypatch, "verifiers")


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    parents = name.split(".")
    for count in range(1, len(parents)):
        parent = ".".join(parents[:count])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)


def _plugin(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    module = f"ors_containers.plugins.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    found = importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    return found
