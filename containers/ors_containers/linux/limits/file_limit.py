"""The limit on open files, each of which may be a connection."""

from __future__ import annotations

import resource

__all__ = ["raise_file_limit"]


def raise_file_limit() -> bool:
    """Raise the soft limit on open files to the hard limit; return whether that raised it.

    Most shells have a soft limit of 1,024, which a thousand clients or long tool calls use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True
