"""A scripted model behind the interfaces of OpenAI (both) and Anthropic.

It guesses wrong once, and then says the word that the prompt names. Like real models' servers, it refuses tools without
a name or a schema.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

__all__ = ["scripted_model"]

JSONObject = dict[str, Any]
_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}


def _word(request: JSONObject) -> str:
    """Return the next word, from the results of earlier calls in the request."""
    text = json.dumps(request.get("messages") or request.get("input"))
    named = re.search(r"text='(\w+)'", text)
    assert named is not None, text
    return named[1] if "wrong, once more" in text else "nonsense"


def _responses(request: JSONObject) -> JSONObject:
    (tool,) = request["tools"]
    assert tool["parameters"]["properties"]["text"], tool
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool["name"], "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": request["model"],
        "output": [{**call, "arguments": json.dumps({"text": _word(request)})}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _USAGE,
    }


def _completions(request: JSONObject) -> JSONObject:
    (tool,) = request["tools"]
    assert tool["function"]["parameters"]["properties"]["text"], tool
    function = {"name": tool["function"]["name"], "arguments": json.dumps({"text": _word(request)})}
    call = {"id": "call_1", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def _messages(request: JSONObject) -> JSONObject:
    (tool,) = request["tools"]
    assert tool["input_schema"]["properties"]["text"], tool
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [{"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": {"text": _word(request)}}],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


_ANSWERS = {"responses": _responses, "completions": _completions, "messages": _messages}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = cast("JSONObject", json.loads(self.rfile.read(int(self.headers["content-length"]))))
        try:
            status, answer = 200, _ANSWERS[self.path.rpartition("/")[2]](request)
        except (AssertionError, KeyError, ValueError) as error:
            status, answer = 400, {"error": {"message": f"{type(error).__name__}: {error}", "type": "invalid_request"}}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def scripted_model() -> Generator[str]:
    """Serve the model on the loopback device. Yield its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
