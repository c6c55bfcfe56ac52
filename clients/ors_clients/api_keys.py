"""The API key for a server where the program names none: one rule, by the server's address.

``OPENREWARD_API_KEY`` is the key of OpenReward's platform. It goes to the platform's own addresses and to those that
``OPENREWARD_SESSION_URL`` and ``OPENREWARD_API_URL`` name, and to no others. ``ORS_API_KEY`` is that of all other
servers, and never goes to the platform's own addresses. Sessions and uploads of rollouts follow the same rule.
"""

from __future__ import annotations

import os

__all__ = ["PLATFORM_API", "server_key"]

#: The platform's rollout API.
PLATFORM_API = "https://api.openreward.ai"
_PLATFORM = (PLATFORM_API, "https://sessions.openreward.ai")
_POINTERS = ("OPENREWARD_SESSION_URL", "OPENREWARD_API_URL")


def server_key(url: str) -> str:
    """Return the API key of the server at ``url``; empty if there is none.

    A server that an ``OPENREWARD_…_URL`` names gets ``ORS_API_KEY`` if ``OPENREWARD_API_KEY`` is not set: it is a
    server of your own that OpenReward's clients use as well. An empty ``ORS_API_KEY`` keeps every other server keyless.
    Addresses are compared as text without a slash at the end, so another spelling of a platform's address gets no key
    of the platform.
    """
    url = url.rstrip("/")
    platforms, own = os.environ.get("OPENREWARD_API_KEY", ""), os.environ.get("ORS_API_KEY")
    if url in _PLATFORM:
        return platforms
    pointed_to = {os.environ.get(name, "").rstrip("/") for name in _POINTERS}
    if platforms and own != "" and url in pointed_to:
        return platforms
    return own or ""
