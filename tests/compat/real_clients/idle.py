"""Sessions that wait for many seconds, played in the background while other tests run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass

import httpx

from .clients import EVERY_CLIENT, ClientKind, connected, failure
from .process import RunningServer

#: Time to live of the sessions, in seconds: a little longer than the 10 s between the pings of both SDKs.
TIME_TO_LIVE = 12
#: Longer than sessions live plus the server's delay, which is at most a quarter of the time to live.
_WAIT = 16


@dataclass(frozen=True)
class Observed:
    """Result for a session: the response to a request after the wait, and the journal until then."""

    answer: str
    events: list[str]


async def play_idle_sessions(server: RunningServer, doomed_server: RunningServer) -> dict[str, Observed]:
    """Play, for each client, an idle session and a session whose server is stopped during a call.

    Also play two sessions without pings: an idle one, and one whose tool runs.
    """
    calls: dict[ClientKind, asyncio.Event] = {kind: asyncio.Event() for kind in EVERY_CLIENT}
    plays = {
        **{f"idle {kind}": _idle(kind, server) for kind in EVERY_CLIENT},
        **{f"stopped {kind}": _stopped(kind, call, doomed_server) for kind, call in calls.items()},
        "alone": _alone(server),
        "busy": _busy(server),
    }
    stopping = asyncio.create_task(_stop(doomed_server, list(calls.values())))
    results = await asyncio.gather(*(_named(name, play) for name, play in plays.items()))
    await stopping
    return dict(zip(plays, results, strict=True))


async def _named(name: str, play: Awaitable[Observed]) -> Observed:
    try:
        return await play
    except BaseException as error:  # only adds the play's name: it is raised again
        error.add_note(f"in the play {name!r}")
        raise


async def _idle(kind: ClientKind, server: RunningServer) -> Observed:
    token = f"idle-{kind}"
    async with connected(kind, server.url) as client:
        environment = await client.named("workbench")
        async with environment.session(client.task("workbench", id=token, token=token)) as session:
            assert await session.text("repeat", text="before") == "before"
            await asyncio.sleep(_WAIT)
            events = server.journal.events(token)
            try:
                answer = await session.text("repeat", text="after")
            except RuntimeError as error:
                answer = str(error)
            return Observed(answer, events)


async def _stop(server: RunningServer, calls: list[asyncio.Event]) -> None:
    """Stop a server once the calls of all clients are running."""
    for call in calls:
        await call.wait()
    server.process.terminate()


async def _stopped(kind: ClientKind, runs: asyncio.Event, server: RunningServer) -> Observed:
    token = f"stopped-{kind}"
    async with connected(kind, server.url) as client:
        environment = await client.named("workbench")
        async with environment.session(client.task("workbench", id=token, token=token)) as session:
            call = asyncio.create_task(session.call("work", token=token, seconds=60))
            for _ in range(500):
                if "work" in server.journal.events(token):
                    break
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)  # until the stream is open
            runs.set()
            error = await failure(call)
            await asyncio.to_thread(server.process.wait)
            return Observed(f"{type(error).__name__}: {error}", server.journal.events(token))


async def _alone(server: RunningServer) -> Observed:
    async with httpx.AsyncClient(base_url=server.url) as http:
        header = await _new_session(http, "alone")
        assert (await http.get("/prompt", headers=header)).status_code == 200
        await asyncio.sleep(TIME_TO_LIVE - 2)
        assert server.journal.events("alone") == ["constructed", "set up"]
        await asyncio.sleep(_WAIT - TIME_TO_LIVE + 2)
        events = server.journal.events("alone")
        late = await http.post("/ping", headers=header)
        return Observed(f"{late.status_code} {late.text}", events)


async def _busy(server: RunningServer) -> Observed:
    async with httpx.AsyncClient(base_url=server.url, timeout=_WAIT + 15) as http:
        header = await _new_session(http, "busy")
        call = {"name": "work", "input": {"token": "busy", "seconds": _WAIT}}
        response = await http.post("/call", headers=header, json=call)
        return Observed(response.text, server.journal.events("busy"))


async def _new_session(http: httpx.AsyncClient, token: str) -> dict[str, str]:
    header = {"X-Session-ID": str(uuid.uuid4())}
    task = {"id": token, "token": token}
    created = await http.post("/create", headers=header, json={"env_name": "workbench", "task_spec": task})
    assert created.status_code == 200, created.text
    return header
