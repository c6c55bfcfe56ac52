"""Pages of the runs: their list, one run as its report, and two runs beside each other.

Invariants: a page shows what the visitor's key made; queries run on threads; a list costs the same wherever it lies.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ors_server.pages.context import RolloutContext, ServerContext, ViewRoute
from ors_server.pages.curves import Curve, Point, TaskBars
from ors_server.pages.responses import Rendering
from ors_server.pages.views.stored import ROWS, checked, chosen, next_page, owner_of, read_store, value_of
from ors_server.rollouts.aggregates.derived_columns import merged
from ors_server.rollouts.reports.comparison import compare_scores, differing_settings
from ors_server.rollouts.reports.formats import EVALUATION, TRAINING, StoredReport
from ors_server.rollouts.reports.sections import (
    Section,
    comparison_section,
    report_sections,
    score_rows,
    set_ones,
    verdict_lines,
)
from ors_server.rollouts.reports.task_scores import LARGEST_REWARD, TaskScore
from ors_server.rollouts.reports.training_sections import (
    training_headline,
    training_kinds,
    training_sections,
    training_settings,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ors_server.rollouts.queries.reports import Figures
    from ors_server.rollouts.queries.runs import RunSummary

__all__ = ["RunViews"]

#: Tasks that the page of two runs lists, those first that differ most.
_DIFFERING = 50
#: Runs that a part of their names may mean, and that are named.
_SUGGESTED = 8
_NO_STORE = "No rollout was stored yet."


class RunViews:
    """The pages of runs."""

    def __init__(self, context: ServerContext | RolloutContext, responses: Rendering) -> None:
        self._context = context
        self._responses = responses
        self.routes: list[ViewRoute] = [
            ("GET", "/ui/runs", self.runs),
            ("GET", "/ui/run", self.run),
            ("GET", "/ui/compare", self.compare),
        ]

    async def runs(self, request: Request) -> Response:
        """List the runs."""
        from ors_server.rollouts.queries.runs import list_runs

        search, after = value_of(request, "search"), value_of(request, "after")
        wanted: Any = {"search": search, "owner": owner_of(request), "after": after or None, "limit": ROWS}
        page = await read_store(self._context.store, lambda connection: list_runs(connection, **wanted))
        context = {
            "runs": [] if page is None else page.rows,
            "next": next_page(request, page),
            "search": search,
            "first": not after,
        }
        return await self._responses.render(request, "runs.html", context)

    async def run(self, request: Request) -> Response:
        """Show a run: its report, its rewards, and its tasks."""
        from ors_server.rollouts.queries.runs import find_run
        from ors_server.rollouts.queries.tasks import ORDERS, PASSING, TaskFilter, list_tasks

        run, after, owner = value_of(request, "run"), value_of(request, "after"), owner_of(request)
        order = chosen(request, "order", ORDERS) or "lowest"
        passing, lost = chosen(request, "passing", PASSING), chosen(request, "lost", ("1",))
        wanted = TaskFilter(value_of(request, "task"), passing, lost=bool(lost))

        def read(connection: Connection) -> dict[str, Any]:
            found = find_run(connection, run, owner=owner)
            tasks = list_tasks(connection, found, wanted, order=order, owner=owner, after=after or None, limit=ROWS)
            shown = {"run": found, "tasks": tasks.rows, "next": next_page(request, tasks)}
            return {**shown, "report": None} if after else {**shown, **_report(connection, found, owner)}

        shown = await read_store(self._context.store, read)
        if shown is None:
            raise HTTPException(404, _NO_STORE)
        fields = {"wanted": wanted, "order": order, "orders": ORDERS, "passings": PASSING, "first": not after}
        return await self._responses.render(request, "run.html", {**shown, **fields})

    async def compare(self, request: Request) -> Response:
        """Show how one run differs from another, over the tasks that both have."""
        named = [checked(name) for name in request.query_params.getlist("run") if name]
        if len(named) != 2:
            raise HTTPException(400, "Two runs are compared. Choose two in the list of runs.")
        owner = owner_of(request)
        shown = await read_store(self._context.store, lambda connection: _comparison(connection, named, owner))
        if shown is None:
            raise HTTPException(404, _NO_STORE)
        return await self._responses.render(request, "compare.html", shown)


# --- the report of a run -------------------------------------------------------------------------


def _report(connection: Connection, run: RunSummary, owner: str | None) -> dict[str, Any]:
    from ors_server.rollouts.queries.curve import reward_curve
    from ors_server.rollouts.queries.reports import figures_of, find_report

    report = find_report(connection, run.id, owner=owner)
    figures = figures_of(connection, run, owner=owner)
    curve = reward_curve(connection, run.id, owner=owner, rule=run.rule)
    points = [
        Point(float(each.step), each.mean_reward, each.num_passed / each.num_rewarded, each.num_rewarded)
        for each in curve
    ]
    rates = [] if curve or figures is None else [score.rate for score in figures.scores.values()]
    info = _info(connection, run, owner)
    content = {} if report is None or report.content is None else report.content
    trained = content if report is not None and report.kind == TRAINING else {}
    sections = (
        _sections(report.kind, content)
        if report is not None and content
        else _own(connection, run, owner, figures, info)
    )
    return {
        "report": {
            "model": _model(report, content, info),
            "verdict": training_headline(trained) if trained else "",
            "kinds": training_kinds(trained) if trained else None,
            "stored": _stored(connection, {name for each in sections for name in each.runs.values()}, owner),
            "training": _training_of(connection, run, content, owner) if content and not trained else None,
            "problems": [*_problems(report, content), *_notices(run, report, content, info)],
            "sections": sections,
            "unreadable": None if report is None or content else report,
        },
        "curve": Curve(points, "step"),
        "bars": TaskBars(rates),
    }


def _sections(kind: str, content: Mapping[str, Any]) -> list[Section]:
    if kind == TRAINING:
        return training_sections(content)
    settings, *others = report_sections(content)
    return [*others, settings]


def _stored(connection: Connection, names: set[str], owner: str | None) -> dict[str, str]:
    """Return the ids of those runs that the store has, by their names."""
    from ors_server.rollouts.errors import UnknownRun
    from ors_server.rollouts.queries.runs import resolve_run

    found: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(UnknownRun):
            found[name] = resolve_run(connection, name, owner)
    return found


def _training_of(
    connection: Connection, run: RunSummary, content: Mapping[str, Any], owner: str | None
) -> Mapping[str, str] | None:
    """Return name and id of the training whose report names this evaluation, as its model does; None for none."""
    from ors_server.rollouts.queries.reports import find_report

    name = str(content["settings"]["model"]).rpartition("/")[0]
    found = _stored(connection, {name}, owner).get(name) if name else None
    report = None if found is None else find_report(connection, found, owner=owner)
    if report is None or report.kind != TRAINING or report.content is None:
        return None
    evaluations = {rates["id"] for rates in report.content["pass_rates"].values()}
    return {"name": name, "id": str(found)} if run.name in evaluations else None


def _own(
    connection: Connection, run: RunSummary, owner: str | None, figures: Figures | None, info: Mapping[str, Any]
) -> list[Section]:
    """Return the sections of a run without a report, made of its rollouts."""
    from ors_server.rollouts.queries.reports import lost_by_reason, outcomes_of

    sections: list[Section] = []
    if figures is not None:
        title = "Score" if figures.step is None else f"Score of step {figures.step}, the last"
        sections.append(Section(title, score_rows(figures.pass_at_k, figures.reward)))
    ends = [(outcome or "not said", str(count)) for outcome, count in outcomes_of(connection, run, owner=owner)]
    sections.append(Section("How rollouts ended", ends))
    if run.num_lost:
        lost = lost_by_reason(connection, run, owner=owner)
        sections.append(
            Section("Lost, in no score", [(reason or "no reason said", str(count)) for reason, count in lost])
        )
    if info:
        rows = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in info.items()]
        sections.append(Section("Settings, as its first rollout has them", rows))
    return sections


def _info(connection: Connection, run: RunSummary, owner: str | None) -> dict[str, Any]:
    from ors_server.rollouts.aggregates.reward_rule import info_of

    said = info_of(connection, run.id, owner)
    return {} if said is None else merged([(0, said)])


def _model(report: StoredReport | None, content: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    if content and report is not None and report.kind == EVALUATION:
        return str(content["settings"]["model"])
    if content:
        return f"{content['model']['weights']:,} weights"
    named = info.get("model_name")
    return named if isinstance(named, str) else ""


def _problems(report: StoredReport | None, content: Mapping[str, Any]) -> list[str]:
    if report is None or not content:
        return []
    if report.kind == EVALUATION:
        return verdict_lines(content)
    return [f"The numbers do not stand: {reason}" for reason in content["failed"]]


def _notices(
    run: RunSummary, report: StoredReport | None, content: Mapping[str, Any], info: Mapping[str, Any]
) -> list[str]:
    if report is None and info.get("kind") in (EVALUATION, TRAINING):
        return [f"This {info['kind']} has sent no report: it goes on, or it was interrupted."]
    if report is not None and report.problem:
        return [f"The report of this run cannot be read: {report.problem}. What follows is made of its rollouts."]
    if report is None or not content:
        return []
    if report.kind == EVALUATION:
        scored, things = content["samples"]["scored"], "scored samples"
    else:
        episodes = content["episodes"]
        scored, things = episodes["training"] - sum(episodes["lost"].values()), "episodes with a reward"
    if scored == run.num_rewarded:
        return []
    return [f"The report counts {scored:,} {things}, and the store has {run.num_rewarded:,} of this run."]


# --- two runs ------------------------------------------------------------------------------------


def _meant(connection: Connection, name: str, owner: str | None) -> str:
    """Return the run that is meant by a name, or by a part of the name of one run.

    Raises ``UnknownRun``, and ``HTTPException`` with the names of several.
    """
    from ors_server.rollouts.queries.runs import list_runs

    if _stored(connection, {name}, owner):
        return name
    found = [run.name for run in list_runs(connection, search=name, owner=owner, limit=_SUGGESTED).rows]
    if len(found) > 1:
        raise HTTPException(400, f"Which run is meant by {name[:100]}? There are {', '.join(found)}.")
    return found[0] if found else name


def _compared(report: StoredReport | None) -> Mapping[str, Any]:
    """Return the settings that the page of a run shows; nothing where no report can be read."""
    if report is None or report.content is None:
        return {}
    return training_settings(report.content) if report.kind == TRAINING else set_ones(report.content["settings"])


def _comparison(connection: Connection, named: list[str], owner: str | None) -> dict[str, Any]:
    from ors_server.rollouts.queries.reports import find_report, scores_of
    from ors_server.rollouts.queries.runs import find_run
    from ors_server.rollouts.queries.tasks import names_of_tasks

    ours, other = (find_run(connection, _meant(connection, name, owner), owner=owner) for name in named)
    settings: list[Mapping[str, Any]] = []
    scores: list[dict[str, TaskScore]] = []
    notices: list[str] = []
    for run in (ours, other):
        report = find_report(connection, run.id, owner=owner)
        settings.append(_compared(report) or _info(connection, run, owner))
        content = None if report is None or report.kind != EVALUATION else report.content
        planned = 0 if content is None else content["settings"]["samples"]
        found = scores_of(connection, run, owner=owner, planned=planned)
        if found is None or any(abs(reward) > LARGEST_REWARD for task in found.values() for reward in task.rewards):
            notices.append(f"{run.name} has too many or too large rewards to be compared.")
        scores.append(found or {})
    if ours.rule != other.rule:
        notices.append("The runs score by different rules, so their numbers mean different things.")
    both = scores[0].keys() & scores[1].keys()
    if not both:
        notices.append("The runs have no task in common, by what their rollouts say of their tasks.")
    shown: dict[str, Any] = {"ours": ours, "other": other, "notices": notices, "section_of": None, "tasks": []}
    lines = differing_settings(settings[1], settings[0])
    if notices:
        return {**shown, "settings": lines}
    nothing = TaskScore({}, [], 0)
    keys = sorted({**scores[0], **scores[1]})
    pairs = [(scores[0].get(key, nothing), scores[1].get(key, nothing)) for key in keys]
    compared: dict[str, Any] = {"run": ours.name, "other": other.name, "settings": [], **compare_scores(pairs)}
    differ = [key for key in both if scores[0][key].mean != scores[1][key].mean]
    apart = sorted(differ, key=lambda key: (-abs(scores[0][key].mean - scores[1][key].mean), key))[:_DIFFERING]
    names = names_of_tasks(connection, apart)
    tasks = [{"key": key, **names[key], "ours": scores[0][key], "other": scores[1][key]} for key in apart]
    only = [(run.name, len(mine.keys() - both)) for run, mine in zip((ours, other), scores, strict=True)]
    shown["notices"] = [f"{count:,} tasks are only in {name} and are left out." for name, count in only if count]
    counts = {"shared": len(both), "differing": len(differ)}
    return {**shown, "settings": lines, "section_of": comparison_section(compared), "tasks": tasks, **counts}
