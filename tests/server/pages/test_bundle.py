"""A run as static files: without a script, a request or a secret, and each link leads to a file of the folder."""

from __future__ import annotations

import asyncio
import html
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from jinja2 import UndefinedError

from ors_server.pages.bundle.links import INDEX, Links, Places
from ors_server.pages.bundle.writing import Bundle, write_bundle
from ors_server.pages.rollout_messages import shown_messages
from ors_server.pages.views import rollout_views
from ors_server.protocol import VERDICT
from ors_server.rollouts.errors import RolloutError, StoreUnavailable, UnknownRun
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.cli.conftest import Command
from tests.cli.conftest import command as command
from tests.server.pages.conftest import Page, tags
from tests.server.pages.test_foreign_texts import BAD
from tests.server.pages.test_rollout_pages import TOKENS, VERDICT_DATA, message_event, rollout_event
from tests.server.rollouts.support import at, record

KEY = f"ors_{'k' * 43}"
SECRET = 'pass"word<1234'
VERDICT_WORDS = {**VERDICT_DATA, "tests": VERDICT_DATA["tests"][:2]}
#: Ids that would be other files, or the same file, as names of files.
IDS = ("../../../etc/passwd", "..", "con", "/", "a" * 150, "R1", "r1", f"x\0{BAD[:60]}", "é\ud800", "_5b1e030b28d4")


def store(folder: Path, *events: Mapping[str, Any]) -> None:
    async def upload() -> None:
        writer = RolloutWriter(at(folder))
        await writer.store(json.dumps({"events": events}).encode(), None)
        await writer.close()

    asyncio.run(upload())


def bundled(folder: Path, output: Path, run: str = "run", **options: Any) -> Bundle:
    opened = RolloutStore(at(folder))
    with opened.reading() as connection:
        assert connection is not None
        bundle = write_bundle(connection, opened, run, output, **options)
    opened.close()
    return bundle


def pages_of(folder: Path) -> dict[str, Page]:
    """Return the pages of a bundle by their files, each checked: no script, no form, no address but its files'."""
    found: dict[str, Page] = {}
    for file in sorted(folder.rglob("*.html")):
        page = found[file.relative_to(folder).as_posix()] = Page(httpx.Response(200, text=file.read_text("utf-8")))
        for tag, attributes in page.elements:
            assert tag not in ("script", "form", "iframe", "object", "embed", "base", "style", "button"), (file, tag)
            assert not [name for name in attributes if name.startswith(("on", "hx-", "data-")) or name == "style"]
            for name in ("href", "src", "action"):
                address = attributes.get(name, "")
                if address and not address.startswith(("#", "data:image/")):
                    target = (file.parent / urllib.parse.urlsplit(address).path).resolve()
                    assert target.is_relative_to(folder), (file, address)
                    assert target.is_file(), (file, address)
        policy = next(each["content"] for each in tags(page, "meta") if "http-equiv" in each)
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
    return found


def test_a_hostile_run_is_a_folder_of_safe_files(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "sent" / "to anna"
    words = f"{BAD} {KEY} {SECRET} [x](javascript:alert(1)) <a href='//evil.example'>"
    for number, name in enumerate(IDS):
        head = rollout_event(name, step=1, rolloutName=words, task_spec={"id": f"task-{number // 4}", BAD: words})
        store(
            data,
            {**head, "environment": words, "metadata": {BAD: words}},
            message_event(name, 0, words, type="user_message"),
            message_event(name, 1, words, metadata={"tokens": TOKENS}),
            message_event(name, 2, f"{words}{'x' * 30_000}", type="tool_result", reward=1.0, isFinished=True,
                          metadata={VERDICT: VERDICT_WORDS, "verdict_mark": words}),
        )  # fmt: skip
    store(data, {**rollout_event("other"), "runName": "another run"}, message_event("other", 0, "not of this run"))
    bundle = bundled(data, output, secrets=[SECRET])
    assert bundle.written == len(IDS)
    pages = pages_of(output)
    names = [file.relative_to(output).as_posix() for file in output.rglob("*") if file.is_file()]
    assert all(re.fullmatch(r"(?:[a-z]+/)?[a-z0-9_-]+\.(?:html|txt|css|svg|json)", name) for name in names)
    assert len({name.lower() for name in names}) == len(names)
    assert sum(name.startswith("rollouts/") and not name.endswith("_tokens.html") for name in names) == len(IDS)
    assert sum(name.startswith("texts/") for name in names) == len(IDS)
    assert {path.name for path in output.parent.iterdir()} == {output.name}
    for file in output.rglob("*"):
        content = file.read_text("utf-8") if file.is_file() else ""
        for secret in (KEY, SECRET, html.escape(SECRET), "not of this run", "_ors_verdict"):
            assert secret not in content, (file, secret)
        if file.suffix == ".html":
            assert "\u202e" not in content
            assert "\x1b" not in content
    shown = next(page for name, page in pages.items() if name.startswith("rollouts/"))
    for part in ("Why this reward", "hidden words", "[redacted]", "alert(2)"):
        assert part in shown.text, part


def test_all_pages_of_a_run_are_reached_from_its_index(tmp_path: Path) -> None:
    events = [event for number in range(52) for event in (
        rollout_event(f"rollout-{number:02}", step=0, task_spec={"id": f"task-{number // 4}"}),
        message_event(f"rollout-{number:02}", 0, "words", reward=float(number % 2), isFinished=True),
    )]  # fmt: skip
    store(tmp_path, *events)
    store(tmp_path, rollout_event("rollout-alone", task_spec={}), message_event("rollout-alone", 0, "x"))
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))

    bundled(tmp_path, tmp_path / "out", progress=progress)
    assert steps == [(number + 1, 53) for number in range(53)]
    pages = pages_of(tmp_path / "out")
    reached, waiting = {INDEX}, [INDEX]
    while waiting:
        name = waiting.pop()
        for each in tags(pages[name], "a"):
            address = each.get("href", "#").partition("#")[0]
            if address:
                target = (tmp_path / "out" / name).parent.joinpath(address).resolve()
                led = target.relative_to(tmp_path / "out").as_posix()
                if led not in reached:
                    reached.add(led)
                    waiting.append(led)
    assert reached == set(pages)
    groups = [name for name in pages if name.startswith("groups/")]
    assert len(groups) == 13  # one for a task, and not for each rollout
    assert "rollout-07" in {part for name in groups for part in pages[name].text.split()}


def test_an_upload_does_not_lead_to_its_recorded_session_and_has_its_verdict(tmp_path: Path) -> None:
    result = message_event("uploaded", 0, "x", type="tool_result", reward=0.0, isFinished=True)
    store(tmp_path, rollout_event("uploaded", metadata={"session": "one"}), result)
    asyncio.run(record(tmp_path, "one", rewards=(1.0,), metadata={VERDICT: VERDICT_WORDS}))
    bundled(tmp_path, tmp_path / "out")
    page = pages_of(tmp_path / "out")["rollouts/uploaded.html"]
    assert "hidden words" in page.text
    assert "Recorded by the server too, with another reward: 1" in page.text


def test_a_folder_is_not_replaced_by_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "data", rollout_event("r"), message_event("r", 0, "x"))
    output = tmp_path / "out"
    output.mkdir()
    bundled(tmp_path / "data", output)  # an empty folder is free
    made = (output / INDEX).stat().st_ino
    with pytest.raises(RolloutError, match="has a bundle"):
        bundled(tmp_path / "data", output)
    assert (output / INDEX).stat().st_ino == made
    (output / "stale.html").write_text("from the former bundle")
    bundled(tmp_path / "data", output, overwrite=True)
    assert not (output / "stale.html").exists()
    others = tmp_path / "thesis"
    others.mkdir()
    (others / "text").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(RolloutError, match="is not a bundle"):
            bundled(tmp_path / "data", others, overwrite=overwrite)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RolloutError, match="is not a bundle"):
        bundled(tmp_path / "data", tmp_path / "file", overwrite=True)
    with pytest.raises(UnknownRun):
        bundled(tmp_path / "data", tmp_path / "none", run="no such run")
    before = (output / INDEX).read_bytes()

    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Links, "rewrite", fail)
    with pytest.raises(KeyboardInterrupt):
        bundled(tmp_path / "data", output, overwrite=True)
    assert (output / INDEX).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"data", "file", "out", "thesis"}


def test_a_link_is_a_file_of_the_run_or_none() -> None:
    links = Links(Places("r0", lambda rollout: None if rollout == "foreign" else "group"))
    index = links.file_of(links.index)
    assert index == INDEX
    kept = [
        ("/run", (("after", "x"), ("run", "r0"))),
        ("/rollouts", (("run", "r0"),)),
        ("/rollout", (("id", "some-rollout"),)),
        ("/rollout", (("id", "some-rollout"), ("tokens", "1"))),
        ("/rollout-group", (("id", "any"),)),
        ("/rollout-group", (("id", "any"), ("start", "8"))),
        ("/rollout-message", (("id", "some-rollout"), ("number", "3"))),
    ]
    assert len({links.file_of(address) for address in kept}) == len(kept)
    assert links.file_of(("/rollout-group", (("id", "another"), ("start", "0")))) == links.file_of(kept[4])
    dropped = [
        ("/run", (("run", "other"),)),
        ("/rollouts", ()),
        ("/rollouts", (("order", "lowest"), ("run", "r0"))),
        ("/rollouts", (("run", "r0"), ("run", "r0"))),
        ("/rollout", (("id", "foreign"),)),
        ("/rollout", ()),
        ("/runs", ()),
        ("", ()),
        ("/../../x", (("run", "r0"),)),
    ]
    links = Links(Places("r0", lambda rollout: "group" if rollout not in ("foreign", "") else None))
    assert [links.file_of(address) for address in dropped] == [None] * len(dropped)
    found: list[str] = []
    page = f'<a class="b" href="{links.base}/rollout?id=some-rollout&amp;tokens=1#m">x</a>'
    page += f'<form action="{links.base}/runs"><input name="search">\n</form>'
    page += f'<a href="{links.base}/rollout?id=foreign">y</a>'
    page += f'<a href="{links.base}">z</a>'
    shown = links.rewrite(page, "groups/a.html", lambda address, file: found.append(file))
    assert (
        shown == '<a class="b" href="../rollouts/some-rollout_tokens.html#m">x</a><a>y</a><a href="../index.html">z</a>'
    )
    assert found == ["rollouts/some-rollout_tokens.html", INDEX]


def test_the_command(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    store(data, {**rollout_event("r"), "runName": "../a run"}, message_event("r", 0, f"x {KEY} a-secret-of-the-file"))
    (tmp_path / "secrets").write_text("NAME=a-secret-of-the-file\n")
    monkeypatch.setenv("ORS_SECRETS_FILE", str(tmp_path / "secrets"))
    monkeypatch.chdir(tmp_path)
    given = ("rollouts", "bundle", "../a run", "--data-dir", data)
    done = command(*given)
    assert done.code == 0, done.err
    assert "Wrote 1 rollouts in 4 pages: open bundle-a-run/index.html." in done.err
    [page] = (tmp_path / "bundle-a-run" / "rollouts").iterdir()
    assert page.read_text().count("[redacted]") == 2
    again = command(*given)
    assert again.code != 0
    assert "--overwrite" in again.err
    assert command(*given, "--overwrite").code == 0
    unknown = command("rollouts", "bundle", "no such run", "--data-dir", data)
    assert unknown.code != 0
    assert "no such run" in unknown.err
    nothing = command("rollouts", "bundle", "run", "--data-dir", tmp_path / "empty")
    assert "There are no rollouts" in nothing.err


def test_a_page_that_cannot_be_made_is_named_and_the_others_are_there(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, output = tmp_path / "data", tmp_path / "out"
    names = ("rollout-fine", "rollout-\x1bbroken")
    for name in names:
        store(data, rollout_event(name, task_spec={"id": name}), message_event(name, 0, name))

    def broken(messages: Sequence[Mapping[str, Any]], **given: Any) -> Any:
        if "broken" in messages[0]["content"]:
            raise UndefinedError(f"no such value: {KEY} \x1b[31m")
        return shown_messages(messages, **given)

    monkeypatch.setattr(rollout_views, "shown_messages", broken)
    done = command("rollouts", "bundle", "run", "--data-dir", data, "-o", output)
    assert done.code == 1
    assert "Wrote 1 rollouts in" in done.err
    assert "(rollout-␛broken): UndefinedError: no such value: [redacted]" in done.err
    assert "Pages that could not be made: 1." in done.err
    assert "\x1b" not in done.err
    pages = pages_of(output)
    failed = [page for page in pages.values() if "This page could not be made" in page.text]
    assert len(failed) == 1
    assert not any(KEY in page.text for page in pages.values())
    assert "rollout-fine" in pages["rollouts/rollout-fine.html"].text
    kept = json.loads((output / "bundle.json").read_text())
    assert (kept["rollouts"], len(kept["failed"])) == (1, 1)
    # Where the store fails, nothing is made.
    monkeypatch.setattr(rollout_views, "shown_messages", Mock(side_effect=StoreUnavailable("the disk is full")))
    again = command("rollouts", "bundle", "run", "--data-dir", data, "-o", tmp_path / "none")
    assert again.code != 0
    assert "the disk is full" in again.err
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out"}
