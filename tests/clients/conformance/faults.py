"""One faulty server for each rule: ours, with one thing broken on its way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ors_clients.conformance import probe

from tests.clients.conformance.in_process import App

__all__ = ["FAULTS", "FURTHER_FAULTS", "Exchange", "Fault", "broken"]


@dataclass
class Exchange:
    """A request on its way in, then the whole response on its way out."""

    path: str
    headers: dict[str, str]
    request: bytes
    #: What the fault remembers of earlier exchanges.
    memory: dict[str, Any]
    status: int = 0
    sent: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

    @property
    def last(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def sid(self) -> str:
        return self.headers.get("x-session-id", "")

    def asked(self) -> Any:
        try:
            return json.loads(self.request)
        except ValueError:
            return {}

    def ask(self, value: object) -> None:
        self.request = json.dumps(value).encode()
        self.headers["content-length"] = str(len(self.request))

    def json(self) -> Any:
        return json.loads(self.body)

    def answer(self, value: object, status: int = 200) -> None:
        self.status = status
        self.body = json.dumps(value).encode()
        self.sent = {"content-type": "application/json"}

    def events(self, *events: tuple[str, str]) -> None:
        self.status = 200
        self.body = b"".join(f"event: {name}\r\ndata: {data}\r\n\r\n".encode() for name, data in events)
        self.sent = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}

    def result(self, change: Callable[[Any], None]) -> None:
        """Change the result of a call."""
        found = re.search(rb"event: end\r\ndata: (.*)\r\n", self.body)
        if found is not None:
            value = json.loads(found[1])
            change(value)
            self.body = self.body.replace(found[1], json.dumps(value, separators=(",", ":")).encode())


Change = Callable[[Exchange], None]


@dataclass(frozen=True)
class Fault:
    """A thing to break: requests before the server gets them, or responses before the client does."""

    #: The last segment of the path; None for all of them.
    at: str | None
    response: Change | None = None
    request: Change | None = None
    #: Whether the server gets the request at all; else ``response`` makes the answer.
    passed_on: bool = True


def broken(app: App, fault: Fault) -> App:
    """Return the application with a fault."""
    memory: dict[str, Any] = {}

    async def faulty(scope: Any, receive: Any, send: Any) -> None:
        if fault.at not in (None, scope["path"].rpartition("/")[2]):
            await app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = Exchange(scope["path"], headers, bytes(body), memory)
        if fault.request is not None:
            fault.request(exchange)
        if fault.passed_on:
            await _pass_on(app, scope, exchange, receive)
        if fault.response is not None:
            fault.response(exchange)
        if exchange.status == -1:  # comments without end
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"event: task_id\r\ndata: 1\r\n\r\n", "more_body": True})
            await asyncio.sleep(3600)
        sent = {**exchange.sent, "content-length": str(len(exchange.body))}
        head = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
        await send({"type": "http.response.start", "status": exchange.status, "headers": head})
        await send({"type": "http.response.body", "body": exchange.body})

    return faulty


async def _pass_on(app: App, scope: Any, exchange: Exchange, receive: Any) -> None:
    given = False

    async def replay() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": exchange.request, "more_body": False}
        return await receive()

    async def keep(message: Any) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            exchange.sent = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            exchange.body += message.get("body", b"")

    headers = [(name.encode(), value.encode("latin-1")) for name, value in exchange.headers.items()]
    await app({**scope, "path": exchange.path, "raw_path": exchange.path.encode(), "headers": headers}, replay, keep)


# --- kinds of faults -----------------------------------------------------------------------------


def answers(at: str, value: object, status: int = 200, when: Callable[[Exchange], bool] | None = None) -> Fault:
    """Answer with this value, where ``when`` holds."""

    def response(exchange: Exchange) -> None:
        if when is None or when(exchange):
            exchange.answer(value, status)

    return Fault(at, response)


def status(at: str, found: int, instead: int) -> Fault:
    """Answer with another status."""

    def response(exchange: Exchange) -> None:
        if exchange.status == found:
            exchange.status = instead

    return Fault(at, response)


def changes(at: str, change: Callable[[Any], object]) -> Fault:
    """Change the JSON of a successful response in place."""

    def response(exchange: Exchange) -> None:
        if exchange.status == 200:
            value = exchange.json()
            change(value)
            exchange.answer(value)

    return Fault(at, response)


def results(change: Callable[[Any], object]) -> Fault:
    """Change the result of each call."""
    return Fault("call", lambda exchange: exchange.result(lambda value: void(change(value))))


def without_header(at: str, name: str) -> Fault:
    """Lose a header of the request."""
    return Fault(at, request=lambda exchange: void(exchange.headers.pop(name, None)))


def void(_: object) -> None:
    """Return nothing."""


def of_tool(name: str, change: Change) -> Fault:
    """Break the calls of one tool."""

    def response(exchange: Exchange) -> None:
        if exchange.asked().get("name") == name:
            change(exchange)

    return Fault("call", response)


def as_error(exchange: Exchange) -> None:
    exchange.events(("task_id", "1"), ("error", "broken"))


def as_result(exchange: Exchange) -> None:
    output: dict[str, Any] = {"blocks": [], "metadata": None, "reward": None, "finished": False}
    exchange.events(("task_id", "1"), ("end", json.dumps({"ok": True, "output": output})))


def refusal(reason: str) -> Change:
    """Send a refusal as an ``error`` event."""

    def response(exchange: Exchange) -> None:
        if reason.encode() in exchange.body:
            as_error(exchange)

    return response


def forget_task_id(exchange: Exchange) -> None:
    body = exchange.asked()
    body.pop("task_id", None)
    exchange.ask(body)


def share_results(exchange: Exchange) -> None:
    found = re.search(rb"event: task_id\r\ndata: (\w+)", exchange.body)
    if found is not None:
        exchange.memory[found[1].decode()] = exchange.body
    elif (kept := exchange.memory.get(exchange.asked().get("task_id", ""))) is not None:
        exchange.body = kept


def cut_anywhere(exchange: Exchange) -> None:
    data = b"".join(re.findall(rb"event: (?:chunk|end)\r\ndata: (.*)\r\n", exchange.body)).decode()
    if len(data) > 4096:
        pieces = [data[start : start + 4096] for start in range(0, len(data), 4096)]
        names = ["chunk"] * (len(pieces) - 1) + ["end"]
        exchange.events(("task_id", "1"), *zip(names, pieces, strict=True))


def only_once(exchange: Exchange) -> None:
    if exchange.sid in exchange.memory:
        exchange.answer({"detail": "Session already exists"}, 400)
    exchange.memory[exchange.sid] = True


def first_again(exchange: Exchange) -> None:
    exchange.body = exchange.memory.setdefault(exchange.sid, exchange.body)


def note(event: str) -> Change:
    """Write an event into the journal of the session's label."""

    def request(exchange: Exchange) -> None:
        body: Any = exchange.asked()
        if exchange.last == "create" and "task_spec" in body:
            exchange.memory[exchange.sid] = body["task_spec"].get("label")
            if event != "constructed":
                return
        label = exchange.memory.get(exchange.sid)
        if label is not None and exchange.last in ("create", "delete"):
            with probe.journal(label).open("a") as file:
                file.write(f"{event}\n")

    return request


def traceback_in_errors(exchange: Exchange) -> None:
    if exchange.status >= 400:
        exchange.body += b"Traceback (most recent call last):"


def every_second_reversed(exchange: Exchange) -> None:
    value = exchange.json()
    if exchange.memory.setdefault("n", [0])[0] % 2:
        value["tasks"].reverse()
    exchange.memory["n"][0] += 1
    exchange.answer(value)


def answered_without_server(sid_of: Callable[[Exchange], object] = lambda exchange: exchange.sid) -> Change:
    def response(exchange: Exchange) -> None:
        exchange.answer({"sid": sid_of(exchange)})

    return response


def accept(value: str) -> Fault:
    return Fault("create_session", request=lambda exchange: exchange.headers.update(accept=value))


def all_of_it(exchange: Exchange) -> None:
    body = exchange.asked()
    exchange.ask({"split": body.get("split")})


def stream_end(exchange: Exchange) -> None:
    exchange.status = -1


def other_rewards(times: int) -> Change:
    """Send the results of a call with another reward, after it was sent so many times."""

    def response(exchange: Exchange) -> None:
        count = exchange.memory[exchange.sid] = exchange.memory.get(exchange.sid, 0) + 1
        if count > times:
            exchange.result(lambda value: value["output"].update(reward=0.0))

    return response


def as_nan(exchange: Exchange) -> None:
    output: dict[str, Any] = {"blocks": [], "metadata": None, "reward": float("nan"), "finished": False}
    exchange.events(("task_id", "1"), ("end", json.dumps({"ok": True, "output": output})))


#: Rules with a further fault on which they fail.
FURTHER_FAULTS: Mapping[str, tuple[str, Fault]] = {
    "another result for a task_id": ("call.resume", Fault("call", other_rewards(1))),
    "another result at the second time": ("call.resume", Fault("call", other_rewards(2))),
    "a result with NaN": ("call.nan-reward", of_tool("probe_nan", as_nan)),
    "a refusal without its reason": (
        "call.finished",
        of_tool("probe_finish", lambda exchange: exchange.result(lambda value: void(value.pop("reason", None)))),
    ),
}

#: By rule: the fault on which it fails.
FAULTS: Mapping[str, Fault] = {
    "server.health": answers("health", {"status": "starting"}),
    "server.version": answers("version", {"detail": "Not Found"}, 404),
    "server.environments": changes("list_environments", lambda names: names.append(names[0].upper())),
    "server.errors": answers("create", {"error": "no id"}, 400, lambda exchange: exchange.status == 400),
    "server.unknown-path": status("path", 404, 200),
    "server.unknown-environment": status("tools", 404, 308),
    "discovery.splits": changes("splits", lambda splits: splits[0].update(type="training")),
    "discovery.tools": changes("tools", lambda listed: listed["tools"][0].update(annotations={})),
    "discovery.schemas": changes("tools", lambda listed: listed["tools"][0].update(input_schema={"type": "objekt"})),
    "discovery.tool-names": changes("tools", lambda listed: listed["tools"][0].update(name="probe-count")),
    "discovery.case": answers("tools", {"detail": "?"}, 404, lambda exchange: exchange.path != exchange.path.lower()),
    "discovery.bare-paths": answers("tools", {"detail": "?"}, 404, lambda exchange: exchange.path == "/tools"),
    "discovery.deployment": without_header("num_tasks", "x-deployment"),
    "tasks.list": changes("tasks", lambda given: given.pop("env_name")),
    "tasks.count": changes("num_tasks", lambda given: given.update(num_tasks=given["num_tasks"] + 1)),
    "tasks.one": changes("task", lambda given: given.pop("env_name")),
    "tasks.range": Fault("task_range", request=all_of_it),
    "tasks.other-spelling": answers("get_task", {"detail": "Not Found"}, 404),
    "tasks.stable": Fault("tasks", every_second_reversed),
    "tasks.invalid-split": status("num_tasks", 400, 500),
    "tasks.invalid-index": answers("task", {"detail": "IndexError"}, 400, lambda exchange: exchange.status == 400),
    "tasks.of-a-subclass": changes("num_tasks", lambda given: given.update(num_tasks=3)),
    "session.create-session": accept("application/json"),
    "session.create-session-json": accept("text/event-stream"),
    "session.create": Fault("create", answered_without_server(lambda _: "another")),
    "session.without-id": Fault(None, request=lambda exchange: void(exchange.headers.setdefault("x-session-id", "x"))),
    "session.invalid-create": status("create", 422, 200),
    "session.unknown-environment": status("create", 404, 400),
    "session.repeated-create": Fault("create", only_once),
    "session.other-create": status("create", 400, 200),
    "session.create-at-once": Fault("create", request=note("constructed")),
    "session.ping": answers("ping", {"detail": "?"}, 415, lambda exchange: "octet" in exchange.headers["content-type"]),
    "session.ping-unknown": answers("ping", {"status": "ok"}),
    "session.prompt": changes("prompt", lambda blocks: blocks[0].pop("text")),
    "session.messages": answers("messages", {"detail": "Not Found"}, 404),
    "session.task-tools": changes("task_tools", lambda listed: listed["tools"].pop(0)),
    "session.unshared-tools": changes(
        "task_tools", lambda listed: listed.update(tools=[t for t in listed["tools"] if "unshared" not in t["name"]])
    ),
    "session.bare-paths": answers("prompt", [], when=lambda exchange: exchange.path == "/prompt"),
    "session.other-environment": status("prompt", 409, 200),
    "session.secrets-header": answers("create", {"detail": "?"}, 422, lambda exchange: "x-secrets" in exchange.headers),
    "session.secrets-arrive": without_header("create", "x-secrets"),
    "session.secrets-body": answers("create", {"detail": "?"}, 422, lambda exchange: "secrets" in exchange.asked()),
    "session.bad-secrets": status("create", 400, 500),
    "session.empty-key": answers("create", {"detail": "?"}, 401, lambda e: e.headers.get("x-api-key") == ""),
    "session.delete": Fault("delete", only_once),
    "session.refused-after-delete": status("prompt", 410, 200),
    "session.gone": status("task_tools", 410, 404),
    "session.failed-setup": Fault("prompt", lambda exchange: exchange.answer([])),
    "session.ping-after-failed-setup": answers("ping", {"status": "ok"}),
    "session.teardown": Fault("delete", answered_without_server(), passed_on=False),
    "session.teardown-after-failed-setup": Fault("delete", answered_without_server(), passed_on=False),
    "session.teardown-after-calls": Fault(None, request=note("torn down under a call")),
    "call.events": Fault("call", lambda e: setattr(e, "body", e.body.replace(b"event: task_id", b"event: id"))),
    "call.result": results(lambda value: value.get("output", {}).pop("metadata", None)),
    "call.framing": Fault("call", lambda exchange: setattr(exchange, "body", b"no colon\r\n" + exchange.body)),
    "call.white-space": Fault("call", cut_anywhere),
    "call.headers": Fault("call", lambda exchange: void(exchange.sent.pop("x-accel-buffering", None))),
    "call.unknown-tool": Fault("call", refusal("not_found")),
    "call.invalid-input": Fault("call", refusal("input_validation")),
    "call.reasons": results(lambda value: value.pop("reason", None)),
    "call.malformed": Fault("call", lambda exchange: as_error(exchange) if exchange.status == 422 else None),
    "call.unknown-session": Fault("call", lambda exchange: as_error(exchange) if exchange.status == 404 else None),
    "call.bare-path": answers("call", {"detail": "?"}, 404, lambda exchange: exchange.path == "/call"),
    "call.resume": Fault("call", request=forget_task_id),
    "call.unknown-task-id": Fault("call", request=forget_task_id),
    "call.foreign-task-id": Fault("call", share_results),
    "call.idempotency-key": without_header("call", "idempotency-key"),
    "call.early-task-id": Fault("call"),
    "call.during-setup": Fault("call"),
    "call.lost-connection": Fault("call", request=forget_task_id),
    "call.tool-raises": of_tool("probe_raise", as_result),
    "call.cancelled": of_tool("probe_cancel", stream_end),
    "call.nan-reward": of_tool("probe_nan", as_result),
    "call.surrogate": of_tool("probe_surrogate", as_error),
    "call.metadata": of_tool("probe_metadata", as_error),
    "call.finished": of_tool("probe_finish", first_again),
    "call.scoring": status("score_group", 404, 500),
    "call.heartbeat": Fault("call"),
    "call.late-result": Fault("call", lambda e: as_error(e) if "task_id" in e.asked() else None),
    "limits.body": Fault("create", answered_without_server(), passed_on=False),
    "limits.secrets-fit": answers("health", {"detail": "?"}, 431, lambda e: len(e.headers.get("x-long", "")) > 4096),
    "limits.garbage": status("call", 422, 500),
    "reveals.body": answers("create", {"detail": "canary-5d1f"}, 422, lambda exchange: exchange.status == 422),
    "reveals.traceback": Fault("call", traceback_in_errors),
}
