"""The variables of hosted environments: nothing that ``openreward`` reads leads a key of this server elsewhere."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from openreward import web_service  # pyright: ignore[reportMissingTypeStubs] - it has none

from ors_server.checkouts.serving import variables_of_environments

URL = "http://127.0.0.1:8080"


def test_the_web_tools_of_openreward_call_this_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables_of_environments({}, URL).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENREWARD_API_KEY", "of-this-server")
    service = web_service.WebServiceConfig.from_env()
    assert service is not None
    for url in (service.fetch_url, service.search_url, service.domain_info_url):
        assert urlsplit(url).netloc == urlsplit(URL).netloc


@pytest.mark.parametrize("elsewhere", ["http://search.internal/search", "http://127.0.0.1:8081/search"])
def test_a_service_elsewhere_does_not_get_the_key(elsewhere: str, caplog: pytest.LogCaptureFixture) -> None:
    """The same variable of ``openreward`` has the key of both: of this server, and of the service."""
    variables = variables_of_environments({"OPENREWARD_WEB_SEARCH_URL": elsewhere}, URL)
    assert elsewhere not in variables.values()
    assert "not passed on" in caplog.text
