"""The bodies of the sandbox service's requests, as the client ``openreward`` sends them.

A field that this server does not know is refused by name, unless it is unset: a newer client sends all its fields.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ors_server.keys.machine_size import MachineSize
from ors_server.sandbox_service.errors import InvalidSandbox
from ors_server.wire.texts import without_surrogates

__all__ = ["Bucket", "CreateSandbox", "HostNames", "NetworkPolicy", "RunCommand", "SidecarContainer", "read_request"]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        # A field that is null, false or empty asks for nothing.
        return {name: value for name, value in given.items() if value or name in cls.model_fields}  # pyright: ignore[reportUnknownVariableType]


class Bucket(_Request):
    """A read-only mount of the environment's data folder, or of one folder in it."""

    mount_path: str
    read_only: Literal[True] = True
    only_dir: str | None = None
    implicit_dirs: bool = True


class SidecarContainer(_Request):
    """A container beside the main one."""

    name: str
    image: str
    command: list[str] | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    #: For probes of the platform; every port of a sidecar is open to its sandbox.
    ports: list[int] | None = None


class HostNames(_Request):
    """Names of an address."""

    ip: str
    hostnames: list[str]


class EgressRule(_Request):
    """A rule for requests to a host."""

    action: Literal["allow", "deny"]
    host: str
    path: str | None = None
    methods: list[str] | None = None


class NetworkPolicy(_Request):
    """A filter of the requests that leave a sandbox."""

    rules: list[EgressRule] = []
    presets: list[str] = []
    enforce: bool = True

    @property
    def allows(self) -> str:
        """The first thing that an enforced policy lets through; empty for a policy that denies everything."""
        allowed = next((rule.host for rule in self.rules if rule.action == "allow"), "")
        return f"the rule that allows {allowed}" if allowed else f"the preset {self.presets[0]}" if self.presets else ""


class CreateSandbox(_Request):
    """The body of ``/create_sandbox``."""

    environment: str
    image: Annotated[str, Field(min_length=1)]
    machine_size: str
    env: dict[str, str] | None = None
    block_network: bool = False
    bucket_config: Bucket | None = None
    sidecars: list[SidecarContainer] | None = None
    host_aliases: list[HostNames] | None = None
    network: NetworkPolicy | None = None
    #: A creation that was begun: its result is sent again.
    task_id: str | None = None

    @field_validator("machine_size")
    @classmethod
    def _check_size(cls, size: str) -> str:
        if size.startswith("nvidia"):
            raise ValueError(f"sandboxes of this server have no GPU: {size!r} is not available; name a size as '2:4'")
        MachineSize.read(size)
        return size

    @model_validator(mode="after")
    def _check_network(self) -> CreateSandbox:
        if self.block_network and self.network is not None:
            raise ValueError("network and block_network=True are mutually exclusive")
        return self

    @property
    def size(self) -> MachineSize:
        """Processors and memory that it may use."""
        return MachineSize.read(self.machine_size)


class RunCommand(_Request):
    """The body of ``/run``."""

    cmd: str
    #: Seconds; null and 0 mean that it may take any time.
    timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    max_bytes: Annotated[int, Field(ge=0)] | None = None
    shell: str = "/bin/bash"
    #: A command that was begun: its result is sent again, and nothing runs.
    task_id: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The part that a repeated request has in common with the first."""
        return self.model_dump(exclude={"task_id"})


Model = TypeVar("Model", bound=_Request)


def read_request(model: type[Model], body: bytes) -> Model:
    """Read a body. Raises ``InvalidSandbox``, whose text names the first field at fault."""
    try:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":
                raise
            # Commands of models have half an emoji, which pydantic does not accept.
            return model.model_validate(without_surrogates(json.loads(body)))
    except ValidationError as error:
        raise InvalidSandbox(_explain(error)) from None
    except (ValueError, RecursionError):
        raise InvalidSandbox("The request body is not JSON") from None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"This server does not know the field {place!r}"
    text = first["msg"].removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
