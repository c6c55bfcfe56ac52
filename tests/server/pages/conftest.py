"""A browser without scripts: pages of a server in this process, their forms and their cookies."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import AsyncGenerator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from ors_server import Server, Settings

__all__ = ["Browser", "Page", "Visit"]


class _Elements(HTMLParser):
    """All start tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


class Page:
    """A response as HTML."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.status = response.status_code
        parser = _Elements()
        parser.feed(response.text)
        self.elements = parser.elements
        self.text = " ".join(" ".join(parser.texts).split())

    def forms(self) -> list[tuple[str, dict[str, str]]]:
        """Return the address of each form with its hidden fields."""
        found: list[tuple[str, dict[str, str]]] = []
        for tag, attributes in self.elements:
            if tag == "form":
                found.append((attributes["action"], {}))
            elif tag == "input" and found and attributes.get("type") == "hidden":
                found[-1][1][attributes["name"]] = attributes.get("value", "")
        return found

    def form(self, ending: str, **hidden: str) -> tuple[str, dict[str, str]]:
        """Return the form whose address ends so and that has these hidden fields."""
        return next(form for form in self.forms() if form[0].endswith(ending) and hidden.items() <= form[1].items())


class Browser:
    """A visitor of the pages."""

    def __init__(self, server: Server, base_url: str = "http://localhost") -> None:
        self.server = server
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=server.app), base_url=base_url, follow_redirects=True
        )

    async def get(self, path: str, **headers: str) -> Page:
        """Open a page."""
        return Page(await self.http.get(path, headers=headers))

    async def send(
        self, form: tuple[str, dict[str, str]], fields: Mapping[str, str] = {}, headers: Mapping[str, str] = {}
    ) -> Page:
        """Send a form."""
        body = urllib.parse.urlencode({**form[1], **fields})
        given = {"content-type": "application/x-www-form-urlencoded", **headers}
        return Page(await self.http.post(form[0], content=body, headers=given))

    async def play(self, environment: str, index: int = 0) -> Page:
        """Open an episode and wait until its prompt is shown."""
        page = await self.get(f"/ui/environments/{environment}/task?index={index}")
        return await self.settled(await self.send(page.form("/open")))

    async def settled(self, page: Page) -> Page:
        """Look at an episode again until its prompt is shown."""
        for _ in range(200):
            if "being set up" not in page.text:
                break
            page = await self.get(str(page.response.url.path))
        return page


class Visit(Protocol):
    """Open a browser on a server of environments; keywords are settings."""

    def __call__(self, *environments: Any, base_url: str = "http://localhost", **settings: Any) -> Browser: ...


@pytest.fixture
async def visit(tmp_path: Path) -> AsyncGenerator[Visit]:
    browsers: list[Browser] = []

    def start(*environments: Any, base_url: str = "http://localhost", **settings: Any) -> Browser:
        server = Server(list(environments), settings=Settings(data_dir=tmp_path, **settings))
        browsers.append(Browser(server, base_url))
        return browsers[-1]

    yield start
    for browser in browsers:
        await browser.http.aclose()
        await browser.server.sessions.close()
        await browser.server.app.rollouts.close()


def tags(page: Page, name: str) -> list[dict[str, str]]:
    """Return the attributes of the elements of a name."""
    return [attributes for tag, attributes in page.elements if tag == name]


def is_safe(page: Page) -> None:
    """Check that a page has no element or attribute that could run foreign code or ask another host."""
    base = re.compile(r"/|#|https?://|mailto:|data:image/(png|jpeg|gif|webp);base64,")
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "style"), tag
        if tag == "script":
            assert attributes["src"].startswith("/ui/static/"), attributes
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name != "style", (tag, value)
            if name in ("href", "src", "action", "hx-get", "hx-post", "data-live"):
                assert base.match(value) and not value.startswith("//"), (tag, name, value)
                if tag != "a":
                    assert value.startswith(("/ui", "data:image/")), (tag, name, value)
