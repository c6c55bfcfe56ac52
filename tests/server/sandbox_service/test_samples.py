"""The documentation's samples with sandboxes: complete, accepted by the server, and right when `open` fails."""

import re
from pathlib import Path
from typing import Any

import pytest
from ors_containers import Image, Limits, Sandbox

from ors_server import Environment, Server, Settings
from tests.server.sandbox_service.fake import FakeRuntime
from tests.support.environments import Bare
from tests.support.http_client import Client
from tests.support.paths import DOCS

PAGES = ["environments.md"]


class Service:
    """The part of the sandbox service that the samples use."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()

    async def open(self, image: Image, limits: Limits) -> Sandbox:
        """Return a started sandbox that runs nothing."""
        sandbox = self.runtime.sandbox(image, limits)
        await sandbox.start()
        return sandbox


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()

    async def sandbox_service() -> Service:
        return made

    async def sandboxes_unavailable() -> str:
        return ""

    monkeypatch.setattr("ors_server.sandboxes.sandbox_service", sandbox_service)
    monkeypatch.setattr("ors_server.sandboxes.sandboxes_unavailable", sandboxes_unavailable)
    return made


def environment(page: str) -> type[Environment]:
    """Return the page's sample, completed by splits, tasks and a prompt."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (sample,) = (block for block in blocks if "sandbox_service()" in block and "class " in block)
    names: dict[str, Any] = {"__name__": f"sample_of_{Path(page).stem}"}
    exec(compile(sample, page, "exec"), names)
    found: Any
    (found,) = (
        value
        for value in names.values()
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    )

    return type("Whole", (found, Bare), {})


@pytest.mark.parametrize("page", PAGES)
async def test_an_episode(page: str, service: Service) -> None:
    server = Server([environment(page)])
    client = Client(server.app)
    sid = await client.open()
    assert (await client.call(sid, "bash", {"command": "ls"})).text == ""
    assert len(service.runtime.running) == 1
    await client.close()
    await server.sessions.close()
    assert service.runtime.running == []


@pytest.mark.parametrize("page", PAGES)
async def test_no_sandbox(page: str, service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.runtime.broken = True
    server = Server([environment(page)], settings=Settings(setup_timeout=5))
    client = Client(server.app)
    await client.create("s")
    assert "no such luck" in (await client.get("/prompt", "s")).text
    await client.close()
    await server.sessions.close()
    assert "teardown failed" not in caplog.text


async def test_a_file_that_the_agent_names_and_that_is_not_there_does_not_end_the_rollout(service: Service) -> None:
    server = Server([environment("environments.md")])
    client = Client(server.app)
    sid = await client.open()
    answer = await client.call(sid, "read", {"path": "/no/such"})
    assert "/no/such" in answer.text
    assert (await client.call(sid, "bash", {"command": "ls"})).text == ""
    await client.close()
    await server.sessions.close()
    assert service.runtime.running == []
