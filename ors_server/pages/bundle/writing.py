"""A run as static files: the pages of its tasks, groups and rollouts, which a browser opens from a folder.

The pages are those of a server, made by the same views, and followed from link to link, so that every link of a bundle
leads to a file of it. Invariants: a bundle has no script, and its pages ask no host; the folder appears when it is
complete; one page is in memory at a time, and of the others their names. A page that cannot be made is named, and the
others are there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import escape
from sqlalchemy import select
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ors_server.errors import OrsError
from ors_server.pages.bundle.links import INDEX, STATIC, Address, Links, Places
from ors_server.pages.context import RolloutContext
from ors_server.pages.rendering import Renderer
from ors_server.pages.views.rollout_views import RolloutViews
from ors_server.pages.views.run_views import RunViews
from ors_server.rollouts.errors import RolloutError
from ors_server.rollouts.queries.runs import find_run
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.tables import rollouts
from ors_server.settings import Settings
from ors_server.telemetry.redaction import forms_of, redact_text
from ors_server.wire.version import VERSION

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["Bundle", "write_bundle"]

#: The file by which a bundle is known as one.
_MARK = "bundle.json"
#: Characters of a reason, and of what names its page.
_LONGEST_REASON = 300
_STATIC = Path(__file__).parents[1] / "static"


def write_bundle(
    connection: Connection,
    store: RolloutStore,
    run: str,
    folder: Path,
    *,
    overwrite: bool = False,
    secrets: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Bundle:
    """Write the run of a name or an id into a folder, which a bundle may be in only with ``overwrite``.

    ``secrets`` are values that it does not have; ``progress`` gets the numbers of written rollouts and of all. Raises
    ``UnknownRun``, ``StoreUnavailable``, and ``RolloutError`` where the folder is not free or cannot be written.
    """
    found = find_run(connection, run)
    target = folder.resolve()
    _check_free(target, overwrite=overwrite)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    bundle = Bundle(connection, store, found.id, beside, secrets)
    try:
        try:
            beside.mkdir(parents=True)
            asyncio.run(bundle.write(found.num_rollouts, progress))
            kept: dict[str, Any] = {"ors_server": VERSION, "run": found.name}
            kept |= {"rollouts": bundle.written, "files": bundle.files, "failed": bundle.failed}
            (beside / _MARK).write_text(redact_text(json.dumps(kept), bundle.forms) + "\n")
            _check_free(target, overwrite=overwrite)  # it may have been made meanwhile
            _put(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise RolloutError(
            f"{folder} cannot be written: {error.strerror or error}", "Choose another --output."
        ) from error
    return bundle


class Bundle:
    """A bundle on its way into a folder."""

    def __init__(
        self, connection: Connection, store: RolloutStore, run: str, folder: Path, secrets: Sequence[str]
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._links = Links(Places(run, self._group_of))
        self._run = run
        #: Secrets as they may be in a text, and in HTML: there without a character that is markup.
        self.forms = forms_of(secrets)
        self._forms_in_html = [str(escape(form.decode())).encode() for form in self.forms]
        self._rendering = _Rendering(self._links.base)
        context = RolloutContext(Settings(show_verdicts=True), store)
        routes = [route for views in (RunViews, RolloutViews) for route in views(context, self._rendering).routes]
        self._handlers = {path.removeprefix("/ui"): handler for _, path, handler in routes}
        self.written = self.files = 0
        #: Pages that could not be made, each with the reason.
        self.failed: list[str] = []

    async def write(self, total: int, progress: Callable[[int, int], None]) -> None:
        """Write the run's page, its list of rollouts, and every page that a link leads to."""
        for name in STATIC:
            shutil.copyfile(_STATIC / name, self._folder / name)
        # What a list leads to is written before the next list, so few addresses wait.
        lists: deque[tuple[Address, str]] = deque()
        others: deque[tuple[Address, str]] = deque()
        known: set[str] = set()

        def found(address: Address, file: str) -> None:
            if file not in known:
                known.add(file)
                (lists if address[0] in ("/run", "/rollouts") else others).append((address, file))

        for address in (self._links.index, self._links.every_rollout):
            found(address, self._links.file_of(address) or INDEX)
        while lists or others:
            address, file = (others or lists).popleft()
            known_failures = len(self.failed)
            body = await self._body(address, file, found)
            target = self._folder / file
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(body)
            self.files += 1
            if address[0] == "/rollout" and len(address[1]) == 1 and len(self.failed) == known_failures:
                self.written += 1
                progress(self.written, max(total, self.written))

    async def _body(self, address: Address, file: str, found: Callable[[Address, str], None]) -> bytes:
        path, parameters = address
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": f"/ui{path}", "headers": []}
        scope["query_string"] = urllib.parse.urlencode(parameters).encode()
        try:
            response = await self._handlers[path](Request(scope))
        except HTTPException as error:  # such as an id with NUL, which no address has
            title, _, remedy = error.detail.partition(". ")
            response = await self._rendering.failure(Request(scope), error.status_code, title, remedy)
        except (OrsError, OSError):  # the store or the disk: no page would fare better
            raise
        except Exception as error:  # noqa: BLE001 - a fault of one page: a colleague gets the others, and its name
            reason = redact_text(f"{type(error).__name__}: {error}", self.forms)[:_LONGEST_REASON]
            of = ", ".join(value for _, value in parameters)[:_LONGEST_REASON]
            self.failed.append(f"{file} ({of}): {reason}")
            remedy = "The command that wrote this bundle said why."
            response = await self._rendering.failure(Request(scope), 500, "This page could not be made", remedy)
        text = bytes(response.body).decode("utf-8", "replace")
        if not file.endswith(".html"):
            return redact_text(text, self.forms).encode()
        return self._links.rewrite(redact_text(text, self._forms_in_html), file, found).encode()

    def _group_of(self, rollout: str) -> str | None:
        """Return the same text for all rollouts of a group, in lower case; None for a rollout of another run."""
        of = (rollouts.c.run_id, rollouts.c.task_key, rollouts.c.step, rollouts.c.owner)
        row = self._connection.execute(select(*of).where(rollouts.c.id == rollout)).one_or_none()
        if row is None or row[0] != self._run:
            return None
        return json.dumps([rollout] if row[1] is None else [str(part) for part in row])


class _Rendering:
    """Rendering of pages without a visitor, below the address of the bundle."""

    def __init__(self, base: str) -> None:
        self._common: Mapping[str, Any] = {
            "bundled": True, "bare": True, "base": base, "path": "", "version": VERSION, "visitor": "", "worker": None,
            "workers": [], "token": "",
        }  # fmt: skip
        self._renderer = Renderer()

    async def render(self, request: Request, template: str, context: dict[str, Any], status: int = 200) -> Response:
        """Render a page."""
        return await self._renderer.page(template, {**self._common, **context}, status)

    async def failure(self, request: Request, status: int, title: str, remedy: str) -> Response:
        """Render a page that says why there is no other."""
        return await self.render(request, "error.html", {"status": status, "title": title, "remedy": remedy})


def _check_free(folder: Path, *, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / _MARK).is_file():
        raise RolloutError(f"{folder} is there, and is not a bundle", "Name another folder with --output.")
    if not overwrite:
        raise RolloutError(f"{folder} has a bundle", "Name another folder with --output, or replace it: --overwrite.")


def _put(made: Path, target: Path) -> None:
    """Give a folder its name, in the place of an empty one or of an earlier bundle."""
    former = made.with_name(f"{made.name}.former")
    if target.exists():
        target.rename(former)
    made.rename(target)
    shutil.rmtree(former, ignore_errors=True)
