"""The hosts that programs name when they cannot find them."""

from __future__ import annotations

import pytest

from .parts import harbor_verification

PIP = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None)) after connection broken by 'NewConnectionError("
    "\"HTTPSConnection(host='pypi.example', port=443): Failed to resolve 'pypi.example'\")': /simple/six/"
)
REQUESTS = "ConnectionError: HTTPSConnectionPool(host='api.example', port=443): Max retries exceeded"


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        ("curl: (6) Could not resolve host: a.example", ["a.example"]),
        ("curl: (7) Failed to connect to a.example port 443 after 3 ms: Couldn't connect to server", ["a.example"]),
        ("wget: unable to resolve host address \u2018a.example\u2019", ["a.example"]),
        ("fatal: unable to access 'https://a.example/x/': Could not resolve host: a.example", ["a.example"]),
        ("W: Failed to fetch http://a.example/dists/x  Temporary failure resolving 'a.example'", ["a.example"]),
        ("W: Failed to fetch http://a.example/dists/x  Could not resolve 'a.example'", ["a.example"]),
        ("npm error network request failed, reason: getaddrinfo ENOTFOUND a.example", ["a.example"]),
        (PIP, ["pypi.example"]),
        (REQUESTS, ["api.example"]),
        ("AssertionError: the answer is wrong", []),
    ],
)
def test_hosts_that_were_not_found_are_named(said: str, hosts: list[str]) -> None:
    assert harbor_verification.wanted_hosts(f"{said}\n{said}\n") == hosts
