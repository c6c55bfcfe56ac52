"""A stand-in for the judge, for tests and a first look: it says yes to a fact whose longer words are all in the text.

`python judge_stand_in.py` serves it on port 8099. It is a search for words and no judge: train on none of its rewards.
"""

import json
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8099


def by_words(asked: dict[str, Any]) -> str:
    """Answer a question of `judge.py` like a model that thinks before its verdict."""
    text = asked["explanation"].lower()
    verdicts = [all(word in text for word in re.findall(r"\w{4,}", fact.lower())) for fact in asked["facts"]]
    return "I looked for the words.\n\nVERDICT: " + " ".join("yes" if said else "no" for said in verdicts)


def stand_in(answer: Callable[[dict[str, Any]], object] = by_words, port: int = 0) -> ThreadingHTTPServer:
    """Return a server for chat completions whose messages `answer` gives; 0 is any free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = answer(json.loads(body["messages"][-1]["content"]))
            sent = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
            self.send_response(200 if content is not None else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    stand_in(port=PORT).serve_forever()
