"""The whole of ``task.toml``: schema "1.0" to "1.4", and files without a version.

Invariant: a value that is kept is what Harbor's own model keeps under the same name.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from .artifacts import MAIN_SERVICE, Artifact, Source, service_name
from .environment import Environment
from .network import PhaseNetwork
from .table import Seconds, Table, User, Variables

__all__ = ["TaskConfig", "Verifier"]

#: The version of a file without one.
_NEWEST = "1.4"
_VERSION = re.compile(r"[01](\.[0-9]+)*")
_PACKAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")


class Author(Table):
    """An author of a task."""

    name: str
    email: str | None = None


class Package(Table):
    """``[task]``: the task's name as a package, and its description."""

    name: str
    version: str | None = Field(default=None, min_length=1)
    description: str = ""
    authors: list[Author] = Field(default_factory=list[Author])
    keywords: list[str] = Field(default_factory=list[str])

    @field_validator("name")
    @classmethod
    def _is_package(cls, value: str) -> str:
        if _PACKAGE.fullmatch(value) is None or ".." in value:
            raise ValueError("a name is ORGANISATION/NAME, of letters, digits, dots, hyphens and underscores")
        return value


class Agent(PhaseNetwork):
    """``[agent]``: time and user of the agent's phase; without a time, the operator's."""

    timeout_sec: Seconds | None = None
    user: User | None = None


class CollectHook(Table):
    """``[[verifier.collect]]``: a command in the agent's environment before a separate verifier starts."""

    command: str
    service: str = MAIN_SERVICE
    timeout_sec: Seconds = 60.0
    user: User | None = None

    @field_validator("service")
    @classmethod
    def _is_service(cls, value: str) -> str:
        return service_name(value)


class Verifier(PhaseNetwork):
    """``[verifier]``: time, user, variables and place of the verification."""

    timeout_sec: Seconds = 600.0
    env: Variables = Field(default_factory=dict[str, str])
    user: User | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[CollectHook] = Field(default_factory=list[CollectHook])

    @property
    def separate(self) -> bool:
        """True where the verifier has an environment of its own, by the folder's own words."""
        return self.environment_mode == "separate" or self.environment is not None

    @model_validator(mode="after")
    def _has_one_place(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" and an environment of its own exclude each other')
        return self


class Solution(Table):
    """``[solution]``: variables of the solution's script."""

    env: Variables = Field(default_factory=dict[str, str])


class TaskConfig(Table):
    """The settings of a task."""

    older_keys: ClassVar[frozenset[str]] = frozenset({"version"})

    schema_version: str = _NEWEST
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    verifier: Verifier = Field(default_factory=Verifier)
    agent: Agent = Field(default_factory=Agent)
    environment: Environment = Field(default_factory=Environment)
    solution: Solution = Field(default_factory=Solution)
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    # Refused as a whole, so their own keys are not read.
    steps: list[dict[str, Any]] | None = None
    artifacts: list[Source | Artifact] = Field(default_factory=list[str | Artifact])

    @field_validator("schema_version")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if _VERSION.fullmatch(value) is None:
            raise ValueError(f'versions "0" and "1" are read, up to "{_NEWEST}"')
        return value

    @property
    def is_newer(self) -> bool:
        """True where the version is later than the newest one that is known here."""
        return [int(part) for part in self.schema_version.split(".")] > [int(part) for part in _NEWEST.split(".")]

    @model_validator(mode="before")
    @classmethod
    def _present_spelling(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "version" not in data:
            return cast("Any", data)
        table = dict(cast("dict[str, Any]", data))
        older = table.pop("version")
        return {"schema_version": older, **table}

    def artifact_list(self) -> list[Artifact]:
        """Return the artifacts, each as a table."""
        return [Artifact(source=each) if isinstance(each, str) else each for each in self.artifacts]
