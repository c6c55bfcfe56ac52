"""Events in any order, in any batches, any number of times: the same stored rollouts."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import NOON, Event, at, body, emptied, message, rollout, rows, stored, update

pytestmark = pytest.mark.usefixtures("database")

_REWARDS = st.none() | st.floats(-10, 10, allow_nan=False)
_INFO = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3) | st.text(max_size=3), min_size=1, max_size=3)


@st.composite
def uploads(draw: st.DrawFn) -> list[Event]:
    """Draw the events of a few rollouts. Some have messages but no event of their own, as if it was lost."""
    events: list[Event] = []
    for rollout_id in ("r1", "r2", "r3")[: draw(st.integers(1, 3))]:
        if draw(st.booleans()):
            at = NOON + draw(st.integers(0, 2))
            info = draw(st.none() | _INFO)
            others: dict[str, Any] = {} if info is None else {"rollout_info": info}
            events.append(rollout(rollout_id, draw(st.sampled_from(["one", "two"])), at=at, **others))
        for index in range(draw(st.integers(0, 4))):
            # Two messages with one index occur when a client restarts.
            place = draw(st.sampled_from([index, 0]))
            finished = draw(st.booleans())
            name = f"{rollout_id}-{index}"
            reward = draw(_REWARDS)
            events.append(message(rollout_id, place, eventId=name, reward=reward, isFinished=finished))
        events.extend(
            update(rollout_id, at=NOON + draw(st.integers(0, 2)), **draw(_INFO)) for _ in range(draw(st.integers(0, 3)))
        )
    return events


def store(batches: list[list[Event]], folder: Path) -> tuple[Any, ...]:
    """Upload batches one after another. Return everything stored, whatever the order of rows in the database."""
    emptied()

    async def upload() -> None:
        writer = RolloutWriter(at(folder))
        for batch in batches:
            await writer.store(body(*batch))
        await writer.close()

    asyncio.run(upload())
    if not any(batches):
        return ()  # a database is made for the first event
    tables = ("runs", "rollouts", "messages", "updates")
    return (stored(folder), *(sorted(map(repr, rows(folder, f"SELECT * FROM {table}"))) for table in tables))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=uploads(), data=st.data())
def test_order_batches_and_repetitions_make_no_difference(events: list[Event], data: st.DataObject) -> None:
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=6) if events else st.just([]))
    shuffled = data.draw(st.permutations(repeated))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=4)))
    batches = [shuffled[start:end] for start, end in zip([0, *cuts], [*cuts, len(shuffled)], strict=True)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        assert store([events], Path(one)) == store(batches, Path(other))


def test_of_two_events_with_one_id_the_first_stays(tmp_path: Path) -> None:
    first, second = message("r", 0, "first", eventId="m", reward=1.0), message("r", 5, "second", eventId="m", reward=9)
    store([[rollout("r", "one"), first], [rollout("r", "two"), second]], tmp_path)
    (found,) = stored(tmp_path)
    assert (found["run_name"], found["num_messages"], found["max_reward"]) == ("one", 1, 1.0)
    assert found["messages"][0]["content"] == "first"


def test_a_later_update_wins_whenever_it_comes(tmp_path: Path) -> None:
    later = update("r", at=NOON + 5, duration_ms=7)
    store([[later], [rollout("r"), update("r", at=NOON, duration_ms=3, top_k=1)]], tmp_path)
    assert stored(tmp_path)[0]["rollout_info"] == {"duration_ms": 7, "top_k": 1}


def test_without_rewards_there_is_no_sum(tmp_path: Path) -> None:
    store([[rollout("r"), message("r", 0)], [rollout("other")]], tmp_path)
    assert rows(tmp_path, "SELECT max_reward, total_reward FROM rollouts") == [(None, None)] * 2
