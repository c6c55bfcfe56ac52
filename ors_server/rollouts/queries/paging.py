"""Pages of lists, by a cursor or by an offset, and the times in their rows.

Lists come newest first. ``next`` of a page is the ``after`` of the following one; by it a page costs the same wherever
it lies. An offset is for clients of the platform's API, which know no other way.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from ors_server.rollouts.errors import InvalidCursor

__all__ = ["Listing", "cursor", "iso_time", "moment", "page_of", "read_cursor"]

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """A page of a list."""

    rows: list[Row]
    #: The cursor of the next page; None at the end.
    next: str | None


class _Dated(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> datetime | None: ...


Dated = TypeVar("Dated", bound=_Dated)


def page_of(rows: Sequence[Dated], limit: int) -> Listing[Dated]:
    """Return the first ``limit`` of the rows, and a cursor where there are more."""
    if len(rows) <= limit:
        return Listing(list(rows), None)
    last = rows[limit - 1]
    at = 0 if last.created_at is None else round(last.created_at.timestamp() * 1000)
    return Listing(list(rows[:limit]), cursor(at, last.id))


def cursor(at: float | str, last: str) -> str:
    """Return the cursor behind a row, by its id and what the list is ordered by; times are in milliseconds."""
    return base64.urlsafe_b64encode(json.dumps([at, last]).encode()).decode().rstrip("=")


def read_cursor(text: str, kind: type[int] | type[float] | type[str] = int) -> tuple[Any, str]:
    """Return the place of a cursor, which is of ``kind``, and its id. Raises ``InvalidCursor``."""
    at: Any
    try:
        at, last = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if type(at) is not kind or not isinstance(last, str) or (isinstance(at, int) and abs(at) >= 2**63):
            raise ValueError("not a cursor")
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise InvalidCursor() from None
    return at, last


def moment(milliseconds: int) -> datetime:
    """Return the time so many milliseconds after 1970 began."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def iso_time(at: datetime | int | None) -> str | None:
    """Return a time, which may be in milliseconds, as ISO 8601."""
    if at is None:
        return None
    return (moment(at) if isinstance(at, int) else at).isoformat(timespec="milliseconds")
