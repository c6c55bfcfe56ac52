"""Parts of the Harbor format that are not supported here, each refused by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .files import exists
from .schema.artifacts import MAIN_SERVICE
from .schema.environment import Environment
from .schema.task_config import TaskConfig

__all__ = ["not_prepared", "unsupported"]

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")


def unsupported(folder: Path, config: TaskConfig) -> list[str]:
    """Return what a task needs and cannot have here, each as a few words; empty for nothing."""
    return [*_settings(config), *_files(folder, config)]


def not_prepared(config: TaskConfig) -> list[str]:
    """Return what a task asks for and a preparation does not do yet, each by its settings; empty for nothing."""
    verifier = config.verifier
    asked = {
        "a separate verifier (verifier.environment_mode, verifier.environment)": verifier.separate,
        "collect hooks ([[verifier.collect]])": verifier.collect,
        f"artifacts ({', '.join(each.source for each in config.artifact_list())})": config.artifacts,
        "a health check (environment.healthcheck)": config.environment.healthcheck,
    }
    return [words for words, value in asked.items() if value]


def _settings(config: TaskConfig) -> Iterator[str]:
    if config.steps:
        yield "several steps ([[steps]])"
    yield from _environment(config.environment, "environment")
    if config.verifier.environment is not None:
        yield from _environment(config.verifier.environment, "verifier.environment")
    services = [hook.service for hook in config.verifier.collect]
    services += [artifact.service or MAIN_SERVICE for artifact in config.artifact_list()]
    for service in dict.fromkeys(services):
        if service != MAIN_SERVICE:
            yield f"several services ({service!r} of verifier.collect or artifacts)"


def _environment(environment: Environment, key: str) -> Iterator[str]:
    if environment.os == "windows":
        yield f'Windows ({key}.os = "windows")'
    if environment.gpus:
        yield f"GPUs ({key}.gpus = {environment.gpus})"
    if environment.tpu is not None:
        yield f"TPUs ({key}.tpu)"
    if environment.mcp_servers:
        names = [name[:40] for server in environment.mcp_servers if isinstance(name := server.get("name"), str)]
        yield f"MCP servers ({key}.mcp_servers: {', '.join(names)})"


def _files(folder: Path, config: TaskConfig) -> Iterator[str]:
    trees = [folder / "environment", *([folder / "tests"] if config.verifier.separate else [])]
    for tree in trees:
        for name in _COMPOSE:
            # Harbor reads docker-compose.yaml alone and ignores other spellings beside a Dockerfile.
            if exists(tree / name) and (name == _COMPOSE[0] or not exists(tree / "Dockerfile")):
                yield f"compose files ({tree.name}/{name})"
    if exists(folder / "trajectory.json"):
        yield "earlier turns (trajectory.json)"
