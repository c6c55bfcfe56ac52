"""The requests of nodes and of commands to a cluster's gateway, below ``/_ors/`` and with the cluster's token."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ors_server.cluster.gateway.members.nodes import Nodes, NotJoined
from ors_server.cluster.gateway.proxy.answers import own_response
from ors_server.cluster.gateway.proxy.framing import Head
from ors_server.cluster.gateway.routing.routes import Own, WithBody
from ors_server.keys.cluster_key import CLUSTER_HEADER, ClusterKey

__all__ = ["WRONG_KEY", "PrivateRoutes"]

WRONG_KEY = (
    "The cluster key of this gateway is another one",
    "Set ORS_CLUSTER_KEY, or ORS_CLUSTER_KEY_FILE, to the same secret on all machines.",
)
#: Longest body in bytes: a node with 1,024 workers sends 200 KiB, and the names of their environments.
_LONGEST = 2**24


class PrivateRoutes:
    """The private routes of one gateway; ``changed`` is called after each registration."""

    def __init__(self, nodes: Nodes, key: ClusterKey, changed: Callable[[], None]) -> None:
        self._nodes = nodes
        self._token = key.node_token.encode()
        self._changed = changed

    def route(self, head: Head, path: str) -> Own | WithBody:
        """Return the response to a request below ``/_ors/``."""
        tokens = head.values(CLUSTER_HEADER)
        if not tokens:
            return Own(own_response(404, {"detail": "Not Found"}))
        if not hmac.compare_digest(tokens[0], self._token):
            return Own(own_response(403, {"detail": f"{WRONG_KEY[0]}. {WRONG_KEY[1]}"}))
        if head.method == b"GET" and path == "/_ors/nodes":
            return Own(own_response(200, {"workers": self._nodes.rows()}))
        respond = {
            "/_ors/nodes": self._register,
            "/_ors/drain": partial(self._end_workers, self._nodes.drain),
            "/_ors/stop": partial(self._end_workers, self._nodes.stop),
        }.get(path)
        if head.method != b"POST" or respond is None:
            return Own(own_response(404, {"detail": "Not Found"}))
        return WithBody(_answer(respond), _LONGEST)

    def _register(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._nodes.register(message)
        finally:
            self._changed()

    def _end_workers(self, end: Callable[[Sequence[str], float], None], message: dict[str, Any]) -> dict[str, Any]:
        deadline = float(message["deadline"])
        if not deadline >= 0:
            raise ValueError("not a number of seconds")
        end([str(name) for name in message["names"]], deadline)
        self._changed()
        return {"workers": self._nodes.rows()}


def _answer(respond: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[bytes], Own]:
    def answer(body: bytes) -> Own:
        try:
            message: Any = json.loads(body)
            return Own(own_response(200, respond(message)))
        except NotJoined as error:
            return Own(own_response(error.status, {"detail": error.detail, "reason": error.reason}))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return Own(own_response(400, {"detail": "This is not a message of a node or of a command of ors-server"}))

    return answer
