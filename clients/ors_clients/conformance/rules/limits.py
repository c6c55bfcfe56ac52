"""Rules of limits and of what a server must not reveal."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ors_clients.conformance.rule import RECOMMENDED, REQUIRED, Broken, Rules, kept
from ors_clients.conformance.subject import Subject
from ors_clients.conformance.wire import Answer

__all__ = ["RULES"]

RULES = rule = Rules()
_BODY, _PIECE = 48 * 1024 * 1024, 256 * 1024
_CANARY = "canary-5d1f"


@rule(
    "limits.body",
    RECOMMENDED,
    tried=f"POST /create with a body of {_BODY // 1024 // 1024} MiB",
    expected="413, or a connection that ends",
    why="one client fills the memory of a server, and every episode ends with it",
)
async def body(subject: Subject) -> str:
    async def pieces() -> AsyncGenerator[bytes]:
        yield b'{"unexpected": "'
        for _ in range(_BODY // _PIECE):
            yield b"x" * _PIECE
        yield b'"}'

    answer = await subject.wire.request(
        "POST", "/create", content=pieces(), sid="limits-body", headers={"Content-Type": "application/json"}
    )
    return _refused(answer, 413)


def _refused(answer: Answer, *statuses: int) -> str:
    # A server may close the connection before the client has written all.
    if answer.status in statuses or (answer.status == 0 and "within" not in answer.problem):
        return str(answer)
    raise Broken(str(answer))


@rule(
    "limits.head",
    RECOMMENDED,
    tried="GET /health with a header of 256 KiB",
    expected="400 or 431, or a connection that ends",
    why="heads without an end fill the memory of a server",
)
async def head(subject: Subject) -> str:
    answer = await subject.wire.get("/health", headers={"X-Long": "x" * 256 * 1024})
    return _refused(answer, 400, 413, 414, 431)


@rule(
    "limits.secrets-fit",
    REQUIRED,
    tried="GET /health with a header of 6 KiB",
    expected="200",
    why="openreward's client sends all secrets in one header, which takes several KiB",
)
async def secrets_fit(subject: Subject) -> str:
    return str((await subject.wire.get("/health", headers={"X-Long": "x" * 6 * 1024})).expect(200))


@rule(
    "limits.garbage",
    REQUIRED,
    tried="POST /create and /{env}/call with bytes that are not JSON, and with nested lists",
    expected="a 4xx",
    why="a 5xx is retried by clients, and a server that fails on a body can be stopped by one",
)
async def garbage(subject: Subject) -> str:
    sid = await subject.idle_session()
    for content in (b"\xff\xfe\x00", b"[" * 20_000, b"null", b'"text"'):
        for path, id in (("/create", "limits-garbage"), (subject.path("call"), sid)):
            answer = await subject.wire.request(
                "POST", path, content=content, sid=id, headers={"Content-Type": "application/json"}
            )
            kept(400 <= answer.status < 500, answer)
    return str(answer)  # pyright: ignore[reportPossiblyUnboundVariable]


@rule(
    "reveals.body",
    RECOMMENDED,
    tried="POST /create with a wrong body that has a secret in it",
    expected="an error that does not repeat it",
    why="errors end up in the logs of every machine of a run",
)
async def repeats_body(subject: Subject) -> str:
    wrong = {"env_name": subject.environment, "secrets": _CANARY, "task_spec": _CANARY}
    answer = await subject.wire.post("/create", wrong, "reveals-body")
    return kept(answer.status >= 400 and _CANARY not in answer.body.decode("utf-8", "replace"), answer)


@rule(
    "reveals.traceback",
    REQUIRED,
    tried="every error of this check",
    expected="no traceback",
    why="it shows a client the server's paths, and whatever the exception's text holds",
)
async def traceback(subject: Subject) -> str:
    if subject.wire.tracebacks:
        raise Broken(f"in the answer to {subject.wire.tracebacks[0]}")
    answer = await subject.wire.request("POST", subject.path("call"), content=b"\xff", sid="reveals", follow=True)
    if subject.wire.tracebacks:
        raise Broken(f"in the answer to {subject.wire.tracebacks[0]}")
    return f"none, nor in {answer.request}"
