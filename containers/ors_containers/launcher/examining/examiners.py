"""The group of an examination's processes, which no process of the agent is in.

The agent's processes have the same user as an examination's. Capabilities keep an examination's memory and descriptors
from them (``syscalls.SHIELD``). The group keeps from them what capabilities do not: the arguments of programs, which
any process may read in /proc, and files, which the kernel opens for their owner. While an examination runs, /proc
shows every process to this group, and to other processes only those that they may inspect. Only the group can access
the examination's folder. The kernel checks the group at each look-up, so a descriptor of the folder that is passed on
is of no use outside the group.

Invariant: no process of the agent gets into the group: it has no capability to change its groups, and no program with
the set-group-id bit is executed with the bit's rights (``no_new_privs``).
"""

from __future__ import annotations

from ors_containers.launcher.messages import User

__all__ = ["examiners"]

#: ``nogroup``, so that programs of the tests find a name for it; another where it is the image's user's.
_CANDIDATES = (65534, 65533, 65531)


def examiners(user: User) -> int | None:
    """Return the id, that of a group and of a user without processes; None where a sandbox has a single id."""
    if user.one_id:
        return None
    return next(number for number in _CANDIDATES if number not in (user.id, user.group))
