"""Rules of sessions: how they begin, what the model reads, and how they end."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from typing import Any

from ors_clients.conformance.rule import RECOMMENDED, REQUIRED, Broken, NotTried, Rules, kept
from ors_clients.conformance.shapes import fit
from ors_clients.conformance.subject import Subject
from ors_clients.conformance.wire import Answer
from ors_server.protocol import Blocks, ListToolsOutput, Message

__all__ = ["RULES"]

RULES = rule = Rules()
_SECRETS = base64.b64encode(json.dumps({"check_key": {"value": "a value"}}).encode()).decode()

#: Looks for a teardown, each 0.1 s after the one before.
_TRIES = 20
#: Pairs of requests that are sent at once.
_RACES = 3


@rule(
    "session.create-session",
    REQUIRED,
    tried="POST /create_session with Accept: text/event-stream",
    expected="an event stream: task_id with the id, then end",
    why="both SDKs' clients read the id from these events; with JSON they retry and give up",
)
async def create_session(subject: Subject) -> str:
    answer = (await subject.wire.events("/create_session", {})).expect(200)
    names = [event.name for event in answer.events]
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise Broken(f"{answer}, as {answer.headers.get('content-type')}")
    if names[:1] != ["task_id"] or names[-1:] != ["end"] or not answer.events[0].data:
        raise Broken(str(answer))
    second = await subject.wire.events("/create_session", {"env": {}})
    if second.expect(200).events[:1] == answer.events[:1]:
        raise Broken(f"{second}: the same id twice")
    return str(answer)


@rule(
    "session.create-session-json",
    RECOMMENDED,
    tried="POST /create_session without Accept: text/event-stream",
    expected='{"sid": id}',
    why="the specification's own sample client reads this JSON",
)
async def create_session_json(subject: Subject) -> str:
    answer = (await subject.wire.post("/create_session", headers={"Accept": "application/json"})).expect(200)
    return kept(isinstance(answer.object().get("sid"), str), answer)


@rule(
    "session.create",
    REQUIRED,
    tried="POST /create with a task",
    expected='200 {"sid": the same id}',
    why="every episode begins with it",
)
async def create(subject: Subject) -> str:
    sid, answer = await subject.create(subject.task())
    await subject.end(sid)
    return kept(answer.expect(200).object().get("sid") == sid, answer)


@rule(
    "session.without-id",
    REQUIRED,
    tried="POST /ping and POST /create without X-Session-ID",
    expected='400 "X-Session-ID header is required"',
    why="a client that lost its id has to learn it, and not to create a session without one",
)
async def without_id(subject: Subject) -> str:
    for path, body in (("/ping", None), ("/create", subject.task())):
        answer = (await subject.wire.post(path, body)).expect(400)
        kept(answer.detail().startswith("X-Session-ID header is required"), answer)
    return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "session.invalid-create",
    REQUIRED,
    tried="POST /create with neither task_spec nor split and index, with both, and with half of them",
    expected="422, and no session",
    why="a server that guesses plays another task than the client believes",
)
async def invalid_create(subject: Subject) -> str:
    sid = str(uuid.uuid4())
    bodies: list[dict[str, Any]] = [
        {},
        {"task_spec": {}, "split": subject.split, "index": 0},
        {"split": subject.split},
    ]
    for body in bodies:
        answer = await subject.wire.post("/create", {"env_name": subject.environment, **body}, sid)
        if answer.status == 200:
            await subject.end(sid)
        answer.expect(422).detail()
    return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "session.unknown-environment",
    REQUIRED,
    tried="POST /create with an env_name that is not hosted, and with an invalid split and index",
    expected="404 and 400",
    why="another status is retried by clients, or the episode belongs to another environment",
)
async def create_unknown(subject: Subject) -> str:
    assert subject.task_count
    for expected, changed in (
        (404, {"env_name": "no-such-environment"}),
        (400, {"split": "no-such-split"}),
        (400, {"index": subject.task_count + 1_000_000}),
    ):
        body = {"env_name": subject.environment, "split": subject.split, "index": 0, **changed}
        sid, answer = await subject.create(body)
        if answer.status == 200:
            await subject.end(sid)
        answer.expect(expected).detail()
    return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "session.repeated-create",
    RECOMMENDED,
    tried="POST /create again with the same id and body",
    expected="200, the same session",
    why="both SDKs' clients repeat a /create whose response was lost; a 400 ends the episode",
)
async def repeated_create(subject: Subject) -> str:
    body = subject.task()
    async with subject.session(body) as sid:
        _, answer = await subject.create(body, sid)
        return str(answer.expect(200))


@rule(
    "session.other-create",
    REQUIRED,
    tried="POST /create with the id of a session and another task",
    expected='400 "Session already exists"',
    why="an id that is silently bound to another task mixes two episodes",
)
async def other_create(subject: Subject) -> str:
    async with subject.session() as sid:
        other = {"env_name": subject.environment, "task_spec": {"label": "another", "id": "another"}}
        _, answer = await subject.create(other, sid)
        return kept(answer.expect(400).detail().startswith("Session already exists"), answer)


@rule(
    "session.create-at-once",
    REQUIRED,
    tried="two POST /create at once with the same id, during a slow set-up, then /prompt",
    expected="one instance, which is set up",
    why="a client that retries gets a session that is never set up, and the first instance is never torn down",
    probe=True,
)
async def create_at_once(subject: Subject) -> str:
    for _ in range(_RACES):  # on a busy machine two requests may come one after the other
        await _race(subject)
    return "one instance"


async def _race(subject: Subject) -> None:
    body = subject.task(setup_seconds=0.3 / _RACES)
    label = body["task_spec"]["label"]
    sid = await subject.new_id()
    try:
        await asyncio.gather(subject.create(body, sid), subject.create(body, sid))
        prompt = await subject.wire.get(subject.path("prompt"), sid)
        prompt.expect(200)
        reply = await subject.call(sid, "probe_count")
        if reply.text != "0 True":
            raise Broken(f"{reply}: not set up")
        journal = await _journal(subject, label)
        if journal.count("constructed") != 1:
            raise Broken(f"{journal.count('constructed')} instances were made")
    finally:
        await subject.end(sid)


@rule(
    "session.ping",
    REQUIRED,
    tried="POST /ping without a body, as application/octet-stream",
    expected='200 {"status": "ok"}',
    why="clients keep their sessions alive with it every 10 s; openreward's sends this content type",
)
async def ping(subject: Subject) -> str:
    sid = await subject.idle_session()
    answer = await subject.wire.post("/ping", sid=sid, headers={"Content-Type": "application/octet-stream"})
    return kept(answer.expect(200).object().get("status") == "ok", answer)


@rule(
    "session.ping-unknown",
    REQUIRED,
    tried="POST /ping with an id that was never used",
    expected='404 "Active environment not found"',
    why="a client whose server was started again has to learn that its session is lost",
)
async def ping_unknown(subject: Subject) -> str:
    answer = await subject.wire.post("/ping", sid=str(uuid.uuid4()))
    return kept("Active environment not found" in answer.expect(404).detail(), answer)


@rule(
    "session.prompt",
    REQUIRED,
    tried="GET /{env}/prompt",
    expected="at least one well-formed block: text, or image with base64 and a MIME type",
    why="every client builds its blocks from exactly these keys",
)
async def prompt(subject: Subject) -> str:
    answer = (await subject.wire.get(subject.path("prompt"), await subject.idle_session())).expect(200)
    if not fit(answer, Blocks):
        raise Broken(f"{answer}: no block")
    return str(answer)


@rule(
    "session.messages",
    RECOMMENDED,
    tried="GET /{env}/messages",
    expected="a list of messages whose blocks fit their roles",
    why="openreward's client falls back to /prompt on a 404 and loses the roles of an opening conversation",
)
async def messages(subject: Subject) -> str:
    answer = (await subject.wire.get(subject.path("messages"), await subject.idle_session())).expect(200)
    if not fit(answer, list[Message]):
        raise Broken(f"{answer}: no message")
    return str(answer)


@rule(
    "session.task-tools",
    REQUIRED,
    tried="GET /{env}/task_tools",
    expected="the tools of /tools, perhaps with others, in the same shape",
    why="clients give a model the tools of its session",
)
async def task_tools(subject: Subject) -> str:
    answer = (await subject.wire.get(subject.path("task_tools"), await subject.idle_session())).expect(200)
    listed = {tool["name"] for tool in fit(answer, ListToolsOutput)["tools"]}
    missing = {tool["name"] for tool in subject.tools} - listed
    if missing:
        raise Broken(f"{answer.request}: without {', '.join(sorted(missing))}, which /tools lists")
    return f"{len(listed)} tools"


@rule(
    "session.unshared-tools",
    RECOMMENDED,
    tried="GET /{env}/task_tools of the probe, which has a tool with shared=False",
    expected="the tool is listed for the session, and not by /tools",
    why="a tool that can be called and is in no list is never called",
    probe=True,
)
async def unshared_tools(subject: Subject) -> str:
    if any(tool["name"] == "probe_unshared" for tool in subject.tools):
        raise Broken("/tools lists it")
    answer = (await subject.wire.get(subject.path("task_tools"), await subject.idle_session())).expect(200)
    if all(tool["name"] != "probe_unshared" for tool in fit(answer, ListToolsOutput)["tools"]):
        raise Broken(f"{answer.request}: probe_unshared is not listed")
    return "listed"


@rule(
    "session.bare-paths",
    REQUIRED,
    tried="GET /prompt, without an environment, in a session of {env}",
    expected="the session's own prompt",
    why="openreward's client without a variant, and with it TRL, sends bare paths only",
)
async def session_bare_paths(subject: Subject) -> str:
    sid = await subject.idle_session()
    bare = (await subject.wire.get("/prompt", sid, follow=True)).expect(200)
    named = (await subject.wire.get(subject.path("prompt"), sid)).expect(200)
    if bare.json() != named.json():
        raise Broken(f"{bare}, where {named}")
    return str(bare)


@rule(
    "session.other-environment",
    RECOMMENDED,
    tried="GET /{other}/prompt in a session of {env}",
    expected="409",
    why="ors-sdk's client creates some sessions in the default environment: it would train on that one unnoticed",
)
async def other_environment(subject: Subject) -> str:
    other = subject.other_environment
    sid = await subject.idle_session()
    answer = await subject.wire.get(subject.path("prompt", other), sid)
    answer.expect(409).detail()
    return str(answer)


# --- secrets and keys ----------------------------------------------------------------------------


async def _accepted(subject: Subject, body: dict[str, Any], **headers: str) -> str:
    sid, answer = await subject.create(body, headers=headers)
    await subject.end(sid)
    return str(answer.expect(200))


@rule(
    "session.secrets-header",
    REQUIRED,
    tried="POST /create_session and /create with X-Secrets",
    expected="200",
    why="openreward's client always sends this header, with its API key in it",
)
async def secrets_header(subject: Subject) -> str:
    (await subject.wire.events("/create_session", {}, headers={"X-Secrets": _SECRETS})).expect(200)
    return await _accepted(subject, subject.task(), **{"X-Secrets": _SECRETS})


@rule(
    "session.secrets-arrive",
    REQUIRED,
    tried="a secret in X-Secrets, read by a tool of the probe",
    expected="the environment gets it",
    why="both SDKs' clients send secrets in this header only: an environment fails, or grades without its judge",
    probe=True,
)
async def secrets_arrive(subject: Subject) -> str:
    sid, answer = await subject.create(subject.task(), headers={"X-Secrets": _SECRETS})
    answer.expect(200)
    try:
        reply = await subject.call(sid, "probe_secret")
        if "check_key" not in reply.text.split():
            raise Broken(f"the environment has the secrets {reply.text.split()}")
    finally:
        await subject.end(sid)
    return "check_key"


@rule(
    "session.secrets-body",
    RECOMMENDED,
    tried='POST /create with "secrets" in the body',
    expected="200",
    why="the specification puts secrets there",
)
async def secrets_body(subject: Subject) -> str:
    return await _accepted(subject, {**subject.task(), "secrets": {"check_key": "a value"}})


@rule(
    "session.bad-secrets",
    RECOMMENDED,
    tried="POST /create with an X-Secrets that cannot be read",
    expected="400 that does not repeat it",
    why="a 500 is taken for a broken server; a header that is ignored leaves the environment without its secrets",
)
async def bad_secrets(subject: Subject) -> str:
    sid, answer = await subject.create(subject.task(), headers={"X-Secrets": "canary!not-base64"})
    await subject.end(sid)
    if "canary" in answer.expect(400).detail():
        raise Broken(f"{answer}: repeats the header")
    return str(answer)


@rule(
    "session.empty-key",
    REQUIRED,
    tried="POST /create with an empty X-API-Key",
    expected="200, where the server wants no key",
    why="openreward's client sends the header even without a key",
)
async def empty_key(subject: Subject) -> str:
    if subject.wire.keyed:
        raise NotTried("this check sends a key")
    return await _accepted(subject, subject.task(), **{"X-API-Key": ""})


# --- the end -------------------------------------------------------------------------------------


@rule(
    "session.delete",
    REQUIRED,
    tried="POST /delete, again, and with an unknown id; POST /delete_session",
    expected='200 {"sid": id} each time',
    why="clients end every session with both, and repeat them after a lost response",
)
async def delete(subject: Subject) -> str:
    async with subject.session() as sid:
        for path, id in (("/delete", sid), ("/delete", sid), ("/delete", str(uuid.uuid4())), ("/delete_session", sid)):
            answer = await subject.wire.post(path, sid=id)
            kept(answer.expect(200).object().get("sid") == id, answer)
        return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "session.refused-after-delete",
    REQUIRED,
    tried="GET /{env}/prompt and POST /{env}/call after /delete",
    expected="404 or 410 with a detail, before any stream",
    why="an ended episode that goes on earns rewards that belong to no rollout",
)
async def refused_after_delete(subject: Subject) -> str:
    name, input = subject.valid_call()
    async with subject.session() as sid:
        await subject.wire.post("/delete", sid=sid)
        for answer in (
            await subject.wire.get(subject.path("prompt"), sid),
            await subject.wire.events(subject.path("call"), {"name": name, "input": input}, sid),
        ):
            answer.expect(404, 410).detail()
        return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "session.gone",
    RECOMMENDED,
    tried="GET /{env}/task_tools after /delete",
    expected="410",
    why="both clients take a 404 there for an older server and go on with the tools of the class",
)
async def gone(subject: Subject) -> str:
    async with subject.session() as sid:
        await subject.wire.post("/delete", sid=sid)
        return str((await subject.wire.get(subject.path("task_tools"), sid)).expect(410))


async def _after_failed_setup(subject: Subject) -> tuple[Answer, Answer]:
    """Return the answers to /prompt and /ping where the set-up raised; twice that to /create where it says so."""
    sid, created = await subject.create(subject.task(setup_fails=True))
    try:
        if created.status != 200:
            return created, created
        return await subject.wire.get(subject.path("prompt"), sid), await subject.wire.post("/ping", sid=sid)
    finally:
        await subject.end(sid)


@rule(
    "session.failed-setup",
    REQUIRED,
    tried="GET /{env}/prompt where the probe's set-up raises",
    expected="an error with a detail",
    why="an episode whose environment is not set up must not be played",
    probe=True,
)
async def failed_setup(subject: Subject) -> str:
    prompt, _ = await _after_failed_setup(subject)
    prompt.detail()
    return kept(prompt.status >= 400, prompt)


@rule(
    "session.ping-after-failed-setup",
    RECOMMENDED,
    tried="POST /ping where the probe's set-up raised",
    expected="an error",
    why="a 200 keeps a session alive that can never be played, and its client waiting",
    probe=True,
)
async def ping_after_failed_setup(subject: Subject) -> str:
    _, ping = await _after_failed_setup(subject)
    return kept(ping.status >= 400, ping)


async def _journal(subject: Subject, label: str) -> list[str]:
    """Return what has happened to a session of the probe, by its label."""
    async with subject.session() as reader:
        return (await subject.call(reader, "probe_journal", {"label": label})).text.splitlines()


async def _torn_down(subject: Subject, label: str) -> list[str]:
    """Wait for a teardown; return all of them."""
    for _ in range(_TRIES):
        ends = [line for line in await _journal(subject, label) if line.startswith("torn down")]
        if ends:
            await asyncio.sleep(0.05)  # a second teardown would follow at once
            return [line for line in await _journal(subject, label) if line.startswith("torn down")]
        await asyncio.sleep(0.1)
    return []


async def _torn_down_once(subject: Subject, body: dict[str, Any]) -> str:
    ends = await _torn_down(subject, body["task_spec"]["label"])
    kept(len(ends) == 1, f"{len(ends)} teardowns")
    return "one teardown"


@rule(
    "session.teardown",
    REQUIRED,
    tried="/delete of a session of the probe, twice",
    expected="one teardown",
    why="containers and files of an episode stay behind, or those of another are removed",
    probe=True,
)
async def teardown(subject: Subject) -> str:
    body = subject.task()
    async with subject.session(body) as sid:
        await subject.call(sid, "probe_count")
    return await _torn_down_once(subject, body)


@rule(
    "session.teardown-after-failed-setup",
    REQUIRED,
    tried="/delete of a session of the probe whose set-up raised",
    expected="one teardown",
    why="whatever the set-up had started stays behind",
    probe=True,
)
async def teardown_after_failed_setup(subject: Subject) -> str:
    body = subject.task(setup_fails=True)
    sid, answer = await subject.create(body)
    if answer.status == 200:
        await subject.wire.get(subject.path("prompt"), sid)
    await subject.end(sid)
    return await _torn_down_once(subject, body)


@rule(
    "session.teardown-after-calls",
    RECOMMENDED,
    tried="/delete while a call of the probe runs",
    expected="the teardown begins when the call has ended",
    why="a tool loses its sandbox while it runs, and what it does then is left behind",
    probe=True,
)
async def teardown_after_calls(subject: Subject) -> str:
    body = subject.task()
    async with subject.session(body) as sid:
        call = asyncio.create_task(subject.call(sid, "probe_wait", {"seconds": 0.6}))
        await asyncio.sleep(0.2)
        await subject.wire.post("/delete", sid=sid)
        await call
    ends = await _torn_down(subject, body["task_spec"]["label"])
    if ends != ["torn down"]:
        raise Broken(f"{ends or 'no teardown'}")
    return "torn down after the call"
