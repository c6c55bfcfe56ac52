"""The list of the environments of all pools, each of which one worker describes (``GET /v1/environments``)."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from ors_server.cluster.gateway.members.workers import Worker
from ors_server.cluster.gateway.proxy.answers import own_response
from ors_server.cluster.gateway.proxy.worker_requests import ask, key_lines

__all__ = ["list_environments"]

#: The parameters of a page, with their values where a client gives none.
_PAGE = (("offset", 0), ("limit", 20))
#: Environments that a worker is asked for at once.
_MOST = 1000


async def list_environments(workers: Sequence[Worker], query: Mapping[str, str], credential: bytes) -> bytes:
    """Return the response to a request with these parameters and this key.

    The default environment's worker is the first. Environments of a worker that does not answer are left out.
    """
    asked = {name: query[name] for name in ("owner", "search") if name in query}
    target = "/v1/environments?" + urllib.parse.urlencode({**asked, "limit": _MOST})
    answers = await asyncio.gather(*(ask(worker, target, *key_lines(credential)) for worker in workers))
    pages: list[Any] = [json.loads(body)["environments"] for status, body in answers if status == 200]
    found = list({environment["id"]: environment for page in pages for environment in page}.values())
    offset, limit = (int(query[name]) if query.get(name, "").isdecimal() else usual for name, usual in _PAGE)
    return own_response(200, {"environments": found[offset : offset + limit], "total": len(found)})
