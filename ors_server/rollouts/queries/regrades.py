"""The newest verdict of episodes that were graded again (``ors-server tasks regrade``), for lists and conversations.

No sum, mean or pass rate counts it: a rollout has earned what its calls have returned. Invariant: a rollout that names
another key's session does not show the verdict of that session.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from ors_server.rollouts.queries.paging import iso_time, moment
from ors_server.rollouts.tables import regrades, rollouts
from ors_server.rollouts.verdicts import Verdict, read_verdict

__all__ = ["Regrade", "regraded_verdict", "regrades_of"]


@dataclass(frozen=True, slots=True)
class Regrade:
    """A verdict after a test was repaired, beside the one before."""

    reward: float
    #: None where the episode ended without a reward.
    previous_reward: float | None
    verdict_mark: str | None
    #: A digest of the tests.
    tests: str
    graded_at: datetime
    #: The row in the table.
    key: tuple[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "reward": self.reward,
            "previous_reward": self.previous_reward,
            "verdict_mark": self.verdict_mark,
            "tests": self.tests,
            "graded_at": iso_time(self.graded_at),
        }


#: What lists need: what the grader found is long.
_COLUMNS = [column for column in regrades.c if column is not regrades.c.verdict]


def regraded_verdict(connection: Connection, regrade: Regrade) -> Verdict | None:
    """Read what the grader found; None where it is not kept."""
    session, state = regrade.key
    found = connection.scalar(
        select(regrades.c.verdict).where(
            regrades.c.session == session, regrades.c.state == state, regrades.c.tests == regrade.tests
        )
    )
    return None if found is None else read_verdict(json.loads(found))


def regrades_of(connection: Connection, rows: Sequence[RowMapping]) -> dict[str, Regrade]:
    """Return the newest verdicts of those rows of ``rollouts`` that were graded again, by the ids of the rows."""
    named = {row["session"] for row in rows if row["session"] is not None}
    if not named:
        return {}
    query = select(*_COLUMNS).where(regrades.c.session.in_(named)).order_by(regrades.c.graded_at, regrades.c.state)
    newest = {
        row["session"]: Regrade(
            row["reward"],
            row["previous_reward"],
            row["verdict_mark"],
            row["tests"],
            moment(row["graded_at"]),
            (row["session"], row["state"]),
        )
        for row in connection.execute(query).mappings()
    }
    if not newest:
        return {}
    owners: defaultdict[str, set[str | None]] = defaultdict(set)
    recorded = select(rollouts.c.session, rollouts.c.owner).where(
        rollouts.c.session.in_(list(newest)), rollouts.c.source == "session"
    )
    for session, owner in connection.execute(recorded):
        owners[session].add(owner)
    return {
        row["id"]: newest[row["session"]]
        for row in rows
        if row["session"] in newest and row["owner"] in (owners[row["session"]] or {row["owner"]})
    }
