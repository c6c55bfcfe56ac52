"""``ors-server rollouts``: list, show and export the rollouts that clients uploaded and the server recorded.

It reads the database itself, so it works whether or not a server runs. Invariant: it changes no rollout, although it
brings a database of an earlier version to this one; and text of a model or a tool reaches the terminal without control
characters.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ors_cli.flags import read_settings
from ors_server.rollouts.errors import RolloutError
from ors_server.rollouts.export import WRITERS, Format, written_whole
from ors_server.rollouts.location import Location, location_of
from ors_server.rollouts.store import RolloutStore
from ors_server.wire.encoding import encode

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["DataDir", "location_of_rollouts", "rollouts"]

rollouts = typer.Typer(
    no_args_is_help=True,
    help="List, show, export and bundle rollouts: what clients uploaded, and what the server recorded.\n\n"
    "A server keeps what is sent to its POST /v1/rollouts, as openreward clients and the trainers that use them do, "
    "and with --record the sessions that it plays. All of it is in rollouts.sqlite3 in the data directory, or in the "
    "database of ORS_ROLLOUTS; these commands read it also while a server runs.",
    epilog="[bold]Examples[/bold]\n"
    "  ors-server rollouts list --run my-run                   the newest rollouts of a run\n"
    "  ors-server rollouts show 3f2a91c4                       one as a conversation\n"
    "  ors-server rollouts export --run my-run -o rollouts.parquet\n"
    "  ors-server rollouts export | jq .reward                 all of them, as JSON Lines\n"
    "  ors-server rollouts bundle my-run -o for-anna           its pages as files, to send",
)

DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The server's data directory. [dim]ORS_DATA_DIR[/dim]")
]
_Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]

#: The longest name of a run that is not broken in a table: it fits into 80 columns with the rest.
_WHOLE = 24
#: Pages that could not be made, of those that are named.
_MOST_FAILED = 20
#: Characters that would steer a terminal, as pictures of them.
_PICTURES = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
_TITLES = {
    "system_message": ("System", "magenta"),
    "user_message": ("User", "green"),
    "assistant_message": ("Assistant", "bold blue"),
    "reasoning": ("Reasoning", "dim"),
    "tool_call": ("Tool call", "yellow"),
    "tool_result": ("Tool result", "cyan"),
}


@rollouts.callback()
def _group() -> None:
    """List, show, export and bundle rollouts: what clients uploaded, and what the server recorded."""


@rollouts.command("list")
def list_(
    run: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of a run, by its name or id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, at most.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="How many of the newest to leave out.")] = 0,
    data_dir: DataDir = None,
    as_json: _Json = False,
) -> None:
    """List rollouts, the newest first; the reward is the sum of a rollout's rewards, or what the rule of its run says.

    An asterisk behind a reward stands for a verdict that its environment has marked; the mark is below the list. A sign
    ≠ stands for an upload of a session for which the server recorded another reward, and → stands before the verdict of
    an episode that was graded again (tasks regrade).
    """
    from ors_server.rollouts.queries.listed import RolloutFilter, count_rollouts, list_rollouts

    with _reading(data_dir) as connection:
        if connection is None:
            rows, total = list[dict[str, Any]](), 0
        else:
            wanted = RolloutFilter(run=run)
            page = list_rollouts(connection, wanted, limit=limit, offset=offset)
            rows, total = [rollout.as_json() for rollout in page.rows], count_rollouts(connection, wanted)
    if as_json:
        typer.echo(json.dumps({"rollouts": rows, "total": total}, indent=2))
        return
    console = Console(highlight=False)
    if rows:
        console.print(_table(rows))
        console.print()
    for mark in sorted({row["verdict_mark"] for row in rows if row["verdict_mark"]}):
        count = sum(row["verdict_mark"] == mark for row in rows)
        console.print(Text(f"* Marked, {count} of these rollouts: {_plain(mark)}."), soft_wrap=True)
    if count := sum(_differs(row) for row in rows):
        text = f"≠ {count} of these rollouts: the server recorded another reward for the same session."
        console.print(Text(text), soft_wrap=True)
    if count := sum(row["regrade"] is not None for row in rows):
        text = f"→ {count} of these rollouts were graded again; the verdict behind it is in no sum, mean or pass rate."
        console.print(Text(text), soft_wrap=True)
    shown = f"{offset + 1:,}–{offset + len(rows):,}" if rows else "None"
    console.print(f"{shown} of {total:,} rollouts in {location_of_rollouts(data_dir).shown}.", soft_wrap=True)


@rollouts.command("show", no_args_is_help=True)
def show(
    rollout: Annotated[str, typer.Argument(metavar="ID", help="The rollout's id, or the beginning of it.")],
    data_dir: DataDir = None,
    as_json: _Json = False,
) -> None:
    """Show a rollout: what it was, and its conversation."""
    from ors_server.rollouts.queries.conversations import find_rollout

    with _reading(data_dir) as connection:
        if connection is None:
            raise _nothing(data_dir)
        found = find_rollout(connection, rollout)
    if as_json:
        typer.echo(encode(found).decode())
    else:
        _print_rollout(Console(highlight=False), found)


@rollouts.command("export")
def export(
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of a run, by its name or id; else all.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; else standard output.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="By default what FILE ends in, else jsonl.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write rollouts as JSON Lines or Parquet, one row a rollout with its messages, the oldest first.

    FILE appears when it is complete. What clients put in freely, such as task_spec and metadata, is JSON text in both.
    """
    from ors_server.rollouts.queries.conversations import every_rollout
    from ors_server.rollouts.queries.listed import RolloutFilter, count_rollouts

    chosen: Format = form or ("parquet" if output is not None and output.suffix == ".parquet" else "jsonl")
    if output is None and chosen == "parquet":
        raise RolloutError("Parquet cannot go to standard output", "Name a file, for example -o rollouts.parquet.")
    with _reading(data_dir) as connection:
        if connection is None:
            raise _nothing(data_dir)
        total = count_rollouts(connection, RolloutFilter(run=run))
        # Closed by us, and before the connection, whatever becomes of the writing.
        with (
            closing(every_rollout(connection, run)) as every,
            closing(_with_progress(every, total, shown=output is not None)) as found,
            _standard_output() if output is None else written_whole(output) as file,
        ):
            WRITERS[chosen](found, file)
    if output is None:
        return
    Console(stderr=True, highlight=False).print(Text(f"Wrote {total:,} rollouts to {output}."), soft_wrap=True)


@rollouts.command("bundle", no_args_is_help=True)
def bundle(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name or id.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The folder to write; by default one named after the run."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a bundle that is there.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write the pages of a run as files, to send to a colleague: open index.html, without a server.

    They have the run, its tasks, groups and rollouts, no script, and no request to any host. Keys of ors-servers,
    ORS_SERVER_KEY, ORS_API_KEY and the values of ORS_SECRETS_FILE become \\[redacted]; what else clients uploaded is in
    them. DIR appears when it is complete.

    Exits with 1 when a page could not be made: the others are there, and the page is named.
    """
    from ors_server.pages.bundle.writing import write_bundle

    folder = output if output is not None else Path(_folder_name(run))
    location = location_of_rollouts(data_dir)
    store = RolloutStore(location)
    console = Console(stderr=True, highlight=False)
    with closing(store), store.reading(location.shown) as connection:
        if connection is None:
            raise _nothing(data_dir)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("Rollouts", total=None)
            written = write_bundle(
                connection,
                store,
                run,
                folder,
                overwrite=overwrite,
                secrets=_known_secrets(),
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    text = f"Wrote {written.written:,} rollouts in {written.files:,} pages: open {folder / 'index.html'}."
    console.print(Text(_plain(text)), soft_wrap=True)
    for failed in written.failed[:_MOST_FAILED]:
        console.print(Text(_plain(f"Not made: {failed}"), style="red"), soft_wrap=True)
    if written.failed:
        console.print(Text(f"Pages that could not be made: {len(written.failed):,}.", style="red"))
        raise typer.Exit(1)


def _folder_name(run: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", run).strip(".-")[:80]
    return f"bundle-{name or 'run'}"


def _known_secrets() -> list[str]:
    """Return the secrets that this machine's settings name."""
    from ors_server.sessions.secrets import hidden_values, read_secrets_file

    file = read_settings().secrets_file
    values = [] if file is None else hidden_values(read_secrets_file(file))
    return [*values, *(value for name in ("ORS_SERVER_KEY", "ORS_API_KEY") if (value := os.environ.get(name)))]


# --- the file ------------------------------------------------------------------------------------


def location_of_rollouts(data_dir: Path | None) -> Location:
    """Return the place of the rollouts, in the data directory that is named or as the server's settings say."""
    settings = read_settings()
    if data_dir is not None:
        # A directory that is named here means its file, whatever database the server uses.
        settings = settings.model_copy(update={"data_dir": data_dir, "rollouts": None})
    return location_of(settings)


@contextmanager
def _reading(data_dir: Path | None) -> Generator[Connection | None]:
    location = location_of_rollouts(data_dir)
    with RolloutStore(location).reading(location.shown) as connection:
        yield connection


def _nothing(data_dir: Path | None) -> RolloutError:
    return RolloutError(
        f"There are no rollouts in {location_of_rollouts(data_dir).shown}",
        "Name the data directory of the server that got them: --data-dir, or the variable ORS_DATA_DIR.",
    )


@contextmanager
def _standard_output() -> Generator[IO[bytes]]:
    """Open standard output for bytes. A reader that leaves ends the program silently (``BrokenPipeError``)."""
    try:
        # Not sys.stdout: what that cannot write it tries again, and complains about, when the program ends.
        with open(sys.stdout.fileno(), "wb", closefd=False) as output:
            yield output
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RolloutError(
            f"Standard output cannot be written: {error.strerror or error}", "Name a file elsewhere with --output."
        ) from error


def _with_progress(found: Iterable[dict[str, Any]], total: int, *, shown: bool) -> Generator[dict[str, Any]]:
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield from found
        return
    with Progress(console=console, transient=True) as progress:
        yield from progress.track(found, total=total, description="Rollouts")


# --- what is printed -----------------------------------------------------------------------------


def _table(rows: list[dict[str, Any]]) -> Table:
    headings = {"run_name": "Run", "rollout_name": "Name", "environment": "Environment"}
    if not any(row["rollout_name"] for row in rows):
        del headings["rollout_name"]  # recorded sessions have none
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("Id", no_wrap=True)
    for name, heading in headings.items():
        longest = max((len(row[name] or "") for row in rows), default=0)
        whole = name == "run_name" and longest <= _WHOLE
        table.add_column(heading, overflow="fold", no_wrap=whole, min_width=len(heading))
    table.add_column("Reward", justify="right", no_wrap=True)
    table.add_column("Messages", justify="right", no_wrap=True)
    table.add_column("Created (UTC)", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(_plain(row["id"][:8])),
            *(Text(_plain(row[name] or "-")) for name in headings),
            _number(row["reward"])
            + ("" if row["finished"] else " …")
            + ("*" if row["verdict_mark"] else "")
            + (" ≠" if _differs(row) else "")
            + (f" →{_number(row['regrade']['reward'])}" if row["regrade"] is not None else ""),
            f"{row['num_messages']:,}",
            (row["created_at"] or "-")[:16].replace("T", " "),
        )
    return table


def _differs(row: dict[str, Any]) -> bool:
    return row["counterpart"] is not None and row["counterpart"]["differs"]


def _print_rollout(console: Console, rollout: dict[str, Any]) -> None:
    facts = Table.grid(padding=(0, 3, 0, 0))
    for name in ("id", "run_name", "rollout_name", "environment", "variant", "split", "step", "created_at"):
        if rollout[name] is not None:
            facts.add_row(Text(name.replace("_", " ").capitalize(), style="dim"), Text(_plain(str(rollout[name]))))
    ending = "finished" if rollout["finished"] else "not finished"
    rewards = f"{_number(rollout['reward'])} (highest of one message {_number(rollout['max_reward'])}); {ending}"
    facts.add_row(Text("Reward", style="dim"), rewards)
    if (other := rollout["counterpart"]) is not None:
        recorded = rollout["source"] != "upload"
        words = f"{other['id']}, reward {_number(other['reward'])}"
        words += ": another reward than this" if other["differs"] else ""
        words += "; it is counted instead of this session" if recorded else ""
        facts.add_row(Text("Uploaded as" if recorded else "Recorded as", style="dim"), Text(_plain(words)))
    if (again := rollout["regrade"]) is not None:
        words = f"reward {_number(again['reward'])}, before {_number(again['previous_reward'])}"
        words += f"; {again['graded_at'][:16].replace('T', ' ')} UTC, tests {again['tests'][:8]}"
        words += f"; marked: {again['verdict_mark']}" if again["verdict_mark"] else ""
        facts.add_row(Text("Graded again", style="dim"), Text(_plain(words)))
    for name in ("task_spec", "metadata", "run_info", "rollout_info"):
        if rollout[name]:
            facts.add_row(Text(name.replace("_", " ").capitalize(), style="dim"), Text(_plain(_json(rollout[name]))))
    console.print(facts)
    for message in rollout["messages"]:
        _print_message(console, message)


def _print_message(console: Console, message: dict[str, Any]) -> None:
    title, style = _TITLES[message["type"]]
    words = [title, *(_plain(message[name]) for name in ("name", "call_id") if message[name])]
    if message["reward"] is not None:
        words.append(f"reward {_number(message['reward'])}")
    if message["is_finished"]:
        words.append("finished")
    console.print()
    console.print(Rule(Text("  ".join(words), style=style), align="left", style="dim"))
    content = message["content"] or ""
    if message["type"] in ("tool_call", "tool_result"):
        content = _indented(content)
    for text in (message["summary"], content):
        if text:
            console.print(Text(_plain(text)), soft_wrap=True)
    for name in ("metadata", "verdict"):
        if message[name]:
            console.print(Text(_plain(_json(message[name])), style="dim"), soft_wrap=True)


def _indented(content: str) -> str:
    """JSON spread over lines, as arguments and results are to be read; any other text as it is."""
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return content
    return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, (dict, list)) else content


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").translate(_PICTURES)
