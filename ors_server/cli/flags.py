"""One flag for each setting.

The flags are made from the fields of ``Settings``, so a new setting is a new flag with its help text. Values stay as
they were typed until ``Settings`` reads them: a flag, a variable and a keyword are checked by the same rules and give
the same messages. A flag wins over its variable.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ors_server.settings import Settings

__all__ = [
    "PANELS",
    "flag_of",
    "panel_of",
    "read_settings",
    "shown",
    "type_of",
    "unknown_variables",
    "variable_of",
    "with_settings",
]

#: The settings by subject, as ``--help`` and ``ors-server settings`` group them.
PANELS: Mapping[str, tuple[str, ...]] = {
    "Where it listens": ("host", "port", "keep_alive"),
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
    ),
    "Sandboxes": (
        "sandbox_runtime",
        "sandbox_warm",
        "sandbox_warm_total",
        "sandbox_queue",
        "sandbox_queue_timeout",
        "sandbox_reserve",
        "sandbox_pressure",
    ),
    "What is kept": ("data_dir",),
    "Errors and logs": ("return_errors", "log_level", "log_format"),
}
_OTHERS = "Other settings"

#: Variables with the settings' prefix that others read, perhaps in the same shell: our clients, images, benchmarks and
#: tests, and ors-sdk.
_NO_SETTINGS = frozenset(
    {
        "ORS_API_KEY",
        "ORS_ATROPOS_CHECKOUT",
        "ORS_ENGINE_API_KEY",
        "ORS_FUZZ_EXAMPLES",
        "ORS_IMAGES",
        "ORS_MILES_CHECKOUT",
        "ORS_PUBLISHED_ENVIRONMENTS",
        "ORS_ROLL_CHECKOUT",
        "ORS_SLIME_CHECKOUT",
        "ORS_SOAK_REPORT",
        "ORS_SOAK_SECONDS",
        "ORS_SOAK_SEED",
        "ORS_URL",
        "ORS_USE_STRUCTURED_LOGS",
    }
)

#: The prefix of the terminal environment's settings, which it reads and checks itself.
_TERMINAL = "ORS_TERMINAL_"


def flag_of(name: str) -> str:
    """The flag of a setting, for example ``--session-ttl``."""
    return f"--{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    """The environment variable of a setting, for example ``ORS_SESSION_TTL``."""
    return f"{Settings.model_config.get('env_prefix', '')}{name}".upper()


def unknown_variables() -> list[str]:
    """What to say of each variable that looks like a setting and is none: misspelt, it would be ignored in silence."""
    known = [variable_of(name) for name in Settings.model_fields]
    prefix = variable_of("")
    warnings: list[str] = []
    for variable in sorted(os.environ):
        # Settings reads variables in any case.
        written = variable.upper()
        if not written.startswith(prefix) or written in _NO_SETTINGS or written in known:
            continue
        if written.startswith(_TERMINAL):
            continue
        near = difflib.get_close_matches(written, known, n=1, cutoff=0.7)
        remedy = f"did you mean {near[0]}?" if near else "`ors-server settings` lists them."
        warnings.append(f"the variable {variable} is no setting and has no effect; {remedy}")
    return warnings


def panel_of(name: str) -> str:
    """The subject a setting belongs to."""
    return next((panel for panel, names in PANELS.items() if name in names), _OTHERS)


def type_of(field: FieldInfo) -> str:
    """What values a setting takes, in words: ``number``, ``text``, or the choices."""
    annotation = _without_none(field.annotation)
    if typing.get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in typing.get_args(annotation))
    names: dict[object, str] = {bool: "yes|no", int: "number", float: "number"}
    return names.get(annotation, "text")


def shown(value: object) -> str:
    """A value as a person types it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    # Sixteen digits, so that no value is rounded; 900 and not 900.0.
    return f"{value:.16g}" if isinstance(value, float) else str(value)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, which has the parameter ``settings: Settings`` besides its own, a flag for each setting."""
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    flags = [_parameter(name, field) for name, field in Settings.model_fields.items()]
    parameters = [context, *own, *flags]

    @functools.wraps(command)
    def with_flags(*, context: typer.Context, **arguments: Any) -> None:
        flagged: dict[str, Any] = {name: arguments.pop(name) for name in Settings.model_fields}
        # The rest are defaults, shown in the help text; Settings knows them, and the variables, itself.
        given = {name: value for name, value in flagged.items() if _on_command_line(context, name)}
        command(settings=read_settings(given), **arguments)

    cast(Any, with_flags).__signature__ = inspect.Signature(parameters)
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def read_settings(given: Mapping[str, object] | None = None) -> Settings:
    """The settings of flags (by field name), variables and defaults. Raises ``typer.BadParameter``."""
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
    option = typer.Option(
        flag_of(name),
        help=f"{field.description} [dim]{variable_of(name)}[/dim]",
        metavar=type_of(field),
        rich_help_panel=panel_of(name),
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
    # By its name: typer brings its own copy of click in newer versions and uses the real one in older ones.
    source = cast(Any, context).get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
