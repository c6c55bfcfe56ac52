"""Verdicts as data: what a grader found out test by test, for the store and its readers, and never for a client.

An environment puts one into the metadata of a result, under ``_ors_verdict``::

    {"summary": "1 of 2 tests passes",
     "tests": [{"name": "test_port", "outcome": "failed", "output": "assert 8080 == 80"},
               {"name": "test_user", "outcome": "passed"}],
     "output": "what the grader printed"}

Every member may be left out. The server takes it off the result before that is sent, and keeps it with the record of
the session. Reading is tolerant: what does not fit is left out and the rest stays. Invariant: a verdict that was read
has at most ``MOST_TESTS`` tests and ``_MOST_TEXT`` characters of their outputs; what was left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ors_server.protocol import VERDICT
from ors_server.wire.texts import replace_surrogates, shorten

__all__ = ["MOST_TESTS", "GradedTest", "Verdict", "read_verdict", "split_verdict", "split_verdict_of"]

MOST_TESTS = 500
#: Characters of a name, of an outcome, of the summary, of the output of one test and of the grader, and of all tests.
_NAME, _OUTCOME, _SUMMARY, _OUTPUT, _GRADER, _MOST_TEXT = 200, 20, 500, 4_000, 20_000, 100_000
#: Entries that are looked at: an upload may have any number.
_MOST_READ = 100_000
#: Characters of the line that says what was left out of a text.
_SAYING = 60
_PASSED, _FAILED = "passed", "failed"


@dataclass(frozen=True, slots=True)
class GradedTest:
    """The outcome of one test: ``passed``, ``failed``, ``skipped``, or another word of its grader."""

    name: str
    outcome: str
    output: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict within its bounds. ``left_out`` counts the tests that are not listed, by their outcomes."""

    summary: str = ""
    tests: Sequence[GradedTest] = ()
    output: str = ""
    left_out: Mapping[str, int] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of tests by their outcomes: those that passed first, then those that failed, then others."""
        counted = Counter(self.left_out or {}) + Counter(test.outcome for test in self.tests)
        order = {_PASSED: 0, _FAILED: 1}
        return {name: counted[name] for name in sorted(counted, key=lambda name: (order.get(name, 2), name))}

    def without_texts(self) -> Verdict:
        """Return its numbers alone."""
        return Verdict(left_out=self.counts)

    def as_json(self) -> dict[str, Any]:
        """Return it in the form in which an environment gives it, without empty members."""
        tests = [
            {"name": test.name, "outcome": test.outcome, **({"output": test.output} if test.output else {})}
            for test in self.tests
        ]
        members = {"summary": self.summary, "tests": tests, "output": self.output, "left_out": self.left_out}
        return {name: value for name, value in members.items() if value}


def read_verdict(value: object) -> Verdict | None:
    """Read a verdict; None where no part of a value fits one."""
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    listed = given.get("tests")
    found = [
        test
        for each in (cast("Sequence[Any]", listed)[:_MOST_READ] if isinstance(listed, (list, tuple)) else ())
        if (test := _read_test(each)) is not None
    ]
    kept, left_out = _bounded(found)
    left_out.update(_counts(given.get("left_out")))
    verdict = Verdict(
        _text(given.get("summary"), _SUMMARY), tuple(kept), _text(given.get("output"), _GRADER), dict(left_out) or None
    )
    return verdict if verdict.as_json() else None


def split_verdict(metadata: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, Verdict | None]:
    """Return metadata without a verdict, None for nothing else, and the verdict in them."""
    if not isinstance(metadata, Mapping) or VERDICT not in metadata:
        return metadata, None
    rest = {name: value for name, value in metadata.items() if name != VERDICT}
    return rest or None, read_verdict(metadata[VERDICT])


def split_verdict_of(output: Any) -> tuple[Any, Any]:
    """Return the ``ToolOutput`` of a tool without its verdict, and with it as it is kept; None where it has none.

    ``output`` is of this package or of either SDK, and does not change.
    """
    metadata: Any = output.metadata
    if metadata is None or not isinstance(metadata, Mapping) or VERDICT not in metadata:
        return output, None
    rest, verdict = split_verdict(cast("Mapping[str, Any]", metadata))
    shown = output.model_copy(update={"metadata": rest})
    if verdict is None:
        return shown, None
    return shown, output.model_copy(update={"metadata": {**(rest or {}), VERDICT: verdict.as_json()}})


def _bounded(tests: Sequence[GradedTest]) -> tuple[Sequence[GradedTest], Counter[str]]:
    """Return the tests that are kept, in their order, and count the others; those that passed go first."""
    order = sorted(range(len(tests)), key=lambda place: tests[place].outcome == _PASSED)
    listed = sorted(order[:MOST_TESTS])
    left, kept = _MOST_TEXT, list[GradedTest]()
    for place in listed:
        test = replace(tests[place], output=_within(tests[place].output, max(left, 0)))
        left -= len(test.output)
        kept.append(test)
    return kept, Counter(tests[place].outcome for place in order[MOST_TESTS:])


def _read_test(value: object) -> GradedTest | None:
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    name, outcome = _word(given.get("name"), _NAME), _word(given.get("outcome"), _OUTCOME)
    return GradedTest(name, outcome, _text(given.get("output"), _OUTPUT)) if name and outcome else None


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    found = list(cast("Mapping[Any, Any]", value).items())[:20]
    return {
        _word(name, _OUTCOME): count
        for name, count in found
        if isinstance(name, str) and name and type(count) is int and 0 < count < 2**53
    }


def _word(value: object, most: int) -> str:
    return replace_surrogates(value[:most]) if isinstance(value, str) else ""


def _text(value: object, most: int) -> str:
    return replace_surrogates(_within(value, most)) if isinstance(value, str) else ""


def _within(text: str, most: int) -> str:
    """Return a text of at most so many characters; a line in its middle says what was left out."""
    if len(text) <= most:
        return text
    return shorten(text, most - _SAYING) if most > _SAYING else ""
