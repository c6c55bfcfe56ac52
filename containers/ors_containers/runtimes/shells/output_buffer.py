"""A buffer for the output of a command that keeps its head, its tail, and the number of bytes between them.

Invariant: never more than ``limit`` bytes are kept, however many are added, and adding takes time in proportion to the
added bytes.
"""

from __future__ import annotations

__all__ = ["HeadAndTail"]


class HeadAndTail:
    """The first and the last half of ``limit`` bytes of everything that is added."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, piece: bytes) -> None:
        """Append ``piece``."""
        self.total += len(piece)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if not piece:
            return
        self._tail += piece
        # Cut only once as much again has gathered: every byte is moved once.
        if len(self._tail) > 2 * self._tail_limit + 65536:
            self._cut()

    @property
    def omitted(self) -> int:
        """Bytes that were added and are not kept."""
        return max(0, self.total - self._head_limit - self._tail_limit)

    def content(self) -> bytes:
        """Return the kept bytes; a line says how many are omitted, where there are any."""
        self._cut()
        if not self.omitted:
            return bytes(self._head + self._tail)
        return b"%b\n[... %d bytes omitted ...]\n%b" % (self._head, self.omitted, self._tail)

    def _cut(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
