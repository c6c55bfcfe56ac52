"""The page of a run as its report, its tasks by order and filter, two runs compared; and what is wrong with either."""

from __future__ import annotations

import json
import random
import sqlite3
import urllib.parse
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from ors_clients.evaluation.compare import ComparedRun, compare
from ors_clients.rollouts.upload_events import report_event

from ors_server import Settings
from ors_server.keys.exposure import add_key
from ors_server.rollouts.aggregates.derived_columns import task_of
from ors_server.rollouts.queries.reports import figures_of, find_report
from ors_server.rollouts.queries.runs import find_run
from ors_server.rollouts.reports.formats import misfit
from ors_server.rollouts.reports.sections import Section, comparison_section, report_sections
from ors_server.rollouts.store import RolloutStore
from tests.long.stored_evaluation import evaluation, events_of, report_of
from tests.server.pages.conftest import Browser, Page, Visit, is_safe, tags
from tests.server.pages.test_foreign_texts import BAD
from tests.server.pages.test_rollout_pages import message_event, rollout_event, shown_in, upload
from tests.server.rollouts.support import at
from tests.support.environments import Echo
from tests.support.paths import ROOT

TRAINED = ROOT / "benchmarks" / "results" / "train-echo-2026-11-28.json"


def plain(section: Section) -> list[str]:
    return [" ".join(f"{label} {value}".split()) for label, value in section.rows]


async def run_page(browser: Browser, run: str, **fields: str) -> Page:
    page = await browser.get(f"/ui/run?{urllib.parse.urlencode({'run': run, **fields})}")
    is_safe(page)
    return page


async def test_the_page_and_the_report_have_the_same_numbers(visit: Visit, tmp_path: Path) -> None:
    """Those of the report, and those that are made of the rollouts where there is none."""
    browser = visit(Echo)
    for seed, (tasks, samples) in enumerate(((30, 4), (1, 5), (1, 1))):
        record = evaluation(f"e{seed}", tasks=tasks, samples=samples, seed=seed)
        await upload(browser, *events_of(record, report=False))
        report = report_of(record)
        with RolloutStore(at(tmp_path)).reading() as connection:
            assert connection is not None
            run = find_run(connection, record.id)
            assert find_report(connection, run.id) is None
            figures = figures_of(connection, run)
        assert figures is not None
        assert (figures.pass_at_k, figures.reward) == (report["pass_at_k"], report["reward"])
        without = shown_in(await run_page(browser, record.id))
        assert "This evaluation has sent no report: it goes on, or it was interrupted." in without
        await upload(browser, list(events_of(record))[-1])
        page = await run_page(browser, record.id)
        assert "has sent no report" not in page.text
        for section in report_sections(report):
            for row in plain(section):
                assert row in page.text
        [value] = [row for row in plain(report_sections(report)[1]) if row.startswith("pass@1 ") and "%" in row][:1]
        assert value in without


async def test_the_page_of_a_training_shows_its_report(visit: Visit) -> None:
    browser = visit(Echo)
    report: dict[str, Any] = json.loads(TRAINED.read_bytes())
    for step in range(3):
        name = f"r{step}"
        done = message_event(name, 0, "x", reward=step / 2, isFinished=True)
        await upload(browser, rollout_event(name, runName="trained", step=step, run_info={"kind": "training"}), done)
    page = await run_page(browser, "trained")
    assert "This training has sent no report" in page.text
    assert "Score of step 2, the last pass@1 100.0 % [20.7 %, 100.0 %] of 1 tasks" in page.text
    await upload(browser, report_event("trained", "training", report))
    page = await run_page(browser, "trained")
    assert tags(page, "polyline")
    for text in (report["verdict"], "66,880 weights", "sampled, before to after +36.7 %", "learning rate 0.002"):
        assert text in page.text
    assert "worse than greedy decoding before the training (84.6 %)" in page.text
    assert "By kind of task" not in page.text  # there is one
    assert "The report counts 2,560 episodes with a reward, and the store has 3 of this run." in page.text
    await upload(browser, report_event("trained", "training", report | {"failed": ["40 of 64 episodes were lost"]}))
    assert "The numbers do not stand: 40 of 64 episodes were lost" in (await run_page(browser, "trained")).text


async def test_a_training_and_its_evaluations_lead_to_each_other(visit: Visit) -> None:
    browser = visit(Echo)
    report: dict[str, Any] = json.loads(TRAINED.read_bytes())
    evaluated, other = (evaluation(name, tasks=3, model="trained/model") for name in ("after", "of another training"))
    report["pass_rates"]["after-sampled"]["id"] = evaluated.id
    for rates in report["pass_rates"].values():
        rates["kinds"] = {"echo": 0.25, "say": 0.5}
    await upload(browser, rollout_event("r", runName="trained"), report_event("trained", "training", report))
    await upload(browser, *events_of(evaluated), *events_of(other))
    page = await run_page(browser, "trained")
    assert "By kind of task Kind before, sampled" in page.text
    assert "say 50.0 %" in page.text
    [led] = runs_in(page) - {"trained"}
    back = await browser.get(f"/ui/run?run={led}")
    assert evaluated.id in back.text
    [training] = runs_in(back) - {led}
    assert "trained" in (await browser.get(f"/ui/run?run={training}")).text
    assert "An evaluation of the training" not in (await run_page(browser, other.id)).text
    compared = await browser.get(f"/ui/compare?run=trained&run={evaluated.id}")
    assert 'model: "Qwen' not in compared.text
    assert 'environment: "terminalenvironment" → "echoenvironment"' in compared.text


def runs_in(page: Page) -> set[str]:
    """Return the runs that links of a page lead to, the page's own list of tasks aside."""
    links = [urllib.parse.urlsplit(each.get("href", "")) for each in tags(page, "a")]
    return {urllib.parse.parse_qs(link.query)["run"][0] for link in links if link.path == "/ui/run"}


async def test_a_run_that_stopped_early_and_one_that_is_not_stored_whole_say_so(visit: Visit) -> None:
    browser = visit(Echo)
    record = evaluation("stopped", tasks=12, samples=2)
    del record.attempts[-6:]
    await upload(browser, *events_of(record))
    assert "The run fails (--max-failures is 5.0%)" in (await run_page(browser, record.id)).text
    scored = report_of(record)["samples"]["scored"]
    await upload(browser, report_event(record.id, "evaluation", report_of(evaluation("stopped", tasks=12, samples=2))))
    text = (await run_page(browser, record.id)).text
    assert f"The report counts 24 scored samples, and the store has {scored} of this run." in text


@pytest.mark.parametrize(
    ("kind", "version", "said"),
    [
        ("evaluation", 0, "it is of version 0, and this server reads 1"),
        ("evaluation", 9, "it is of version 9, and this server reads 1"),
        ("other", 1, "it is of a kind that this server does not know: other"),
    ],
)
async def test_a_report_that_cannot_be_read_is_shown_as_it_was_sent(
    visit: Visit, kind: str, version: int, said: str
) -> None:
    browser = visit(Echo)
    event = {**report_event("run", kind, {"old field": "<b>old value</b>"}), "version": version}
    await upload(browser, event, rollout_event("r"), message_event("r", 0, "x", reward=1.0, isFinished=True))
    page = await run_page(browser, "run")
    assert f"The report of this run cannot be read: {said}. What follows is made of its rollouts." in page.text
    assert '"old field": "<b>old value</b>"' in page.text
    assert "pass@1 100.0 %" in page.text


async def test_a_damaged_report_is_shown_as_it_is(visit: Visit, tmp_path: Path) -> None:
    browser = visit(Echo)
    record = evaluation("damaged", tasks=2)
    await upload(browser, *events_of(record))
    for damage in ("{", "[" * 100_000, "1" * 5000, "{}", '{"run": "damaged"}'):
        with closing(sqlite3.connect(tmp_path / "rollouts.sqlite3")) as connection, connection:
            connection.execute("UPDATE reports SET report = ?", (damage,))
        page = await run_page(browser, record.id)
        assert "cannot be read: it is damaged" in page.text
        assert " ".join(damage[:300].split()).strip("{}") in page.text


async def test_reports_that_do_not_fit_are_refused_alone(visit: Visit) -> None:
    browser = visit(Echo)
    good = report_of(evaluation("e", tasks=2))
    assert misfit("evaluation", 1, good) == ""
    bad: list[tuple[dict[str, Any], str]] = [
        (good | {"pass_at_k": [{"k": 1}]}, "pass_at_k.0.value: Field required"),
        (good | {"reward": good["reward"] | {"mean": 10**400}}, "reward.mean"),
        (good | {"turns": "many"}, "turns"),
        ({**good, "samples": good["samples"] | {"scored": -1}}, "samples.scored"),
        ({"x": "y" * 2**20}, "A report has at most 1 MiB as JSON"),
    ]
    for report, said in bad:
        event = report_event("run", "evaluation", report)
        body = json.dumps({"events": [event, rollout_event("r")]})
        response = await browser.http.post("/v1/rollouts", content=body)
        assert response.status_code == 422, response.text
        [problem] = response.json()["detail"]
        assert said in problem["msg"]
    assert "no report" not in (await run_page(browser, "run")).text  # the rollout of the same upload is stored


async def test_of_several_reports_the_latest_counts_in_any_order(visit: Visit, tmp_path: Path) -> None:
    browser = visit(Echo)
    await upload(browser, rollout_event("r"))
    events = [
        {**report_event("run", "other", {"number": number}), "timestamp": time}
        for number, time in enumerate((5, 9, 9, 7))
    ]
    latest = set[str]()
    for _ in range(4):
        random.Random(len(latest)).shuffle(events)
        await upload(browser, *events)
        with RolloutStore(at(tmp_path)).reading() as connection:
            assert connection is not None
            found = find_report(connection, find_run(connection, "run").id)
            assert found is not None
            latest.add(found.text)
    assert len(latest) == 1
    assert latest <= {'{"number":1}', '{"number":2}'}


async def test_a_key_sees_its_own_report(visit: Visit, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    secrets = {name: add_key(settings, name) for name in ("anna", "ben")}
    browser = visit(Echo)
    for name, secret in secrets.items():
        own = [rollout_event(f"of {name}"), report_event("run", "other", {"by": name})]
        await upload(browser, *own, **{"x-api-key": secret})
    for name, other in (("anna", "ben"), ("ben", "anna")):
        browser.http.cookies.clear()
        await browser.send((await browser.get("/ui/login")).form("/login"), {"key": secrets[name]})
        text = (await run_page(browser, "run")).text
        assert f'"by": "{name}"' in text
        assert other not in text


def never(path: object, mode: int) -> bool:
    del path, mode
    return False


async def test_a_store_that_cannot_be_written_is_read(
    visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = visit(Echo)
    record = evaluation("kept", tasks=3)
    await upload(browser, *events_of(record))
    await browser.server.app.rollouts.close()
    for path in tmp_path.glob("rollouts.sqlite3*"):
        path.chmod(0o400)
    monkeypatch.setattr("os.access", never)  # as for a user who is not root
    page = await run_page(browser, record.id)
    assert "pass@1" in page.text
    page = await browser.get(f"/ui/compare?run={record.id}&run={record.id}")
    assert "the same in all tasks" in page.text or "too few tasks" in page.text


# --- tasks and rollouts by order and filter ------------------------------------------------------


async def walk(browser: Browser, path: str, column: str) -> list[str]:
    """Return the names in the links of all pages of a list."""
    seen: list[str] = []
    while path:
        page = await browser.get(path)
        assert page.status == 200, page.text
        is_safe(page)
        links = [
            each["href"]
            for each in tags(page, "a")
            if f"{column}=" in each.get("href", "") and "after" not in each["href"]
        ]
        seen += [urllib.parse.parse_qs(urllib.parse.urlsplit(link).query)[column][0] for link in links]
        path = next((each["href"].partition("#")[0] for each in tags(page, "a") if each.get("rel") == "next"), "")
    return seen


async def test_tasks_are_ordered_and_chosen_by_cursor(visit: Visit) -> None:
    browser = visit(Echo)
    chance = random.Random(3)
    groups: dict[str, list[list[float | None]]] = {}
    events: list[dict[str, Any]] = []
    for number in range(60):
        name = f"task {number:03}"
        groups[name] = [[chance.choice((0.0, 1.0, 1.0, None)) for _ in range(3)] for _ in range(2)]
        for step, rewards in enumerate(groups[name]):
            for sample, reward in enumerate(rewards):
                rollout = f"{number}-{step}-{sample}"
                said = {"outcome": "lost"} if reward is None else {}
                events.append(rollout_event(rollout, step=step, task_spec={"id": name}, rollout_info=said))
                events.append(message_event(rollout, 0, "x", **({} if reward is None else {"reward": reward})))
    await upload(browser, *events)

    def rate(name: str) -> float | None:
        rewards = [reward for group in groups[name] for reward in group if reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def disagreement(name: str) -> float:
        known = [[reward for reward in group if reward is not None] for group in groups[name]]
        pairs = sum(len(group) * (len(group) - 1) for group in known)
        return sum(2 * sum(group) * (len(group) - sum(group)) for group in known) / pairs if pairs else -1.0

    def lost(name: str) -> int:
        return sum(reward is None for group in groups[name] for reward in group)

    keys = {name: task_of("echo", None, None, json.dumps({"id": name}), {}).key or "" for name in groups}
    names = {key: name for name, key in keys.items()}
    orders: dict[str, Callable[[str], Any]] = {
        "lowest": lambda name: 2.0 if rate(name) is None else rate(name),
        "highest": lambda name: 1.0 if rate(name) is None else -(rate(name) or 0.0),
        "disagreement": lambda name: -disagreement(name),
        "lost": lambda name: -lost(name),
        "name": lambda name: name,
    }
    for order, by in orders.items():
        found = [names[key] for key in await walk(browser, f"/ui/run?run=run&order={order}", "task_key")]
        assert found == sorted(groups, key=lambda name: (by(name), keys[name])), order
    chosen: dict[str, Callable[[str], bool]] = {
        "passing=sometimes": lambda name: rate(name) not in (0, 1, None),
        "lost=1": lambda name: lost(name) > 0,
        "task=K+01": lambda name: "k 01" in name,
        "task=%25": lambda name: False,
    }
    for field, fits in chosen.items():
        found = {names[key] for key in await walk(browser, f"/ui/run?run=run&{field}", "task_key")}
        assert found == {name for name in groups if fits(name)}, field
    for wrong in ("order=x", "passing=x", "lost=2", "after=x", "order=name&after=WzAsICJ4Il0", "after=W251bGwsIDFd"):
        assert (await browser.get(f"/ui/run?run=run&{wrong}")).status == 400, wrong
    for nothing in ("after=W05hTiwgIngiXQ", "after=WzFlOTk5LCAieCJd"):  # NaN, and a number beyond all
        assert (await browser.get(f"/ui/run?run=run&{nothing}")).status == 200


async def test_rollouts_are_ordered_and_chosen_by_cursor(visit: Visit) -> None:
    browser = visit(Echo)
    chance = random.Random(5)
    rewards = {f"r{number:03}": chance.choice((0.0, 0.5, 1.0, 1e308, -3.0, None)) for number in range(130)}
    events: list[dict[str, Any]] = []
    for name, reward in rewards.items():
        events.append(rollout_event(name, rolloutName=f"Name {name}", task_spec={"id": "100%"}))
        events.append(message_event(name, 0, "x", **({} if reward is None else {"reward": reward})))
    await upload(browser, *events)
    for order, sign in (("highest", -1), ("lowest", 1)):
        found = await walk(browser, f"/ui/rollouts?run=run&order={order}", "id")
        known = sorted(rewards, reverse=True)
        assert found == sorted(known, key=lambda name: (rewards[name] is None, sign * (rewards[name] or 0.0)))
    passed = {name: "unknown" if reward is None else "yes" if reward >= 1 else "no" for name, reward in rewards.items()}
    for said in ("yes", "no", "unknown"):
        found = await walk(browser, f"/ui/rollouts?run=run&passed={said}", "id")
        assert set(found) == {name for name in rewards if passed[name] == said}
    assert await walk(browser, "/ui/rollouts?search=NAME+r01", "id") == [f"r{number:03}" for number in range(19, 9, -1)]
    assert len(await walk(browser, "/ui/rollouts?search=0%25&environment=echo", "id")) == 130
    assert await walk(browser, "/ui/rollouts?search=1%25", "id") == []
    wrong = ("order=highest", "passed=yes", "order=x&run=run", "passed=x&run=run")
    cursors = ("WyJuYW4iLCAieCJd", "WyJ4IiwgIngiXQ", "WzEsICJ4Il0")
    for query in (*wrong, *(f"run=run&order=lowest&after={cursor}" for cursor in cursors)):
        assert (await browser.get(f"/ui/rollouts?{query}")).status == 400, query


# --- two runs ------------------------------------------------------------------------------------


async def test_a_comparison_has_the_numbers_of_the_command(visit: Visit) -> None:
    browser = visit(Echo)
    ours = evaluation("ours", tasks=40, skill=0.7, model="b", seed=1)
    other = evaluation("other", tasks=40, skill=0.4, model="a", seed=2)
    await upload(browser, *events_of(ours))
    [missing] = [each for each in other.attempts if (each.task, each.sample) == (39, 3)]
    other.attempts.remove(missing)
    await upload(browser, *events_of(other))
    page = await browser.get("/ui/runs")
    is_safe(page)
    assert [each["value"] for each in tags(page, "input") if each.get("name") == "run"] != []
    expected = compare(ComparedRun.of(ours), ComparedRun.of(other))
    assert expected["settings"] == ['model: "a" → "b"']
    page = await browser.get(f"/ui/compare?run={ours.id}&run={other.id}")
    is_safe(page)
    assert "result ours-3f2a91c4d5e6 passes more than other-3f2a91c4d5e6." in page.text
    assert expected["settings"][0] in page.text
    assert (expected["fewer_samples"], expected["tasks"]) == (1, 40)
    for row in plain(comparison_section(expected | {"run": ours.id, "other": other.id, "settings": []})):
        assert row in page.text


async def test_runs_that_cannot_be_compared_say_why(visit: Visit) -> None:
    browser = visit(Echo)
    for run, task, info in (("a", 1, {}), ("b", 2, {}), ("c", 1, {"success_at": 0.5}), ("d", None, {}), ("e", 1, {})):
        spec = {} if task is None else {"id": task}
        reward = 1e200 if run == "e" else 1.0
        done = message_event(run, 0, "x", reward=reward)
        await upload(browser, rollout_event(run, runName=run, task_spec=spec, run_info=info), done)
    await upload(
        browser, rollout_event("more", runName="a", task_spec={"id": 9}), message_event("more", 0, "x", reward=0.0)
    )
    for pair, said in (
        ("run=a&run=b", "have no task in common"),
        ("run=a&run=c", "score by different rules"),
        ("run=a&run=d", "have no task in common"),
        ("run=a&run=e", "e has too many or too large rewards"),
    ):
        page = await browser.get(f"/ui/compare?{pair}")
        is_safe(page)
        assert (page.status, said in page.text, "pass@1" in page.text) == (200, True, False), page.text
    assert "mean reward 1e+200 [" not in (await run_page(browser, "e")).text
    page = await browser.get("/ui/compare?run=a&run=a")
    assert "2, 0 left out" in page.text
    for query, status in (("run=a", 400), ("", 400), ("run=a&run=b&run=c", 400), ("run=a&run=nothing", 404)):
        assert (await browser.get(f"/ui/compare?{query}")).status == status
    assert (await browser.get(f"/ui/compare?run=a&run={'x' * 600}")).status == 400
    await upload(browser, *(rollout_event(name, runName=name) for name in ("long-name-1", "long-name-2")))
    several = await browser.get("/ui/compare?run=a&run=long")
    assert (several.status, "Which run is meant by long? There are long-name-" in several.text) == (400, True)
    assert "long-name-2" in (await browser.get("/ui/compare?run=a&run=ng-name-2")).text


async def test_every_text_of_a_report_is_escaped(visit: Visit) -> None:
    browser = visit(Echo)

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return {key if key in known else BAD: hostile(held) for key, held in items}
        if isinstance(value, list):
            return [hostile(held) for held in cast("list[Any]", value)]
        return BAD if isinstance(value, str) else value

    record, known = evaluation("hostile", tasks=3), set[str]()
    whole = report_of(record) | {"failed": ["x"], "marked": [{"mark": "x", "samples": 1, "passes": 1, "of_passes": 1}]}
    known = names_in(whole)
    await upload(browser, *events_of(record, report=False), report_event(record.id, "evaluation", hostile(whole)))
    trained: dict[str, Any] = json.loads(TRAINED.read_bytes()) | {"failed": ["x"]}
    known = names_in(trained) - {"echo", "python", "hidden"}
    await upload(browser, rollout_event("t", runName="t"), report_event("t", "training", hostile(trained)))
    unread = report_event("u", BAD[:50], {BAD: [BAD]})
    await upload(browser, rollout_event("u", runName="u", task_spec={"id": BAD}, run_info={"model_name": BAD}), unread)
    paths = [f"/ui/run?run={run}" for run in (record.id, "t", "u")]
    query = urllib.parse.urlencode({"run": "u", "task": BAD})
    for path in (*paths, f"/ui/run?{query}", f"/ui/compare?run={record.id}&run=u", f"/ui/rollouts?search={BAD[:9]}"):
        page = await browser.get(path)
        assert page.status == 200, page.text
        is_safe(page)
        assert not tags(page, "img")
        if "task=" not in path:  # a field sends back what was typed
            assert "\x1b" not in page.response.text
            assert "\u202e" not in page.response.text


def names_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        return set(held) | {name for each in held.values() for name in names_in(each)}
    return {name for each in cast("list[Any]", value) for name in names_in(each)} if isinstance(value, list) else set()
