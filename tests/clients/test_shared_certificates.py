"""Clients of httpx read the trusted certificates once, and not once each."""

from __future__ import annotations

import shutil
import ssl
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import certifi
import httpx
import pytest
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.transport.bounded_httpx import BoundedAsyncClient, BoundedClient


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ssl.SSLContext]:
    """Return the contexts that were made since the test began, of certificates that no other test has read."""
    made: list[ssl.SSLContext] = []
    make = httpx.create_ssl_context

    def noting(*arguments: Any, **named: Any) -> ssl.SSLContext:
        made.append(make(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", noting)
    monkeypatch.setenv("SSL_CERT_FILE", shutil.copy(certifi.where(), f"{tmp_path}/certificates.pem"))
    return made


async def test_clients_share_them(read: list[ssl.SSLContext]) -> None:
    for _ in range(3):
        BoundedClient().close()
        await BoundedAsyncClient().aclose()
    assert len(read) == 1


def test_another_place_of_certificates_is_read(
    read: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    BoundedClient().close()
    monkeypatch.setenv("SSL_CERT_FILE", shutil.copy(certifi.where(), f"{tmp_path}/others.pem"))
    BoundedClient().close()
    assert len(read) == 2


def test_clients_of_http2_have_their_own(read: list[ssl.SSLContext], monkeypatch: pytest.MonkeyPatch) -> None:
    """The context has the protocols that a client offers."""
    monkeypatch.setitem(sys.modules, "h2", ModuleType("h2"))  # the package that a client without requests looks for
    for http2 in (False, True, False, True):
        BoundedClient(http2=http2).close()
    assert len(read) == 2


@pytest.mark.parametrize("options", [{"verify": False}, {"trust_env": False}])
def test_a_client_with_a_word_of_its_own_gets_its_own(read: list[ssl.SSLContext], options: dict[str, Any]) -> None:
    BoundedClient(**options).close()
    assert read == []


def test_uploads_of_rollouts_share_them(read: list[ssl.SSLContext]) -> None:
    sink = RolloutsSink("http://127.0.0.1:9", api_key="", attempts=1)
    for _ in range(3):
        assert [begun for begun, _ in sink.upload([[b"{}"]])] == [1]
    assert len(read) == 1
