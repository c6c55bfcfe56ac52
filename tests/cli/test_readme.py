"""README: its first steps run as written; its environment; its links and those of the documentation."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from ors_clients.client.local_sessions import local

from ors_server.sandboxes import sandboxes_unavailable
from tests.support.paths import ROOT
from tests.support.servers import served

README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Return the URL of `make serve`."""
    with served(tmp_path_factory.mktemp("served"), "echo", "terminal") as address:
        yield address


def first_step(containing: str, url: str, folder: Path) -> list[str]:
    """Run README's shell block with these words in a shell with an active virtual environment. Return its output."""
    (script,) = (block for block in blocks("sh") if containing in block)
    script = script.replace(". .venv/bin/activate", ":").replace("http://127.0.0.1:8080", url)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "-euc", script]
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_an_episode_with_the_openreward_client(url: str, tmp_path: Path) -> None:
    prompt, reward = first_step("from openreward import", url, tmp_path)
    assert "echo" in prompt.lower()
    assert reward == "1.0"


def test_a_look_around_in_a_terminal_task(url: str, tmp_path: Path) -> None:
    if reason := asyncio.run(sandboxes_unavailable()):
        pytest.skip(reason)
    printed = first_step("from ors_clients import", url, tmp_path)
    assert "You have a Linux shell in /home/user" in "\n".join(printed)
    assert any(re.fullmatch(r"drwx.* user user .* \.", line) for line in printed)
    assert printed[-1] == "0.0"


async def test_its_environment_works() -> None:
    (code,) = (block for block in blocks("python") if "class Capitals" in block)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    for answer, reward in {"Paris": 1.0, "Lyon": 0.0}.items():
        async with local(names["Capitals"], split="train", index=0) as session:
            (block,) = await session.prompt()
            assert "capital of France" in getattr(block, "text", "")
            result = await session.call("answer", {"text": answer})
            assert (result.reward, result.finished) == (reward, True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
