"""Docker's default capabilities, and their number in the kernel."""

from __future__ import annotations

__all__ = ["CONTAINER_CAPABILITIES", "NET_RAW"]

_NAMES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "SYS_CHROOT": 18,
    "MKNOD": 27,  # permits nothing in a user namespace
    "AUDIT_WRITE": 29,  # nor does this
    "SETFCAP": 31,
}
CONTAINER_CAPABILITIES = list(_NAMES.values())
#: With it a process writes the addresses of packets itself, whatever the routing table says.
NET_RAW = _NAMES["NET_RAW"]
