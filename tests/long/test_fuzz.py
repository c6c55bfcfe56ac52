"""Hundreds of generated requests for every operation of the OpenAPI document, and longer runs of the model of sessions.

`ORS_FUZZ_EXAMPLES` is the number of requests for each operation and of the model's runs.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import run_state_machine_as_test  # pyright: ignore[reportUnknownVariableType]

from tests.server.robustness.machine import SessionMachine
from tests.server.robustness.machine_behind_gateways import GatewayMachine, server_behind_gateways
from tests.support.servers import Running, launched

schemathesis: Any = pytest.importorskip("schemathesis")
pytestmark = pytest.mark.long

EXAMPLES = int(os.environ.get("ORS_FUZZ_EXAMPLES", "30"))
#: Seconds after which a request counts as hung.
PATIENCE = 10.0

KEY = "key-of-these-tests"

#: Log lines of the server's own faults.
FAULTS = re.compile(r".*(?:request failed|housekeeping failed|Exception in|never retrieved|ending a session failed).*")

#: Every path of the document; a test below checks that none is missing.
OPERATIONS = [
    "GET /v1/environments/{owner}/{name}",
    *(
        f"GET /v1/environments/{{owner}}/{{name}}/{rest}"
        for rest in ("variants", "required-secrets", "task-difficulty")
    ),
    *("GET /v1/environments", "GET /v1/namespace/current"),
    "POST /v1/rollouts",
    *("POST /v1/files/upload-urls", "GET /v1/files/{environment}", "DELETE /v1/files/{environment}/folder/{name}"),
    *(f"{method} /v1/files/{{environment}}/{{name}}" for method in ("PUT", "DELETE")),
    *(f"GET /v1/runs{rest}" for rest in ("", "/{run}", "/{run}/rollouts")),
    *(f"GET /{name}" for name in ("health", "ready", "version", "list_environments", "metrics")),
    *(f"POST /{name}" for name in ("create_session", "create", "delete", "delete_session", "ping")),
    *(f"POST /{name}" for name in ("create_sandbox", "run", "stat_file", "read_file", "write_file", "set_network")),
    *(
        f"{method} {prefix}/{name}"
        for prefix in ("", "/{env_name}")
        for method, names in {
            "GET": ("tools", "splits", "prompt", "messages", "task_tools"),
            "POST": ("tasks", "num_tasks", "task", "get_task", "task_range", "get_task_range", "call", "score_group"),
        }.items()
        for name in names
    ),
]


#: No request for these can be invalid.
ALWAYS_RIGHT = [
    *(f"GET /{name}" for name in ("health", "ready", "version", "list_environments", "tools", "splits")),
    *(f"GET /v1/environments/{{owner}}/{{name}}{rest}" for rest in ("", "/variants", "/required-secrets")),
    *("GET /{env_name}/tools", "GET /{env_name}/splits", "POST /create_session", "GET /v1/runs/{run}", "GET /metrics"),
    *(f"{method} /v1/files/{{environment}}/{{name}}" for method in ("PUT", "DELETE")),
    "DELETE /v1/files/{environment}/folder/{name}",
]
PLAYS = [
    (operation, mode)
    for operation in OPERATIONS
    for mode in ("positive", "negative")
    if mode == "positive" or operation not in ALWAYS_RIGHT
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    folder = tmp_path_factory.mktemp("fuzz")
    variables = {"ORS_DATA_DIR": str(folder / "data"), "ORS_SANDBOX_SERVICE": "yes"}
    with launched("server.robustness.counting_server", folder, variables=variables) as running:
        yield running
        assert not FAULTS.findall(running.log.read_text())


@pytest.fixture(scope="module")
def document(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.fixture(scope="module")
def operations(document: Any) -> dict[str, Any]:
    found = [result.ok() for result in document.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


def test_every_operation_is_played(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.parametrize(("operation", "mode"), PLAYS)
def test_every_request_is_answered_as_documented(
    server: Running, operations: dict[str, Any], operation: str, mode: str
) -> None:
    """For requests that fit the document and for others: no 500, no hang, no undocumented response."""
    checks: Any = __import__("schemathesis.checks", fromlist=["checks"])
    specific: Any = __import__("schemathesis.specs.openapi.checks", fromlist=["checks"])
    wanted = [
        checks.not_a_server_error,
        specific.status_code_conformance,
        specific.content_type_conformance,
        specific.response_schema_conformance,
        specific.response_headers_conformance,
    ]
    sids = [str(uuid.uuid4()), str(uuid.uuid4())]
    _create(server, sids[0])
    played = operations[operation]
    strategy = played.as_strategy(schemathesis.GenerationMode(mode))
    number = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HEALTH))
    @given(case=strategy)
    def play(case: Any) -> None:
        nonlocal number
        number += 1
        if case.headers is not None and number % 4:  # a live session, an unknown session, and generated ids
            case.headers["X-Session-ID"] = sids[number % 2]
        response = case.call(timeout=PATIENCE)
        case.validate_response(response, checks=wanted)
        if operation.endswith("/delete"):
            _create(server, sids[0])

    play()
    assert httpx.get(f"{server.url}/health", trust_env=False).json() == {"status": "ok"}


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    folder = tmp_path_factory.mktemp("keyed")
    variables = {"ORS_DATA_DIR": str(folder / "data"), "ORS_SANDBOX_SERVICE": "yes", "ORS_SERVER_KEY": KEY}
    with launched("server.robustness.counting_server", folder, variables=variables) as running:
        yield running
        assert not FAULTS.findall(running.log.read_text())


@pytest.fixture(scope="module")
def keyed_operations(keyed_server: Running) -> dict[str, Any]:
    found = schemathesis.openapi.from_url(f"{keyed_server.url}/openapi.json", headers={"X-API-Key": KEY})
    operations = [result.ok() for result in found.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in operations}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_request_without_the_key_learns_nothing(
    keyed_server: Running, keyed_operations: dict[str, Any], operation: str
) -> None:
    """With the right key, without one and with a wrong one: each answer is documented, and only one is the server's."""
    checks: Any = __import__("schemathesis.checks", fromlist=["checks"])
    specific: Any = __import__("schemathesis.specs.openapi.checks", fromlist=["checks"])
    wanted = [checks.not_a_server_error, specific.status_code_conformance, specific.content_type_conformance]
    number = 0

    @settings(max_examples=9, deadline=None, database=None, suppress_health_check=list(HEALTH))
    @given(case=keyed_operations[operation].as_strategy(schemathesis.GenerationMode.POSITIVE))
    def play(case: Any) -> None:
        nonlocal number
        number += 1
        sent: list[dict[str, str]] = [
            {"X-API-Key": KEY},
            {},
            {"X-API-Key": "a wrong one"},
            {"Authorization": "Bearer a-wrong-one"},
        ]
        headers = sent[number % len(sent)]
        response = case.call(timeout=PATIENCE, headers=headers)
        case.validate_response(response, checks=wanted)
        let_in = operation in ("GET /health", "GET /ready", "GET /version") or headers == sent[0]
        assert (response.status_code in (401, 429)) is not let_in

    # The first is let in, so that the address of these tests has sent a right key before the wrong ones.
    assert httpx.get(f"{keyed_server.url}/tools", headers={"X-API-Key": KEY}, trust_env=False).status_code == 200
    play()


HEALTH = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example)


def _create(server: Running, sid: str) -> None:
    headers = {"X-Session-ID": sid}
    created = httpx.post(f"{server.url}/create", json={"split": "train", "index": 0}, headers=headers, trust_env=False)
    assert created.status_code == 200, created.text


def test_sessions_and_calls_do_what_the_model_says_for_long() -> None:
    run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


def test_two_workers_behind_two_gateways_do_what_the_model_says_for_long(tmp_path: Path) -> None:
    with server_behind_gateways(tmp_path):
        run_state_machine_as_test(
            GatewayMachine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
