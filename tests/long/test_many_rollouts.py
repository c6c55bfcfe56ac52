"""Pages of 100,000 stored rollouts: the processor time of each, and pages of a list far behind its beginning."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ors_server import Server, Settings
from ors_server.rollouts.queries.tasks import ORDERS, PASSING
from tests.long.stored_evaluation import evaluation, events_of
from tests.server.pages.conftest import Browser, tags
from tests.support.environments import Echo

pytestmark = pytest.mark.long

ROLLOUTS, AT_A_TIME = 100_000, 2_000
#: Seconds of processor time of a page: what it takes on a machine that does nothing else.
MOST = 0.2
PAGES = (
    "/ui/runs",
    "/ui/runs?search=9",
    "/ui/run?run=run-10",
    "/ui/run?run=run-10&order=disagreement",
    "/ui/run?run=run-10&order=name",
    "/ui/compare?run=run-10&run=run-11",
    "/ui/rollouts",
    "/ui/rollouts?run=run-10",
    "/ui/rollouts?run=run-10&order=highest",
    "/ui/rollouts?run=run-10&passed=no&search=99",
    "/ui/rollouts?outcome=lost",
    "/ui/rollouts?environment=echo",
    "/ui/rollout?id=r050000",
    "/ui/rollout-group?id=r050000",
)


def events(first: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(first, first + AT_A_TIME):
        name, at = f"r{number:06}", 1_700_000_000_000 + number * 1000
        yield {
            "eventType": "rollout", "eventId": name, "timestamp": at, "runName": f"run-{number * 20 // ROLLOUTS:02}",
            "environment": "echo", "split": "train", "step": number // 64, "task_spec": {"id": number // 8 % 500},
        }  # fmt: skip
        for index, content in enumerate(("prompt " * 30, "answer " * 60, "ok")):
            last = index == 2
            yield {
                "eventType": "message", "eventId": f"{name}-{index}", "timestamp": at + index, "rolloutEventId": name,
                "index": index, "type": "tool_result" if last else "assistant_message", "content": content,
                "isFinished": last, **({"reward": float(chance.random() < number / ROLLOUTS)} if last else {}),
            }  # fmt: skip


@pytest.mark.parametrize("partly", [False, True])
async def test_pages_of_evaluations_with_10_000_rollouts(tmp_path: Path, partly: bool) -> None:
    """Print the processor time of each page, those above the target with an asterisk."""
    browser = Browser(Server([Echo], settings=Settings(data_dir=tmp_path, max_body=2**26)))
    one, two = (
        evaluation(name, tasks=2500, skill=skill, seed=seed, partly=partly)
        for name, skill, seed in (("a", 0.5, 1), ("b", 0.6, 2))
    )
    for run in (one, two):
        sent = iter(events_of(run))
        while part := list(itertools.islice(sent, AT_A_TIME)):
            response = await browser.http.post("/v1/rollouts", json={"events": part}, timeout=600)
            assert response.status_code == 200, response.text
    rollout = next(event["eventId"] for event in events_of(one))
    await shown_within(
        browser,
        "/ui/runs",
        f"/ui/run?run={one.id}",
        *(f"/ui/run?run={one.id}&order={order}" for order in ORDERS),
        *(f"/ui/run?run={one.id}&passing={passing}" for passing in PASSING),
        f"/ui/run?run={one.id}&task=links&lost=1",
        f"/ui/compare?run={one.id}&run={two.id}",
        f"/ui/compare?run={two.id}&run={one.id}",
        "/ui/rollouts",
        f"/ui/rollouts?run={one.id}",
        f"/ui/rollouts?run={one.id}&order=lowest",
        f"/ui/rollouts?run={one.id}&order=highest",
        f"/ui/rollouts?run={one.id}&passed=no&search=links",
        f"/ui/rollouts?run={one.id}&outcome=lost",
        "/ui/rollouts?search=links-001",
        f"/ui/rollout?id={quote(rollout, safe='')}",
        f"/ui/rollout-group?id={quote(rollout, safe='')}",
    )
    await browser.http.aclose()
    await browser.server.sessions.close()


async def shown_within(browser: Browser, *paths: str) -> dict[str, float]:
    """Open each page three times, and print and return the least processor time of each."""
    found: dict[str, float] = {}
    for path in paths:
        times: list[float] = []
        for _ in range(3):
            begun = time.process_time()
            shown = await browser.get(path)
            times.append(time.process_time() - begun)
            assert shown.status == 200, shown.text
        print(f"{path:65} {min(times) * 1000:6.1f} ms{' *' if min(times) > MOST else ''}")
        found[path] = min(times)
    return found


async def test_every_page_is_fast(tmp_path: Path) -> None:
    browser = Browser(Server([Echo], settings=Settings(data_dir=tmp_path, max_body=2**26)))
    chance = random.Random(1)
    for first in range(0, ROLLOUTS, AT_A_TIME):
        uploaded = {"events": list(events(first, chance))}
        response = await browser.http.post("/v1/rollouts", json=uploaded, timeout=600)
        assert response.status_code == 200, response.text
    slow = {path: least for path, least in (await shown_within(browser, *PAGES)).items() if least > MOST}
    path, times = "/ui/rollouts", list[float]()
    for _ in range(300):
        begun = time.process_time()
        page = await browser.get(path)
        times.append(time.process_time() - begun)
        path = next(each["href"] for each in tags(page, "a") if each.get("rel") == "next")
    print(
        f"{'300 pages of the list':35} {times[0] * 1000:6.1f} ms for the first, {times[-1] * 1000:6.1f} ms for the last"
    )
    assert times[-1] < MOST
    assert slow == {}
    await browser.http.aclose()
    await browser.server.sessions.close()
