"""Selection of the requests that count in a measured interval."""

from __future__ import annotations

import pytest
from ors_benchmarks.harness.checks import Refused, WrongAnswer
from ors_benchmarks.harness.http11 import Response
from ors_benchmarks.harness.reports.latencies import Meter, percentile


def answered(started: float, seconds: float) -> Response:
    return Response(200, b"", started, seconds)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.01, 1.0), (0.5, 50.0), (0.501, 51.0), (0.99, 99.0), (1.0, 100.0)]
)
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_a_single_value_is_every_percentile() -> None:
    assert {percentile([3.0], share) for share in (0.0, 0.5, 1.0)} == {3.0}


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_requests_under_way_in_the_window_count_for_latency_and_answers_within_it_for_the_rate() -> None:
    meter = Meter()
    meter.answered("call", answered(0.0, 0.5))
    meter.between(10.0)
    meter.answered("call", answered(9.0, 0.5))  # ended before the interval
    meter.answered("call", answered(9.5, 1.0))  # began before the interval
    meter.answered("call", answered(11.0, 1.0))
    meter.between(10.0, 20.0)
    meter.answered("call", answered(19.0, 5.0))  # the response came after the interval
    meter.answered("call", answered(20.0, 1.0))  # began after the interval
    assert meter.latencies["call"] == [1.0, 1.0, 5.0]
    assert meter.completed["call"] == 2
    assert meter.percentile("call", 0.99) == 5.0


def test_failures_are_counted_whenever_they_happen() -> None:
    meter = Meter()
    meter.failed("call", WrongAnswer("another text"))
    meter.between(10.0)
    meter.failed("call", WrongAnswer("another text"))
    meter.failed("create", Refused("status 500"))
    assert meter.failures == {"call: another text": 2, "create: status 500": 1}
    assert meter.wrong == 2
