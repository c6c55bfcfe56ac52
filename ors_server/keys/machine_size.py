"""The size of a sandbox, ``CPUS:GIGABYTES``: read from text, and compared with what there is."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["MachineSize"]

_GIB = 1 << 30
#: Digits of ASCII alone: ``\d`` also matches those of other scripts, which a person may read as another number.
_TEXT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?):([0-9]{1,5}(?:\.[0-9]{1,3})?)")
_LEAST = 0.01


class MachineSize(NamedTuple):
    """Processors, and bytes of memory."""

    cpus: float
    memory: int

    @classmethod
    def read(cls, text: str) -> MachineSize:
        """Read a size. Raises ``ValueError``."""
        found = _TEXT.fullmatch(text)
        if found is None or not (float(found[1]) >= _LEAST and float(found[2]) >= _LEAST):
            raise ValueError(f"{text!r} is not CPUS:GIGABYTES, for example '2:4'")
        return cls(float(found[1]), int(float(found[2]) * _GIB))

    def fits(self, other: MachineSize) -> bool:
        """Return whether neither number is above the other's."""
        return self.cpus <= other.cpus and self.memory <= other.memory

    def __str__(self) -> str:
        return f"{self.cpus:g}:{int(self.memory / _GIB * 100) / 100:g}"
