"""Answers to the name lookups of a container without a network: there is no such host.

A program that gets no answer, or an error, asks again for seconds. The socket is bound in the container's network and
held by the server, which answers at most ``_BATCH`` questions every ``_PAUSE`` seconds: a container that floods it has
slow lookups, and costs the server little.

Invariant: a question is never more than bytes that are sent back, at most ``_MOST`` of them.
"""

from __future__ import annotations

import asyncio
import socket
import struct

__all__ = ["RefusedNames", "refusal"]

_BATCH = 64
_PAUSE = 0.02
_MOST = 512
#: Id, flags, and the numbers of questions and of three kinds of records.
_HEADER = struct.Struct(">HHHHHH")
_IS_ANSWER, _OPCODE, _RECURSION = 0x8000, 0x7800, 0x0100
#: It can recurse, and the name does not exist.
_NO_SUCH_NAME = 0x0083


def refusal(question: bytes) -> bytes | None:
    """Return the answer to a DNS message that its name does not exist; None for what is not a question."""
    if not _HEADER.size < len(question) <= _MOST:
        return None
    identity, flags, questions, *_ = _HEADER.unpack_from(question)
    if flags & _IS_ANSWER or questions != 1:
        return None
    place = _HEADER.size
    while place < len(question) and question[place]:
        place += 1 + question[place]
    end = place + 5  # the empty label, type and class
    if end > len(question):
        return None
    answered = _IS_ANSWER | flags & (_OPCODE | _RECURSION) | _NO_SUCH_NAME
    return _HEADER.pack(identity, answered, 1, 0, 0, 0) + question[_HEADER.size : end]


class RefusedNames:
    """The answers on one socket, of which ``descriptor`` is taken over; until ``close``."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Stop answering."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._answer)

    def _answer(self) -> None:
        for _ in range(_BATCH):
            try:
                question, asker = self._socket.recvfrom(_MOST + 1)
                answer = refusal(question)
                if answer is not None:
                    self._socket.sendto(answer, asker)
            except BlockingIOError:
                return
            except OSError:
                continue  # who asked is gone
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._pause = loop.call_later(_PAUSE, self._listen)
