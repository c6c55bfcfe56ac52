"""Sessions and the ledger of calls against a model; `tests/long/test_fuzz.py` runs longer."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test  # pyright: ignore[reportUnknownVariableType]

from tests.server.robustness.machine import SessionMachine
from tests.server.robustness.machine_behind_gateways import GatewayMachine, server_behind_gateways


def test_sessions_and_calls_do_what_the_model_says() -> None:
    run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )


def test_two_workers_behind_two_gateways_do_what_the_model_says(tmp_path: Path) -> None:
    with server_behind_gateways(tmp_path):
        run_state_machine_as_test(
            GatewayMachine,
            settings=settings(
                max_examples=3, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
            ),
        )
