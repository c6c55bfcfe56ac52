"""The pages in Debian's Chromium, driven by Playwright: episodes that are played, the keyboard, phones, contrast, and
no request to any other host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.environments.terminal.parts import generated
from tests.long.stored_evaluation import evaluation, events_of
from tests.long.stored_run import events_of_a_run
from tests.support.servers import executable, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long

#: Folder for pictures of every page, where they are wanted.
PICTURES = os.environ.get("ORS_TEST_PICTURES", "")
#: The file axe.min.js of axe-core, where it is wanted: ``npm install axe-core`` outside of the repository has it.
AXE = os.environ.get("ORS_TEST_AXE", "")
AUDIT = Path(__file__).with_name("page_audit.js").read_text("utf-8")
#: Whether the newest output of an episode is on the screen.
VISIBLE = "() => { const box = newest.getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight; }"
ECHO = "echoenvironment"
TERMINAL = "terminalenvironment"
ONE, TWO = evaluation("terminal-8b"), evaluation("terminal-14b", model="Qwen/Qwen3-14B", skill=0.62, seed=2)
ROLLOUT = "grpo-terminal-7b-39-0"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with served(tmp_path_factory.mktemp("pages"), "echo", "terminal") as address:
        httpx.post(f"{address}/v1/rollouts", json={"events": list(events_of_a_run())}, timeout=60).raise_for_status()
        for run in (ONE, TWO):
            httpx.post(f"{address}/v1/rollouts", json={"events": list(events_of(run))}, timeout=60).raise_for_status()
        yield address


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = running.chromium.launch(executable_path=chromium, args=[*arguments, "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser, url: str) -> Generator[Page]:
    """Return an empty page; afterwards, fail if it wrote an error or asked another host."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=url)
    opened = context.new_page()
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "request", lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url)
    )
    yield opened
    context.close()
    assert problems == []


def play(page: Page, environment: str, index: int = 0) -> None:
    page.goto(f"/ui/environments/{environment}/task?index={index}")
    page.get_by_role("button", name="Open a session").click()
    page.get_by_role("complementary", name="Tools").get_by_role("button").first.wait_for(timeout=120_000)


def call(page: Page, tool: str, text: str | None = None) -> None:
    card = page.locator("details.card", has=page.locator(f'input[name=tool][value="{tool}"]'))
    if card.get_attribute("open") is None:
        card.locator("summary").click()
    if text is not None:
        card.locator("textarea").fill(text)
    card.locator("button").click()


def picture(page: Page, name: str) -> None:
    if not PICTURES:
        return
    for width, height in ((1280, 860), (390, 844)):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)
            page.screenshot(caret="initial", path=Path(PICTURES) / f"{name}-{width}-{scheme}.png")
    page.set_viewport_size({"width": 1280, "height": 860})
    page.emulate_media(color_scheme="light")


def test_the_playground_plays_an_echo_episode(page: Page) -> None:
    play(page, ECHO)
    prompt = page.locator(".m-user pre").inner_text()
    word = prompt.split("text='")[1].split("'")[0]
    call(page, "hint")
    page.get_by_text("It starts with").wait_for()
    page.locator("textarea").first.evaluate("field => { field.style.height = '9rem'; }")  # as by its handle
    call(page, "echo", "wrong")
    page.get_by_text("no match").wait_for()
    page.set_viewport_size({"width": 390, "height": 500})
    for count in range(4):
        call(page, "echo", f"wrong {count}")
        page.locator(f"#newest[data-state='{count + 3} True']").wait_for()
        assert page.evaluate(VISIBLE)
    page.set_viewport_size({"width": 1280, "height": 860})
    call(page, "echo", word)
    page.locator(".facts .tag.good", has_text="finished").wait_for()
    assert "reward 1" in page.locator(".m-tool_result").last.inner_text()
    assert page.evaluate(AUDIT) == []
    assert page.url.endswith("/sessions/" + page.url.rsplit("/", 1)[1])
    page.reload()
    assert page.locator(".m-tool_result").count() == 7
    page.get_by_role("button", name="End it").click()
    page.get_by_text("Play this task again").wait_for()


def test_the_playground_plays_a_terminal_episode(page: Page) -> None:
    play(page, TERMINAL)
    solution = generated.generated_task("archives", 0).solution
    assert solution is not None
    call(page, "bash", "TERM=xterm ls -la --color=always catalog")
    page.locator(".a-fg4").first.wait_for(timeout=60_000)
    picture(page, "episode")
    call(page, "bash", f"{solution}\nprintf '\\033[32mgreen\\033[0m <b>&amp;'; sleep 5")
    page.get_by_text("Running…").wait_for()
    page.locator(".a-fg2", has_text="green").wait_for(timeout=60_000)
    assert "<b>&amp;" in page.locator(".m-tool_result .body > pre").last.inner_text()
    call(page, "done")
    page.locator(".facts .tag.good", has_text="finished").wait_for(timeout=120_000)
    assert "reward 1" in page.locator(".m-tool_result").last.inner_text()
    assert page.evaluate(AUDIT) == []
    picture(page, "finished")
    page.goto("/ui/sandboxes")
    page.get_by_text("Limits of a sandbox").wait_for()
    picture(page, "sandboxes")


def test_a_call_that_cannot_be_made_says_why(browser: Browser, url: str) -> None:
    context = browser.new_context(base_url=url)
    page = context.new_page()
    play(page, ECHO)
    lost = "no-such-session"
    page.route("**/tool", lambda route: route.abort())
    call(page, "hint")
    page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
    page.unroute("**/tool")
    page.route("**/tool", lambda route: route.continue_(url=f"{url}/ui/environments/{ECHO}/sessions/{lost}/tool"))
    call(page, "hint")
    page.get_by_role("alert").get_by_text("The server has no record of this episode. Its process").wait_for()
    page.unroute("**/tool")
    call(page, "hint")
    page.get_by_text("It starts with").wait_for()
    assert page.get_by_role("alert").count() == 0
    context.close()


def test_sessions_appear_by_themselves(page: Page, browser: Browser, url: str) -> None:
    page.goto("/ui/sessions")
    other = browser.new_context(base_url=url).new_page()
    play(other, ECHO, 1)
    sid = other.url.rsplit("/", 1)[1]
    page.get_by_text(sid).wait_for(timeout=10_000)
    call(other, "echo", "x")
    page.locator("tr", has_text=sid).get_by_text("echo", exact=False).first.wait_for()
    other.get_by_role("button", name="End it").click()
    page.get_by_text(sid).wait_for(state="detached", timeout=10_000)
    other.context.close()


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.goto("/ui")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.locator(":focus").get_attribute("id") == "main"
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/ui/sessions")
    page.keyboard.press("?")
    page.wait_for_url("**/ui/help")
    page.goto(f"/ui/environments/{ECHO}/tasks")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**index=1")
    page.get_by_role("button", name="Open a session").press("Enter")
    page.get_by_role("button", name="Call echo").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("typed")
    page.keyboard.press("Control+Enter")
    page.get_by_text("no match").wait_for()


def test_it_works_without_scripts(browser: Browser, url: str) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=url)
    page = context.new_page()
    page.goto(f"/ui/environments/{ECHO}/task?index=2")
    page.get_by_role("button", name="Open a session").click()
    while page.get_by_text("being set up").count():
        page.reload()
    call(page, "echo", "x")
    page.get_by_text("no match").wait_for()
    context.close()


@pytest.fixture(params=[(width, scheme) for scheme in ("light", "dark") for width in (390, 1280)], ids=str)
def screen(request: pytest.FixtureRequest, browser: Browser, url: str) -> Generator[tuple[Page, str]]:
    """Yield a page of a narrow or a wide screen, light or dark, and the name of the screen."""
    width, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, base_url=url, reduced_motion="reduce"
    )
    yield context.new_page(), f"{width}-{scheme}"
    context.close()


def test_every_page_fits_its_screen(screen: tuple[Page, str]) -> None:
    page, screen_name = screen
    for path in PAGES:
        page.goto(path)
        page.wait_for_load_state("load")
        wider = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wider <= 0, (path, wider)
        assert page.evaluate(AUDIT) == [], path
        if PICTURES:
            name = "".join(letter if letter.isalnum() else "-" for letter in path)[:60]
            page.screenshot(caret="initial", path=Path(PICTURES) / f"{name}-{screen_name}.png")


@pytest.mark.skipif(not AXE, reason="ORS_TEST_AXE does not name the file axe.min.js of axe-core")
def test_axe_finds_nothing(screen: tuple[Page, str]) -> None:
    page, _ = screen
    for path in PAGES:
        page.goto(path)
        assert found_by_axe(page) == [], path
    play(page, ECHO)
    call(page, "hint")
    page.get_by_text("It starts with").wait_for()
    assert found_by_axe(page) == []
    page.goto("/ui/sessions")
    assert found_by_axe(page) == []


def found_by_axe(page: Page) -> list[str]:
    """Return the rules that a page breaks, each with the elements that break it."""
    page.evaluate(Path(AXE).read_text("utf-8"))
    return page.evaluate(
        "axe.run().then((found) => found.violations.map((each) => "
        "`${each.id}: ${each.nodes.map((node) => node.target.join(' ')).join(', ')}`))"
    )


PAGES = (
    "/ui",
    f"/ui/environments/{ECHO}",
    f"/ui/environments/{TERMINAL}",
    f"/ui/environments/{TERMINAL}/tasks",
    f"/ui/environments/{TERMINAL}/task?index=0",
    "/ui/sessions",
    "/ui/sandboxes",
    "/ui/runs",
    "/ui/run?run=grpo-terminal-7b",
    f"/ui/run?run={ONE.id}",
    f"/ui/compare?run={ONE.id}&run={TWO.id}",
    f"/ui/rollouts?run={ONE.id}&order=lowest",
    "/ui/rollouts",
    f"/ui/rollout?id={ROLLOUT}",
    f"/ui/rollout?id={ROLLOUT}&tokens=1",
    f"/ui/rollout?id={ROLLOUT}&raw=1",
    f"/ui/rollout-group?id={ROLLOUT}",
    f"/ui/rollout-group?id={ROLLOUT}&tokens=1",
    "/ui/help",
    "/ui/nothing",
)


#: A rollout whose messages are higher and wider than a screen.
LONG: list[dict[str, Any]] = [
    {
        "eventType": "rollout", "eventId": "a-long-rollout", "timestamp": 1_760_000_000_000,
        "runName": "grpo-terminal-7b", "task_spec": {"id": "long"},
    },
    *(
        {
            "eventType": "message", "eventId": f"long-{index}", "timestamp": 1_760_000_000_000 + index,
            "rolloutEventId": "a-long-rollout", "index": index, "type": kind, "content": content, "isFinished": False,
        }
        for index, (kind, content) in enumerate(
            (
                ("user_message", "A paragraph.\n\n" * 100),
                ("assistant_message", f"```\n{'words ' * 200}\n```\n\n| a | b |\n|---|---|\n| {'wide ' * 80} | x |"),
                ("tool_result", "line\n" * 500),
            )
        )
    ),
]  # fmt: skip


def test_a_bundle_is_read_from_its_folder_without_scripts(browser: Browser, tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "bundle"
    with served(tmp_path, "echo") as address:
        events = [*events_of_a_run(), *LONG]
        httpx.post(f"{address}/v1/rollouts", json={"events": events}, timeout=60).raise_for_status()
    command = [executable(), "rollouts", "bundle", "grpo-terminal-7b", "-o", str(output), "--data-dir", str(data)]
    subprocess.run(command, check=True, timeout=600)
    problems: list[str] = []
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on(
        "request",
        lambda request: None if request.url.startswith((f"file://{output}", "data:")) else problems.append(request.url),
    )
    page.goto(f"file://{output}/index.html")
    picture(page, "bundle-run")
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderTopWidth") == "1px"  # the style sheet
    page.locator("tbody a").first.click()
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="Why this reward").wait_for()
    picture(page, "bundle-rollout")
    assert page.evaluate(AUDIT) == []
    page.get_by_text("side by side").click()
    assert page.locator(".group > section").count() > 1
    assert page.evaluate(AUDIT) == []
    picture(page, "bundle-group")
    for scripts in (False, True):  # no part of it scrolls: nothing would give it the focus
        reader = browser.new_context(java_script_enabled=scripts, viewport={"width": 390, "height": 844})
        long = reader.new_page()
        long.goto(f"file://{output}/rollouts/a-long-rollout.html")
        assert long.evaluate(AUDIT) == []
        assert long.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        reader.close()
    context.close()
    assert problems == []
