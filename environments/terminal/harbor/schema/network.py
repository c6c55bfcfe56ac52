"""The network that a phase of a task asks for: ``network_mode`` and ``allowed_hosts``.

What a task asks for is not what it gets: the operator's setting decides.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from .table import Table

__all__ = ["BaselineNetwork", "NetworkMode", "PhaseNetwork"]

NetworkMode = Literal["public", "no-network", "allowlist"]

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_FORMS = "a host is a name, *.NAME, an address or a range of addresses, without scheme, port and path"


def _host(text: str) -> str:
    """Return a host in its usual spelling. Raises ``ValueError``."""
    host = text.strip().lower().rstrip(".")
    try:
        if "/" in host:
            if "%" in host:
                raise ValueError(_FORMS)
            return ipaddress.ip_network(host, strict=True).compressed
        if ":" in host:
            if "%" in host:
                raise ValueError(_FORMS)
            return ipaddress.IPv6Address(host).compressed
    except ValueError as error:
        raise ValueError(f"{text!r}: {_FORMS}") from error
    name = host.removeprefix("*.")
    if not all(_LABEL.fullmatch(label) for label in name.split(".")) or (name != host and _is_address(name)):
        raise ValueError(f"{text!r}: {_FORMS}")
    return host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _hosts(texts: list[str]) -> list[str]:
    return [_host(text) for text in texts]


Hosts = Annotated[list[str], AfterValidator(_hosts)]


class BaselineNetwork(Table):
    """The network of an environment, public where the task says nothing."""

    network_mode: NetworkMode = "public"
    allowed_hosts: Hosts | None = None

    @model_validator(mode="after")
    def _hosts_need_a_list(self) -> BaselineNetwork:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts needs network_mode = "allowlist"')
        return self


class PhaseNetwork(Table):
    """The network while the agent works or the verifier runs; None for the environment's."""

    network_mode: NetworkMode | None = None
    allowed_hosts: Hosts | None = None

    @model_validator(mode="after")
    def _hosts_need_a_list(self) -> PhaseNetwork:
        given = self.allowed_hosts if self.network_mode is not None else self.allowed_hosts is not None
        if given and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts needs network_mode = "allowlist"')
        return self
