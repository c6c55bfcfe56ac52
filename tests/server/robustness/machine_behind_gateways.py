"""The model of ``machine`` beside a server of two workers behind two gateways, over sockets and in real time.

Each request opens a connection, so that either gateway may get it. A loss is a connection that its client resets after
the stream of a running call has begun.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.server.protocol.live import request_bytes
from tests.server.robustness.machine import KEYS, TEXTS, ModelCall, ModelSession
from tests.support.events import Reply, parse_events
from tests.support.paths import ROOT
from tests.support.servers import Running, running_workers

__all__ = ["GatewayMachine", "server_behind_gateways"]

_WIRE = ROOT / "tests" / "server" / "protocol" / "live_server.py"
#: Duration of a call whose connection is reset, and the time in which gateway and worker notice it.
_MILLISECONDS, _NOTICED = 200, 0.03


@contextmanager
def server_behind_gateways(folder: Path) -> Generator[Running]:
    """Run the server that ``GatewayMachine`` plays against."""
    with running_workers(folder, f"{_WIRE}:Wire") as server:
        GatewayMachine.server = server
        yield server


class GatewayMachine(RuleBasedStateMachine):
    """State machine whose rules Hypothesis chooses."""

    server: Running

    def __init__(self) -> None:
        super().__init__()
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=self.server.url, timeout=30, trust_env=False, limits=limits)
        self.live: dict[str, ModelSession] = {}
        self.ended: list[str] = []

    def teardown(self) -> None:
        for sid, session in self.live.items():
            runs = Reply(parse_events(self.post("/call", sid, {"name": "count", "input": {}}).content)).text
            assert int(runs) == sum(session.runs.values())
            self.post("/delete", sid)
        self.client.close()

    def post(self, path: str, sid: str, body: Any = None, key: str | None = None) -> httpx.Response:
        headers = {"X-Session-ID": sid} | ({} if key is None else {"Idempotency-Key": key})
        return self.client.post(path, json=body, headers=headers)

    @rule()
    def open(self) -> None:
        sid = str(self.client.post("/create_session").json()["sid"])
        assert self.post("/create", sid, {"split": "train", "index": 0}).status_code == 200
        self.live[sid] = ModelSession(0)

    def session(self, number: int) -> tuple[str, ModelSession]:
        # By their order and not by their ids, which each run has new: the same choices have to lead to the same state.
        sid = list(self.live)[number % len(self.live)]
        return sid, self.live[sid]

    @precondition(lambda self: bool(self.live))
    @rule(number=st.integers(0, 9))
    def delete(self, number: int) -> None:
        sid, _ = self.session(number)
        assert self.post("/delete", sid).json() == {"sid": sid}
        del self.live[sid]
        self.ended.append(sid)

    @precondition(lambda self: bool(self.ended))
    @rule(number=st.integers(0, 9), path=st.sampled_from(["/ping", "/call", "/create"]))
    def use_ended(self, number: int, path: str) -> None:
        body: Any = {"name": "count", "input": {}} if path == "/call" else {"split": "train", "index": 0}
        sid = self.ended[number % len(self.ended)]
        answer = self.post(path, sid, body)
        if path == "/create":  # which begins it again, in the worker of its id
            assert answer.status_code == 200
            self.ended.remove(sid)
            self.live[sid] = ModelSession(0)
        else:
            assert (answer.status_code, answer.json()["detail"][:15]) == (410, "Session deleted")

    @precondition(lambda self: bool(self.live))
    @rule(number=st.integers(0, 9), text=TEXTS, key=KEYS)
    def call(self, number: int, text: str, key: str | None) -> None:
        sid, session = self.session(number)
        call = session.meant("step", text, key)
        answer = self.post("/call", sid, self.step(text), key)
        if call is not None and call.text != text:
            assert answer.status_code == 409
            return
        self.judge(session, call or self.new_call(session, text, key), answer)

    @precondition(lambda self: bool(self.live))
    @rule(number=st.integers(0, 9), text=TEXTS, key=KEYS)
    def lose(self, number: int, text: str, key: str | None) -> None:
        sid, session = self.session(number)
        if session.meant("step", text, key) is not None:
            return  # its response may come at once, and then no moment is between its first and its last byte
        call = self.new_call(session, text, key)
        headers = {} if key is None else {"Idempotency-Key": key}
        with socket.create_connection(("127.0.0.1", self.server.port), 10) as connection:
            connection.sendall(request_bytes("POST", "/call", self.step(text), sid, headers))
            data = b""
            while b"event: task_id\r\ndata: " not in data or not data.endswith(b"\r\n"):
                data += connection.recv(2**16)
            call.task_id = data.partition(b"event: task_id\r\ndata: ")[2].split(b"\r\n")[0].decode()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(_NOTICED)
        if key is None:
            session.lost.append(call)

    @precondition(lambda self: any(session.calls for session in self.live.values()))
    @rule(number=st.integers(0, 9), which=st.integers(0, 9))
    def resume(self, number: int, which: int) -> None:
        sid, session = self.session(number)
        if not session.calls:
            return
        call = session.calls[which % len(session.calls)]
        self.judge(session, call, self.post("/call", sid, {**self.step(call.text), "task_id": call.task_id}))

    @staticmethod
    def step(text: str) -> dict[str, Any]:
        return {"name": "step", "input": {"text": text, "milliseconds": _MILLISECONDS}}

    @staticmethod
    def new_call(session: ModelSession, text: str, key: str | None) -> ModelCall:
        call = ModelCall("step", text, key)
        session.calls.append(call)
        session.runs["step", text] += 1
        call.run = sum(session.runs.values())
        return call

    @staticmethod
    def judge(session: ModelSession, call: ModelCall, answer: httpx.Response) -> None:
        assert answer.status_code == 200, answer.text
        reply = Reply(parse_events(answer.content))
        assert (reply.text, reply.output["metadata"]["run"]) == (call.text, call.run)
        assert call.task_id in (None, reply.task_id)
        call.task_id = reply.task_id
        if call in session.lost:
            session.lost.remove(call)
