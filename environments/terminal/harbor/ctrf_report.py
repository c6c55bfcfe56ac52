"""The verifier's report of its tests, ``ctrf.json`` (Common Test Report Format), as pytest writes it for Harbor.

It explains a reward and decides none: what cannot be read has no tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ors_server import JSONObject

__all__ = ["REPORT_FILE", "reported_tests"]

REPORT_FILE = "ctrf.json"
_MOST = 5_000
#: Outcomes of tests by the words of the format that are others.
_OTHER = {"pending": "skipped", "other": "failed"}


def reported_tests(report: bytes) -> Sequence[JSONObject]:
    """Return the tests of a report as a verdict has them (docs/environments.md)."""
    try:
        listed: list[Any] = json.loads(report)["results"]["tests"] if report else []
        return [_test(cast("Mapping[str, Any]", test)) for test in listed[:_MOST] if isinstance(test, dict)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _test(test: Mapping[str, Any]) -> JSONObject:
    status = test.get("status")
    words = [said for name in ("message", "trace") if isinstance(said := test.get(name), str)]
    outcome = _OTHER.get(status, status) if isinstance(status, str) else None
    return {"name": test.get("name"), "outcome": outcome, "output": "\n".join(words)}
