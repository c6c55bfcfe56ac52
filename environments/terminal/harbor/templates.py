"""Variables of a task: ``${NAME}`` and ``${NAME:-default}`` in its ``env`` tables.

Invariant: only variables that the operator named are read from the server's environment, because folders of strangers
could ask for its keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["VariableMissing", "filled", "named_variables"]

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


class VariableMissing(Exception):
    """A task needs variables that the operator did not name, or that are not set: their names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"the variables {', '.join(names)} are missing")


def named_variables(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that have one of the names."""
    return {name: environment[name] for name in names if name in environment}


def filled(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return a table with each value that is a template replaced. Raises ``VariableMissing``.

    A value that only contains a template is a plain text, as in Harbor.
    """
    values: dict[str, str] = {}
    missing: list[str] = []
    for key, text in env.items():
        template = _TEMPLATE.fullmatch(text)
        if template is None:
            values[key] = text
        elif template[1] in variables:
            values[key] = variables[template[1]]
        elif template[2] is not None:
            values[key] = template[2]
        else:
            missing.append(template[1])
    if missing:
        raise VariableMissing(sorted(set(missing)))
    return values
