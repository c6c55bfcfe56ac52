"""The workers that a gateway knows: which of them gets a new session, and which has the session of an id."""

import pytest

from ors_server.cluster.gateway.members.placed_ids import Place
from ors_server.cluster.gateway.members.workers import Member, Workers


def serving(*members: Member, max_sessions: int = 9) -> Workers:
    """Return workers that have reported and have no session."""
    workers = Workers()
    added, _ = workers.replace(members)
    for worker in added:
        worker.report({"sessions": 0, "max_sessions": max_sessions})
    return workers


def test_the_session_of_a_worker_that_was_started_again_is_not_the_new_workers() -> None:
    workers = serving(Member(0, 6, "unix:/worker-6"))
    workers.replace([Member(0, 7, "unix:/worker-7")])
    new = workers.at(Place(0, 7))
    assert new is not None
    assert new.address == "unix:/worker-7"
    assert workers.at(Place(0, 6)) is None


def test_a_report_has_the_sessions_that_were_placed_before_it() -> None:
    """Counted twice, they would keep new sessions away from a worker that has room."""
    workers = serving(Member(0, 0, "unix:/worker-0"))
    worker = workers.for_new_session()
    assert worker is not None
    assert worker.load == 1
    worker.report({"sessions": 1, "max_sessions": 9})
    assert worker.load == 1
    worker.report({"sessions": 0, "max_sessions": 9})
    assert worker.load == 0


def test_a_new_session_goes_to_the_worker_with_fewer_sessions() -> None:
    workers = serving(*(Member(slot, 0, f"unix:/worker-{slot}") for slot in range(2)))
    chosen = [workers.for_new_session() for _ in range(8)]
    assert [sum(each is worker for each in chosen) for worker in workers] == [4, 4]


@pytest.mark.parametrize("reason", ["it drains", "it is full", "it has not reported", "the gateway stops"])
def test_a_worker_that_takes_no_new_session_gets_none(reason: str) -> None:
    member = Member(0, 0, "unix:/worker-0", draining=reason == "it drains")
    workers = serving(member, max_sessions=0 if reason == "it is full" else 9)
    if reason == "it has not reported":
        workers.replace([member._replace(incarnation=1)])
    if reason == "the gateway stops":
        workers.take_no_more()
    assert workers.for_new_session() is None
    assert workers.living_slots() == [0]
