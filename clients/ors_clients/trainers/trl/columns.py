"""Tasks as columns of a dataset: reward functions get them by name, one value a rollout.

A field of a task keeps its name unless the trainer gives that one a meaning. Invariant: a row gets back exactly what
its task held. Arrow would add the keys of other rows to an object and refuse values of several types, so a column whose
values are not all of one simple type holds their JSON instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["task_columns", "unite_columns"]

#: Columns that ``EnvironmentMixture`` or TRL gives a meaning; a field of such a name becomes ``task_<name>``.
_RESERVED = frozenset(
    """completion completion_ids completions environment environments image images log_extra log_metric prompt prompts
    self split task_index trainer_state""".split()  # noqa: SIM905
)
_SIMPLE = (str, bool, int, float)


def task_columns(task: Mapping[str, Any], listed: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of a task that become columns: those ``listed``, or all whose names do not begin with ``_``."""
    names = [name for name in task if not name.startswith("_")] if listed is None else listed
    return {f"task_{name}" if name in _RESERVED else name: task[name] for name in names if name in task}


def unite_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One column for every name in any of the rows, None where a row has no such field.

    The column ``prompt`` holds conversations, and stays as it is.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: values if name == "prompt" else _one_type(values) for name, values in columns.items()}


def _one_type(values: list[Any]) -> list[Any]:
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) <= 1 and "" not in kinds:
        return values
    if kinds == {"int", "float"}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


def _kind(value: Any) -> str:
    """Return a simple type's name, ``list of`` one, or empty for what Arrow would not keep as it is."""
    if isinstance(value, list):
        kinds = {_kind(item) for item in cast("list[Any]", value)}
        return f"list of {kinds.pop()}" if len(kinds) == 1 and kinds <= {kind.__name__ for kind in _SIMPLE} else ""
    return type(value).__name__ if isinstance(value, _SIMPLE) else ""
