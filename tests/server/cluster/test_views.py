"""A model of joins and leaves: each session of a client's own id is found where it was created."""

from hypothesis import given
from hypothesis import strategies as st

from ors_server.cluster.gateway.members.views import Views, weight
from ors_server.cluster.gateway.members.workers import Member, Workers

SLOTS = range(6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(SLOTS)),
        st.tuples(st.just("leave"), st.sampled_from(SLOTS)),
        st.tuples(st.just("create"), st.integers(0, 20)),
        st.tuples(st.just("gateway"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_session_lives_with_an_owner_of_its_id(steps: list[tuple[str, int]]) -> None:
    """``leave`` is a drain, after which a slot's sessions live on; another gateway has seen another part of it."""
    joined: dict[int, float] = {}
    gateways = [Views(1e9)]
    sessions: dict[str, int] = {}
    for now, (step, number) in enumerate(steps, 1):
        if step == "join":
            joined.setdefault(number, float(now))
        elif step == "leave":
            joined.pop(number, None)
        elif step == "gateway":
            gateways.append(Views(1e9))
        for views in gateways:
            views.update(joined, float(now))
        if step == "create" and joined:
            name = f"id-{number}"
            owners = gateways[0].owners(name)
            assert owners[0] == max(joined, key=lambda slot: weight(slot, name))
            # As a gateway does: the owner, unless an earlier owner has the session.
            sessions.setdefault(name, owners[0])
        for name, slot in sessions.items():
            assert slot in gateways[0].owners(name)
            for later in gateways[1:]:
                # A gateway that starts later knows from the ages of the slots what was before, but not who left.
                assert slot in later.owners(name) or slot not in joined or _left_once(steps[:now], slot)


def _left_once(steps: list[tuple[str, int]], slot: int) -> bool:
    return ("leave", slot) in steps


@given(st.sets(st.sampled_from(SLOTS), min_size=1), st.text())
def test_without_changes_an_id_has_one_owner(slots: set[int], name: str) -> None:
    views = Views(900.0)
    views.update(dict.fromkeys(slots, 1.0), 2.0)
    assert len(views.owners(name)) == 1
    views.update(dict.fromkeys(slots, 1.0), 3.0)
    assert len(views.owners(name)) == 1


def test_a_slot_that_left_is_forgotten_after_a_while() -> None:
    views = Views(900.0)
    views.update({0: 0.0, 1: 0.0}, 1.0)
    name = next(f"id-{number}" for number in range(100) if views.owners(f"id-{number}") == [0])
    views.update({1: 0.0}, 2.0)
    assert views.owners(name) == [1, 0]
    views.update({1: 0.0}, 903.0)
    assert views.owners(name) == [1]


def test_an_id_stays_with_the_owners_of_its_environment() -> None:
    views = Views(900.0)
    views.update(dict.fromkeys(SLOTS, 0.0), 1.0)
    for number in range(20):
        assert views.owners(f"id-{number}", {2, 3})[0] in (2, 3)


def test_a_gateway_that_starts_during_a_drain_searches_the_slot_that_drains() -> None:
    """Its sessions live on there: without the search they were 404, and ``/create`` made them a second time."""
    members = [Member(slot, 0, f"unix:/worker-{slot}", age=100.0) for slot in range(3)]
    draining = [members[0]._replace(draining=True), *members[1:]]
    before, after = Workers(), Workers()
    before.replace(members)
    before.replace(draining)
    for _ in range(2):
        after.replace(draining)
    for number in range(50):
        searched = [[owner and owner.place.slot for owner in each.owners(f"id-{number}")] for each in (before, after)]
        assert searched[0] == searched[1]


def test_a_worker_that_no_gateway_has_offered_yet_is_not_searched() -> None:
    workers = Workers()
    new = Member(0, 0, "unix:/worker-0", draining=True)
    workers.replace([new, Member(1, 0, "unix:/worker-1", age=100.0)])
    assert [len(workers.owners(f"id-{number}")) for number in range(20)] == [1] * 20
