"""Each rule of the conformance check passes on our server, and fails on a server that breaks this rule alone."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from ors_clients.conformance.check import check
from ors_clients.conformance.probe import probe_environments
from ors_clients.conformance.rule import Outcome, Result
from ors_clients.conformance.rules import RULES as ALL_RULES
from ors_clients.conformance.rules import SERVER_RULES
from ors_clients.conformance.rules import calls as rules_calls
from ors_clients.conformance.rules import limits as rules_limits
from ors_clients.conformance.rules import sessions as rules_sessions
from ors_clients.conformance.subject import Options, Subject
from ors_clients.conformance.wire import Wire
from ors_clients.errors import ConfigurationError

import ors_server
from ors_server import Server, Settings
from tests.clients.conformance.faults import FAULTS, FURTHER_FAULTS, Fault, broken
from tests.clients.conformance.in_process import App, AsgiStreams
from tests.support.environments import Echo
from tests.support.paths import DOCS

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = {rule.id: rule for rule in SERVER_RULES}
#: Rules of what is below ASGI: on an application without its server they fail, and with it they pass.
BELOW_ASGI = {"limits.head"}


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    for name, value in (("_SLOW", 0.4), ("_SOON", 0.25), ("_QUIET", 0.5), ("_SILENCE", 0.3), ("_BETWEEN", 0.01)):
        monkeypatch.setattr(rules_calls, name, value)
    monkeypatch.setattr(rules_sessions, "_TRIES", 3)
    monkeypatch.setattr(rules_limits, "_BODY", 17 * 1024 * 1024)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[App]:
    """Serve the probe in this process, for all tests of the module."""
    folder = tmp_path_factory.mktemp("probe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORS_PROBE_DIR", str(folder))
        settings = Settings(heartbeat=0.1, stream_after=0.02, data_dir=folder / "data")
        server = Server(probe_environments(ors_server), settings=settings)
        yield server.app
        await server.sessions.close()


async def tried(app: App, *ids: str, timeout: float = 5.0) -> dict[str, Result]:
    wire = Wire("http://server", transport=AsgiStreams(app), timeout=timeout)
    try:
        subject = Subject(wire, Options(slow=True))
        report = await check(subject, [RULES[id] for id in ids or RULES], target="server", time_limit=120)
    finally:
        await wire.close()
    assert report.problem == ""
    return {result.rule.id: result for result in report.results}


async def test_each_rule_has_a_faulty_server() -> None:
    assert set(FAULTS) | BELOW_ASGI == set(RULES)
    assert len({rule.id for rule in ALL_RULES}) == len(ALL_RULES)


async def test_our_server_passes(app: App) -> None:
    results = await tried(app)
    assert {id: result.came for id, result in results.items() if result.outcome is not Outcome.PASSED} == {
        "limits.head": results["limits.head"].came
    }


@pytest.mark.parametrize(("id", "fault"), FAULTS.items(), ids=list(FAULTS))
async def test_a_rule_fails_where_it_is_broken(id: str, fault: Fault, app: App) -> None:
    result = (await tried(broken(app, fault), id, timeout=0.5 if id == "call.cancelled" else 5.0))[id]
    assert result.outcome is Outcome.FAILED, result.came
    assert result.came


@pytest.mark.parametrize(("id", "fault"), FURTHER_FAULTS.values(), ids=list(FURTHER_FAULTS))
async def test_a_rule_fails_on_its_further_faults(id: str, fault: Fault, app: App) -> None:
    assert (await tried(broken(app, fault), id))[id].outcome is Outcome.FAILED


async def test_an_environment_that_is_not_listed_is_a_mistake_of_the_caller(app: App) -> None:
    wire = Wire("http://server", transport=AsgiStreams(app), timeout=5.0)
    with pytest.raises(ConfigurationError, match=r"no environment probe.*orsprobe, orsprobederived"):
        await Subject(wire, Options("probe")).discover()
    await wire.close()


async def test_a_second_environment_is_told_from_the_default_without_the_second_probe() -> None:
    probe, _ = probe_environments(ors_server)
    server = Server([Echo, probe])
    assert (await tried(server.app, "discovery.deployment"))["discovery.deployment"].outcome is Outcome.PASSED
    await server.sessions.close()


async def test_the_documentation_has_the_rules() -> None:
    rows = [line for line in (DOCS / "checking.md").read_text("utf-8").splitlines() if re.match(r"\| `\w+\.", line)]
    assert rows == [
        f"| `{rule.id}` | {rule.severity} | {rule.tried} | {rule.expected} | {rule.why} |" for rule in ALL_RULES
    ]
