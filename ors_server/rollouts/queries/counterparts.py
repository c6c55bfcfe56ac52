"""One episode, stored twice: as the session that the server recorded, and as the upload of its client.

An upload names the session that it played (``session`` in its metadata). Where both belong to one key, ``counted``
leaves the recorded session out of every list, number and export; it is still read by its own id. Nothing is written for
that, so the order in which the two arrive makes no difference. Invariant: an upload hides no record of another key,
and one that says another reward than the server recorded is marked (``Counterpart.differs``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, literal, or_, select

from ors_server.rollouts.aggregates.derived_columns import LOST
from ors_server.rollouts.aggregates.reward_rule import RewardRule, RunRules
from ors_server.rollouts.tables import rollouts

__all__ = ["Counterpart", "counted", "counterparts"]

_upload = rollouts.alias("upload")
_UPLOADED = (
    select(literal(1))  # no column of the row, so that the index is enough
    .select_from(_upload)
    .where(
        _upload.c.session == rollouts.c.session,
        _upload.c.source == "upload",
        _upload.c.owner.is_not_distinct_from(rollouts.c.owner),
    )
    .correlate(rollouts)
    .exists()
)


def counted() -> ColumnElement[bool]:
    """Return the condition on a row of ``rollouts``: an upload, or a session that its key has not uploaded."""
    return or_(rollouts.c.source == "upload", ~_UPLOADED)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The other record of an episode: of an upload the recorded session, of a recorded session the upload."""

    id: str
    #: By the rule of the upload's run, as that of the upload.
    reward: float | None
    #: True if the upload says another reward than the server recorded.
    differs: bool

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


_COLUMNS = [
    rollouts.c[name]
    for name in ("id", "run_id", "owner", "source", "session", "max_reward", "total_reward", "outcome", "finished")
]


def counterparts(connection: Connection, rows: Sequence[RowMapping], rules: RunRules) -> dict[str, Counterpart]:
    """Return the counterparts of those rows of ``rollouts`` that have one, by the ids of the rows.

    Of several the one with another reward counts, else the latest.
    """
    named = {row["session"] for row in rows if row["session"] is not None}
    if not named:
        return {}
    query = select(*_COLUMNS).where(rollouts.c.session.in_(named)).order_by(rollouts.c.created_at, rollouts.c.id)
    records: dict[tuple[str, str | None, str], list[RowMapping]] = defaultdict(list)
    for each in connection.execute(query).mappings():
        records[each["session"], each["owner"], each["source"]].append(each)
    found: dict[str, Counterpart] = {}
    for row in rows:
        is_upload = row["source"] == "upload"
        for other in records[row["session"], row["owner"], "session" if is_upload else "upload"]:
            upload, recorded = (row, other) if is_upload else (other, row)
            rule = rules.of(upload["run_id"])
            if row["id"] not in found or not found[row["id"]].differs:
                found[row["id"]] = Counterpart(other["id"], _reward(other, rule), _differs(upload, recorded, rule))
    return found


def _differs(upload: RowMapping, recorded: RowMapping, rule: RewardRule) -> bool:
    if recorded["outcome"] is None and not recorded["finished"]:
        return False  # it goes on
    claimed, earned = _reward(upload, rule), _reward(recorded, rule)
    if earned is None and recorded["outcome"] != LOST:
        return bool(claimed)  # an evaluation says 0 of an episode without a reward
    if claimed is None or earned is None:
        return claimed is not earned
    return not math.isclose(claimed, earned, rel_tol=1e-9, abs_tol=1e-9)


def _reward(row: RowMapping, rule: RewardRule) -> float | None:
    return rule.choose(highest=row["max_reward"], total=row["total_reward"])
