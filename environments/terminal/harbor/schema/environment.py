"""The table ``[environment]``, which ``[verifier.environment]`` shares, with its older spellings.

``memory = "4G"`` and ``storage`` are older than ``memory_mb``, ``allow_internet`` is older than ``network_mode``.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from .network import BaselineNetwork
from .table import Seconds, Size, Table, Variables

__all__ = ["Environment", "HealthCheck"]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMG])")
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024}
_OLDER = {"memory": "memory_mb", "storage": "storage_mb"}


class HealthCheck(Table):
    """A command that has to succeed before the agent starts; the meaning is Docker's."""

    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    start_interval_sec: Seconds = 5.0
    retries: Annotated[int, Field(ge=0)] = 3


class Environment(BaselineNetwork):
    """An image, its sizes and its variables. Sizes are in megabytes, ``cpus`` in cores."""

    older_keys: ClassVar[frozenset[str]] = frozenset({*_OLDER, "allow_internet"})

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    memory_mb: Size | None = None
    storage_mb: Size | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    gpu_types: list[str] | None = None
    # Refused as a whole, so their own keys are not read.
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    env: Variables = Field(default_factory=dict[str, str])
    skills_dir: str | None = None
    healthcheck: HealthCheck | None = None
    workdir: str | None = None

    @field_validator("workdir", "skills_dir")
    @classmethod
    def _is_path(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("/") or not value.isprintable()):
            raise ValueError("it is a path of the image, which begins with a slash")
        return value

    @model_validator(mode="before")
    @classmethod
    def _present_spelling(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        table = dict(cast("dict[str, Any]", data))
        for older, key in _OLDER.items():
            if older in table:
                _rename_size(table, older, key)
        if isinstance(name := table.get("os"), str):
            table["os"] = name.lower()
        allowed = table.pop("allow_internet", None)
        if allowed is not None:
            if not isinstance(allowed, bool):
                raise ValueError("allow_internet is true or false")
            if "network_mode" not in table and table.get("allowed_hosts") is None:
                table["network_mode"] = "public" if allowed else "no-network"
        return table


def _rename_size(table: dict[str, Any], older: str, key: str) -> None:
    """Replace a size like "4G" by megabytes. Raises ``ValueError`` if the two spellings differ."""
    text = table.pop(older)
    found = _SIZE.fullmatch(text.strip().upper()) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f'{older} is {text!r}, not a size like "4G", "512M" or "1024K"')
    megabytes = math.floor(float(found[1]) * _MEGABYTES[found[2]])
    if table.setdefault(key, megabytes) != megabytes:
        raise ValueError(f"{older} is {text!r}, {megabytes} MB, and {key} is {table[key]!r}")
