"""Parts of all pages of stored rollouts: values of an address, the visitor's key, and queries on threads."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ors_server.pages.context import visitor_of
from ors_server.rollouts.store import RolloutStore
from ors_server.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["ROWS", "checked", "chosen", "hides_verdicts", "next_page", "owner_of", "read_store", "value_of"]

Result = TypeVar("Result")
Choice = TypeVar("Choice", bound=str)

#: Rows of a list.
ROWS = 50
_LONGEST_VALUE = 500


async def read_store(store: RolloutStore, query: Callable[[Connection], Result]) -> Result | None:
    """Run a query on a thread; None where nothing was ever stored."""

    def read() -> Result | None:
        with store.reading() as connection:
            return None if connection is None else query(connection)

    return await anyio.to_thread.run_sync(read)


def value_of(request: Request, name: str) -> str:
    """Return a value of the address, empty where it is not there. Raises ``HTTPException`` for what cannot be one."""
    return checked(request.query_params.get(name, ""))


def checked(value: str) -> str:
    """Return a value of an address. Raises ``HTTPException`` for what cannot be one."""
    if len(value) > _LONGEST_VALUE or "\x00" in value:
        raise HTTPException(400, "The address of this page has a value that cannot be one.")
    return value


def chosen(request: Request, name: str, choices: Sequence[Choice]) -> Choice | None:
    """Return one of several values; None for none. Raises ``HTTPException`` for another one."""
    value = value_of(request, name)
    found = next((choice for choice in choices if choice == value), None)
    if value and found is None:
        raise HTTPException(400, f"The address of this page has no such {name}. There are {', '.join(choices)}.")
    return found


def owner_of(request: Request) -> str | None:
    """Return the key whose rollouts the visitor sees; None for all, on a server without keys."""
    return visitor_of(request).name or None


def hides_verdicts(request: Request, settings: Settings) -> bool:
    """Return whether the visitor sees numbers of tests only: their names and output are the operator's."""
    return (owner_of(request) is not None or settings.insecure) and not settings.show_verdicts


def next_page(request: Request, page: Any) -> str | None:
    """Return the query of the next page of a list."""
    if page is None or page.next is None:
        return None
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "after"]
    return urllib.parse.urlencode([*kept, ("after", page.next)])
