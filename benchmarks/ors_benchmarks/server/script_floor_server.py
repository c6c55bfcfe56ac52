"""A script: bare uvicorn that answers every request with the same bytes, the floor of any server on uvicorn.

    python -P script_floor_server.py PORT [ignored]

The answer is that of the smallest tool call. It parses nothing, keeps nothing and runs no tool.
"""

import sys
from typing import Any

import uvicorn

ANSWER = (
    b"event: task_id\r\ndata: 0123456789abcdef0123456789abcdef\r\n\r\nevent: end\r\n"
    b'data: {"ok":true,"output":{"blocks":[{"text":"noop:1","detail":null,"type":"text"}],"metadata":null,'
    b'"reward":0.0,"finished":false}}\r\n\r\n'
)
HEADERS = [(b"content-type", b"text/event-stream"), (b"content-length", b"%d" % len(ANSWER))]


async def floor(scope: Any, receive: Any, send: Any) -> None:
    """Return the ASGI application."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


def main() -> None:
    """Serve until SIGTERM."""
    uvicorn.run(
        floor,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main()
