"""``ors-server check``: its options, its exit status, and what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer
from ors_clients.api_keys import server_key
from ors_clients.conformance.check import Report, chosen
from ors_clients.conformance.check import check as check_rules
from ors_clients.conformance.report import as_json, print_report, print_rules
from ors_clients.conformance.rule import Rule
from ors_clients.conformance.rules import RULES, SERVER_RULES
from ors_clients.conformance.subject import Options, Subject
from ors_clients.conformance.target import serving
from ors_clients.conformance.wire import Wire
from ors_clients.errors import ConfigurationError
from rich.console import Console

__all__ = ["CHECK_EXAMPLES", "check"]

CHECK_EXAMPLES = """[bold]What is checked[/bold]
  http://host:8080       a server that runs: this one, ors-sdk's, openreward's, one behind a proxy
  my_env/, echo, …       a target, as `ors-server serve` takes it: served for the check, and played at random

[bold]Examples[/bold]
  ors-server check http://127.0.0.1:8080              every rule, on its first environment
  ors-server check my_env/ --reward-range 0 1         the rules, and random episodes of the environment
  ors-server check URL --only call --only session     two groups of rules
  ors-server check URL --json report.json             for a pipeline; exit status 1: a required rule is broken
  ors-server check my_env/ --strict                   status 1 also for what is recommended
  ors-server check --list                             what each rule tries, and which client breaks without it

It opens sessions and calls tools with random input. The environment `orsprobe` (docs/checking.md) lets it try the
promises that no ordinary tool shows. The key of the server is ORS_API_KEY."""


def check(
    target: Annotated[str, typer.Argument(metavar="URL|TARGET", help="A server's address, or what to serve.")] = "",
    env: Annotated[str, typer.Option(metavar="NAME", help="The environment to try; else the server's first.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only this rule, or this group; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Not this rule, or this group; may be repeated.")
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the report as JSON; - is standard output.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Number that random input and tasks are drawn from.")] = 0,
    episodes: Annotated[int, typer.Option(min=1, max=1000, help="Random episodes of a target.")] = 5,
    reward_range: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Least and full reward of a target's episode."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a response may take.")] = 10.0,
    time_limit: Annotated[float, typer.Option(min=1, help="Seconds that the check may take.")] = 600.0,
    slow: Annotated[bool, typer.Option("--slow", help="Also try the rules that wait for a minute.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit status 1 also for a broken recommended rule, or a warning.")
    ] = False,
    list_rules: Annotated[bool, typer.Option("--list", help="List the rules, and try none.")] = False,
) -> None:
    """Check that a server keeps the promises of the Open Reward Standard, and what breaks where it does not."""
    rules = chosen(RULES, only or [], skip or [])
    if list_rules:
        print_rules(Console(highlight=False), rules)
        return
    if not target:
        raise ConfigurationError("There is nothing to check", "Name the address of a server, or a target.")
    if reward_range is not None and not reward_range[0] < reward_range[1]:
        raise ConfigurationError(
            f"--reward-range {reward_range[0]:g} {reward_range[1]:g} is empty", "The least reward comes first."
        )
    options = Options(env, seed, episodes, reward_range, slow)
    with contextlib.ExitStack() as stack:
        # Opened first: a report that cannot be written is noticed before the check.
        output = None
        if json_file == "-":
            output = sys.stdout
        elif json_file:
            try:
                output = stack.enter_context(Path(json_file).open("w", encoding="utf-8"))
            except OSError as error:
                raise ConfigurationError(f"{json_file} cannot be written: {error.strerror}") from None
        report = asyncio.run(_run(target, rules, options, timeout, time_limit))
        if output is not None:
            output.write(json.dumps(as_json(report), indent=2) + "\n")
    print_report(Console(stderr=json_file == "-", highlight=False), report)
    if report.failed_strictly if strict else report.failed:
        raise typer.Exit(1)


async def _run(target: str, rules: Sequence[Rule], options: Options, timeout: float, time_limit: float) -> Report:
    async with contextlib.AsyncExitStack() as stack:
        observer = None
        if "://" in target:
            url, shown = _address(target)
            key = server_key(url)
        else:
            observer = await stack.enter_async_context(serving(target))
            url, shown, key = observer.url, target, ""
        if observer is None:
            rules = [rule for rule in rules if rule in SERVER_RULES]
        wire = Wire(url, key=key, timeout=timeout)
        stack.push_async_callback(wire.close)
        console = Console(stderr=True)
        status = stack.enter_context(console.status(f"{len(rules)} rules"))
        done = 0

        def progress(_: object) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} of {len(rules)} rules")

        subject = Subject(wire, options, observer)
        return await check_rules(subject, rules, target=shown, time_limit=time_limit, on_result=progress)


def _address(url: str) -> tuple[str, str]:
    """Return a server's address, and how it is shown. Raises ``ConfigurationError``."""
    parts = urlsplit("")
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known:
        raise ConfigurationError(f"{url!r:.200} is not the address of a server", "Write it as http://host:8080.")
    # Without a password.
    return url, urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
