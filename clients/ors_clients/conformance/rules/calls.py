"""Rules of tool calls: results, framing, resumption, and what a call must survive."""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import Any

from ors_clients.conformance.rule import RECOMMENDED, REQUIRED, Broken, NotTried, Rules, kept, plain
from ors_clients.conformance.shapes import fit
from ors_clients.conformance.subject import Reply, Subject
from ors_clients.conformance.values import as_object
from ors_server.protocol import RunToolOutput

__all__ = ["RULES"]

RULES = rule = Rules()
_KEYS = {"blocks", "metadata", "reward", "finished"}
#: Seconds of a slow call, and within which its id has to come.
_SLOW, _SOON = 1.5, 1.0
#: Seconds of a call that is silent except for comments, and of silence that clients bear.
_QUIET, _SILENCE = 35.0, 29.0
#: Pings before a late result is fetched, and seconds between them.
_PINGS, _BETWEEN = 13, 5.0


@rule(
    "call.events",
    REQUIRED,
    tried="POST /{env}/call with a valid input",
    expected="an event stream: task_id, any number of chunk, one end (or one error)",
    why="both clients wait for exactly these events",
)
async def events(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        reply = await subject.call(sid, name, input)
    reply.answer.expect(200)
    content_type = reply.answer.headers.get("content-type", "")
    if not content_type.startswith("text/event-stream"):
        raise Broken(f"{reply}, as {plain(content_type, 60)}")
    names = [event.name for event in reply.events]
    ends = [name for name in names if name in ("end", "error")]
    if names[:1] != ["task_id"] or len(ends) != 1 or names[-1] != ends[0] or set(names[1:-1]) - {"chunk"}:
        raise Broken(str(reply))
    return str(reply)


@rule(
    "call.result",
    REQUIRED,
    tried="the result of a valid call",
    expected='{"ok": true, "output": {"blocks", "metadata", "reward", "finished"}}, all four of them',
    why="both clients index all four keys and raise KeyError without one",
)
async def result(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        reply = await subject.call(sid, name, input)
    if reply.error is not None:
        raise NotTried(f"the tool failed: {plain(reply.error, 120)}")
    if missing := _KEYS - set(reply.output):
        raise Broken(f"{reply}: without {', '.join(sorted(missing))}")
    fit(reply.answer, RunToolOutput, reply.result)
    return str(reply)


@rule(
    "call.framing",
    REQUIRED,
    tried="each line of the streams of a call and of an unknown tool",
    expected="a name for each event, a colon in each line, no line over 64 KiB, a whole last event",
    why="both SDKs' parsers raise on such a line, and drop events without a name",
)
async def framing(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        replies = [await subject.call(sid, name, input), await subject.call(sid, "no_such_tool")]
        if subject.environment == "orsprobe":
            replies.append(await subject.call(sid, "probe_echo", {"text": "0123456789" * 20, "count": 1000}))
    for reply in replies:
        reply.answer.expect(200)
        if reply.stream.faults:
            raise Broken(f"{reply.answer.request}: {plain('; '.join(reply.stream.faults), 200)}")
    return f"{len(replies)} streams"


@rule(
    "call.white-space",
    REQUIRED,
    tried="the data lines of long results",
    expected="none begins with white space",
    why="both SDKs' clients strip it: a result with indented lines reaches the model with characters missing",
)
async def white_space(subject: Subject) -> str:
    if subject.environment != "orsprobe":
        if subject.wire.stripped:
            raise Broken(subject.wire.stripped[0])
        if not subject.wire.chunked:
            raise NotTried("no result came in several chunks, and the environment is not the probe")
        return f"{subject.wire.chunked} long results"
    async with subject.session() as sid:
        for width in (7, 8, 9, 11, 13):
            text = "x".rjust(width)
            count = 40_000 // width
            reply = await subject.call(sid, "probe_echo", {"text": text, "count": count})
            if reply.text != text * count:
                raise Broken(f"of {width * count:,} characters {len(reply.text):,} came: {reply.stream.stripped}")
    return "five long results whole"


@rule(
    "call.headers",
    RECOMMENDED,
    tried="the response headers of a call",
    expected="Cache-Control: no-cache and X-Accel-Buffering: no",
    why="nginx holds a stream back until it ends, and clients repeat calls that are silent for 30 s",
)
async def headers(subject: Subject) -> str:
    reply = await subject.call(await subject.idle_session(), "no_such_tool")
    given = reply.answer.expect(200).headers
    # A proxy takes X-Accel-Buffering away: it is the proxy's instruction.
    proxied = given.get("server", "").startswith("nginx")
    if "no-cache" not in given.get("cache-control", "") or (given.get("x-accel-buffering") != "no" and not proxied):
        raise Broken(f"Cache-Control {given.get('cache-control')}, X-Accel-Buffering {given.get('x-accel-buffering')}")
    return "both"


async def _refused(subject: Subject, words: str, name: str, input: dict[str, Any]) -> Reply:
    reply = await subject.call(await subject.idle_session(), name, input)
    if reply.result["ok"] is not False or words not in str(reply.result.get("error")):
        raise Broken(str(reply))
    return reply


@rule(
    "call.unknown-tool",
    REQUIRED,
    tried="POST /{env}/call of a tool that is not there",
    expected='a result with ok: false, "… is not a valid tool"',
    why="it is the model's mistake, which it may correct; openreward's client ends the session after an error event",
)
async def unknown_tool(subject: Subject) -> str:
    return str(await _refused(subject, "is not a valid tool", "no_such_tool", {}))


def _tool_with_input(subject: Subject) -> str:
    for tool in subject.tools:
        if as_object(tool.get("input_schema")).get("properties"):
            return tool["name"]
    raise NotTried("no tool has an input")


def _misfit(subject: Subject, name: str) -> dict[str, Any]:
    """Return an input of which each argument has a type that is not its own."""
    schema: Any = next(tool for tool in subject.tools if tool["name"] == name)["input_schema"]
    return {argument: {"unexpected": [None]} for argument in schema["properties"]}


@rule(
    "call.invalid-input",
    REQUIRED,
    tried="POST /{env}/call with an input that does not fit the schema",
    expected='a result with ok: false, "Tool input validation error: …"',
    why="it is the model's mistake, which it may correct; openreward's client ends the session after an error event",
)
async def invalid_input(subject: Subject) -> str:
    name = _tool_with_input(subject)
    return str(await _refused(subject, "Tool input validation error", name, _misfit(subject, name)))


@rule(
    "call.reasons",
    RECOMMENDED,
    tried="the reason of both refusals",
    expected="not_found and input_validation",
    why="openreward's client sorts failed calls by it, and otherwise guesses from the text",
)
async def reasons(subject: Subject) -> str:
    reply = await _refused(subject, "", "no_such_tool", {})
    kept(reply.result.get("reason") == "not_found", reply)
    name = _tool_with_input(subject)
    reply = await _refused(subject, "", name, _misfit(subject, name))
    kept(reply.result.get("reason") == "input_validation", reply)
    return "both"


@rule(
    "call.malformed",
    REQUIRED,
    tried="POST /{env}/call without input, and with a further key",
    expected="422 with a detail, before any stream",
    why="a client's mistake that looks like a tool's failure becomes a reward of 0",
)
async def malformed(subject: Subject) -> str:
    sid = await subject.idle_session()
    bodies: list[dict[str, Any]] = [{"name": "no_such_tool"}, {"name": "no_such_tool", "input": {}, "unexpected": 1}]
    for body in bodies:
        answer = await subject.wire.events(subject.path("call"), body, sid)
        answer.expect(422).detail()
    return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "call.unknown-session",
    REQUIRED,
    tried="POST /{env}/call with an id that was never used",
    expected="404, before any stream",
    why="openreward's client ends a session on it at once; inside a stream it would retry",
)
async def unknown_session(subject: Subject) -> str:
    body: dict[str, Any] = {"name": "no_such_tool", "input": {}}
    answer = await subject.wire.events(subject.path("call"), body, str(uuid.uuid4()))
    answer.expect(404).detail()
    return str(answer)


@rule(
    "call.bare-path",
    REQUIRED,
    tried="POST /call, without an environment, in a session of {env}",
    expected="the call runs in the session's environment",
    why="openreward's client without a variant, and with it TRL, sends bare paths only",
)
async def bare_path(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        reply = await subject.call(sid, name, input, path="/call", follow=True)
    return kept(reply.error is not None or reply.result["ok"] is True, reply)


# --- resumption ----------------------------------------------------------------------------------


@rule(
    "call.resume",
    REQUIRED,
    tried="POST /{env}/call twice more with the task_id of a call",
    expected="the same result, whole, and the tool runs once",
    why="clients fetch the result of a lost connection with it: otherwise a call runs twice or its reward is lost",
)
async def resume(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        first = await subject.call(sid, name, input)
        for _ in range(2):
            again = await subject.call(sid, name, input, task_id=first.task_id)
            if again.task_id != first.task_id or again.events[1:] != first.events[1:]:
                raise Broken(f"{again}, where first {first}")
        if name == "probe_echo":
            await _check_ran_once(subject, sid)
    return str(first)


@rule(
    "call.unknown-task-id",
    REQUIRED,
    tried="POST /{env}/call with a task_id that is not there",
    expected='200 with one error event "unknown task_id"; nothing runs',
    why="clients compare the text; a server that runs the call instead runs it twice",
)
async def unknown_task_id(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        reply = await subject.call(sid, name, input, task_id=uuid.uuid4().hex)
        reply.answer.expect(200)
        return kept("unknown task_id" in (reply.error or ""), reply)


@rule(
    "call.foreign-task-id",
    REQUIRED,
    tried="the task_id of a call, sent in another session",
    expected='"unknown task_id"',
    why="one episode would read the results of another, with its reward",
)
async def foreign_task_id(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as own, subject.session() as foreign:
        first = await subject.call(own, name, input)
        reply = await subject.call(foreign, name, input, task_id=first.task_id)
        return kept("unknown task_id" in (reply.error or ""), reply)


@rule(
    "call.idempotency-key",
    REQUIRED,
    tried="the same call twice with the same Idempotency-Key, then another call with it",
    expected="one call, then 409; tried where /create promises it (X-Idempotent-Calls: true)",
    why="ors-clients repeats lost calls where this is promised",
)
async def idempotency_key(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        if not subject.keyed:
            raise NotTried("/create does not promise it")
        key = {"Idempotency-Key": uuid.uuid4().hex}
        first = await subject.call(sid, name, input, headers=key)
        second = await subject.call(sid, name, input, headers=key)
        if first.task_id != second.task_id or first.events != second.events:
            raise Broken(f"{second}, where first {first}")
        body = {"name": name, "input": {**input, "another": "input"}}
        (await subject.wire.events(subject.path("call"), body, sid, headers=key)).expect(409).detail()
    return str(second)


async def _check_ran_once(subject: Subject, sid: str) -> None:
    """Check the probe's own count of its calls. Raises ``Broken``."""
    count = (await subject.call(sid, "probe_count")).text
    if count != "1 True":
        raise Broken(f"the tool ran {count.split()[0]} times")


def _named(received: bytearray) -> bool:
    """Return whether the task_id event is complete."""
    return b"task_id" in received and received.endswith((b"\n\n", b"\n\r\n"))


def _commented(received: bytearray) -> bool:
    return b"\n:" in received


# --- with the probe ------------------------------------------------------------------------------


@rule(
    "call.early-task-id",
    REQUIRED,
    tried=f"a call of the probe that takes {_SLOW:g} s",
    expected=f"task_id within {_SOON:g} s",
    why="a client that loses its connection before task_id sends the call again, and the tool runs twice",
    probe=True,
)
async def early_task_id(subject: Subject) -> str:
    async with subject.session() as sid:
        return await _early(subject, sid, "probe_wait", {"seconds": _SLOW})


async def _early(subject: Subject, sid: str, name: str, input: dict[str, Any]) -> str:
    body = {"name": name, "input": input}
    answer = await subject.wire.events(subject.path("call"), body, sid, timeout=_SOON, stop=_named)
    if answer.status != 200 or b"task_id" not in answer.body:
        raise Broken(f"{answer}: no task_id within {_SOON:g} s")
    return f"after {answer.seconds:.2f} s"


@rule(
    "call.during-setup",
    RECOMMENDED,
    tried=f"a call of the probe during a set-up of {_SLOW:g} s",
    expected=f"task_id within {_SOON:g} s; the call runs once, after the set-up",
    why="clients repeat a silent call after 30 s: with ors-sdk's server one call ran three times",
    probe=True,
)
async def during_setup(subject: Subject) -> str:
    async with subject.session(setup_seconds=_SLOW) as sid:
        came = await _early(subject, sid, "probe_echo", {"text": "x"})
        reply = await subject.call(sid, "probe_count", timeout=subject.wire.timeout + _SLOW)
        if reply.text != "1 True":
            raise Broken(f"calls that ran, and whether the session was set up: {reply.text}")
    return came


@rule(
    "call.lost-connection",
    REQUIRED,
    tried="a call of the probe whose connection is lost after task_id, then the same task_id",
    expected="the tool goes on, runs once, and its result comes",
    why="a lost connection would otherwise lose the episode, or run the tool twice",
    probe=True,
)
async def lost_connection(subject: Subject) -> str:
    async with subject.session() as sid:
        reply = await _resumed(subject, sid)
        await _check_ran_once(subject, sid)
        return str(reply)


async def _resumed(subject: Subject, sid: str, pings: int = 0) -> Reply:
    """Lose the connection of a call after task_id, wait for some pings, and return the response to the same task_id.

    Raises ``Broken`` where that is not the call's result.
    """
    call: dict[str, Any] = {"name": "probe_wait", "input": {"seconds": 0.5}}
    answer = await subject.wire.events(subject.path("call"), call, sid, stop=_named)
    task_id = Reply(answer).task_id
    for _ in range(pings):
        await asyncio.sleep(_BETWEEN)
        await subject.wire.post("/ping", sid=sid)
    reply = await subject.call(sid, **call, task_id=task_id)
    kept(reply.text == "waited 1", reply)
    return reply


@rule(
    "call.tool-raises",
    REQUIRED,
    tried="a tool of the probe that raises, and a call after it",
    expected="an error event with its own text; the session goes on",
    why="clients tell a tool's failure from a broken server by it",
    probe=True,
)
async def tool_raises(subject: Subject) -> str:
    async with subject.session() as sid:
        reply = await subject.call(sid, "probe_raise")
        reply.answer.expect(200)
        kept(bool(reply.error), reply)
        if (await subject.call(sid, "probe_echo", {"text": "on"})).text != "on":
            raise Broken("the session did not go on")
    return str(reply)


@rule(
    "call.cancelled",
    REQUIRED,
    tried="a tool of the probe that ends in CancelledError",
    expected="an error event",
    why="clients receive pings forever: openreward's has no time limit, and the episode never ends",
    probe=True,
)
async def cancelled(subject: Subject) -> str:
    async with subject.session() as sid:
        reply = await subject.call(sid, "probe_cancel", timeout=min(3.0, subject.wire.timeout))
        return kept(reply.error is not None, reply)


@rule(
    "call.nan-reward",
    REQUIRED,
    tried="a tool of the probe whose reward is NaN",
    expected="an error event",
    why="as null it means no reward: a broken grader looks like a task without one",
    probe=True,
)
async def nan_reward(subject: Subject) -> str:
    async with subject.session() as sid:
        reply = await subject.call(sid, "probe_nan")
        if reply.error is None:
            reward = reply.output.get("reward")
            if not (isinstance(reward, float) and not math.isfinite(reward)):
                raise Broken(str(reply))
            raise Broken(f"{reply}: NaN is not JSON")
    return str(reply)


@rule(
    "call.surrogate",
    REQUIRED,
    tried="a tool of the probe that returns half an emoji",
    expected="a result with U+FFFD in its place",
    why="programs print such bytes, and an error event ends the episode",
    probe=True,
)
async def surrogate(subject: Subject) -> str:
    async with subject.session() as sid:
        reply = await subject.call(sid, "probe_surrogate")
        kept(reply.text.startswith("half "), reply)
        reply.text.encode()
    return str(reply)


@rule(
    "call.metadata",
    RECOMMENDED,
    tried="a tool of the probe whose metadata is not JSON",
    expected="a result, with the metadata in another form or without it",
    why="the tool has run and its reward is lost with the result",
    probe=True,
)
async def metadata(subject: Subject) -> str:
    async with subject.session() as sid:
        reply = await subject.call(sid, "probe_metadata")
        return kept(reply.text == "done", reply)


@rule(
    "call.finished",
    REQUIRED,
    tried="a call of the probe after one that returned finished: true",
    expected="a result with ok: false and the reason episode_finished; the tool does not run",
    why="a model that goes on earns its reward again and again",
    probe=True,
)
async def finished(subject: Subject) -> str:
    async with subject.session() as sid:
        first = await subject.call(sid, "probe_finish")
        if first.output.get("finished") is not True or first.output.get("reward") != 1.0:
            raise Broken(str(first))
        reply = await subject.call(sid, "probe_finish")
        kept(reply.result["ok"] is False, reply)
        return kept(reply.result.get("reason") == "episode_finished", reply)


@rule(
    "call.scoring",
    RECOMMENDED,
    tried="POST /{env}/score_group where the environment does not score groups",
    expected="404 with a detail that gives the reason",
    why="openreward's client tells from it that it has to do without",
)
async def scoring(subject: Subject) -> str:
    answer = await subject.wire.get(subject.path("tools"))
    if answer.object().get("supports_score_group"):
        raise NotTried("the environment scores groups")
    body: dict[str, Any] = {"candidates": [{"messages": []}]}
    answer = await subject.wire.events(subject.path("score_group"), body, await subject.idle_session())
    return kept("score_group" in answer.expect(404).detail(), answer)


@rule(
    "call.heartbeat",
    REQUIRED,
    tried="a call of the probe that takes 35 s (with --slow)",
    expected="bytes at least every 30 s",
    why="both clients take 30 s of silence for a lost connection",
    probe=True,
    slow=35,
)
async def heartbeat(subject: Subject) -> str:
    async with subject.session() as sid:
        body = {"name": "probe_wait", "input": {"seconds": _QUIET}}
        answer = await subject.wire.events(subject.path("call"), body, sid, timeout=_SILENCE, stop=_commented)
        if b"\n:" not in answer.body:
            raise Broken(f"{answer}: silent for {_SILENCE:g} s")
    return f"a comment after {answer.seconds:.0f} s"


@rule(
    "call.late-result",
    RECOMMENDED,
    tried="the task_id of a call of the probe whose connection was lost, 65 s later (with --slow)",
    expected="its result",
    why="a client that was away for a minute loses the result, and with it the episode",
    probe=True,
    slow=65,
)
async def late_result(subject: Subject) -> str:
    async with subject.session() as sid:
        return str(await _resumed(subject, sid, _PINGS))
