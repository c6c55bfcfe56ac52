"""Templates: Jinja2 with escaping everywhere, and the filters that turn foreign values into safe text.

A template is rendered on a thread, so that a large page does not hold up calls on the event loop.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from ors_server.pages.ansi import render_ansi, visible
from ors_server.pages.curves import render_bars, render_curve
from ors_server.pages.markdown import render_markdown, render_message
from ors_server.pages.tokens import render_tokens
from ors_server.rollouts.reports import figures

if TYPE_CHECKING:
    from ors_server.rollouts.queries.listed import RolloutSummary

__all__ = ["LONGEST", "Renderer", "cut"]

#: Characters of one text that a page shows; the whole of a longer one is a file of its own.
LONGEST = 20_000
#: Reasons why a client ended a rollout before its environment did.
_CUT_OFF = {
    "max_turns": "turn limit",
    "max_tokens": "token limit",
    "max_time": "time limit",
    "context_overflow": "context full",
    "stopped": "stopped by its trainer",
    "aborted": "aborted by the engine",
}
_IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
#: Characters of base64 that a page shows as a picture.
_LARGEST_IMAGE = 4 * 2**20


class Renderer:
    """The templates of the pages."""

    async def page(self, template: str, context: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """Render a template as a response."""
        return HTMLResponse(await self.text(template, context), status)

    async def text(self, template: str, context: Mapping[str, Any]) -> str:
        """Render a template."""
        found = _environment().get_template(template)
        text = await anyio.to_thread.run_sync(lambda: found.render(context))
        # Half an emoji has no UTF-8.
        return text.encode("utf-8", "replace").decode()


@functools.cache
def _environment() -> Environment:
    """Return the templates, compiled once in a process."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
        auto_reload=False,
    )
    environment.filters.update(
        ansi=render_ansi,
        arguments=arguments,
        bars=render_bars,
        curve=render_curve,
        cut=cut,
        digits=digits,
        duration=duration,
        ending=ending,
        exact=exact,
        image=image,
        markdown=render_markdown,
        mean=mean,
        message=render_message,
        number=number,
        percent=percent,
        pretty=pretty,
        size=size,
        time=moment,
        tokens=render_tokens,
        visible=visible,
    )
    return environment


def _finalize(value: object) -> object:
    """Make the control characters of every plain text visible; markup has passed a filter of this package."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return "" if value is None else value


def exact(text: str) -> Markup:
    """Return a text that a form sends back, escaped and with its control characters."""
    return escape(text)


def cut(text: str, most: int = LONGEST) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else text[:most]


def pretty(value: object) -> str:
    """Return a value as indented JSON; a text that is JSON is indented as well."""
    if isinstance(value, str):
        if len(value) > LONGEST or value.lstrip()[:1] not in ("{", "["):
            return value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        return repr(value)


def arguments(given: object) -> list[tuple[str, str]]:
    """Return the arguments of a call, each with its name: texts as they are, all else as JSON.

    What is not an object is one argument without a name.
    """
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given) if len(given) <= LONGEST else given
        except (ValueError, RecursionError):
            value = given
    if not isinstance(value, dict):
        return [("", pretty(given))]
    found = cast("dict[str, Any]", value)
    return [(str(name), each if isinstance(each, str) else pretty(each)) for name, each in found.items()]


def image(block: Mapping[str, Any]) -> str:
    """Return the address of a picture that is part of the page; empty where it is not one that a browser may show."""
    data, kind = block.get("data"), block.get("mimeType")
    if kind not in _IMAGES or not isinstance(data, str) or len(data) > _LARGEST_IMAGE:
        return ""
    try:
        return f"data:{kind};base64,{base64.b64encode(base64.b64decode(data, validate=True)).decode()}"
    except (binascii.Error, ValueError):
        return ""


def duration(seconds: float | None) -> str:
    """Return a span of time for a reader."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.{0 if seconds >= 0.01 or not seconds else 1}f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number without needless zeros; a dash for none."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{digits}f}" if abs(value) >= 10**-digits else f"{value:.2g}"


def digits(value: float) -> str:
    """Return a number as it was given: a threshold is not rounded."""
    return f"{value:.15g}"


def mean(value: float | None) -> str:
    """Return a mean; a dash for none."""
    return "–" if value is None else figures.mean(value)


def percent(share: float | None) -> str:
    """Return a share in percent; a dash for none."""
    return "–" if share is None else figures.percent(share)


def ending(rollout: RolloutSummary) -> str:
    """Return how a rollout ended: one that its client cut off, at which limit."""
    if rollout.outcome == "deleted":
        return _CUT_OFF.get(rollout.outcome_reason or "", "ended by its client")
    return rollout.outcome or ""


def size(value: float | None) -> str:
    """Return a number of bytes for a reader."""
    if value is None:
        return "–"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def moment(value: datetime.datetime | None) -> str:
    """Return a time in UTC for a reader."""
    return "–" if value is None else value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
