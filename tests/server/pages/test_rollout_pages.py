"""Pages of stored rollouts: runs, lists, one rollout, its group, its tokens; and foreign texts in all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ors_server import Settings
from ors_server.keys.exposure import add_key
from ors_server.protocol import VERDICT
from ors_server.rollouts.storing.regrade_rows import NewVerdict, add_verdict
from ors_server.rollouts.verdicts import read_verdict
from tests.server.pages.conftest import Browser, Page, Visit, is_safe, tags
from tests.server.pages.test_foreign_texts import BAD, Hostile
from tests.server.rollouts.support import at, record
from tests.support.environments import Echo

TOKENS = {"ids": [5, 6, 7], "pieces": ["let", " me", " see"], "logprobs": [-0.1, -3.0, None], "mask": [1, 1, 0]}
GREEN = "\x1b[32mok\x1b[0m"


def rollout_event(identifier: str, **fields: Any) -> dict[str, Any]:
    return {
        "eventType": "rollout", "eventId": identifier, "timestamp": 1_700_000_000_000, "runName": "run",
        "environment": "echo", "split": "train", "task_spec": {"id": "task-1"}, **fields,
    }  # fmt: skip


def message_event(rollout: str, index: int, content: str, **fields: Any) -> dict[str, Any]:
    return {
        "eventType": "message", "eventId": f"{rollout}-{index}", "timestamp": 1_700_000_000_000 + 1500 * index,
        "rolloutEventId": rollout, "index": index, "type": "assistant_message", "content": content,
        "isFinished": False, **fields,
    }  # fmt: skip


async def upload(browser: Browser, *events: dict[str, Any], **headers: str) -> None:
    content = json.dumps({"events": events})  # half an emoji has no UTF-8
    response = await browser.http.post("/v1/rollouts", content=content, headers=headers)
    assert response.status_code == 200, response.text


async def upload_group(browser: Browser, **headers: str) -> None:
    for number, reward in enumerate((0.0, 1.0, 0.5)):
        name = f"r{number}"
        await upload(
            browser,
            rollout_event(name, step=3, rolloutName=f"rollout {number}"),
            message_event(name, 0, "the prompt", type="user_message"),
            message_event(name, 1, "let me see", type="reasoning", metadata={"seconds": 2.5, "tokens": TOKENS}),
            message_event(name, 2, '{"text":"x"}', type="tool_call", name="echo", callId="c1"),
            message_event(name, 3, GREEN, type="tool_result", callId="c1", reward=reward, isFinished=True),
            **headers,
        )


async def test_a_marked_verdict_is_shown(visit: Visit) -> None:
    browser = visit(Echo)
    words = {"verdict_mark": "the agent's <b>code</b> ran"}
    for name, metadata in (("marked", words), ("plain", {})):
        result = message_event(name, 0, "x", type="tool_result", reward=1.0, isFinished=True, metadata=metadata)
        await upload(browser, rollout_event(name), result)
    page = await browser.get("/ui/rollouts")
    is_safe(page)
    assert [each["title"] for each in tags(page, "span") if "title" in each] == [words["verdict_mark"]]
    page = await browser.get("/ui/rollout?id=marked")
    is_safe(page)
    assert f"The verdict is marked: {words['verdict_mark']}." in page.text
    assert "is marked" not in (await browser.get("/ui/rollout?id=plain")).text


async def test_a_verdict_of_a_later_grading_is_shown_beside_the_former(visit: Visit, tmp_path: Path) -> None:
    browser = visit(Echo)
    for session in ("one", "two"):
        result = message_event(session, 0, "x", type="tool_result", reward=0.0, isFinished=True)
        await upload(browser, rollout_event(session, metadata={"session": session}), result)
    assert add_verdict(at(tmp_path), NewVerdict("one", "state", "tests", 1.0, 0.0, "<b>code</b>", 1_700_000_000_000))
    page = await browser.get("/ui/rollouts")
    is_safe(page)
    assert [each["title"] for each in tags(page, "span") if "title" in each] == ["Graded again: reward 1"]
    page = await browser.get("/ui/rollout?id=one")
    is_safe(page)
    assert "Graded again at 2023-11-14 22:13:20 UTC: reward 1, where the episode ended with 0." in page.text
    assert "The new verdict is marked: <b>code</b>." in page.text
    assert "again" not in (await browser.get("/ui/rollout?id=two")).text


async def test_an_upload_and_the_session_it_played_link_to_each_other(visit: Visit, tmp_path: Path) -> None:
    browser = visit(Echo)
    for session, reward in (("one", 0.0), ("two", 1.0)):
        await upload(
            browser,
            rollout_event(f"up-{session}", metadata={"session": session}),
            message_event(f"up-{session}", 0, "x", reward=1.0, isFinished=True),
        )
        await record(tmp_path, session, rewards=(reward,))
    page = await browser.get("/ui/rollouts")
    is_safe(page)
    links = {each["href"].split("id=")[1] for each in tags(page, "a") if "/rollout?id=" in each.get("href", "")}
    assert links == {"up-one", "up-two"}
    assert [each["title"] for each in tags(page, "span") if "title" in each] == [
        "The server recorded another reward: 0"
    ]
    for session, said in (("one", " too, with another reward: 0."), ("two", " too.")):
        page = await browser.get(f"/ui/rollout?id=up-{session}")
        is_safe(page)
        assert f"Recorded by the server{said}" in shown_in(page).replace(" ,", ",")
        links = [each["href"] for each in tags(page, "a") if "/rollout?id=" in each.get("href", "")]
        [other] = [link for link in links if "id=up-" not in link]
        page = await browser.get(other)
        is_safe(page)
        assert "Lists and statistics count the upload." in page.text
        assert f"/ui/rollout?id=up-{session}" in [each.get("href") for each in tags(page, "a")]
        # Its run has no other rollout, so there is no page of it.
        assert not [each for each in tags(page, "a") if "/run?" in each.get("href", "")]


async def test_runs_tasks_and_rollouts(visit: Visit) -> None:
    browser = visit(Echo)
    for path in ("runs", "rollouts"):
        page = await browser.get(f"/ui/{path}")
        assert page.status == 200, page.text
        assert "No rollout" in page.text
    assert (await browser.get("/ui/rollout?id=r1")).status == 404
    await upload_group(browser)
    page = await browser.get("/ui/runs?search=RU")
    is_safe(page)
    assert "33.3 %" in page.text
    page = await browser.get(next(each["href"] for each in tags(page, "a") if "/run?" in each.get("href", "")))
    is_safe(page)
    assert "task-1" in page.text
    assert "0.500" in page.text
    assert tags(page, "polyline")
    page = await browser.get(next(each["href"] for each in tags(page, "a") if "task_key=" in each.get("href", "")))
    is_safe(page)
    assert page.text.count("rollout ") >= 3
    page = await browser.get("/ui/rollouts?outcome=lost")
    assert "No rollouts here" in page.text


async def test_a_rollout_with_its_group_and_tokens(visit: Visit) -> None:
    browser = visit(Echo)
    await upload_group(browser)
    page = await browser.get("/ui/rollout?id=r1")
    is_safe(page)
    for text in ("let me see", "took 2.5 s", "Thinking", "Tool call echo", "Output echo", "finished", "reward 1"):
        assert text in page.text, text
    assert {"class": "a-fg2"} in tags(page, "span")
    assert "3 tokens, 2 in the loss, mean log-probability -1.550" in page.text
    page = await browser.get("/ui/rollout?id=r1&tokens=1")
    is_safe(page)
    spans = [each for each in tags(page, "span") if "token 6" in each.get("title", "")]
    assert [each["class"] for each in spans] == ["t t-5"]
    page = await browser.get("/ui/rollout-group?id=r1&tokens=1")
    is_safe(page)
    assert page.text.count("the prompt") == 3
    assert len([each for each in tags(page, "section") if each["aria-label"].startswith("Rollout ")]) == 3


async def test_a_recorded_call_shows_its_times_and_whether_it_failed(visit: Visit) -> None:
    browser = visit(Echo)
    results = {"c0": {"inside_ms": 0.181, "waiting_ms": 30}, "c1": {"refused": "not_found"}, "c2": {"error": True}}
    await upload(
        browser,
        rollout_event("r"),
        *(
            message_event("r", n, f"of {n}", type="tool_result", callId=f"c{n}", metadata=results[f"c{n}"])
            for n in range(3)
        ),
    )
    for path in ("rollout", "rollout-group"):
        page = await browser.get(f"/ui/{path}?id=r")
        is_safe(page)
        assert "took 0.2 ms, waited 30 ms" in page.text
        classes = [each["class"] for each in tags(page, "article")]
        assert classes == ["message m-tool_result", "message m-error", "message m-error"]
        assert "Tokens" not in page.text  # the rollout has none


async def test_a_long_message_is_cut_with_a_link_to_the_whole(visit: Visit) -> None:
    browser = visit(Echo)
    text = "<script>" + "x" * 10_000_000
    await upload(browser, rollout_event("long"), message_event("long", 0, text))
    page = await browser.get("/ui/rollout?id=long")
    is_safe(page)
    assert len(page.response.content) < 100_000
    link = next(each["href"] for each in tags(page, "a") if "rollout-message" in each.get("href", ""))
    response = (await browser.get(link)).response
    assert response.text == text
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["content-disposition"].startswith("attachment")
    assert (await browser.get(link.replace("number=0", "number=1"))).status == 404
    assert (await browser.get(link.replace("number=0", "number=-1"))).status == 404


async def test_every_text_of_an_upload_is_escaped(visit: Visit) -> None:
    browser = visit(Hostile)
    for number in range(2):
        name = f"{BAD}/../{number}?&#"
        await upload(
            browser,
            rollout_event(
                name, runName=BAD, rolloutName=BAD, environment=BAD, variant=BAD, split=BAD, step=1,
                task_spec={"id": BAD, BAD: BAD}, metadata={BAD: BAD}, run_info={BAD: [BAD]},
            ),
            *(
                message_event(name, index, BAD, type=kind, name=BAD, callId=BAD, reward=float(index), metadata={
                    BAD: BAD, "seconds": BAD, "tokens": {"ids": [1], "pieces": [BAD], "mask": [1], "logprobs": [-1]},
                })
                for index, kind in enumerate(
                    ("system_message", "user_message", "assistant_message", "reasoning", "tool_call", "tool_result")
                )
            ),
            {
                "eventType": "rollout_update", "eventId": name, "timestamp": 1,
                "rollout_info": {"outcome": "lost", "outcome_reason": BAD, BAD: BAD},
            },
        )  # fmt: skip
    seen = {"/ui/runs"}
    waiting = ["/ui/runs", "/ui/rollouts"]
    while waiting:
        page = await browser.get(waiting.pop())
        assert page.status == 200, page.text
        is_safe(page)
        assert not tags(page, "img")
        assert "\x1b" not in page.response.text
        for each in tags(page, "a"):
            href = each.get("href", "")
            if href.startswith(("/ui/run", "/ui/rollout")) and "message" not in href and href not in seen:
                seen.add(href)
                waiting.append(href)
    assert any("/ui/rollout-group" in path for path in seen)
    assert any("tokens=1" in path for path in seen)


async def test_private_fields_of_a_task_are_not_shown(visit: Visit) -> None:
    browser = visit(Hostile)
    spec = {"id": "t", "answer": "secret-answer", "_ors_task": "token"}
    await upload(browser, rollout_event("p", environment="hostile", task_spec=spec), message_event("p", 0, "x"))
    page = await browser.get("/ui/rollout?id=p")
    assert "secret-answer" not in page.response.text
    assert "_ors_task" not in page.response.text


async def test_a_key_sees_its_own_rollouts(visit: Visit, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    secrets = {name: add_key(settings, name) for name in ("anna", "ben")}
    browser = visit(Echo)
    await upload_group(browser, **{"x-api-key": secrets["anna"]})
    for name, status in (("anna", 200), ("ben", 404)):
        browser.http.cookies.clear()
        await browser.send((await browser.get("/ui/login")).form("/login"), {"key": secrets[name]})
        for path in ("rollout?id=r1", "rollout-group?id=r1", "rollout-message?id=r1&number=0", "run?run=run"):
            assert (await browser.get(f"/ui/{path}")).status == status, (name, path)
        for path in ("rollouts", "runs"):
            assert ("No rollout" in (await browser.get(f"/ui/{path}")).text) == (name == "ben")


async def test_lists_are_paged_by_cursor(visit: Visit) -> None:
    browser = visit(Echo)
    await upload(
        browser, *(rollout_event(f"n{number:03}", timestamp=1_700_000_000_000 + number) for number in range(120))
    )
    path, seen = "/ui/rollouts", list[str]()
    while path:
        page = await browser.get(path)
        links = [each["href"].split("id=")[1] for each in tags(page, "a") if "/rollout?id=" in each.get("href", "")]
        seen += links
        path = next((each["href"] for each in tags(page, "a") if each.get("rel") == "next"), "")
    assert seen == [f"n{number:03}" for number in reversed(range(120))]
    for cursor in ("x", "%00", "W10", "x" * 400, "x" * 600):
        assert (await browser.get(f"/ui/rollouts?after={cursor}")).status in (400, 422)
    assert (await browser.get("/ui/rollouts?step=-1")).status == 400
    assert (await browser.get("/ui/rollout-group?id=n001&start=99999999")).status == 400


async def test_rollouts_pass_from_the_threshold_of_their_run_on(visit: Visit) -> None:
    browser = visit(Echo)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"success_at": 0.5}, "75.0 %", "0.5"),
        ({"success_at": 0.3}, "100.0 %", "0.3"),
        ({"success_at": 2}, "0.0 %", "2"),
        ({}, "25.0 %", "1"),
        ({"success_at": "0.5"}, "25.0 %", "1"),
        ({"success_at": True}, "25.0 %", "1"),
        ({"success_at": 10**400}, "25.0 %", "1"),
        ({"success_at": [{}]}, "25.0 %", "1"),
        ({"success_at": 0.5, "more": "x" * 20_000}, "25.0 %", "1"),
    ]
    for case, (info, _, _) in enumerate(cases):
        for number, reward in enumerate((0.3 - 1e-12, 0.5, 0.9, 1.0 - 1e-12)):
            name = f"r{case}-{number}"
            await upload(
                browser,
                rollout_event(name, runName=f"run {case}", run_info=info),
                message_event(name, 0, "done", reward=reward),
            )
    runs = shown_in(await browser.get("/ui/runs"))
    for case, (_, share, rule) in enumerate(cases):
        page = await browser.get(f"/ui/run?run=run%20{case}")
        is_safe(page)
        text = shown_in(page)
        assert f"passed (reward ≥ {rule}) {share}" in text
        assert f"passes from reward {rule} on" in text
        assert f"pass@1 {share} [" in text
        assert f"task-1 4 0.675 {share}" in text
        assert f"run {case} 4 0.675 {share} {'0' if rule == '1' else f'≥ {rule} 0'}" in runs
        listed = tags(await browser.get(f"/ui/rollouts?run=run%20{case}"), "span")
        assert f"{listed.count({'class': 'tag good'}) / 4:.1%}".replace("%", " %") == share


def shown_in(page: Page) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page.text).split())


async def test_messages_are_markdown_and_as_they_were_written(visit: Visit) -> None:
    browser = visit(Echo)
    said = "# Plan\n\n- `ls`\n- **run**\n\n```python\nprint('<b>')\n```\n\nline one\nline two"
    await upload(
        browser,
        rollout_event("m"),
        message_event("m", 0, said),
        message_event("m", 1, said, type="tool_result"),
        message_event("m", 2, "no signs, 2 * 3", type="user_message"),
    )
    page = await browser.get("/ui/rollout?id=m")
    is_safe(page)
    [shown] = [part for part in page.response.text.split("<article ") if "m-assistant_message" in part]
    for part in ("<h1>Plan</h1>", "<li><code>ls</code></li>", "<strong>run</strong>", "&lt;b&gt;", "line one<br />"):
        assert part in shown, part
    assert page.text.count("# Plan") == 1  # the tool's
    page = await browser.get("/ui/rollout?id=m&raw=1")
    assert page.text.count("# Plan") == 2
    assert "<li>" not in page.response.text
    page = await browser.get("/ui/rollout-group?id=m&raw=1")
    is_safe(page)
    assert page.text.count("# Plan") == 2


async def test_a_group_has_its_rewards_in_a_row(visit: Visit) -> None:
    browser = visit(Echo)
    for number, reward in enumerate((0.5, None, 2.0, -1.0)):
        done = message_event(f"g{number}", 0, "x", **({} if reward is None else {"reward": reward}))
        await upload(browser, rollout_event(f"g{number}", timestamp=1_700_000_000_000 + number), done)
    page = await browser.get("/ui/rollout-group?id=g0")
    is_safe(page)
    assert "0.500 – 2 -1 Mean 0.500, standard deviation 1.500." in page.text
    assert ordered(page) == ["g0", "g1", "g2", "g3"]
    page = await browser.get(next(each["href"] for each in tags(page, "a") if "order=reward" in each.get("href", "")))
    is_safe(page)
    assert ordered(page) == ["g2", "g0", "g3", "g1"]
    for number in range(2):
        same = message_event(f"s{number}", 0, "x", reward=1.0)
        await upload(browser, rollout_event(f"s{number}", task_spec={"id": "same"}), same)
        await upload(
            browser,
            rollout_event(f"l{number}", task_spec={"id": "large"}),
            message_event(f"l{number}", 0, "x", reward=1e300),
        )
    text = (await browser.get("/ui/rollout-group?id=s0")).text
    assert "Mean 1.000, standard deviation 0: all earned the same." in text
    assert "standard deviation" not in (await browser.get("/ui/rollout-group?id=l0")).text
    assert (await browser.get("/ui/rollout-group?id=g0&order=x")).status == 400


def ordered(page: Page) -> list[str]:
    """Return the rollouts of a group in the order of their columns."""
    links = [each["href"] for each in tags(page, "a") if "/rollout?id=" in each.get("href", "")]
    return [link.rpartition("=")[2] for link in links[len(links) // 2 :]]


VERDICT_DATA: dict[str, Any] = {
    "summary": BAD,
    "tests": [
        {"name": f"test_{BAD}", "outcome": "failed", "output": f"hidden words {BAD}"},
        {"name": "test_../../etc/passwd", "outcome": "passed"},
        {"name": "test_c", "outcome": BAD, "output": "\ud800" + "x" * 10_000_000},
    ],
    "output": f"the grader's words {BAD}",
}


async def test_why_a_rollout_has_its_reward(visit: Visit) -> None:
    browser = visit(Echo)
    told = {VERDICT: VERDICT_DATA, "verdict_mark": "a mark"}
    await upload(
        browser,
        rollout_event("r", run_info={"success_at": 2}),
        message_event("r", 0, "x", type="tool_call", name="step", callId="c"),
        message_event("r", 1, "x", type="tool_result", callId="c", reward=0.5),
        message_event("r", 2, "x", type="tool_result", reward=1.0, isFinished=True, metadata=told),
    )
    page = await browser.get("/ui/rollout?id=r")
    is_safe(page)
    for words in (
        "1.500 is the sum of 2 rewards. A rollout passes from 2 on: not passed",
        "2 steps with a reward Message 2 step 0.500 Message 3 1 finished",
        "Tests: 1 passed 1 failed 1 '\"><img",
        "hidden words",
        "the grader's words",
        "The verdict is marked: a mark.",
        "[… 9996061 characters left out …]",
    ):
        assert words in page.text, words
    assert page.text.count("hidden words") == 1  # not in the metadata of its message as well
    assert VERDICT not in page.response.text
    assert len(page.response.text) < 60_000
    assert {"href": "#message-1"} in tags(page, "a")
    assert "message-1" in [each.get("id") for each in tags(page, "article")]


async def test_the_verdict_of_an_upload_is_that_of_its_recorded_session(visit: Visit, tmp_path: Path) -> None:
    browser = visit(Echo)
    result = message_event("up", 0, "x", type="tool_result", reward=0.0, isFinished=True)
    await upload(browser, rollout_event("up", metadata={"session": "one"}), result)
    await record(tmp_path, "one", rewards=(0.0,), metadata={VERDICT: VERDICT_DATA})
    page = await browser.get("/ui/rollout?id=up")
    is_safe(page)
    for words in ("hidden words", "From the server's record of this session.", "0 was given by message 1"):
        assert words in page.text, words


@pytest.mark.parametrize("hidden", [False, True])
async def test_a_grading_again_shows_its_tests_too(visit: Visit, tmp_path: Path, hidden: bool) -> None:
    browser = visit(Echo, insecure=hidden)
    rollout = await record(tmp_path, "one", rewards=(0.0,), metadata={VERDICT: {"output": "the former words"}})
    found = read_verdict(VERDICT_DATA)
    assert found is not None
    verdict = json.dumps(found.as_json())
    assert add_verdict(at(tmp_path), NewVerdict("one", "state", "new", 1.0, 0.0, None, 1_700_000_000_000, verdict))
    page = await browser.get(f"/ui/rollout?id={rollout}")
    is_safe(page)
    _, _, again = page.text.partition("What the grading again found")
    assert "Tests: 1 passed 1 failed" in again
    for words in ("hidden words", "the grader's words", "etc/passwd"):
        assert (words in again) != hidden, words
    assert ("the former words" in page.text) != hidden
    assert ("are the operator's" in page.text) == hidden


async def test_who_logs_in_with_a_key_sees_no_test_unless_the_operator_says_so(visit: Visit, tmp_path: Path) -> None:
    key = add_key(Settings(data_dir=tmp_path), "anna")
    for shown in (False, True):
        browser = visit(Echo, show_verdicts=shown)
        await browser.send((await browser.get("/ui/login")).form("/login"), {"key": key})
        told = {VERDICT: VERDICT_DATA}
        result = message_event("r", 0, "x", type="tool_result", reward=1.0, isFinished=True, metadata=told)
        await upload(browser, rollout_event("r"), result, **{"x-api-key": key})
        page = await browser.get("/ui/rollout?id=r")
        assert page.status == 200
        assert "1 passed 1 failed" in page.text
        for words in ("hidden words", "the grader's words", "etc/passwd"):
            assert (words in page.text) == shown, words
        assert ("are the operator's" in page.text) != shown


async def test_a_server_that_anyone_may_reach_shows_no_test(visit: Visit) -> None:
    browser = visit(Echo, insecure=True)
    result = message_event("r", 0, "x", type="tool_result", reward=1.0, metadata={VERDICT: VERDICT_DATA})
    await upload(browser, rollout_event("r"), result)
    page = await browser.get("/ui/rollout?id=r")
    assert "1 passed 1 failed" in page.text
    assert "hidden words" not in page.text


async def test_a_lost_rollout_and_one_without_a_reward_say_so(visit: Visit) -> None:
    browser = visit(Echo)
    await upload(browser, rollout_event("none"), message_event("none", 0, "x"))
    lost = {"eventType": "rollout_update", "eventId": "lost", "timestamp": 1, "rollout_info": {"outcome": "lost"}}
    await upload(browser, rollout_event("lost"), message_event("lost", 0, "x", reward=1.0), lost)
    at_limit = {"outcome": "deleted", "outcome_reason": "max_turns"}
    await upload(browser, rollout_event("cut", rollout_info=at_limit), message_event("cut", 0, "x", reward=0.0))
    text = (await browser.get("/ui/rollout?id=cut")).text
    assert "outcome turn limit" in text
    assert "0 is what its client counted: no tool gave it." in text
    assert "neither a tool nor a trainer gave one" in (await browser.get("/ui/rollout?id=none")).text
    page = await browser.get("/ui/rollout?id=lost")
    assert "The rollout was lost to a failure of the infrastructure, so it has no reward." in page.text
