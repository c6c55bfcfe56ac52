"""What data may name: pickles, and configurations of logging.

Either can name any function there is and have it called. Whoever does that where data is expected is the agent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["Pickles", "restrict_logging"]

#: What a pickle of plain data may name, by module.
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
#: Modules of these whose classes are written in Python: their attributes can be set.
_CHANGEABLE = frozenset(("collections", "fractions", "uuid"))


class Pickles:
    """What pickles have named."""

    def __init__(self) -> None:
        #: Each class that one named, as it was before. A pickle may set its attributes: what `==` means, say.
        self._classes: dict[str, tuple[type, dict[str, object]]] = {}

    def allows(self, module: str, name: str) -> bool:
        """Whether a pickle of plain data may name this; it is about to."""
        if name not in _DATA.get(module, ()):
            return False
        if module in _CHANGEABLE:
            __import__(module)  # as the pickle is about to do
        named: object = getattr(sys.modules.get(module), name, None)
        if isinstance(named, type):
            self._classes.setdefault(f"{named.__module__}.{name}", (named, dict(vars(named))))
        return True

    def changed(self) -> str:
        """The first class that is not what it was before a pickle named it."""
        for name, (named, before) in self._classes.items():
            now = vars(named)
            if len(now) != len(before) or any(now.get(key) is not value for key, value in before.items()):
                return name
        return ""


def restrict_logging(text: str, plant: Callable[[str], NoReturn]) -> None:
    """Have configurations of logging name nothing but what logs, and what the tests name themselves."""
    if "logging" not in text or "onfig" not in text:
        return  # importing it takes 10 ms
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
    """Whether something is for logging: a class of a handler, formatter or filter, a queue, a standard stream."""
    import logging

    if isinstance(found, type):
        return issubclass(found, (logging.Handler, logging.Formatter, logging.Filter)) or found.__module__.endswith(
            "queue"
        )
    return found is sys.stdout or found is sys.stderr
