"""Frame server-sent events so that the parser of every client returns the exact bytes.

Both SDK parsers strip *all* white space from the start of a data line, and fail on a line of more than 64 KiB
(protocol, section 2). So a long result is cut between characters into data lines of at most ``LINE_LIMIT`` bytes, and
a white-space character after a cut is written as its JSON escape: in compact JSON white space occurs only in strings,
where the escape means the same. Characters that some parsers take for line ends are escaped too.
"""

from __future__ import annotations

from ors_server.wire.texts import replace_surrogates

__all__ = ["LINE_LIMIT", "error_frame", "read_frames", "result_frames", "session_frames", "task_frame"]

#: Longest data of one line, in bytes.
LINE_LIMIT = 32 * 1024
#: Longest error text, in characters; it fits one line even with four bytes for each.
ERROR_LIMIT = 12_000

_TASK = b"event: task_id\r\ndata: "
_CHUNK = b"event: chunk\r\ndata: "
_END = ONE_FRAME = b"event: end\r\ndata: "
_CLOSE = FRAME_END = b"\r\n\r\n"
_ERROR = b"event: error\r\n"

# NEL, LINE SEPARATOR and PARAGRAPH SEPARATOR end a line for str.splitlines(), which some SSE parsers use.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def task_frame(task_id: str) -> bytes:
    """Return the first event of a call: the id under which it can be fetched again."""
    return b"%b%b\r\n\r\n" % (_TASK, task_id.encode())


def session_frames(sid: str) -> bytes:
    """Return the events that answer ``/create_session``."""
    return task_frame(sid) + _END + _CLOSE


def result_frames(data: bytes) -> bytes:
    """Return the ``chunk`` and ``end`` events that carry compact JSON."""
    if not data.isascii():
        for separator, escape in _LINE_ENDS:
            if separator in data:
                data = data.replace(separator, escape)
    if len(data) <= LINE_LIMIT:
        return _END + data + _CLOSE
    lines = _cut(data)
    frames = [_CHUNK + line + _CLOSE for line in lines[:-1]]
    frames.append(_END + lines[-1] + _CLOSE)
    return b"".join(frames)


def error_frame(message: str) -> bytes:
    """Return an ``error`` event. Each line of the message becomes a data line; a long message is cut in its middle."""
    text = replace_surrogates(message)
    if len(text) > ERROR_LIMIT:
        half = ERROR_LIMIT // 2
        text = f"{text[:half]} … [{len(text) - 2 * half} characters left out] … {text[-half:]}"
    lines = text.splitlines() or [""]
    return _ERROR + b"".join(b"data: %b\r\n" % line.encode() for line in lines) + b"\r\n"


def read_frames(frames: bytes) -> tuple[bool, bytes]:
    """Return whether frames made here are an error, and their JSON or its text."""
    if frames.startswith(_END):
        return False, frames[len(_END) : -len(_CLOSE)]
    if frames.startswith(_ERROR):
        lines = frames[len(_ERROR) :].split(b"\r\n")
        return True, b"\n".join(line.removeprefix(b"data: ") for line in lines if line)
    return False, b"".join(frame.partition(b"data: ")[2] for frame in frames.split(_CLOSE))


def _cut(data: bytes) -> list[bytes]:
    lines: list[bytes] = []
    position, end = 0, len(data)
    escape = b""
    while end - position > LINE_LIMIT - len(escape):
        cut = position + LINE_LIMIT - len(escape)
        while data[cut] & 0xC0 == 0x80:  # inside a character
            cut -= 1
        lines.append(escape + data[position:cut])
        width = _width(data[cut])
        character = data[cut : cut + width].decode()
        if character.isspace():
            escape, position = b"\\u%04x" % ord(character), cut + width
        else:
            escape, position = b"", cut
    lines.append(escape + data[position:])
    return lines


def _width(lead: int) -> int:
    if lead < 0x80:
        return 1
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
