"""One rule for the links of a bundle: each address of a page of the run is a file, and every other link is none.

A page is rendered below an address that is drawn for the bundle, so no foreign text can have one of its links.
Invariants: a name is made of lower-case letters, digits, ``-`` and ``_``, whatever a client has called a rollout; two
addresses have one name only if they are of one page.
"""

from __future__ import annotations

import functools
import hashlib
import html
import json
import posixpath
import re
import secrets
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["INDEX", "STATIC", "Address", "Links", "Places"]

INDEX = "index.html"
#: Files that every page has.
STATIC = ("style.css", "icon.svg")
#: The pages of a run, each with the folder of its files and the parameters that a link to it may have.
_PAGES = {
    "/run": ("run", frozenset(("run", "after"))),
    "/rollouts": ("lists", frozenset(("run", "task_key", "outcome", "after"))),
    "/rollout": ("rollouts", frozenset(("id", "tokens"))),
    "/rollout-group": ("groups", frozenset(("id", "start", "tokens"))),
    "/rollout-message": ("texts", frozenset(("id", "number"))),
}
_FORM = re.compile(r"<form\b.*?</form>", re.DOTALL)
#: Ids that are names of files as they are, on every system, and that no digest is like.
_PLAIN = re.compile(r"[0-9a-z][0-9a-z-]{7,63}")
#: Rollouts whose places are remembered.
_REMEMBERED = 65_536

#: The path of a page, and its parameters in their order.
Address = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Places:
    """The run, and the key of the group of each of its rollouts; None for a rollout of another run."""

    run: str
    group_of: Callable[[str], str | None]


class Links:
    """The links of one bundle."""

    def __init__(self, places: Places) -> None:
        self._run = places.run
        self._group_of = functools.lru_cache(_REMEMBERED)(places.group_of)
        #: What the addresses of its pages begin with.
        self.base = f"/{secrets.token_hex(16)}"
        self._link = re.compile(rf' (?:href|src|action|data-[a-z-]+|hx-[a-z-]+)="{self.base}([^"]*)"')

    @property
    def index(self) -> Address:
        """The address of the run's page."""
        return "/run", (("run", self._run),)

    @property
    def every_rollout(self) -> Address:
        """The address of the list of the run's rollouts."""
        return "/rollouts", (("run", self._run),)

    def file_of(self, address: Address) -> str | None:
        """Return the file of an address; None where it is not a page of the run."""
        path, given = address
        values = dict(given)
        if path not in _PAGES or not values.keys() <= _PAGES[path][1] or len(values) != len(given):
            return None
        folder = _PAGES[path][0]
        if folder in ("run", "lists"):
            if values.get("run") != self._run:
                return None
            return INDEX if address == self.index else f"{folder}/{_digest(given)}.html"
        group = self._group_of(values.get("id", ""))
        if group is None:
            return None
        name = _name(group if folder == "groups" else values["id"])
        if values.get("start", "0") != "0":
            name += f"_from{_digest(values['start'])}"
        if values.get("tokens") == "1":
            name += "_tokens"
        return f"texts/{name}_{_digest(values.get('number'))}.txt" if folder == "texts" else f"{folder}/{name}.html"

    def rewrite(self, page: str, file: str, found: Callable[[Address, str], None]) -> str:
        """Return a page as it is in ``file``; ``found`` gets the address and the file of each of its links."""

        def replaced(link: re.Match[str]) -> str:
            name, _, _ = link[0].partition("=")
            target = urllib.parse.urlsplit(html.unescape(link[1]))
            static = target.path.removeprefix("/static/")
            if static in STATIC:
                return f'{name}="{_relative(static, file)}"'
            address = target.path, tuple(sorted(urllib.parse.parse_qsl(target.query, keep_blank_values=True)))
            if not address[1]:  # the first page, and the list of all: those of the run
                address = {"": self.index, "/rollouts": self.every_rollout}.get(target.path, address)
            led = self.file_of(address)
            if led is None or name != " href":
                return ""
            found(address, led)
            fragment = f"#{html.escape(target.fragment)}" if target.fragment else ""
            return f' href="{_relative(led, file)}{fragment}"'

        # A form asks a server, which a bundle does not have.
        return self._link.sub(replaced, _FORM.sub("", page))


def _relative(file: str, beside: str) -> str:
    return posixpath.relpath(file, posixpath.dirname(beside) or ".")


def _name(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else f"_{_digest(text)}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]
