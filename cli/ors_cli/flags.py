"""One flag for each setting.

The flags are made from the fields of ``Settings``, so a new setting is a new flag with its help text. ``Settings``
parses the values: a flag, a variable and a keyword are checked by the same rules and give the same messages. A flag
wins over its variable.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, Literal, Union, cast

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ors_server.settings import Settings

__all__ = [
    "PANELS",
    "TestsImportCode",
    "flag_of",
    "misspelt_variables",
    "panel_of",
    "read_settings",
    "shown",
    "type_of",
    "variable_of",
    "with_settings",
]


class TestsImportCode(StrEnum):
    """Treatment of tasks whose tests import the agent's code."""

    refuse = "refuse"
    flag = "flag"


#: The settings by subject, as ``--help`` and ``ors-server settings`` group them.
PANELS: Mapping[str, tuple[str, ...]] = {
    "Where it listens": ("host", "port", "keep_alive", "listen", "pages"),
    "Who may use it": ("keys_file", "insecure", "make_key", "show_verdicts"),
    "Limits": ("max_body", "max_headers", "max_output", "max_sessions", "max_calls", "max_session_calls"),
    "Sessions": (
        "session_ttl",
        "setup_timeout",
        "setup_wait",
        "setup_wait_long",
        "teardown_timeout",
        "shutdown_timeout",
        "tombstones",
    ),
    "Tool calls and their results": (
        "call_timeout",
        "stream_after",
        "heartbeat",
        "result_ttl",
        "result_memory",
        "delivered_ttl",
        "delivered_memory",
    ),
    "How environments run": (
        "tool_threads",
        "lifecycle_threads",
        "sync_on_loop",
        "enforce_finished",
        "trust_client_tasks",
        "secrets_file",
    ),
    "Sandboxes": (
        "sandbox_runtime",
        "sandbox_warm",
        "sandbox_warm_total",
        "sandbox_queue",
        "sandbox_queue_timeout",
        "sandbox_reserve",
        "sandbox_memory",
        "sandbox_pressure",
        "sandbox_network",
        "sandbox_disk",
        "sandbox_service",
        "sandbox_ttl",
        "max_sandboxes",
        "node_table",
    ),
    "What is kept": ("data_dir", "record", "rollouts"),
    "Errors, logs, metrics and traces": ("return_errors", "log_level", "log_format", "metrics", "traces"),
}
_OTHERS = "Other settings"
#: The settings that ``--help`` shows, in few words. The flags of all are in ``ors-server settings``.
_EVERYDAY: Mapping[str, tuple[str, str]] = {
    "host": ("ADDRESS", "0.0.0.0 for every interface."),
    "port": ("PORT", "0 picks a free one."),
    "keys_file": ("FILE", "The keys of `ors-server keys`."),
    "insecure": ("", "Serve other machines without keys."),
    "make_key": ("", "Make a key if there is none; print it."),
    "max_sessions": ("N", "Sessions at once; above it, clients wait."),
    "session_ttl": ("SECONDS", "Life of a session that hears nothing."),
    "sandbox_runtime": ("NAME", "bubblewrap or apptainer."),
    "data_dir": ("DIR", "Rollouts, keys and results."),
    "record": ("", "Store every session as a rollout."),
    "log_level": ("LEVEL", "debug, info, warning or error."),
    "log_format": ("FORM", "text, or json."),
}
_PANEL = "Everyday settings (`ors-server settings` lists all, with their flags)"
#: Settings whose flags take no value: to say them is enough.
_SWITCHES = frozenset(("insecure", "make_key", "record"))

#: Similarity, by ``difflib``, from which on a variable counts as a misspelt setting. Environments, clients and tests
#: read variables with the same prefix; the nearest of those is ORS_TERMINAL_OUTPUT, 0.72 like ORS_MAX_OUTPUT.
_SIMILAR = 0.75


def flag_of(name: str) -> str:
    """Return the flag of a setting, for example ``--session-ttl``."""
    return f"--{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    """Return the environment variable of a setting, for example ``ORS_SESSION_TTL``."""
    return f"{Settings.model_config.get('env_prefix', '')}{name}".upper()


def misspelt_variables() -> list[str]:
    """Return a warning for each variable that is nearly a setting and silently has no effect."""
    known = [name.upper() for name in Settings.model_fields]
    prefix = variable_of("")
    warnings: list[str] = []
    for variable in sorted(os.environ):
        # Settings reads variables in any case.
        name = variable.upper().removeprefix(prefix)
        if name in known or not variable.upper().startswith(prefix):
            continue
        if near := difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR):
            meant = variable_of(near[0])
            warnings.append(f"the variable {variable} is not a setting and has no effect; did you mean {meant}?")
    return warnings


def panel_of(name: str) -> str:
    """Return the group a setting belongs to."""
    return next((panel for panel, names in PANELS.items() if name in names), _OTHERS)


def type_of(field: FieldInfo) -> str:
    """Return the kind of a setting's values: ``number``, ``text``, ``yes|no`` or the choices."""
    annotation = _without_none(field.annotation)
    if typing.get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in typing.get_args(annotation))
    names: dict[object, str] = {bool: "yes|no", int: "number", float: "number"}
    return names.get(annotation, "text")


def shown(value: object) -> str:
    """Return a value as it is typed."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    # Sixteen digits, so that no value is rounded; 900 and not 900.0.
    return f"{value:.16g}" if isinstance(value, float) else str(value)


def with_settings(
    command: Callable[..., None], names: Collection[str] = tuple(Settings.model_fields)
) -> Callable[..., None]:
    """Add a flag for each setting of these names to a command, which gets them as its parameter ``settings``."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    flags = [_parameter(name, Settings.model_fields[name]) for name in names]
    parameters = [context, *own, *flags]

    @functools.wraps(command)
    def with_flags(*, context: typer.Context, **arguments: Any) -> None:
        flagged: dict[str, Any] = {name: arguments.pop(name) for name in names}
        # The others are defaults for the help text: Settings applies variables and defaults itself.
        given = {name: value for name, value in flagged.items() if _on_command_line(context, name)}
        command(settings=read_settings(given), **arguments)

    cast(Any, with_flags).__signature__ = inspect.Signature(parameters)
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def read_settings(given: Mapping[str, object] | None = None) -> Settings:
    """Read the settings from flags (by field name), variables and defaults. Raises ``typer.BadParameter``."""
    given = given or {}
    try:
        return Settings(**cast(dict[str, Any], given))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise typer.BadParameter(
            f"{shown(first['input'])!r}: {first['msg']}.",
            param_hint=flag_of(name) if name in given else f"the variable {variable_of(name)}",
        ) from error


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    metavar, text = _EVERYDAY.get(name, (type_of(field), field.description or ""))
    option = typer.Option(
        flag_of(name), help=text, metavar=metavar, rich_help_panel=_PANEL, hidden=name not in _EVERYDAY
    )
    if name in _SWITCHES:
        switch = typer.Option(flag_of(name), help=text, rich_help_panel=_PANEL)
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=typing.Annotated[bool, switch]
        )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=shown(field.default) or None,
        annotation=typing.Annotated[Union[str, None], option],  # noqa: UP007 - a value, not an annotation
    )


def _without_none(annotation: object) -> object:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        rest = [choice for choice in typing.get_args(annotation) if choice is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _on_command_line(context: typer.Context, name: str) -> bool:
    # Compared by name: newer versions of typer bring a copy of click, older ones use click itself.
    source = cast(Any, context).get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
