"""The check of a server: each rule once, within a time limit, with the reason of each one that was not tried."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ors_clients.conformance.rule import Broken, NotTried, Outcome, Result, Rule, Severity, Warned, plain
from ors_clients.conformance.subject import Subject
from ors_clients.errors import ConfigurationError

__all__ = ["Report", "check", "chosen"]

#: Seconds that one rule may take beside the time limit of its requests.
_RULE_LIMIT = 120.0


@dataclass
class Report:
    """The results of one check."""

    target: str
    environment: str
    #: Why no rule could be tried, or why the check ended early; empty where it ran to its end.
    problem: str = ""
    results: list[Result] = field(default_factory=list[Result])

    @property
    def failed(self) -> bool:
        """True where the server does not conform: a required rule is broken, or the check itself could not run."""
        return bool(self.problem) or any(
            result.outcome is Outcome.ERROR
            or (result.outcome is Outcome.FAILED and result.rule.severity is Severity.REQUIRED)
            for result in self.results
        )

    @property
    def failed_strictly(self) -> bool:
        """True where it failed, a recommended rule is broken, or a warning came."""
        return self.failed or any(
            result.outcome is Outcome.WARNED
            or (result.outcome is Outcome.FAILED and result.rule.severity is Severity.RECOMMENDED)
            for result in self.results
        )


def chosen(rules: Sequence[Rule], only: Sequence[str], skip: Sequence[str]) -> list[Rule]:
    """Return the rules of these ids, or below them (``call`` for ``call.events``). Raises ``ConfigurationError``."""
    ids = [rule.id for rule in rules]
    groups = {rule.group for rule in rules}
    for name in (*only, *skip):
        if name not in ids and name not in groups:
            near = difflib.get_close_matches(name, [*ids, *groups], n=1)
            raise ConfigurationError(
                f"There is no rule {plain(name, 60)}",
                (f"Did you mean {near[0]}? " if near else "") + "`ors-server check --list` shows all of them.",
            )

    def named(rule: Rule, names: Sequence[str]) -> bool:
        return rule.id in names or rule.group in names

    return [rule for rule in rules if (not only or named(rule, only)) and not named(rule, skip)]


async def check(
    subject: Subject,
    rules: Sequence[Rule],
    *,
    target: str,
    time_limit: float,
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Try each rule once. Rules that are left when ``time_limit`` (seconds) is over are not tried."""
    report = Report(target, "")
    deadline = time.monotonic() + time_limit
    report.problem = await subject.discover()
    if report.problem:
        return report
    try:
        report.environment = subject.environment
    except NotTried:
        report.environment = ""
    for rule in rules:
        left = deadline - time.monotonic()
        if left <= 0:
            report.problem = f"the time limit of {time_limit:g} s was over; --time-limit raises it"
            result = Result(rule, Outcome.NOT_TRIED, "the time was over", 0.0)
        else:
            result = await _try(subject, rule, min(left, _RULE_LIMIT))
        report.results.append(result)
        if on_result is not None:
            on_result(result)
    await subject.close()
    return report


async def _try(subject: Subject, rule: Rule, limit: float) -> Result:
    start = time.monotonic()
    try:
        subject.check_needs(rule)
        async with asyncio.timeout(limit):
            outcome, came = Outcome.PASSED, await rule.run(subject)
    except Broken as broken:
        outcome, came = Outcome.FAILED, str(broken)
    except Warned as warned:
        outcome, came = Outcome.WARNED, str(warned)
    except NotTried as reason:
        outcome, came = Outcome.NOT_TRIED, str(reason)
    except TimeoutError:
        outcome, came = Outcome.FAILED, f"not done within {limit:.0f} s"
    except Exception as error:  # noqa: BLE001 - a server may send what a rule did not expect; the other rules go on
        outcome, came = Outcome.ERROR, f"the check failed: {type(error).__name__}: {error}"
    return Result(rule, outcome, plain(came), time.monotonic() - start)
