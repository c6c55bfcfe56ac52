"""The progress of a rollout benchmark on the console."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import TextColumn
from rich.text import Text

from ors_benchmarks.harness.reports.table import shown
from ors_benchmarks.harness.runs import new_bar
from ors_benchmarks.rollout.benchmark import CellPlan, Watcher
from ors_benchmarks.rollout.figures import Figures
from ors_benchmarks.rollout.recording import EpisodeRecord
from ors_benchmarks.rollout.servers import CLIENTS

__all__ = ["EVERY", "Progress"]

#: Seconds between two lines about a run, where no bar can be drawn.
EVERY = 10.0


class Progress(Watcher):
    """A bar, and a line for each run. Drawn at most once a second: drawing costs the client's core.

    In a pipe or a file, where no bar is drawn, lines say what begins, and every ten seconds how far it is.
    """

    def __init__(self, console: Console) -> None:
        self.bar = new_bar(console, TextColumn("{task.fields[failed]}"))
        self._console = console
        self._task = self.bar.add_task("starting", total=None, failed="")
        self._what = ""
        self._episodes = self._ended = self._failed = 0
        self._drawn = 0.0
        self._began = time.monotonic()

    def begin(self, what: str, episodes: int) -> None:
        """Start the bar of a run."""
        self._what, self._episodes, self._ended, self._failed = what, episodes, 0, 0
        self._drawn = time.monotonic()
        if not self._console.is_terminal:
            self._say(what)
            return
        self.bar.reset(self._task, description=what, total=episodes or None, failed="")
        self.bar.refresh()

    def episode(self, record: EpisodeRecord) -> None:
        """Advance the bar by an episode."""
        self._ended += 1
        self._failed += record.failure is not None
        failed = f"{self._failed} failed" if self._failed else ""
        pause = 1.0 if self._console.is_terminal else EVERY
        due = time.monotonic() - self._drawn >= pause
        if due:
            self._drawn = time.monotonic()
        if self._console.is_terminal:
            self.bar.update(self._task, advance=1, failed=failed)
            if due:
                self.bar.refresh()
        elif due:
            self._say(", ".join(filter(None, [f"{self._what}: {self._ended} of {self._episodes} episodes", failed])))

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def end(self, cell: CellPlan | None, figures: Figures, problem: str | None) -> None:
        """Print a line about a run."""
        name = (
            "warm-up"
            if cell is None
            else f"{CLIENTS[cell.client]} → {cell.server.title}, {cell.workload.concurrency} at once"
        )
        parts: list[str] = []
        if "ratio" in figures:
            parts.append(f"ratio {figures['ratio']:.3f}")
        if "generated_per_second" in figures:
            parts.append(f"{shown(figures['generated_per_second'])} tokens/s")
            parts.append(f"{shown(figures['episodes_per_second'])} episodes/s")
        if problem is not None:
            parts.append(f"[red]{problem}[/red]")
        seconds = time.monotonic() - self._began
        self._began = time.monotonic()
        self._console.print(f"{name}: {', '.join(parts) or 'done'} [dim]({seconds:.0f} s)[/dim]", soft_wrap=True)
