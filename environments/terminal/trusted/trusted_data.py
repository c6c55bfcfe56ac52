"""Restrictions on the names that data refers to: pickles, and configurations of ``logging``.

Both can name any function and have it called. Where tests read data, a name that data does not need comes from the
agent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Pickles", "restrict_logging"]

#: Names that a pickle of plain data refers to, by module.
_BUILTINS = frozenset(
    (
        "bytearray",
        "complex",
        "dict",
        "frozenset",
        "int",
        "list",
        "object",
        "range",
        "set",
        "slice",
        "str",
        "tuple",
        "xrange",
    )
)
_DATA = {
    "_codecs": {"encode"},
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
    "copyreg": {"_reconstructor"},
    "copy_reg": {"_reconstructor"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID", "SafeUUID"},
}
#: The modules above whose classes are written in Python: a pickle can set attributes of those classes.
_CHANGEABLE = frozenset(("collections", "fractions", "uuid"))


class Pickles:
    """The classes that pickles have named."""

    def __init__(self) -> None:
        #: Each class that a pickle named, and its earlier attributes. A pickle may set them: for example ``__eq__``.
        self._classes: dict[str, tuple[type, dict[str, object]]] = {}

    def allows(self, module: str, name: str) -> bool:
        """Return whether a pickle of plain data may name this. Record the class before the pickle can change it."""
        if name not in _DATA.get(module, ()):
            return False
        if module in _CHANGEABLE:
            __import__(module)  # the pickle imports it next
        named: object = getattr(sys.modules.get(module), name, None)
        if isinstance(named, type):
            self._classes.setdefault(f"{named.__module__}.{name}", (named, dict(vars(named))))
        return True

    def changed(self) -> str:
        """Return the name of the first class that has changed since a pickle named it; empty for none."""
        for name, (named, before) in self._classes.items():
            now = vars(named)
            if len(now) != len(before) or any(now.get(key) is not value for key, value in before.items()):
                return name
        return ""


def restrict_logging(text: str, plant: Callable[[str], None]) -> None:
    """Restrict the names in configurations of ``logging`` to logging's own classes and to names in the tests' text."""
    if "logging" not in text or "onfig" not in text:
        return  # importing logging.config takes 10 ms
    import logging.config

    def restricted(resolve: Callable[..., Any]) -> Callable[..., Any]:
        def restricted_resolve(*arguments: Any) -> Any:
            name, found = arguments[-1], resolve(*arguments)
            if not (_logs(found) or any(f"{quote}{name}{quote}" in text for quote in "'\"") or f"://{name}" in text):
                plant(f"a configuration of logging that names {name}")
            return found

        return restricted_resolve

    module: Any = logging.config
    module.BaseConfigurator.resolve = restricted(module.BaseConfigurator.resolve)
    module._resolve = restricted(module._resolve)


def _logs(found: object) -> bool:
    """Return whether an object serves logging: a handler, formatter, filter or queue class, or a standard stream."""
    import logging

    if isinstance(found, type):
        return issubclass(found, (logging.Handler, logging.Formatter, logging.Filter)) or found.__module__.endswith(
            "queue"
        )
    return found is sys.stdout or found is sys.stderr
