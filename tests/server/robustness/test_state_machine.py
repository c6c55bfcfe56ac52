"""Sessions and the ledger of calls against a model; `tests/long/test_fuzz.py` runs longer, and beside gateways."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test  # pyright: ignore[reportUnknownVariableType]

from tests.server.robustness.machine import SessionMachine


def test_sessions_and_calls_do_what_the_model_says() -> None:
    run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
