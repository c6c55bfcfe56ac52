"""Pages of a server with keys: log-in, log-out, and what is hidden from other keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from ors_server import Settings
from ors_server.keys.exposure import add_key
from ors_server.keys.file import changed, keys_file
from ors_server.keys.key import Limits
from tests.server.pages.conftest import Browser, Page, Visit, is_safe, tags
from tests.support.environments import Echo

PAGES = ("", "/environments/echo", "/environments/echo/task?index=0", "/sessions", "/sandboxes", "/help")


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Return the secrets of two keys by their names."""
    settings = Settings(data_dir=tmp_path)
    return {name: add_key(settings, name) for name in ("anna", "ben")}


async def log_in(browser: Browser, secret: str) -> Page:
    page = await browser.get("/ui/login")
    return await browser.send(page.form("/login"), {"key": secret})


def another(browser: Browser) -> Browser:
    """Return a second visitor of the same server."""
    return Browser(browser.server)


async def test_without_a_log_in_there_is_only_its_form(visit: Visit, keys: dict[str, str]) -> None:
    browser = visit(Echo)
    for path in PAGES:
        page = await browser.get(f"/ui{path}")
        assert page.response.url.path == "/ui/login"
        assert "echo" not in page.text.lower()
        is_safe(page)
    assert (await browser.get("/ui/sessions/events")).response.url.path == "/ui/login"
    assert (await browser.get("/ui/static/style.css")).status == 200
    assert keys


async def test_a_key_logs_in_and_out(visit: Visit, keys: dict[str, str]) -> None:
    browser = visit(Echo)
    page = await log_in(browser, keys["anna"])
    assert page.response.url.path == "/ui"
    assert "anna" in page.text
    cookie = page.response.history[0].headers["set-cookie"]
    assert "ors_key=" in cookie
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert keys["anna"] not in cookie
    # The cookie opens pages and nothing else.
    assert (await browser.http.get("/list_environments")).status_code == 401
    page = await browser.send(page.form("/logout"))
    assert page.response.url.path == "/ui/login"
    assert (await browser.get("/ui")).response.url.path == "/ui/login"


async def test_a_wrong_key_is_refused(visit: Visit, keys: dict[str, str]) -> None:
    browser = visit(Echo)
    page = await log_in(browser, "ors_wrong<script>")
    assert page.status == 401
    is_safe(page)
    assert "ors_key" not in browser.http.cookies
    for _ in range(25):
        page = await log_in(browser, "ors_wrong")
    assert page.status == 429
    assert keys


@pytest.mark.parametrize("value", ["anna:9999999999:00", "anna:9999999999:", "", "x" * 5000, ":::", "anna:-1:aa"])
async def test_a_forged_cookie_is_none(visit: Visit, keys: dict[str, str], value: str) -> None:
    browser = visit(Echo)
    browser.http.cookies.set("ors_key", value, domain="localhost.local")
    response = await browser.http.get("/ui", headers={"cookie": f"ors_key={value}"})
    assert response.url.path == "/ui/login"
    assert keys


async def test_a_page_has_nothing_of_another_key(visit: Visit, keys: dict[str, str]) -> None:
    anna = visit(Echo)
    await log_in(anna, keys["anna"])
    page = await anna.play("echo")
    path = page.response.url.path
    sid = path.rsplit("/", 1)[1]
    action = page.form("/tool", tool="echo")
    ben = another(anna)
    try:
        await log_in(ben, keys["ben"])
        assert (await ben.get(path)).status == 404
        assert (await ben.get(f"{path}/now")).status == 404
        assert sid not in (await ben.get("/ui/sessions")).text
        assert sid in (await anna.get("/ui/sessions")).text
        # With a form of its own the other key finds no such episode; with the first key's form it has no token.
        own = (await ben.play("echo")).form("/tool", tool="echo")
        assert (await ben.send((action[0], own[1]), {"arg.text": "x"})).status == 404
        assert (await ben.send((action[0].replace("/tool", "/end"), own[1]))).status == 404
        assert (await ben.send((own[0], action[1]), {"arg.text": "x"})).status == 403
        # The same id is another session for another key.
        opening = (await ben.get("/ui/environments/echo/task?index=2")).form("/open")
        other = await ben.settled(await ben.send((f"{path}/open", opening[1])))
        assert "prompt of train-2" in other.text
        assert "prompt of train-0" in (await anna.get(path)).text
    finally:
        await ben.http.aclose()


async def test_a_revoked_key_is_logged_out(visit: Visit, keys: dict[str, str], tmp_path: Path) -> None:
    browser = visit(Echo)
    await log_in(browser, keys["anna"])
    with changed(keys_file(Settings(data_dir=tmp_path))) as held:
        held[:] = [key for key in held if key.name != "anna"]
    browser.server.app.authenticator.keys.refresh(1e12)
    assert (await browser.get("/ui")).response.url.path == "/ui/login"


@pytest.mark.parametrize("replaced", [False, True])
async def test_the_events_of_a_revoked_key_end(
    visit: Visit, keys: dict[str, str], tmp_path: Path, replaced: bool
) -> None:
    browser = visit(Echo)
    await log_in(browser, keys["anna"])
    with changed(keys_file(Settings(data_dir=tmp_path))) as held:
        held[:] = [key for key in held if key.name != "anna"]
    if replaced:
        add_key(Settings(data_dir=tmp_path), "anna")
    headers = [(b"host", b"localhost"), (b"cookie", f"ors_key={browser.http.cookies['ors_key']}".encode())]
    sent: list[bytes] = []

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        sent.append(body)
        browser.server.app.authenticator.keys.refresh(1e12)

    scope = {
        "type": "http", "method": "GET", "path": "/ui/sessions/events", "raw_path": b"", "query_string": b"",
        "headers": headers, "root_path": "", "scheme": "http", "server": ("localhost", 80), "http_version": "1.1",
        "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await asyncio.wait_for(browser.server.app(scope, receive, send), 20)  # pyright: ignore[reportArgumentType]
    assert b"".join(sent).count(b"event: rows") <= 1


async def test_a_log_in_of_another_site_does_nothing(visit: Visit, keys: dict[str, str]) -> None:
    browser = visit(Echo)
    action, hidden = (await browser.get("/ui/login")).form("/login")
    page = await browser.send((action, {**hidden, "form_token": "x" * 43}), {"key": keys["anna"]})
    assert page.status == 403
    page = await browser.send((action, hidden), {"key": keys["anna"]}, {"sec-fetch-site": "cross-site"})
    assert page.status == 403
    assert "ors_key" not in browser.http.cookies


async def test_names_of_hosts_are_free_with_keys(visit: Visit, keys: dict[str, str]) -> None:
    browser = visit(Echo, base_url="http://rl.example.org")
    assert isinstance(browser.http, httpx.AsyncClient)
    page = await log_in(browser, keys["anna"])
    assert page.status == 200
    assert tags(page, "article")


async def test_a_rate_counts_the_calls_of_a_log_in(visit: Visit, tmp_path: Path) -> None:
    secret = add_key(Settings(data_dir=tmp_path), "slow", Limits(rate=2))
    browser = visit(Echo)
    await log_in(browser, secret)
    page = await browser.play("echo")
    for _ in range(4):  # pages that are looked at do not count
        assert (await browser.get("/ui/environments/echo")).status == 200
    await asyncio.sleep(1.1)
    answers = [await browser.send(page.form("/tool", tool="echo"), {"arg.text": f"n{n}"}) for n in range(4)]
    assert "2 requests a second" not in answers[1].text
    assert "2 requests a second" in answers[-1].text
    assert "n3" in answers[-1].text  # what was typed is kept
    await asyncio.sleep(1.1)
    assert "2 requests a second" not in (await browser.send(page.form("/tool", tool="echo"), {"arg.text": "x"})).text
