"""The tools of an environment as TRL's trainer finds and renders them."""

from __future__ import annotations

import inspect
from typing import Any

from transformers.utils import get_json_schema


def tool_schemas(environment: Any) -> list[dict[str, Any]]:
    """Schemas of every public method but `reset`, in the trainer's order, which is that of their names."""
    members = inspect.getmembers(type(environment), inspect.isfunction)
    names = [name for name, _ in members if not name.startswith("_") and name != "reset"]
    return [get_json_schema(getattr(environment, name)) for name in names]
