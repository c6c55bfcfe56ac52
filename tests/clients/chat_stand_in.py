"""A chat-completions endpoint without a model: a policy answers, and faults are injected where a test wants them.

It answers whole or streams as vLLM does, and checks requests as strict endpoints do: every tool message answers a call
of the message before it, and the arguments of earlier calls are JSON objects.

    python -m tests.clients.chat_stand_in      serves a model that echoes the word of the bundled echo environment
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.clients.scripted_engine import serve_application

__all__ = ["ChatStandIn", "call", "echo_policy", "said"]

#: From a request to the model's message.
Policy = Callable[[dict[str, Any]], dict[str, Any]]
#: From a request and its number to a fault: a status, ``drop``, ``garbage``, ``half`` (of a stream), ``error``, or an
#: answer as it is.
Fault = Callable[[dict[str, Any], int], int | str | Response | None]


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return a message that calls no tool."""
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Return a message that calls a tool; ``arguments`` is an object, or text as it is."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    function = {"name": name, "arguments": text}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}], **more}


def echo_policy(body: dict[str, Any]) -> dict[str, Any]:
    """Solve a task of the bundled echo environment."""
    found = re.search(r"text='(\w+)'", body["messages"][0]["content"])
    return call("echo", {"text": found[1] if found else ""})


@dataclass
class ChatStandIn:
    """The endpoint; ``with endpoint.serve() as url`` serves it."""

    policy: Policy = echo_policy
    fault: Fault = lambda body, number: None
    #: Tokens of the context; a conversation has one for every four characters.
    context: int | None = None
    key: str | None = None
    finish: str | None = None
    #: Whether answers say their tokens.
    counts: bool = True
    delay: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    #: Requests that broke a rule of strict endpoints.
    broken: list[str] = field(default_factory=list[str])

    def application(self) -> FastAPI:
        """Return the application."""
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def _complete(request: Request) -> Any:
            body = await request.json()
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                error = {"message": f"Incorrect API key: {request.headers.get('authorization')}"}
                return JSONResponse({"error": error}, 401)
            self.requests.append(body)
            if self.delay:
                await asyncio.sleep(self.delay)
            return self.answer(body, len(self.requests))

        return app

    def answer(self, body: dict[str, Any], number: int) -> Response:
        """Answer a request, the ``number``-th."""
        messages: list[dict[str, Any]] = body["messages"]
        if problem := _broken_rule(messages):
            self.broken.append(problem)
            return JSONResponse({"error": {"message": problem}}, 400)
        fault = self.fault(body, number)
        if isinstance(fault, Response):
            return fault
        if isinstance(fault, int):
            headers = {"retry-after": "0"} if fault == 429 else {}
            return JSONResponse({"error": {"message": "not now"}}, fault, headers=headers)
        prompt = sum(len(json.dumps(message)) for message in messages) // 4
        if self.context is not None and prompt + (body.get("max_tokens") or 0) > self.context:
            text = f"This model's maximum context length is {self.context} tokens. However, you requested more."
            return JSONResponse({"object": "error", "message": text, "code": 400}, 400)
        message = self.policy(body)
        finish = self.finish or ("tool_calls" if message.get("tool_calls") else "stop")
        usage = {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10}
        if not self.counts:
            usage = {}
        if fault == "garbage":
            return PlainTextResponse("<html>502 Bad gateway</html>", media_type="application/json")
        if fault == "drop":
            return _Half(b'{"choices": [{"mess')
        if fault == "error":
            return JSONResponse({"error": {"message": "the engine died"}})
        for place, found in enumerate(message.get("tool_calls") or []):
            found.setdefault("id", f"chatcmpl-tool-{number}-{place}")
        if body.get("stream"):
            pieces = list(_pieces(message, finish, usage if body.get("stream_options") else {}))
            if fault == "half":
                pieces = pieces[: len(pieces) // 2]
            return StreamingResponse(iter(pieces), media_type="text/event-stream")
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage})

    @contextmanager
    def serve(self) -> Generator[str]:
        """Serve it during the block, in a thread; yield its base URL."""
        with serve_application(self.application()) as url:
            yield f"{url}/v1"


def _broken_rule(messages: list[dict[str, Any]]) -> str | None:
    """Return what a strict endpoint finds wrong with a conversation."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"no call {message['tool_call_id']!r} before its answer"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return f"the calls {open_calls} have no answer"
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        for found in calls:
            try:
                if not isinstance(json.loads(found["function"]["arguments"]), dict):
                    return "arguments that are no object"
            except ValueError:
                return "arguments that are no JSON"  # vLLM's chat templates fail at them
            open_calls.append(found["id"])
        if len(set(open_calls)) < len(open_calls):
            return "two calls with one id"
    return None


def _pieces(message: dict[str, Any], finish: str, usage: dict[str, Any]) -> Generator[bytes]:
    """Yield a message as vLLM streams it: text by the word, arguments in halves, the usage last."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for name in ("reasoning_content", "content"):
        for word in re.findall(r"\S+\s*", message.get(name) or ""):
            yield chunk({name: word})
    for index, found in enumerate(message.get("tool_calls") or []):
        name, arguments = found["function"]["name"], found["function"]["arguments"]
        yield chunk(
            {"tool_calls": [{"index": index, "id": found["id"], "type": "function", "function": {"name": name}}]}
        )
        middle = len(arguments) // 2
        for half in (arguments[:middle], arguments[middle:]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": half}}]})
    yield chunk({}, finish)
    if usage:
        yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


class _Half(Response):
    """Part of a response, after which the connection is closed."""

    def __init__(self, part: bytes) -> None:
        super().__init__()
        self._part = part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1000"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._part, "more_body": True})


if __name__ == "__main__":
    with ChatStandIn().serve() as address:
        print(address, flush=True)
        while True:
            time.sleep(3600)
