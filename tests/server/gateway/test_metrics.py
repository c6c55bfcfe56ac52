"""``/metrics`` of a server with several workers: all of them, whichever gateway answers, and after a death."""

import asyncio
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.server.gateway.conftest import WIRE, Several, call, start_several
from tests.server.gateway.test_several_workers import until
from tests.server.metrics.reading import Figures, read_figures
from tests.support.waiting import PATIENCE

_FIGURES = "/metrics"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Generator[Several]:
    """Start a server whose calls are counted from its start, and of which a worker dies."""
    with start_several(tmp_path_factory.mktemp("several"), f"{WIRE}:Wire") as server:
        yield server


def scrape(client: httpx.Client) -> Figures:
    response = client.get(_FIGURES)
    assert response.status_code == 200, response.text
    return read_figures(response.text)


def test_every_gateway_answers_for_all_workers(several: Several) -> None:
    with several.client() as client:
        # A server is ready with its first gateway; the other one reads the workers' reports later.
        until(lambda: scrape(client).sum("ors_gateway_workers", {"state": "serving"}) == 4)
        for _ in range(8):
            call(client, several.open(client))
        scrapes = [scrape(client) for _ in range(6)]
    for figures in scrapes:
        assert figures.values("worker") == {"0", "1"}
        assert figures.values("gateway") == {"0", "1"}
        assert figures["ors_worker_up"] == 2
        assert figures["ors_calls_total"] == figures["ors_sessions"] == 8
        assert figures["ors_build_info"] == 2
        assert figures.sum("ors_gateway_requests_total", {"answered_by": "worker"}) == 16
        assert figures.sum("ors_gateway_workers", {"state": "serving"}) == 4  # of two gateways
        assert len([name for name in figures.families if name.startswith("process_")]) > 3
    own = [figures.sum("ors_gateway_requests_total", {"answered_by": "gateway"}) for figures in scrapes]
    assert own == sorted(own)


def test_one_gateway_alone(several: Several) -> None:
    with several.client() as client:
        response = client.get(_FIGURES, params={"workers": "no"})
        assert client.head(_FIGURES).status_code == 405
        assert client.get("/_ors/figures").status_code == 404
    figures = read_figures(response.text)
    assert figures.values("worker") == set()
    assert len(figures.values("gateway")) == 1


def test_each_series_of_a_dead_worker_begins_again(several: Several) -> None:
    with several.client() as client:
        sids = [several.open(client) for _ in range(12)]
        for sid in sids:
            call(client, sid)
        before = scrape(client)
        victim = several.workers()[0]
        os.kill(victim["pid"], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE * 3
        while True:
            after = scrape(client)
            # The survivor's counters never decrease; those of the dead worker are as before, absent, or begin again.
            assert after.sum("ors_calls_total", {"worker": "1"}) >= before.sum("ors_calls_total", {"worker": "1"})
            begun = after.sum("process_start_time_seconds", {"worker": "0"})
            if begun > before.sum("process_start_time_seconds", {"worker": "0"}):
                break
            assert after.sum("ors_worker_up", {"worker": "0"}) in (0, 1)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert after["ors_worker_up"] == 2
        assert after.sum("ors_calls_total", {"worker": "0"}) == 0
        assert after.values("worker") == {"0", "1"}  # no series of an incarnation of its own


def test_workers_check_the_key_of_a_scrape(tmp_path: Path) -> None:
    secret = "a-secret-of-sixteen-characters"
    with (
        start_several(tmp_path, f"{WIRE}:Wire", workers=1, gateways=1, ORS_SERVER_KEY=secret) as closed,
        closed.client() as client,
    ):
        for path in ("/metrics", "/metrics?workers=no"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "wrong"}):
                refused = client.get(path, headers=headers)
                assert refused.status_code == 401
                assert "ors_" not in refused.text
            for headers in ({"Authorization": f"Bearer {secret}"}, {"X-API-Key": secret}):
                assert client.get(path, headers=headers).status_code == 200


@pytest.mark.long
async def test_scrapes_that_are_given_up_leave_nothing(several: Several) -> None:
    async def give_up() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", several.running.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.001)
        writer.transport.abort()
        del reader

    await asyncio.gather(*(give_up() for _ in range(50)))
    with several.client() as client:
        until(lambda: scrape(client)["ors_gateway_connections"] < 10)
        assert scrape(client)["ors_worker_up"] == 2
