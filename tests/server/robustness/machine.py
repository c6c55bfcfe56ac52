"""Sessions and calls under every order of requests, losses, deletions and expiries, compared with a small model.

The model is a server that runs each call once; the environment records the actual events. Time is a clock that only the
rules move.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pydantic import BaseModel

from ors_server import Blocks, JSONObject, Server, Settings, TextBlock, ToolOutput, tool
from tests.server.robustness.asgi import Answer, Loss, request
from tests.support.environments import Bare
from tests.support.events import Reply, parse_events

__all__ = ["SessionMachine"]

Result = TypeVar("Result")

SIDS = st.sampled_from(["one", "one", "one", "two"])
TEXTS = st.sampled_from(["a", "a", "b"])
KEYS = st.sampled_from([None, None, "key 1", "key 2"])
LOSSES: st.SearchStrategy[Loss] = st.sampled_from(["before the first byte", "after the first bytes"])
TOOLS = st.sampled_from(["step", "step", "crash"])


@dataclass
class Life:
    """Events of one instance."""

    sid: str
    runs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    set_up: int = 0
    torn_down: int = 0


#: For each session, its instances in order.
LIVES: dict[str, list[Life]] = {}
#: Releases the waiting tool of the running machine.
GATES: list[asyncio.Event] = []


class Step(BaseModel):
    text: str


class Game(Bare):
    """Records every call of its methods."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.life = Life(str(task_spec["sid"]))
        LIVES.setdefault(self.life.sid, []).append(self.life)

    async def setup(self) -> None:
        self.life.set_up += 1
        await asyncio.sleep(0)

    async def teardown(self) -> None:
        assert self.life.torn_down == 0
        await asyncio.sleep(0)
        self.life.torn_down += 1

    def get_prompt(self) -> Blocks:
        return [TextBlock(text="go")]

    def ran(self, name: str, text: str) -> ToolOutput:
        assert self.life.torn_down == 0
        self.life.runs[name, text] += 1
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"run": self.life.runs[name, text]})

    @tool(concurrent=True)
    async def step(self, params: Step) -> ToolOutput:
        return self.ran("step", params.text)

    @tool(concurrent=True)
    async def wait(self, params: Step) -> ToolOutput:
        output = self.ran("wait", params.text)
        await GATES[-1].wait()
        return output

    @tool(concurrent=True)
    async def crash(self, params: Step) -> ToolOutput:
        self.ran("crash", params.text)
        raise ValueError(f"crash {self.life.runs['crash', params.text]}")

    @tool(concurrent=True)
    async def win(self, params: Step) -> ToolOutput:
        self.ran("win", params.text)
        return ToolOutput(blocks=[], reward=1.0, finished=True)


@dataclass
class ModelCall:
    """One call that the model expects the server to know."""

    tool: str
    text: str
    key: str | None
    #: The server's response, once a client got all of it.
    answer: bytes | None = None
    task_id: str | None = None
    delivered: bool = False
    #: Delivered so long ago that the server may have forgotten it; it must not run again for that reason.
    old: bool = False
    #: Number of this run of its tool and text, from 1 on; 0 for a refused call.
    run: int = 0


@dataclass
class ModelSession:
    """One session that the model expects to be alive."""

    index: int
    finished: bool = False
    calls: list[ModelCall] = field(default_factory=list[ModelCall])
    #: Calls without a key whose response no client got, the earliest loss first.
    lost: list[ModelCall] = field(default_factory=list[ModelCall])
    runs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def meant(self, tool: str, text: str, key: str | None) -> ModelCall | None:
        """Return the earlier call that a request repeats, if any."""
        if key is not None:
            return next((call for call in self.calls if call.key == key), None)
        return next((call for call in self.lost if (call.tool, call.text) == (tool, text)), None)


class SessionMachine(RuleBasedStateMachine):
    """State machine whose rules Hypothesis chooses; each rule ends with the server at rest."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in ("registry", "session", "calls.call", "calls.result_store"):
            self.patch.setattr(f"ors_server.sessions.{module}.time", clock)
        LIVES.clear()
        GATES.append(asyncio.Event())
        self.runner = asyncio.Runner()
        # The shortest of these times is the interval of the server's maintenance, in real seconds.
        self.settings = Settings(result_ttl=0.02, stream_after=0.001, heartbeat=0.01)
        self.server = Server([Game], settings=self.settings)
        self.live: dict[str, ModelSession] = {}
        self.gone: set[str] = set()
        self.lives: Counter[str] = Counter()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        self.open("one", 0)

    def teardown(self) -> None:
        try:
            for sid in list(self.live):
                self.delete(sid)
            self.check()
            assert self.server.sessions.results.bytes_in_memory == 0
            self.run(self.server.sessions.close())
        finally:
            GATES.clear()
            self.runner.close()
            self.patch.undo()

    # --- responses ---------------------------------------------------------------------------

    async def post(self, path: str, sid: str, body: object = None, **more: Any) -> Answer:
        return await request(self.server.app, "POST", path, sid, body, **more)

    def creation(self, sid: str, index: int) -> dict[str, Any]:
        return {"task_spec": {"sid": sid, "index": index}}

    def refused(self, sid: str, answer: Answer) -> bool:
        """Check that a session that is not alive was refused. Return whether it is not alive."""
        if sid in self.live:
            return False
        expected = (410, "Session deleted") if sid in self.gone else (404, "Active environment not found")
        assert answer.status == expected[0]
        assert answer.json["detail"].startswith(expected[1])
        return True

    # --- sessions ----------------------------------------------------------------------------

    @rule(sid=SIDS, index=st.sampled_from([0, 0, 1]), at_once=st.integers(1, 3))
    def open(self, sid: str, index: int, at_once: int = 1) -> None:
        async def create() -> list[Answer]:
            creations = (self.post("/create", sid, self.creation(sid, index)) for _ in range(at_once))
            return await asyncio.gather(*creations)

        answers = self.run(create())
        if sid in self.live and self.live[sid].index != index:
            for answer in answers:
                assert answer.status == 400
                assert answer.json["detail"].startswith("Session already exists")
            return
        assert [(answer.status, answer.json) for answer in answers] == [(200, {"sid": sid})] * at_once
        if sid not in self.live:
            self.live[sid] = ModelSession(index)
            self.lives[sid] += 1
            self.gone.discard(sid)

    @rule(sid=SIDS, at_once=st.integers(1, 3))
    def delete(self, sid: str, at_once: int = 1) -> None:
        async def delete() -> list[Answer]:
            return await asyncio.gather(*(self.post("/delete", sid) for _ in range(at_once)))

        assert [answer.json for answer in self.run(delete())] == [{"sid": sid}] * at_once
        self.ended(sid)

    def ended(self, sid: str) -> None:
        if self.live.pop(sid, None) is not None:
            self.gone.add(sid)

    @rule(sid=SIDS)
    def expire(self, sid: str) -> None:
        """Leave one session idle for longer than its limit while clients ping all others."""

        async def idle() -> None:
            for _ in range(2):
                self.now += 0.6 * self.settings.session_ttl
                await self.ping_all(sid)
            others = len(self.live.keys() - {sid})
            await self.at_rest(lambda: len(self.server.sessions) == others)

        self.run(idle())
        self.ended(sid)
        self.age_results()

    @rule()
    def age(self) -> None:
        """Let delivered results expire and undelivered results go to disk."""

        async def wait() -> None:
            self.now += self.settings.delivered_ttl + 1
            await self.ping_all()
            await asyncio.sleep(0.03)

        self.run(wait())
        self.age_results()

    def age_results(self) -> None:
        for session in self.live.values():
            for call in session.calls:
                call.old = call.old or call.delivered

    async def ping_all(self, but: str = "") -> None:
        for sid in self.live:
            if sid != but:
                assert (await self.post("/ping", sid)).status == 200

    @rule(sid=SIDS)
    def read(self, sid: str) -> None:
        answer = self.run(request(self.server.app, "GET", "/prompt", sid))
        assert self.refused(sid, answer) or answer.json[0]["text"] == "go"

    # --- calls -------------------------------------------------------------------------------

    @rule(sid=SIDS, tool=TOOLS, text=TEXTS, key=KEYS, at_once=st.integers(1, 3))
    def call(self, sid: str, tool: str, text: str, key: str | None, at_once: int) -> None:
        """Make a call whose response arrives; with a key, perhaps several times at once."""
        at_once = 1 if key is None else at_once

        async def calls() -> list[Answer]:
            return await asyncio.gather(*(self.sent(sid, tool, text, key) for _ in range(at_once)))

        for answer in self.run(calls()):
            self.judge(sid, tool, text, key, answer)

    @rule(sid=SIDS, text=TEXTS)
    def win(self, sid: str, text: str) -> None:
        answer = self.run(self.sent(sid, "win", text, None))
        session = self.live.get(sid)
        was_finished = session is not None and session.finished
        self.judge(sid, "win", text, None, answer)
        if session is not None and not was_finished:
            assert Reply(parse_events(answer.body)).output["finished"] is True
            session.finished = True

    @rule(sid=SIDS, tool=TOOLS, text=TEXTS, key=KEYS, loss=LOSSES)
    def lose(self, sid: str, tool: str, text: str, key: str | None, loss: Loss) -> None:
        """Make a call whose response is lost."""
        answer = self.run(self.sent(sid, tool, text, key, lose=loss))
        self.judge_lost(sid, tool, text, key, answer)

    @rule(sid=SIDS, text=TEXTS, key=KEYS, loss=LOSSES, losses=st.integers(1, 3), times=st.integers(1, 3))
    def lose_and_retry(self, sid: str, text: str, key: str | None, loss: Loss, losses: int, times: int) -> None:
        """Lose the first few responses while the client repeats the same request."""
        for _ in range(losses):
            self.lose(sid, "step", text, key, loss)
        for _ in range(times):
            self.call(sid, "step", text, key, 1)

    @rule(sid=SIDS, text=TEXTS, key=KEYS)
    def lose_while_it_runs(self, sid: str, text: str, key: str | None) -> None:
        """Make a call whose stream is lost before its tool is done."""

        async def play() -> Answer:
            GATES.append(asyncio.Event())
            return await self.sent(
                sid, "wait", text, key, lose="after the first bytes", after_loss=lambda: self.released()
            )

        self.judge_lost(sid, "wait", text, key, self.run(play()))

    async def released(self) -> None:
        await asyncio.sleep(0.003)  # the server notices the loss first
        GATES[-1].set()
        await self.at_rest(lambda: self.server.sessions.call_slots.taken == 0)

    @rule(sid=SIDS, other=SIDS, number=st.integers(0, 5), lose=st.booleans())
    def resume(self, sid: str, other: str, number: int, lose: bool) -> None:
        """Fetch a result by its id, in its own session or in another."""
        known = [call for call in self.live[sid].calls if call.task_id] if sid in self.live else []
        if not known:
            return
        call = known[number % len(known)]
        body = {"name": call.tool, "input": {"text": call.text}, "task_id": call.task_id}
        loss: Loss | None = "before the first byte" if lose else None
        answer = self.run(self.post("/call", other, body, lose=loss))
        if lose or self.refused(other, answer):
            if sid == other and call in self.live[sid].lost:
                self.live[sid].lost.remove(call)
                self.live[sid].lost.append(call)
            return
        if sid != other:
            assert Reply(parse_events(answer.body)).events == [("error", "unknown task_id")]
        else:
            self.judge_known(self.live[sid], call, answer)

    async def sent(self, sid: str, tool: str, text: str, key: str | None, **more: Any) -> Answer:
        headers = None if key is None else {"Idempotency-Key": key}
        body = {"name": tool, "input": {"text": text}}
        return await self.post("/call", sid, body, headers=headers, **more)

    def judge(self, sid: str, tool: str, text: str, key: str | None, answer: Answer) -> None:
        """Compare a call's response with the model's, and update the model."""
        if self.refused(sid, answer):
            return
        session = self.live[sid]
        call = session.meant(tool, text, key)
        if call is not None and (call.tool, call.text) != (tool, text):
            assert answer.status == 409
            return
        if call is None:
            call = self.new_call(session, tool, text, key)
        self.judge_known(session, call, answer)

    def new_call(self, session: ModelSession, tool: str, text: str, key: str | None) -> ModelCall:
        call = ModelCall(tool, text, key)
        session.calls.append(call)
        if not session.finished:
            session.runs[tool, text] += 1
            call.run = session.runs[tool, text]
        return call

    def judge_known(self, session: ModelSession, call: ModelCall, answer: Answer) -> None:
        assert answer.status == 200
        reply = Reply(parse_events(answer.body))
        if call.old and len(reply.events) == 1:
            assert reply.error.startswith(("unknown task_id", "ResultExpired"))
            return
        if call.answer is not None:
            assert without_comments(answer.body) == call.answer
        elif reply.names[-1] == "error":
            assert (call.tool, reply.error) == ("crash", f"ValueError: crash {call.run}")
        elif reply.result["ok"]:
            assert call.tool in ("step", "wait", "win")
        else:
            assert session.finished
            assert reply.reason == "episode_finished"
        call.answer, call.task_id, call.delivered = without_comments(answer.body), reply.task_id, True
        if call in session.lost:
            session.lost.remove(call)

    def judge_lost(self, sid: str, tool: str, text: str, key: str | None, answer: Answer) -> None:
        session = self.live.get(sid)
        if session is None:
            return
        call = session.meant(tool, text, key)
        if call is not None and (call.tool, call.text) != (tool, text):
            return
        if call is None:
            call = self.new_call(session, tool, text, key)
        events = parse_events(answer.body)
        if events and events[0].name == "task_id":
            assert call.task_id in (None, events[0].data)
            call.task_id = events[0].data
        if call in session.lost:
            session.lost.remove(call)
        if key is None and not call.delivered:
            session.lost.append(call)

    # --- recorded events ---------------------------------------------------------------------

    async def at_rest(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - conditions on what another task does
                await asyncio.sleep(0.002)

    @invariant()
    def check(self) -> None:
        assert len(self.server.sessions) == len(self.live)
        for sid, count in self.lives.items():
            lives = LIVES[sid]
            assert len(lives) == count
            assert all(life.set_up == 1 for life in lives)
            ended = lives[:-1] if sid in self.live else lives
            assert all(life.torn_down == 1 for life in ended)
            if sid in self.live:
                assert lives[-1].torn_down == 0
                assert lives[-1].runs == self.live[sid].runs
        assert self.server.sessions.results.bytes_in_memory >= 0
        assert self.server.sessions.call_slots.taken == 0


def without_comments(body: bytes) -> bytes:
    return b"\r\n\r\n".join(part for part in body.split(b"\r\n\r\n") if not part.startswith(b":"))
