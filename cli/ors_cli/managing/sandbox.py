"""``ors-server sandbox``: check the runtimes of this machine, and clean up after dead servers.

The checks are the runtimes' own (``ors_containers.Runtime.describe``, ``self_check``). Invariant: a runtime is called
working only after it has started and run a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from ors_containers.distribution import conflicting_distribution
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ors_server.errors import OrsError
from ors_server.settings import Settings
from ors_server.telemetry.console import print_error

if TYPE_CHECKING:
    from ors_containers import Check, Description, Runtime

__all__ = ["sandbox"]

_EXAMPLES = """[bold]Examples[/bold]
  ors-server sandbox doctor           what works here, and what the rest lacks
  ors-server sandbox doctor --check   also try every promise, in a minute or so
  ors-server sandbox clean            free what servers left that were killed"""

sandbox = typer.Typer(
    no_args_is_help=True,
    help="Show what isolates sandboxes on this machine, and what they left behind.\n\n"
    "A sandbox is where an agent's commands run: it sees its image and what it wrote itself, and no part of this "
    "machine. A runtime makes them; docs/sandboxes.md says what each promises and how to add your own.",
    epilog=_EXAMPLES,
)


class SandboxCommandError(OrsError):
    """A command about sandboxes could not do what it was asked."""


@dataclass
class _Finding:
    """The result for one runtime."""

    name: str
    description: Description | None = None
    cause: str = ""
    remedy: str = ""
    checks: list[Check] = field(default_factory=list["Check"])

    @property
    def works(self) -> bool:
        return self.description is not None and not any(check.outcome == "failed" for check in self.checks)

    def message(self) -> dict[str, Any]:
        """For ``--json``."""
        said: dict[str, Any] = {"runtime": self.name, "works": self.works, "cause": self.cause, "remedy": self.remedy}
        if self.description is not None:
            said["version"] = self.description.version
            said["limits"] = [
                {
                    "limit": enforcement.limit,
                    "holds": enforcement.holds,
                    "by": enforcement.by,
                    "remedy": enforcement.remedy,
                }
                for enforcement in self.description.enforcements
            ]
            said["notes"] = list(self.description.notes)
            said["checks"] = [
                {"promise": check.name, "outcome": check.outcome, "detail": check.detail, "seconds": check.seconds}
                for check in self.checks
            ]
        return said


@sandbox.callback()
def _group() -> None:
    """Check the sandboxes' runtimes of this machine, and clean up after dead servers."""


@sandbox.command("doctor", epilog=_EXAMPLES)
def doctor(
    runtimes: Annotated[
        list[str] | None, typer.Argument(metavar="[RUNTIME]...", help="Those to look at; all that are installed.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also try every promise of a sandbox on each: attacks, limits, files.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list, for programs.")] = False,
) -> None:
    """Say which runtimes work here, which limits each enforces and by what, and what to do for the rest.

    Each is started and runs a sandbox. A limit that is kept holds for a sandbox as a whole. An installation that
    overwrites files of this one is reported on stderr. Exit code 0 if at least one
    runtime works, 1 if none does, or if a promise that was tried was broken.
    """
    from ors_containers import runtime_names

    unknown = [name for name in runtimes or [] if name not in runtime_names()]
    if unknown:
        raise SandboxCommandError(
            f"No runtime {unknown[0]!r} is installed", f"Installed: {', '.join(runtime_names())}."
        )
    if conflict := conflicting_distribution():
        print_error(SandboxCommandError(*conflict))
    console = Console(highlight=False)
    findings = asyncio.run(_examine(runtimes or runtime_names(), check, None if as_json else console))
    if as_json:
        console.print(json.dumps([finding.message() for finding in findings], indent=2), markup=False, soft_wrap=True)
    broken = any(outcome.outcome == "failed" for finding in findings for outcome in finding.checks)
    raise typer.Exit(0 if any(finding.works for finding in findings) and not broken else 1)


async def _examine(names: list[str], check: bool, console: Console | None) -> list[_Finding]:
    findings: list[_Finding] = []
    for name in names:
        finding = await _examine_one(name, check, console)
        findings.append(finding)
        if console is not None:
            _show(console, finding)
    return findings


async def _examine_one(name: str, check: bool, console: Console | None) -> _Finding:
    from ors_containers import ContainerPolicy, InfrastructureFailure, find_runtime, self_check

    finding = _Finding(name)
    try:
        runtime = find_runtime(name)()
    except Exception as error:  # noqa: BLE001 - third-party code: a runtime that cannot be imported is a finding too
        finding.cause = f"it cannot be loaded: {type(error).__name__}: {error}"
        finding.remedy = "Reinstall the package it comes from."
        return finding
    try:
        settings = Settings()
        runtime.policy = ContainerPolicy(settings.sandbox_network, settings.sandbox_disk)
        async with runtime:
            finding.description = await _with_store(runtime)
            if check:
                async for outcome in self_check(runtime):
                    finding.checks.append(outcome)
                    if console is not None:
                        _show_check(console, outcome)
    except InfrastructureFailure as error:
        finding.description, finding.cause, finding.remedy = None, error.cause, error.remedy
    except Exception as error:  # noqa: BLE001 - third-party code: a bug of a runtime is a finding too
        finding.description, finding.cause = None, f"it failed: {type(error).__name__}: {error}"
    return finding


async def _with_store(runtime: Runtime) -> Description:
    """Describe a runtime; also try hard links where the store of images is, which may be another file system."""
    from ors_containers.errors import StoreFailed
    from ors_containers.images.storing.store_folder import default_root
    from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
    from ors_containers.self_check.links import try_hard_links

    description = runtime.describe()
    if not isinstance(runtime, NamespaceRuntime):
        return description
    with contextlib.suppress(StoreFailed):
        store = default_root()
        if os.access(store, os.W_OK) and not await try_hard_links(runtime, store):
            note = (
                f"Linux keeps no hard links to files of images in {store}: `ln` is refused, or makes another file. Set "
                "ORS_IMAGES to a folder on ext4, xfs, btrfs or tmpfs; in a container, to a volume."
            )
            return replace(description, notes=(*description.notes, note))
    return description


def _show_check(console: Console, check: Check) -> None:
    mark = {
        "passed": "[green]kept[/green]   ",
        "failed": "[bold red]BROKEN[/bold red] ",
        "skipped": "[dim]skipped[/dim]",
    }
    detail = f" [dim]({escape(check.detail)})[/dim]" if check.detail else ""
    console.print(f"  {mark[check.outcome]} {escape(check.name)}{detail}", soft_wrap=True)


def _show(console: Console, finding: _Finding) -> None:
    description = finding.description
    if description is None:
        console.print(f"[bold]{escape(finding.name)}[/bold]  [bold red]does not work here[/bold red]")
        console.print(f"  {escape(finding.cause.rstrip('.'))}.", soft_wrap=True)
        if finding.remedy:
            console.print(f"  [bold]Remedy:[/bold] {escape(finding.remedy)}", soft_wrap=True)
        console.print()
        return
    state = "[bold green]works[/bold green]" if finding.works else "[bold red]breaks promises[/bold red]"
    console.print(f"[bold]{escape(finding.name)}[/bold] {escape(description.version)}  {state}")
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for column in ("Limit", "", "By", "For more"):
        table.add_column(column, ratio=1 if column == "For more" else None, no_wrap=column not in ("By", "For more"))
    for enforcement in description.enforcements:
        table.add_row(
            enforcement.limit,
            "[green]kept[/green]" if enforcement.holds else "[yellow]not kept[/yellow]",
            escape(enforcement.by),
            escape(enforcement.remedy),
        )
    console.print(table)
    for note in description.notes:
        console.print(f"  Note: {escape(note)}", soft_wrap=True)
    console.print()


@sandbox.command("clean", epilog=_EXAMPLES)
def clean() -> None:
    """Free what servers held that were killed: processes, control groups, directories.

    Every server does this when it starts and each minute after; this is for a machine on which none will. What belongs
    to a server that runs is never touched.
    """
    from ors_containers.errors import SandboxError
    from ors_containers.linux.leases import make_state, state_directory, sweep

    console = Console(highlight=False)
    try:
        state = state_directory()
        make_state(state)
        freed = asyncio.run(sweep(state))
    except SandboxError as error:
        raise SandboxCommandError(error.cause, error.remedy) from error
    except OSError as error:
        raise SandboxCommandError(f"The leases cannot be read: {error}", "Run it as the user of the server.") from error
    for name in freed:
        console.print(f"Freed sandbox {name}")
    living = len(list((state / "owners").glob("*/*.lease")))
    rest = f"{living} of servers that run, or that could not be freed yet, are left" if living else "none is left"
    console.print(f"{len(freed)} sandboxes of dead servers freed; {rest} ({state}).", soft_wrap=True)
