"""Verdicts of episodes that were graded again, written beside those with which they ended.

Invariant: the rows of a rollout do not change. A verdict that is written again, for the same files and the same tests,
takes the place of itself, so a repeated run adds nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass

from ors_server.rollouts.location import Location
from ors_server.rollouts.storing.additions import inserting
from ors_server.rollouts.storing.database import FAULTS, explained, open_to_write
from ors_server.rollouts.tables import regrades

__all__ = ["NewVerdict", "add_verdict"]


@dataclass(frozen=True, slots=True)
class NewVerdict:
    """The verdict of an episode that was graded again."""

    session: str
    #: The name of the kept files.
    state: str
    #: A digest of the tests by which they were graded.
    tests: str
    reward: float
    #: The reward with which the episode ended; None where it had none.
    previous_reward: float | None
    #: A reservation about the verdict (``verdict_marks``).
    verdict_mark: str | None
    #: Milliseconds since 1970.
    graded_at: int
    #: What the grader found (``verdicts``), as JSON.
    verdict: str | None = None


def add_verdict(location: Location, verdict: NewVerdict) -> bool:
    """Store a verdict; return False where no rollout was ever stored, so that there is none that it could be of.

    Raises ``StoreUnavailable``.
    """
    try:
        if location.url is None and not location.file.exists():
            return False
        with closing(open_to_write(location)) as connection, connection.begin():
            insert = inserting(connection)(regrades).values(asdict(verdict))
            changed = {name: insert.excluded[name] for name in ("reward", "verdict_mark", "graded_at", "verdict")}
            connection.execute(insert.on_conflict_do_update(index_elements=list(regrades.primary_key), set_=changed))
    except FAULTS as error:
        raise explained(error, location, location.shown) from error
    return True
