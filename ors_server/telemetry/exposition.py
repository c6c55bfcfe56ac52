"""Series as the text that Prometheus reads, in pieces: the event loop answers calls between two of them.

``prometheus_client`` writes the text. It is imported at the first scrape, on a thread: a server that nothing scrapes
does not pay for it.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ors_server.telemetry.counts import Histogram, Sample
from ors_server.telemetry.definitions import METRICS, Metric

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

__all__ = ["CONTENT_TYPE", "expose", "labelled", "merge"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The name of a series at the start of a line, and what follows it.
_SERIES = re.compile(rb"^([A-Za-z_:][\w:]*)([{ ])", re.MULTILINE)
#: Lines that are written between two turns of the event loop, about half a millisecond.
_TURN = 100


class _Piece:
    """A registry of one family, which ``prometheus_client`` writes."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


async def expose(samples: Iterable[Sample], labels: Mapping[str, str], *, process: bool = True) -> bytes:
    """Write series, and by default those of this process; each of them has ``labels`` as well."""
    if "prometheus_client" not in sys.modules:
        await asyncio.to_thread(importlib.import_module, "prometheus_client")  # so that the loop does not wait for it
    import prometheus_client

    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric.name, []).append(sample)
    written: list[bytes] = []
    for name, metric in METRICS.items():
        for position, family in enumerate(_families(metric, by_metric.get(name, ()), labels)):
            text = prometheus_client.generate_latest(_Piece(family))  # pyright: ignore[reportArgumentType] - it only collects
            written.append(text if not position else text.split(b"\n", 2)[2])
            await asyncio.sleep(0)
    for collector in (prometheus_client.PROCESS_COLLECTOR, prometheus_client.GC_COLLECTOR) if process else ():
        for family in collector.collect():
            family.samples = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
            written.append(prometheus_client.generate_latest(_Piece(family)))  # pyright: ignore[reportArgumentType]
    return b"".join(written)


def _families(metric: Metric, samples: Iterable[Sample], labels: Mapping[str, str]) -> Iterator[Family]:
    """Make families of a few series each; together they are the family of one metric."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names, values = [*metric.labels, *labels], list(labels.values())
    kind = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}[metric.kind]
    family, lines = None, 0
    for sample in samples:
        family = family or kind(metric.name, metric.meaning, labels=names)
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(sample.value, Histogram)
            family.add_metric([*sample.labels, *values], *_cumulative(sample.value))
            lines += len(sample.value.buckets)
        else:
            assert not isinstance(sample.value, Histogram)
            family.add_metric([*sample.labels, *values], sample.value)
            lines += 1
        if lines >= _TURN:
            yield family
            family, lines = None, 0
    if family is not None:
        yield family


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets as Prometheus counts them, each with all smaller ones, and the sum."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.buckets, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets, histogram.sum


def labelled(text: bytes, label: str, value: str) -> bytes:
    """Return a text with one more label for each of its series; ``value`` is escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    pair = f'{label}="{escaped}"'.encode()
    return _SERIES.sub(lambda found: b"%b{%b%b" % (found[1], pair, b"," if found[2] == b"{" else b"} "), text)


def merge(texts: Iterable[bytes]) -> bytes:
    """Merge texts of several processes into one, in which each family occurs once."""
    heads: dict[bytes, bytes] = {}
    bodies: dict[bytes, list[bytes]] = {}
    for text in texts:
        for part in (b"\n" + text).split(b"\n# HELP ")[1:]:
            meaning, kind, body = part.split(b"\n", 2)
            name = meaning.partition(b" ")[0]
            heads.setdefault(name, b"# HELP " + meaning + b"\n" + kind + b"\n")
            bodies.setdefault(name, []).append(body if body.endswith(b"\n") or not body else body + b"\n")
    return b"".join(head + b"".join(bodies[name]) for name, head in heads.items())
