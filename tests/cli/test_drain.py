"""``ors-server drain --wait`` returns when the new workers serve, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ors_cli.serving.workers import wait_for_new_workers, wait_for_the_end

from ors_server.cluster.errors import ControlError


def row(slot: int, pid: int | None, state: str = "serving", **more: Any) -> dict[str, Any]:
    return {"slot": slot, "pid": pid, "state": state, "reason": "", **more}


def waited(before: Sequence[dict[str, Any]], *later: Sequence[dict[str, Any]], deadline: float = 60) -> int:
    """Wait with a server that answers with each of ``later`` in turn; return how many of them were read."""
    read = iter(enumerate(later, 1))
    last = 0

    def list_rows() -> dict[str, Any]:
        nonlocal last
        last, rows = next(read)
        return {"workers": rows}

    wait_for_new_workers(list_rows, before, deadline, lambda _: None)
    return last


def test_it_waits_for_the_last_new_worker() -> None:
    before = [row(0, 10), row(1, 11)]
    later = [
        [row(0, 10, "draining"), row(1, 11)],
        [row(0, None, "starting"), row(1, 11)],
        [row(0, 20), row(1, 11)],
        [row(0, 20), row(1, 11, "draining")],
        [row(0, 20), row(1, 21, "starting")],
        [row(0, 20), row(1, 21)],
        [],
    ]
    assert waited(before, *later) == 6


def test_a_node_that_has_gone_is_not_waited_for() -> None:
    before = [row(0, 10, node="one"), row(1, 10, node="two")]
    assert waited(before, before, [row(1, 12, node="two")], []) == 2


def test_a_slot_that_was_given_up_before_is_not_waited_for() -> None:
    assert waited([row(0, None, "out"), row(1, 11)], [row(0, None, "out"), row(1, 12)]) == 1


def test_a_new_worker_that_is_given_up_ends_the_wait_with_its_reason() -> None:
    given_up = row(0, None, "out") | {"reason": "it is of version 9"}
    with pytest.raises(ControlError, match=r"slot 0 .*it is of version 9"):
        waited([row(0, 10), row(1, 11)], [given_up, row(1, 11)])


def test_the_wait_ends_when_the_drain_takes_too_long() -> None:
    with pytest.raises(ControlError, match="No new worker serves in time in slot 0"):
        waited([row(0, 10)], [row(0, 10)], deadline=-120.0)


def test_a_stop_waits_for_nodes_that_leave() -> None:
    before = [row(0, 10, node="one"), row(1, 10, node="two")]
    replies = iter([before, before[1:], [], before])
    assert wait_for_the_end(lambda: {"workers": next(replies)}, before, 60, lambda _: None) == {"workers": []}
    with pytest.raises(ControlError, match="one, two did not end in time"):
        wait_for_the_end(lambda: {"workers": before}, before, -120.0, lambda _: None)
