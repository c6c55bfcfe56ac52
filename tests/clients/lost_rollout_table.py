"""The table "what does one lost rollout do to the batch" of docs/trainers.md: what the tests observe, written down.

``ROWS`` says what is expected of each trainer with each filter. The tests of the gate observe it with the stand-ins and
the installed packages, the long tests with the trainers' own code. ``render`` makes the text of the page of it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["BEGIN", "END", "ROWS", "Outcome", "Row", "expected", "render"]

#: ``redrawn``: the group is not trained on, and another is drawn. ``again``, ``retried``: the group, or the rollout and
#: then its group, is played again. ``masked``, ``left out``: the group is trained on without the lost rollout.
#: ``refused``: the run ends before it trains. ``uncounted``: it is in no number.
Outcome = Literal["redrawn", "again", "retried", "masked", "left out", "refused", "uncounted"]

BEGIN, END = "<!-- kept by tests/clients/lost_rollout_table.py -->", "<!-- end -->"

_TEXTS: dict[Outcome, str] = {
    "redrawn": "its group is dropped and another one drawn",
    "again": "its group is generated again",
    "masked": "it has a mask of zeros, and its siblings the advantages that they have without it",
    "retried": "it is played again (`attempts`); then its group is dropped, and its task put back three times",
    "left out": "its reward is None: it is in no baseline, its advantage is 0. TRL divides the loss by its tokens, too",
    "refused": "the run ends with a sentence that names the option",
    "uncounted": "it is in no mean and no share, and counted apart",
}


class Row(NamedTuple):
    """A trainer, what filters its groups, and what becomes of a lost rollout."""

    trainer: str
    filter: str
    outcome: Outcome


#: The filters that the trainers ship.
_UPSTREAM: dict[str, dict[str, Outcome]] = {
    "slime": {"check_reward_nonzero_std": "masked", "check_reward_nonzero_std_with_fallback": "masked"},
    "Miles": {"check_reward_nonzero_std": "masked", "check_no_aborted": "redrawn"},
}
OURS = "`keep_group`, alone or with a `group_filter`"
ROWS: list[Row] = [
    *(
        row
        for trainer, upstream in _UPSTREAM.items()
        for row in (
            Row(trainer, OURS, "redrawn"),
            *(
                Row(trainer, f"`{name}` in its place, with `post_process_rewards`", outcome)
                for name, outcome in upstream.items()
            ),
            Row(trainer, "a filter of the user's own in its place, with `post_process_rewards`", "masked"),
            Row(trainer, "none, with `post_process_rewards`", "masked"),
            Row(trainer, "neither of the two functions", "refused"),
            Row(trainer, "none or another, with `reinforce_plus_plus`", "refused"),
        )
    ),
    Row("ROLL", "`LostGroupFilter`", "redrawn"),
    Row("ROLL", "ROLL's own `GroupFilter`", "refused"),
    Row("Atropos", "the adapter's own", "retried"),
    Row("TRL", "`environment_reward`", "left out"),
    Row("`ors-server eval`", "none", "uncounted"),
    Row("slime, fully asynchronous", "none (it calls none)", "again"),
    Row("Miles, fully asynchronous", "whichever", "again"),
]


def expected(trainer: str, filter: str) -> Outcome:
    """Return what ``ROWS`` says of a trainer and a filter."""
    (row,) = [row for row in ROWS if (row.trainer, row.filter) == (trainer, filter)]
    return row.outcome


def render() -> str:
    """Return the table in Markdown, between its marks."""
    lines = ["| trainer | filter of groups | what a lost rollout does |", "|---|---|---|"]
    lines += [f"| {row.trainer} | {row.filter} | {_TEXTS[row.outcome]} |" for row in ROWS]
    return "\n".join([BEGIN, "", *lines, "", END])
