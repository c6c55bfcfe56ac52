r"""The text that bash reads from its control socket, and the frames that it writes there.

Bash reads three lines for each command. The first evaluates the command's text with its input, output and errors
redirected to where they belong. The second is empty, because a bash that was given half a command (an open quote) drops
the line after it. The third, the status probe, writes a frame to the same socket: a random token, the exit status, the
directory and the exported environment. Bash writes each variable by itself, so a frame is a dozen writes, each of which
would wake a server that waits for them; hence the probe ends with one byte to a second socket, the *bell*, at which the
server waits: bash's own standard output. While a command runs, both are at close-on-exec descriptors: the programs it
starts do not have them, and a socket cannot be opened through ``/proc``. Bash's own errors go to /dev/null, so prompts
and traces of these lines are not seen.

Invariants: only a frame that carries the command's own token counts; everything else that comes over the socket is
ignored and bounded in size. The bell only says that there may be one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "BELL_AT",
    "OUTPUT_AT",
    "SETUP",
    "SHELL_ARGUMENTS",
    "Frames",
    "Status",
    "evaluation",
    "status_probe",
    "without_terminal_errors",
]

#: The descriptor at which bash finds the pipe for output; its input is the socket.
OUTPUT_AT = 19
#: The descriptor of the bell. Another one would be closed for commands, for which bash takes a number from them.
BELL_AT = 1
SHELL_ARGUMENTS = ("--norc", "--noprofile", "--noediting", "-i", "+H", "-s")
SETUP = b" \\set +o history; \\unset HISTFILE MAILCHECK; \\shopt -u checkwinsize; PS1= PS2=\n"

#: The beginning of a frame's end, and the most bytes that the end has.
_END, _END_LENGTH = b"\x1eend ", 64
#: Largest environment that is carried over to a new shell, in bytes; of a larger one nothing is kept.
_ENVIRONMENT_LIMIT = 4 * 2**20
#: Most bytes that are searched for the beginning of a frame: the longest path and other text that bash wrote.
_HEAD_LIMIT = 64 * 1024


def evaluation(text: bytes) -> bytes:
    """Return the line that evaluates a command's text."""
    quoted = text.replace(b"'", b"'\\''")
    return b" \\builtin eval '%b' </dev/null >&%d 2>&%d %d>&-\n" % (quoted, OUTPUT_AT, OUTPUT_AT, OUTPUT_AT)


def status_probe(token: bytes) -> bytes:
    """Return the line that writes a frame with ``token``, and rings the bell."""
    # `\036` is the record separator \x1e. The backslashes before the names keep aliases away; braces instead of `eval`
    # would be words that an alias can replace.
    return (
        b" \\builtin eval '"
        b'\\builtin printf "\\036%%s %%d %%s\\036" %b "$?" "$PWD"; \\builtin export -p; '
        b'\\builtin printf "\\036end %%s\\036" %b'
        b"' >&0; \\builtin printf .\n" % (token, token)
    )


@dataclass(frozen=True, slots=True)
class Status:
    """The content of a frame."""

    exit_status: int
    directory: str
    #: The exported variables as bash writes them; empty if they were too large.
    exported: bytes


class Frames:
    """Bytes that bash wrote to its control socket."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> bool:
        """Append ``data``; return whether a frame may be complete now.

        Bash writes each variable by itself, and to look at each would cost more than all else of a command.
        """
        self._data += data
        if len(self._data) > 2 * _ENVIRONMENT_LIMIT:
            self._data.clear()  # the rest of a large environment, or bytes that no probe wrote
        since = max(0, len(self._data) - len(data) - _END_LENGTH)
        return self._data.find(_END, since) != -1 or len(self._data) > _ENVIRONMENT_LIMIT

    def clear(self) -> None:
        """Drop what was not read."""
        self._data.clear()

    def read_status(self, token: bytes) -> Status | None:
        """Return the content of the frame with this token once it is complete, and drop what came before.

        An environment beyond the limit is not waited for: the status precedes it.
        """
        head, end = b"\x1e%b " % token, b"\x1eend %b\x1e" % token
        found = self._data.find(head)
        if found == -1:
            if len(self._data) > _HEAD_LIMIT:
                del self._data[: len(self._data) - _HEAD_LIMIT]
            return None
        start = found + len(head)
        middle = self._data.find(b"\x1e", start)
        stop = -1 if middle == -1 else self._data.find(end, middle)
        too_large = (len(self._data) if stop == -1 else stop) - middle > _ENVIRONMENT_LIMIT
        if middle == -1 or (stop == -1 and not too_large):
            return None
        status, _, directory = bytes(self._data[start:middle]).partition(b" ")
        exported = b"" if too_large else bytes(self._data[middle + 1 : stop])
        self._data.clear()
        if not status.isdigit():
            return None
        return Status(int(status), directory.decode(errors="surrogateescape"), exported)


def without_terminal_errors(output: bytes, shell: int) -> bytes:
    """Remove the lines that an interactive bash without a terminal writes after each program that was killed."""
    if b"tcsetattr" not in output:
        return output
    return re.sub(rb"bash: \[%d: \d+ \(\d+\)\] tcsetattr: [^\n]*\n" % shell, b"", output)
