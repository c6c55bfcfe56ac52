"""Servers whose wall clock jumps by hours: sessions, results, leases and restarts count seconds that have passed."""

import os
import signal
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests.server.gateway.conftest import WIRE, call, ping, reply, start_several
from tests.server.gateway.test_several_workers import until

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)

pytestmark = [pytest.mark.long, pytest.mark.skipif(FAKETIME is None, reason="needs Debian's package faketime")]


@pytest.mark.parametrize("jump", ["+7200", "-7200"], ids=["forwards", "backwards"])
def test_nothing_expires_or_hangs_when_the_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    for name, value in {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        monkeypatch.delenv("LD_PRELOAD")
        sids = [several.open(client) for _ in range(6)]
        first = [reply(call(client, sid, text=sid)) for sid in sids]
        before = several.workers()
        offset.write_text(jump + "\n")
        clock = client.get("/health").headers["date"]
        assert abs(time.time() + int(jump) - _seconds(clock)) < 60, "the jump has not reached the server"
        time.sleep(2)
        for sid, earlier in zip(sids, first, strict=True):
            resumed = client.post(
                "/call", json={"name": "step", "input": {}, "task_id": earlier.task_id}, headers={"X-Session-ID": sid}
            )
            assert reply(resumed).text == sid
            assert reply(call(client, sid, text="on")).output["metadata"]["run"] == 2
        assert [(row["pid"], row["state"]) for row in several.workers()] == [(row["pid"], "serving") for row in before]
        os.kill(before[0]["pid"], signal.SIGKILL)
        until(lambda: several.workers()[0]["pid"] != before[0]["pid"] and several.workers()[0]["state"] == "serving")
        alive = [sid for sid in sids if ping(client, sid).status_code == 200]
        assert 0 < len(alive) < len(sids)
        assert several.open(client)


def _seconds(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()
