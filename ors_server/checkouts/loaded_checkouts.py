"""Checkouts that were found and read, and those that cannot be served: the others go on without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from ors_server.checkouts.checkout import Checkout
from ors_server.checkouts.errors import HostError
from ors_server.checkouts.requirements import Requirements
from ors_server.checkouts.system_needs import Needs

__all__ = ["Failures", "FoundCheckout"]


class FoundCheckout(NamedTuple):
    """A checkout that was read."""

    checkout: Checkout
    needs: Needs
    requirements: Requirements
    data: Path
    #: Whether the operator named the data folder.
    data_named: bool


class Failures:
    """The checkouts that cannot be served, by their names, each with its error; ``say`` gets a line for each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.errors: dict[str, HostError] = {}

    @contextlib.contextmanager
    def of(self, name: str) -> Generator[None]:
        """Take a ``HostError`` of this block as the reason why a checkout cannot be served."""
        try:
            yield
        except HostError as error:
            self.add(name, error)

    def add(self, name: str, error: HostError) -> None:
        """Leave out a checkout."""
        self.errors[name] = error
        self._say(f"{name} is not served: {error}")

    def require_served(self, served: int) -> None:
        """Raise ``HostError`` where no checkout is left to serve."""
        if served or not self.errors:
            return
        first = next(iter(self.errors.values()))
        if len(self.errors) == 1:
            raise first
        raise HostError(f"None of {', '.join(self.errors)} can be served", "The reasons are above.")
