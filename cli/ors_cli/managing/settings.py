"""``ors-server settings``: every setting, its value and its meaning."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ors_cli.flags import PANELS, flag_of, panel_of, read_settings, shown, type_of, variable_of
from ors_server.settings import Settings

__all__ = ["SETTINGS_EXAMPLES", "settings"]

SETTINGS_EXAMPLES = """[bold]Examples[/bold]
  ors-server settings                          what is set here, and to what
  ors-server serve echo --session-ttl 3600     as a flag
  ORS_SESSION_TTL=3600 ors-server serve echo   as a variable"""

_ELSEWHERE = (
    "Not listed here: ORS_TERMINAL_*, which the terminal environment reads (environments/terminal/README.md), and "
    "ORS_IMAGES and ORS_IMAGE_MAP, where `ors-server image` keeps images and the map of their names."
)


def settings(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list, for programs.")] = False,
) -> None:
    """List every setting of the server: its flag, its variable, its default, its value here and its meaning.

    A flag of `ors-server serve` wins over its variable, a variable over the default.

    Elsewhere: ORS_TERMINAL_*, the terminal environment's own (environments/terminal/README.md), and ORS_IMAGES and
    ORS_IMAGE_MAP, where `ors-server image` keeps images and the map of their names.
    """
    current = read_settings()
    rows = [
        {
            "name": name,
            "flag": flag_of(name),
            "variable": variable_of(name),
            "type": type_of(field),
            "default": field.default,
            "value": getattr(current, name),
            "meaning": field.description or "",
            "group": panel_of(name),
        }
        for name, field in Settings.model_fields.items()
    ]
    console = Console(highlight=False)
    if as_json:
        console.print(json.dumps(rows, indent=2, default=str), markup=False, soft_wrap=True)
        return
    width = max(len(variable_of(name)) for name in Settings.model_fields)
    for group in dict.fromkeys([*PANELS, *(str(row["group"]) for row in rows)]):
        table = Table(title=group, title_justify="left", title_style="bold", expand=True, box=None)
        table.add_column("Flag, variable", min_width=width, no_wrap=True)
        table.add_column("Default, type", no_wrap=True)
        table.add_column("Meaning", ratio=1)
        for row in rows:
            if row["group"] != group:
                continue
            changed = row["value"] != row["default"]
            table.add_row(
                f"[bold]{row['flag']}[/bold]\n[dim]{row['variable']}[/dim]",
                f"{escape(shown(row['default']))}\n[dim]{row['type']}[/dim]"
                + (f"\n[bold yellow]now {escape(shown(row['value']))}[/bold yellow]" if changed else ""),
                escape(str(row["meaning"])),
            )
        console.print(table)
        console.print()
    console.print(_ELSEWHERE, style="dim", markup=False)
