import uuid

from hypothesis import given
from hypothesis import strategies as st

from ors_server.cluster.gateway.members.placed_ids import INCARNATIONS, SLOTS, Place, PlacedIds

IDS = PlacedIds(b"k" * 32)
places = st.builds(Place, st.integers(0, SLOTS - 1), st.integers(0, INCARNATIONS - 1))


@given(places)
def test_an_id_is_a_uuid_of_version_8_from_which_its_place_is_read(place: Place) -> None:
    sid = IDS.make(place)
    assert (uuid.UUID(sid).version, uuid.UUID(sid).variant, str(uuid.UUID(sid))) == (8, uuid.RFC_4122, sid)
    assert IDS.read(sid) == PlacedIds(b"k" * 32).read(sid) == place


@given(places, st.integers(0, 127))
def test_an_id_with_one_other_bit_is_not_a_placed_id(place: Place, bit: int) -> None:
    sid = IDS.make(place)
    assert IDS.read(str(uuid.UUID(int=uuid.UUID(sid).int ^ 1 << bit))) is None


@given(st.text() | st.uuids(version=4).map(str) | st.uuids(version=4).map(lambda each: str(each).upper()))
def test_any_other_text_is_not_a_placed_id(text: str) -> None:
    assert IDS.read(text) is None


def test_another_key_reads_no_place_and_ids_do_not_repeat() -> None:
    made = {IDS.make(Place(1, 2)) for _ in range(1000)}
    assert len(made) == 1000
    assert not any(PlacedIds(b"another").read(sid) for sid in made)
