"""Requests of other sites, foreign host names, static files, and responses without a page."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.server.pages.conftest import Visit
from tests.support.environments import Echo


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({}, "x" * 43),
        ({}, ""),
        ({"sec-fetch-site": "cross-site"}, None),
        ({"sec-fetch-site": "same-site"}, None),
        ({"origin": "http://evil.example"}, None),
        ({"origin": "null"}, None),
        ({"cookie": ""}, None),
    ],
)
async def test_a_form_of_another_site_does_nothing(visit: Visit, headers: dict[str, str], field: str | None) -> None:
    browser = visit(Echo)
    page = await browser.get("/ui/environments/echo/task?index=0")
    action, hidden = page.form("/open")
    if field is not None:
        hidden["form_token"] = field
    if headers.get("cookie") == "":
        browser.http.cookies.clear()
        headers = {}
    page = await browser.send((action, hidden), headers=headers)
    assert page.status == 403
    assert len(browser.server.sessions) == 0


async def test_a_form_without_a_body_or_a_huge_one_is_refused(visit: Visit) -> None:
    browser = visit(Echo)
    await browser.get("/ui")
    for body in (b"", b"\xff\xfe", b"a=" + b"x" * (5 * 2**20), b"&".join(b"a=%d" % number for number in range(2000))):
        response = await browser.http.post("/ui/environments/echo/sessions/s/open", content=body)
        assert response.status_code in (400, 403, 413)
    assert len(browser.server.sessions) == 0


async def test_nothing_is_changed_by_a_get(visit: Visit) -> None:
    browser = visit(Echo)
    for ending in ("open", "tool", "end"):
        assert (await browser.get(f"/ui/environments/echo/sessions/s/{ending}")).status in (404, 405)


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(visit: Visit) -> None:
    response = (await visit(Echo).get("/ui")).response
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evillocalhost", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost:80@b"],
)
async def test_a_foreign_name_of_this_machine_gets_no_page(visit: Visit, host: str) -> None:
    page = await visit(Echo).get("/ui", host=host)
    assert page.status == 403
    assert "keys add" in page.text


@pytest.mark.parametrize("host", ["localhost:8080", "rl.localhost", "127.0.0.1:8080", "[::1]:8080", "10.0.0.7"])
async def test_addresses_get_pages(visit: Visit, host: str) -> None:
    assert (await visit(Echo).get("/ui", host=host)).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "../application.py",
        "..%2fapplication.py",
        "%2e%2e/application.py",
        "/etc/passwd",
        "style.css/..",
        "",
        "nope.css",
    ],
)
async def test_static_files_are_only_those_of_the_folder(visit: Visit, path: str) -> None:
    page = await visit(Echo).get(f"/ui/static/{path}")
    assert page.status == 404
    assert "import" not in page.response.text


async def test_static_files_have_their_types(visit: Visit) -> None:
    browser = visit(Echo)
    for name, kind in (("style.css", "text/css"), ("ui.js", "text/javascript"), ("htmx-LICENSE.txt", "text/plain")):
        response = (await browser.get(f"/ui/static/{name}")).response
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)


async def test_pages_can_be_turned_off(visit: Visit) -> None:
    assert (await visit(Echo, pages=False).get("/ui")).status == 404


async def test_a_fault_shows_no_traceback(visit: Visit) -> None:
    class Faulty(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> Any:
            raise RuntimeError("out of order")

    page = await visit(Faulty).get("/ui/environments/faulty/tasks")
    assert page.status == 500
    assert "out of order" in page.text  # as /tasks says it
    assert "Traceback" not in page.response.text
    assert (await visit(Faulty, return_errors="none").get("/ui/environments/faulty/tasks")).text.count("out of") == 0


def test_serving_imports_no_template_before_the_first_page() -> None:
    code = (
        "import sys\nfrom ors_server import Server\nfrom tests.support.environments import Echo\n"
        "Server([Echo]).app\n"
        "found = {'jinja2', 'markdown_it', 'sse_starlette', 'ors_server.pages.application'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_htmx_sets_no_style(visit: Visit) -> None:
    """It copies attributes of what it replaces; the style of a field that a user has resized breaks the policy."""
    text = (await visit(Echo).get("/ui")).response.text
    settings = json.loads(text.split('name="htmx-config" content=\'')[1].split("'")[0])
    assert settings["attributesToSettle"] == ["class"]
    assert settings["includeIndicatorStyles"] is False
