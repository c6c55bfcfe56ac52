"""The table of ``docs/metrics.md``, made from the definitions; run as a program it writes it there."""

import re

from ors_server.telemetry.definitions import METRICS
from tests.support.paths import DOCS

__all__ = ["PAGE", "table", "with_table"]

PAGE = DOCS / "metrics.md"
_MARK = "<!-- kept by tests/server/metrics/table.py -->\n"


def table() -> str:
    """Return the rows of all metrics, as Markdown."""
    rows = [
        f"| `{metric.exposed_name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {metric.meaning} |\n"
        for metric in METRICS.values()
    ]
    return "".join(["| metric | kind | labels | meaning |\n", "|---|---|---|---|\n", *rows])


def with_table(page: str) -> str:
    """Return a page with the table after its mark."""
    return re.sub(rf"{re.escape(_MARK)}\n(\|[^\n]*\n)*\n?", lambda _: f"{_MARK}\n{table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
