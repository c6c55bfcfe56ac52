"""Calls beside processes that are killed at random: none is lost, none runs twice, and nothing is left."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.gateway.conftest import WIRE, Several, start_several
from tests.support.events import Reply, parse_events
from tests.support.processes import is_alive
from tests.support.waiting import until

#: Calls of either kind, the sessions that make them, and the seconds between two kills.
CALLS, SESSIONS, INTERVAL = 2_000, 40, (0.5, 1.5)
#: Gateways and workers that may be killed: one process ends at most five times in 300 s before its slot stays empty.
KILLS = 10


class Player:
    """A client that makes calls one after the other, repeats each until it is answered, and counts."""

    def __init__(self, several: Several, calls: int, keyed: bool, *, renews: bool = True) -> None:
        """``renews``: it opens a new session whenever one has ended."""
        self._several = several
        self._left = calls
        self._keyed = keyed
        self._renews = renews
        self.counts = Counter[str]()

    async def play(self) -> None:
        """Make the calls, as far as its sessions live."""
        limits = httpx.Limits(max_keepalive_connections=1)
        async with httpx.AsyncClient(
            base_url=self._several.url, timeout=60, trust_env=False, limits=limits
        ) as self._client:
            await self._play_session()
            while self._left and self._renews:
                await self._play_session()

    async def _play_session(self) -> None:
        created = await self._request("/create_session", {}, {})
        headers = {"X-Session-ID": created.json()["sid"]}
        created = await self._request("/create", {"split": "train", "index": 0}, headers)
        run = 0
        while created.status_code == 200 and self._left:
            run += 1
            body = {"name": "step", "input": {"text": str(run), "milliseconds": run % 4 * 40}}
            key = {"Idempotency-Key": f"{headers['X-Session-ID']} {run}"} if self._keyed else {}
            response = await self._request("/call", body, headers | key)
            if response.status_code != 200:
                self._end(response)
                return
            reply = Reply(parse_events(response.content))
            if reply.names[-1] == "error" and reply.error.startswith("InfrastructureError"):
                self.counts["sessions ended, typed"] += 1  # in a stream that was open
                return
            # The tool counts its runs: a call that ran twice, or a response to another call, shows here.
            wrong = reply.text != str(run) or reply.output["metadata"]["run"] != run
            self.counts["doubled or mixed" if wrong else "answered"] += 1
            self._left -= 1
        if created.status_code != 200:
            self._end(created)
        else:
            await self._request("/delete", {}, headers)

    def _end(self, response: httpx.Response) -> None:
        typed = response.status_code == 410 and "InfrastructureError" in response.text
        self.counts["sessions ended, typed" if typed else f"untyped: {response.status_code} {response.text}"] += 1

    async def _request(self, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        end = time.monotonic() + 60
        while True:
            try:
                response = await self._client.post(path, content=json.dumps(body), headers=headers)
                if response.status_code != 503:
                    return response
            except httpx.TransportError:
                self.counts["connections lost"] += 1
            assert time.monotonic() < end, f"{path} was not answered"
            await asyncio.sleep(0.03)


async def kill(several: Several, draw: random.Random, done: asyncio.Event) -> Counter[str]:
    """Kill gateways and workers at random moments until the calls are done."""
    killed = Counter[str]()
    while not done.is_set() and killed.total() < KILLS:
        await asyncio.sleep(draw.uniform(*INTERVAL))
        kind = draw.choice(("gateway", "worker"))
        rows = await asyncio.to_thread(several.workers)
        serving = [row["pid"] for row in rows if row["state"] == "serving"]
        pids = several.gateways() if kind == "gateway" else serving
        # One of each kind stays, so that the test measures serving and not waiting.
        if len(pids) > 1 and killed[kind] < KILLS / 2:
            with contextlib.suppress(ProcessLookupError):  # the last kill, which its supervisor has not noticed yet
                os.kill(draw.choice(pids), signal.SIGKILL)
                killed[kind] += 1
    return killed


@pytest.mark.long
async def test_no_call_is_lost_or_doubled_while_processes_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="t"))  # the addresses of Unix sockets have at most 107 bytes
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    started = time.monotonic()
    with start_several(tmp_path, f"{WIRE}:Wire", workers=3) as several:
        each = CALLS // (SESSIONS // 2)
        players = [Player(several, each, keyed=bool(number % 2)) for number in range(SESSIONS)]
        done = asyncio.Event()
        killing = asyncio.create_task(kill(several, random.Random(15), done))
        await asyncio.gather(*(player.play() for player in players))
        done.set()
        killed = await killing
        group = several.gateways() + [row["pid"] for row in several.workers() if row["pid"]]
        supervisor = several.running.process
        await asyncio.to_thread(several.running.stop, signal.SIGTERM)
        assert supervisor.returncode == 0
    counts = sum((player.counts for player in players), Counter[str]())
    print(f"{dict(counts)}, killed {dict(killed)}, {time.monotonic() - started:.0f} s")
    assert killed["gateway"] > 0
    assert killed["worker"] > 0
    assert counts.pop("answered") == 2 * CALLS
    assert counts.pop("sessions ended, typed") > 0
    counts.pop("connections lost")
    assert not counts
    assert not [pid for pid in group if Path(f"/proc/{pid}").exists()]
    left = [path for path in temporary.rglob("*") if path.name != f"ors-server-{os.getuid()}"]
    assert not left


@pytest.mark.long
async def test_calls_go_on_when_the_supervisor_is_killed_among_the_others(tmp_path: Path) -> None:
    """Its workers and gateways serve the sessions that live, take no new ones, and end with the last."""
    draw = random.Random(21)
    with start_several(tmp_path, f"{WIRE}:Wire", workers=3) as several:
        players = [Player(several, 60, keyed=bool(number % 2), renews=False) for number in range(20)]
        playing = asyncio.gather(*(player.play() for player in players))
        await until(lambda: all(player.counts["answered"] for player in players), "not every session began")
        workers = [row["pid"] for row in await asyncio.to_thread(several.workers)]
        gateways = several.gateways()
        first, second, *_ = draw.sample(workers, 3)
        for victim in (several.running.process.pid, first, draw.choice(gateways), second):
            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(0.4)
            several.running.process.poll()  # nothing else reaps the supervisor; init reaps its children
        await playing
        counts = sum((player.counts for player in players), Counter[str]())
        print(dict(counts))
        ended = [player for player in players if player.counts["answered"] < 60]
        assert 0 < len(ended) < len(players)
        assert counts.pop("sessions ended, typed") == len(ended)
        counts.pop("answered")
        counts.pop("connections lost")
        assert not counts
        end = time.monotonic() + 30
        while any(is_alive(pid) for pid in [*workers, *gateways]):
            assert time.monotonic() < end, "processes are left"
            await asyncio.sleep(0.1)
