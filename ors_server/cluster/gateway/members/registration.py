"""The registration of a node, as it arrives at a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, model_validator

from ors_server.cluster.gateway.members.placed_ids import INCARNATIONS, SLOTS
from ors_server.cluster.gateway.members.workers import Member
from ors_server.http.addresses import parse_address

__all__ = ["Registration"]

_Names = Annotated[list[str], Field(min_length=1)]


class Registration(BaseModel):
    """A valid registration, whose workers have different slots of the node."""

    name: Annotated[str, Field(max_length=255)]
    instance: Annotated[str, Field(max_length=255)]
    version: str
    first: Annotated[int, Field(ge=0)]
    count: Annotated[int, Field(ge=1)]
    leaving: bool = False
    given: Annotated[
        list[
            tuple[
                int,
                Annotated[int, Field(ge=0, lt=INCARNATIONS)],
                str,
                bool,
                FiniteFloat,
                list[_Names],
                dict[str, str],
                Literal[False],  # sandboxes are those of a server without nodes
                str,
            ]
        ],
        Field(alias="members"),
    ]
    #: When the node started, by its own clock, in seconds since 1970; and the digests of its lists of tasks.
    started: FiniteFloat = 0.0
    task_lists: Mapping[str, Mapping[str, list[str]]] = {}
    #: What ``ors-server workers`` shows.
    workers: list[Mapping[str, Any]]

    @property
    def slots(self) -> range:
        """The slots of the node."""
        return range(self.first, self.first + self.count)

    @property
    def members(self) -> list[Member]:
        """The workers."""
        return [Member(*values) for values in self.given]

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        slots = [member.slot for member in self.members]
        if self.slots.stop >= SLOTS:
            raise ValueError("slots outside of the cluster's")
        if len(set(slots)) < len(slots) or not set(slots) <= set(self.slots):
            raise ValueError("workers outside of their node's slots, or two in one")
        for member in self.members:
            parse_address(member.address)
        return self
