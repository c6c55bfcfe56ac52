"""READMEs of environments, and messages of rollouts, as HTML: Markdown without raw HTML, pictures or unsafe links.

HTML in the text is escaped. ``markdown-it`` refuses links to ``javascript:``, ``vbscript:``, ``file:`` and ``data:``;
here only http, https, mailto and links without a scheme remain. Pictures become links, because a page requests nothing
from anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from ors_server.pages.ansi import visible

__all__ = ["LONGEST_MESSAGE", "has_markdown", "render_markdown", "render_message"]

#: Longest text that is read as Markdown, in characters; a longer one is cut.
LONGEST = 200_000
#: Longest message that is, in characters.
LONGEST_MESSAGE = 20_000
#: Characters that begin something, each of which may be tried to the end of the text; and how many a message may have.
_OPENING, _MOST_OPENING = "[*_>|!<", 2000
#: Settings of a site above a README, and a column of a table without a name, which is not a header.
_FRONT_MATTER = re.compile(r"---\n[\w-]+:.*?^---\n", re.DOTALL | re.MULTILINE)
_UNNAMED = re.compile(r"<th( style=\"[a-z:-]*\")?></th>")
_SAFE_LINK = re.compile(r"(?:https?://|mailto:|#)", re.IGNORECASE)


class _Renderer(RendererHTML):
    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Write a picture as its text."""
        return f'<span class="picture">{escape(tokens[idx].content or "picture")}</span>'

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Open a link, which tells its target nothing."""
        href = str(tokens[idx].attrs.get("href", ""))
        if not _SAFE_LINK.match(href):  # also links to other files of the repository, which are not served
            return '<span class="no-link">'
        return f'<a href="{escape(href)}" rel="noopener noreferrer nofollow">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Close a link as it was opened."""
        depth = 0
        for token in reversed(tokens[:idx]):
            depth += token.type == "link_close"
            if token.type == "link_open":
                if not depth:
                    return "</a>" if _SAFE_LINK.match(str(token.attrs.get("href", ""))) else "</span>"
                depth -= 1
        return "</a>"


_markdown = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
#: Ends of lines stay in messages: models write with them.
_messages = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer).enable("table")
_messages.disable("reference")  # the definition of a link is not shown, so a text could hide in one
#: What makes Markdown look other than the text itself.
_SIGNS = re.compile(r"[`*]|__|\]\(|^ {0,3}(?:#{1,6} |[-+] |\d{1,9}[.)] |>|\|)", re.MULTILINE)


def has_markdown(text: str) -> bool:
    """Return whether a text is to be shown as Markdown: it would look different, and takes little time to be read."""
    if len(text) > LONGEST_MESSAGE or "\x1b" in text or _SIGNS.search(text) is None:
        return False
    return sum(map(text.count, _OPENING)) <= _MOST_OPENING


def render_message(text: str) -> Markup:
    """Return a message that has Markdown as HTML."""
    # The renderer escapes all text, and raw HTML is off.
    return Markup(_UNNAMED.sub(r"<td\1></td>", _messages.render(visible(text))))  # noqa: S704


def render_markdown(text: str) -> Markup:
    """Return a README as HTML."""
    if (front := _FRONT_MATTER.match(text)) is not None:
        text = text[front.end() :]
    if len(text) > LONGEST:
        text = text[:LONGEST] + "\n\n…"
    # The renderer escapes all text, and raw HTML is off.
    return Markup(_UNNAMED.sub(r"<td\1></td>", _markdown.render(visible(text))))  # noqa: S704
