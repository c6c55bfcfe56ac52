"""Episodes played through the forms of the playground."""

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ors_server import TextBlock, ToolOutput, tool
from ors_server.protocol import VERDICT
from tests.server.pages.conftest import Browser, Page, Visit, is_safe, tags
from tests.server.pages.test_rollout_pages import VERDICT_DATA
from tests.support.environments import Bare, Echo, Text, said
from tests.support.http_client import Client

ECHO = "echo"


class Settings(BaseModel):
    text: str
    count: int = 2
    share: float | None = None
    loud: bool = False
    colour: Literal["red", "<b>green"] = "red"
    words: list[str] = []
    more: dict[str, Any] | None = None


class Formed(Bare):
    """Says what it was given."""

    @tool
    def show(self, params: Settings) -> ToolOutput:
        """Show the input."""
        return said(params.model_dump_json(), 1.0, finished=True)


async def call(browser: Browser, page: Page, tool: str, **fields: str) -> Page:
    return await browser.send(page.form("/tool", tool=tool), {f"arg.{name}": value for name, value in fields.items()})


async def test_plays_an_episode(visit: Visit) -> None:
    browser = visit(Echo)
    page = await browser.play(ECHO)
    is_safe(page)
    assert "train-0" in page.text
    page = await call(browser, page, "echo", text="hello")
    assert "hello" in page.text
    assert page.response.history[0].status_code == 303  # a reload does not call again
    page = await browser.send(page.form("/end"))
    assert "ended" in page.text
    assert len(browser.server.sessions) == 0


async def test_makes_a_form_of_every_type(visit: Visit) -> None:
    browser = visit(Formed)
    page = await browser.play("formed")
    names = {attributes.get("name") for tag in ("input", "textarea", "select") for attributes in tags(page, tag)}
    assert {f"arg.{name}" for name in Settings.model_fields} <= names
    assert {"value": '"<b>green"'} in [{"value": each.get("value")} for each in tags(page, "option")]
    page = await call(
        browser, page, "show",
        text="a\r\nb", count="5", share="0.5", loud="true", colour='"<b>green"', words='["x"]', more='{"a": 1}',
    )  # fmt: skip
    assert '"text": "a\\nb"' in page.text or '"text":"a\\nb"' in page.text
    for part in ('"count":5', '"share":0.5', '"loud":true', '"colour":"<b>green"', '"words":["x"]', '"more":{"a":1}'):
        assert part in page.text
    assert "finished" in page.text
    assert "reward 1" in page.text


async def test_says_which_field_is_wrong(visit: Visit) -> None:
    browser = visit(Formed)
    page = await browser.play("formed")
    page = await call(
        browser, page, "show", text="x", count="five", words="[", more="[]", loud="maybe", colour='"blue"', share="inf"
    )
    for problem in ("not a whole number", "not JSON", "Choose true or false", "Choose one", "not a finite number"):
        assert problem in page.text
    assert [each["name"] for each in tags(page, "input") if each.get("aria-invalid")] == ["arg.count", "arg.share"]
    # What is JSON of another type is the tool's own to refuse.
    page = await call(browser, page, "show", text="x", more="[]")
    assert "more" in page.text
    assert "valid dictionary" in page.text


async def test_shows_a_call_that_takes_long(visit: Visit) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    class Slow(Bare):
        @tool
        async def wait(self, params: Text) -> ToolOutput:
            """Wait."""
            started.set()
            await release.wait()
            return said(params.text)

    browser = visit(Slow)
    page = await browser.play("slow")
    sending = asyncio.create_task(call(browser, page, "wait", text="late"))
    await started.wait()
    live = await browser.get("/ui/sessions")
    assert "tool wait, for" in live.text
    now = await browser.get(f"{page.response.url.path}/now")
    assert "Running…" in now.text
    assert any("hx-trigger" in attributes for attributes in tags(now, "div"))
    release.set()
    assert "late" in (await sending).text


async def test_errors_are_shown_and_not_raised(visit: Visit) -> None:
    class Broken(Bare):
        @tool
        def fail(self, params: Text) -> ToolOutput:
            """Fail."""
            raise ValueError("<script>alert(1)</script>")

    browser = visit(Broken)
    page = await browser.play("broken")
    page = await call(browser, page, "fail", text="x")
    is_safe(page)
    assert "<script>alert(1)</script>" in page.text  # as text
    assert "alert(1)" not in "".join(each.get("src", "") for each in tags(page, "script"))


async def test_sends_a_long_output_as_a_file(visit: Visit) -> None:
    class Long(Bare):
        @tool
        def write(self, params: Text) -> ToolOutput:
            """Write a lot."""
            return said(params.text * 50_000)

    browser = visit(Long)
    page = await browser.play("long")
    page = await call(browser, page, "write", text="<i>!")
    assert len(page.response.content) < 150_000
    link = next(each["href"] for each in tags(page, "a") if "/outputs/" in each.get("href", ""))
    whole = await browser.get(link)
    assert whole.response.text == "<i>!" * 50_000
    assert whole.response.headers["content-type"].startswith("text/plain")
    assert whole.response.headers["content-disposition"].startswith("attachment")
    assert whole.response.headers["x-content-type-options"] == "nosniff"


async def test_opening_twice_opens_one_session(visit: Visit) -> None:
    browser = visit(Echo)
    page = await browser.get(f"/ui/environments/{ECHO}/task?index=1")
    form = page.form("/open")
    await asyncio.gather(browser.send(form), browser.send(form))
    assert len(browser.server.sessions) == 1


async def test_an_unknown_episode_is_a_page(visit: Visit) -> None:
    browser = visit(Echo)
    page = await browser.get(f"/ui/environments/{ECHO}/sessions/unknown")
    assert page.status == 404
    assert page.response.headers["content-type"].startswith("text/html")
    assert "The server has no record of this episode" in page.text
    assert "Open the task again to play it" in page.text
    page = await browser.get(f"/ui/environments/{ECHO}/task?index=99")
    assert page.status == 400
    page = await browser.get("/ui/environments/nope")
    assert page.status == 404
    assert "nope" in page.text
    page = await browser.get("/ui/no-such-page")
    assert page.status == 404
    assert "There is no such page" in page.text


async def test_an_episode_opens_at_its_newest_output(visit: Visit) -> None:
    browser = visit(Echo)
    page = await browser.play(ECHO)
    for count in (1, 2):
        page = await call(browser, page, "echo", text="hello")
        assert page.response.url.fragment == "newest"
        assert [each["data-state"] for each in tags(page, "article") if each.get("id") == "newest"] == [f"{count} True"]


async def test_a_live_session_links_to_its_transcript(visit: Visit) -> None:
    browser = visit(Echo, record=True)
    played = (await browser.play(ECHO)).response.url.path
    client = Client(browser.server.app)
    sid = await client.open({"split": "train", "index": 1})
    page = await browser.get("/ui/sessions")
    is_safe(page)
    [other] = [session for session in browser.server.sessions if session.sid == sid]
    assert other.recording is not None
    transcript = f"/ui/rollout?id={other.recording.stored.rollout_id}"
    links = {each["href"] for each in tags(page, "a")}
    assert {played, transcript} <= links
    assert browser.server.app.recorder is not None
    browser.server.app.recorder.close()  # hands over what waits
    await browser.server.app.rollouts.close()
    assert (await browser.get(transcript)).status == 200
    await client.close()


async def test_a_session_that_is_not_recorded_has_no_link(visit: Visit) -> None:
    browser = visit(Echo)
    client = Client(browser.server.app)
    sid = await client.open({"split": "train", "index": 1})
    page = await browser.get("/ui/sessions")
    assert sid in page.text
    assert not [each for each in tags(page, "a") if sid in each["href"] or "rollout?" in each["href"]]
    await client.close()


class Graded(Bare):
    """Says why a call has its reward, with a secret in it."""

    @tool
    def grade(self) -> ToolOutput:
        """Grade."""
        words: Any = {**VERDICT_DATA, "summary": f"It knows {self.secrets['api_key']}."}
        return ToolOutput(blocks=[TextBlock(text="graded")], metadata={VERDICT: words, "steps": 3}, reward=1.0)


@pytest.mark.parametrize("settings", [{}, {"insecure": True}, {"insecure": True, "show_verdicts": True}], ids=str)
async def test_shows_a_verdict_as_the_page_of_a_rollout_does(visit: Visit, settings: dict[str, Any]) -> None:
    shown = settings != {"insecure": True}
    browser = visit(Graded, **settings)
    task = await browser.get("/ui/environments/graded/task?index=0")
    path, fields = task.form("/open")
    page = await browser.settled(await browser.send((path, {**fields, "secret.api_key": "hunter2-hunter2"})))
    page = await call(browser, page, "grade")
    is_safe(page)
    assert "Tests: 1 passed 1 failed" in page.text
    for words in ("hidden words", "the grader's words", "etc/passwd", "It knows [redacted]."):
        assert (words in page.text) == shown, words
    assert "hunter2" not in page.text
    assert VERDICT not in page.response.text
    assert ("are the operator's" in page.text) != shown
    assert '"steps": 3' in page.text
