"""HTML, ANSI sequences and links in every text of an environment, shown on every page, never as markup."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import pytest

from ors_server import ImageBlock, JSONObject, ListToolsOutput, TextBlock, ToolOutput, ToolSpec, tool
from ors_server.pages.ansi import MOST_SPANS, render_ansi
from ors_server.pages.curves import Curve, Point, render_curve
from ors_server.pages.forms import fields_of
from ors_server.pages.markdown import has_markdown, render_markdown, render_message
from ors_server.pages.rendering import image
from ors_server.pages.tokens import read_tokens, render_tokens
from tests.server.pages.conftest import Visit, is_safe, tags
from tests.support.environments import Bare, Text

BAD = "'\"><img src=//evil.example onerror=alert(1)><script>alert(2)</script>{{ 7*7 }}\x1b[31mred\x1b]8;;http://evil.example\x07x\u202e</pre>"
SCHEMA: JSONObject = {
    "type": "object",
    "description": BAD,
    "required": [BAD],
    "properties": {
        BAD: {"type": "string", "description": BAD, "default": BAD},
        "choice": {"enum": [BAD, 1]},
        "list": {"type": "array", "items": {"type": BAD}, "default": [BAD]},
    },
}


class Hostile(Bare):
    __doc__ = f"{BAD}\n\n[x](javascript:alert(1)) ![p](http://evil.example/p.png) <iframe src=//evil.example>\n\n{BAD}"
    aliases = ("<b>alias",)
    required_secrets = (BAD,)

    @classmethod
    def list_splits(cls) -> list[str]:
        return [BAD]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"id": BAD, BAD: [BAD], "answer": "secret-answer", "long": "<i>" * 20_000}]

    private_task_fields = ("answer",)

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        picture = base64.b64encode(b'<svg onload="alert(1)">').decode()
        return [
            TextBlock(text=BAD),
            ImageBlock(data=picture, mimeType="image/svg+xml"),
            ImageBlock(data='"><script>', mimeType="image/png"),
            ImageBlock(data=picture, mimeType="image/png"),
        ]

    def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name=BAD, description=BAD, input_schema=SCHEMA)])

    @tool
    def speak(self, params: Text) -> ToolOutput:
        """Speak."""
        return ToolOutput(blocks=[TextBlock(text=BAD + params.text)], reward=0.5, metadata={BAD: BAD})


async def test_every_page_escapes_what_an_environment_says(visit: Visit) -> None:
    browser = visit(Hostile)
    for path in ("/ui", "/ui/environments/hostile", "/ui/environments/hostile/tasks", "/ui/sandboxes"):
        page = await browser.get(path)
        assert page.status == 200, page.text
        is_safe(page)
        assert not tags(page, "img"), path
        assert "secret-answer" not in page.response.text
        assert "\x1b" not in page.response.text
        assert "\u202e" not in page.response.text
        assert "{{ 7*7 }}" in page.text or path == "/ui/sandboxes"
    page = await browser.play("hostile")
    assert page.status == 200
    is_safe(page)
    assert "secret-answer" not in page.response.text
    sources = [each["src"] for each in tags(page, "img")]
    assert sources == ["data:image/png;base64," + base64.b64encode(b'<svg onload="alert(1)">').decode()]
    page = await browser.send(page.form("/tool", tool="speak"), {"arg.text": BAD})
    is_safe(page)
    assert "alert(2)" in page.text
    # No method has the name of the task's tool: its call is refused, and the refusal is escaped.
    page = await browser.send(page.form("/tool", tool=BAD), {f"arg.{BAD}": BAD})
    is_safe(page)
    assert "is not a valid tool" in page.text
    is_safe(await browser.get("/ui/sessions"))


async def test_events_carry_the_same_rows(visit: Visit) -> None:
    browser = visit(Hostile)
    await browser.play("hostile")
    sent: list[bytes] = []
    done = asyncio.Event()

    async def receive() -> dict[str, object]:
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        sent.append(body)
        if b"</table>" in body:
            done.set()

    scope = {
        "type": "http", "method": "GET", "path": "/ui/sessions/events", "raw_path": b"", "query_string": b"",
        "headers": [(b"host", b"localhost")], "root_path": "", "scheme": "http", "server": ("localhost", 80),
        "http_version": "1.1", "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await asyncio.wait_for(browser.server.app(scope, receive, send), 20)  # pyright: ignore[reportArgumentType]
    assert b"event: rows" in b"".join(sent)
    assert b"<script>" not in b"".join(sent)


def test_ansi_becomes_spans_of_known_classes() -> None:
    shown = str(render_ansi("a\x1b[1;31mb\x1b[0m\x1b[38;5;208mc\x1b[48;2;255;0;0md\x1b[0m<\x1b[2Je\x1b[31"))
    assert shown == (
        'a<span class="a-bold a-fg1">b</span><span class="a-fg3">c</span><span class="a-fg3 a-bg1">d</span>&lt;e␛[31'
    )
    assert "evil" not in render_ansi("\x1b]8;;http://evil\x07text\x1b]8;;\x07")
    assert render_ansi("\r\n\r\x00\x7f\u202e\ud800") == "\n␍␀␡⟨U+202E⟩\ufffd"


@pytest.mark.parametrize(
    "text",
    ["\x1b[31m" * 100_000, "\x1b[31mx" * 100_000, "\x1b]" * 100_000, "\x1b[" + "1;" * 100_000, "\x1bP" + "x" * 10**6],
)
def test_ansi_takes_bounded_work(text: str) -> None:
    assert str(render_ansi(text)).count("<span") <= MOST_SPANS


def test_a_readme_has_no_markup_of_its_own() -> None:
    shown = str(
        render_markdown(
            "# Title\n<script>x</script> [a](javascript:x) [b](JaVaScRiPt:x) [c](data:text/html,x) [d](https://ok.example)"
            " [e](other.md) ![f](http://evil/f.png) <https://auto.example> [g](//evil) [h][1]\n\n<img src=x>\n\n"
            '[1]: https://ok.example/"onmouseover="x\n'
        )
    )
    assert "<h1>" in shown
    assert "<script" not in shown
    assert "<img" not in shown
    assert "javascript:" not in shown.lower().replace("(javascript:x)", "")
    assert shown.count("<a ") == 3
    assert 'href="//evil' not in shown
    assert 'onmouseover="' not in shown.replace("%22", "")


def test_a_readme_is_shown_without_the_settings_of_a_site_above_it() -> None:
    assert str(render_markdown("---\ntitle: Echo\nsdk: docker\n---\n# Echo\n")) == "<h1>Echo</h1>\n"
    assert "<p>Kept</p>" in str(render_markdown("---\n\nKept\n\n---\n"))  # two lines across the page
    assert "Kept: yes" in str(render_markdown("---\nKept: yes\n"))


def test_a_column_without_a_name_has_no_header() -> None:
    for show in (render_markdown, render_message):
        shown = str(show("| |:-:|\n|---|:-:|\n| `<th></th>` | b |\n"))
        assert "<th></th>" not in shown.replace("&lt;", "<lt>")
        assert "<td></td>" in shown
        assert "&lt;th&gt;&lt;/th&gt;" in shown


def test_pictures_are_of_known_types() -> None:
    data = base64.b64encode(b"x").decode()
    assert image({"data": data, "mimeType": "image/png"}) == f"data:image/png;base64,{data}"
    for kind in ("image/svg+xml", "text/html", "image/png;x", 'image/png"', None):
        assert image({"data": data, "mimeType": kind}) == ""
    assert image({"data": "%", "mimeType": "image/png"}) == ""


def test_tokens_are_escaped() -> None:
    tokens = read_tokens(
        {
            "tokens": {
                "ids": [1, 2, 3],
                "pieces": ["<b>", '"\n', "x"],
                "logprobs": [-0.5, None, float("nan")],
                "mask": [1, 0, 1],
            }
        }
    )
    assert tokens is not None
    shown = str(render_tokens(tokens))
    assert "<b>" not in shown
    assert 'class="t t-2"' in shown
    assert 'class="t t-out"' in shown
    assert tokens.trained == 2
    wrongs: list[object] = [{"ids": "12"}, {"ids": [None]}, {}, [], {"pieces": [1]}, None]
    for wrong in wrongs:
        assert read_tokens({"tokens": wrong}) is None
    short = read_tokens({"tokens": {"ids": [1, 2], "mask": [1], "logprobs": [0.0, "x"]}})
    assert short is not None
    assert (short.mask, short.logprobs) == (None, None)


def test_the_mean_log_probability_is_that_of_the_tokens_in_the_loss() -> None:
    held = {"ids": [1, 2, 3, 4], "logprobs": [-0.5, -8.0, None, -1.5], "mask": [1, 0, 1, 1]}
    tokens = read_tokens({"tokens": held})
    assert tokens is not None
    assert tokens.mean == -1.0
    assert 'class="t t-out"' in render_tokens(tokens)
    unmasked = read_tokens({"tokens": {**held, "mask": None}})
    assert unmasked is not None
    assert unmasked.mean == pytest.approx(-10 / 3)
    none = read_tokens({"tokens": {**held, "mask": [0, 0, 1, 0]}})
    assert none is not None
    assert none.mean is None


def test_curves_escape_names_and_leave_out_what_is_not_finite() -> None:
    points = [Point(0, 0.5, 0.5, 2), Point(1, float("nan"), 0, 1), Point(2, 1e300, 1, 1), Point(3, -1e300, 0, 1)]
    shown = str(render_curve(Curve(points, "<x>")))
    assert "<x>" not in shown
    assert "nan" not in shown
    assert render_curve(Curve([], "x")) == ""


def test_a_schema_cannot_make_a_form_fail() -> None:
    loop: JSONObject = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    wrong: list[JSONObject] = [
        loop,
        {"properties": {"x": loop, "y": {"$ref": "http://evil"}, "z": 5}, "required": "x"},
        {"properties": 5},
        {"type": ["object", "null"], "properties": {"a": {"type": ["string", "null"]}, "b": {"enum": {}}}},
        {"properties": {str(number): {} for number in range(5000)}},
        {"properties": {"x": {"anyOf": [1, None, {"type": "null"}]}, "y": {"allOf": [{"$ref": 5}]}}},
    ]
    for schema in wrong:
        assert len(fields_of(schema)) <= 100


@pytest.mark.parametrize("text", ["[" * 20_000, "![" * 10_000, "*a " * 6000, "> a\n" * 5000, "|a" * 10_000])
def test_a_message_that_takes_long_as_markdown_is_shown_as_it_is(text: str) -> None:
    assert not has_markdown(text)
    assert has_markdown(f"`{text[:1000]}")


def test_a_message_hides_nothing_and_has_no_markup_of_its_own() -> None:
    shown = str(
        render_message(
            '[hidden]: http://ok.example "text"\n\n<script>x</script> [a](javascript:x) ![f](http://evil/f.png) '
            "[g](//evil) [h](https://ok.example)\n<!-- comment -->\u202e\n\n```html\n<img src=x>\n```"
        )
    )
    for said in ("[hidden]", "&quot;text&quot;", "&lt;script&gt;", "&lt;!-- comment --&gt;", "⟨U+202E⟩", "&lt;img"):
        assert said in shown, said
    assert shown.count("<a ") == 1
    assert 'href="https://ok.example" rel="noopener noreferrer nofollow"' in shown
    assert "<img" not in shown
    assert "//evil" not in shown.replace("http://evil/f.png", "")
