"""The part of ``ors-server eval`` behind its options: the run's settings, its end, and what is printed of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvloop
from ors_clients.errors import EvaluationError
from ors_clients.evaluation.journal import read_run
from ors_clients.evaluation.report import print_report, write_report
from ors_clients.evaluation.run import Outcome, RunOptions, evaluate, run_folder, run_name
from ors_clients.evaluation.settings import EvaluationSettings
from rich.console import Console
from rich.text import Text

from ors_cli.measuring.eval_target import Serve, address_of, is_address
from ors_server.errors import InfrastructureFailure, OrsError

__all__ = ["run"]


def run(
    given: Mapping[str, Any],
    plan: RunOptions,
    serve: Serve,
    *,
    as_json: bool,
    report: Path | None,
    data_dir: Path | None,
) -> int:
    """Evaluate, print the report, and return the exit code.

    ``given`` holds the settings that the command line names; ``serve`` serves a target that is not an address.
    ``data_dir`` stands in the commands that are printed, if it is given.
    Raises ``ClientError`` and what ``serve`` raises.
    """
    settings = _settings(given, plan)
    if plan.resume is None:
        plan = replace(plan, name=run_name(settings, plan.name))
    name = plan.name or plan.resume or ""
    where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    go_on = f"ors-server eval --resume {name}{where}"
    console = Console(stderr=True, highlight=False)
    try:
        outcome = uvloop.run(_evaluate(settings, plan, serve))
    except KeyboardInterrupt:
        console.print(Text(f"\nInterrupted. Go on with: {go_on}"), soft_wrap=True)
        return 1
    except OrsError as error:
        if not isinstance(error, EvaluationError) and run_folder(plan.runs, name).is_dir():
            console.print(Text(f"What was played is kept. Go on with: {go_on}"), soft_wrap=True)
        if isinstance(error, InfrastructureFailure):  # the server that was started for the run has ended
            console.print(Text(error.text), soft_wrap=True)
            return 1
        raise
    if report is not None:
        write_report(report, outcome.report, outcome.comparison)
    if as_json:
        Console(highlight=False).print_json(data=outcome.report | {"comparison": outcome.comparison})
    else:
        print_report(Console(highlight=False), outcome.report, outcome.comparison)
    remote = plan.upload is not None or is_address(settings.target)
    _print_end(console, outcome, report, where, remote=remote)
    return 1 if outcome.failed else 0


def _settings(given: Mapping[str, Any], plan: RunOptions) -> EvaluationSettings:
    """Return the run's settings: those of the run that goes on, with what the command line names."""
    if plan.resume is not None:
        return replace(read_run(run_folder(plan.runs, plan.resume)).settings, **given)
    values = dict(given)
    values.setdefault("base_url", os.environ.get("OPENAI_BASE_URL"))
    for name, flag in (("target", "URL|TARGET"), ("model", "--model"), ("base_url", "--base-url")):
        if not values.get(name):
            raise EvaluationError(f"{flag} is missing", "`ors-server eval --help` has examples.")
    return EvaluationSettings(**values)


async def _evaluate(settings: EvaluationSettings, plan: RunOptions, serve: Serve) -> Outcome:
    async with address_of(settings.target, serve) as (url, key):
        return await evaluate(settings, replace(plan, url=url, server_key=key))


def _print_end(console: Console, outcome: Outcome, report: Path | None, where: str, *, remote: bool) -> None:
    """Print where the run is.

    ``where`` is the option that commands need to find it; ``remote`` if another process has its rollouts.
    """
    run, lines = outcome.report["run"], [f"The run is in {outcome.folder}."]
    stored = outcome.report["id"]
    if outcome.store is not None:
        problem = outcome.store_problem
        kept = f"not all of its episodes ({problem})" if problem else "its episodes"
        listed = f"ors-server rollouts list --run {stored}{where}"
        # A server that was not started for the run has a data directory of its own.
        place = f"{outcome.store.rstrip('/')}/ui/run?run={quote(stored)}" if remote else listed
        lines.append(f"The rollout store has {kept}: {place}")
        if outcome.report_problem:
            lines.append(f"It did not take the report: {outcome.report_problem}")
    if report is not None:
        lines.append(f"The report is in {report}.")
    if outcome.stopped is not None:
        lines.append(f"Stopped early: {outcome.stopped.text}")
    elif not outcome.report["complete"]:
        lines.append(f"Play what is missing: ors-server eval --resume {run}{where}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
