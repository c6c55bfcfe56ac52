"""The rule of who may reach a server without keys: this machine only, unless the operator says otherwise."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from ors_server.keys.errors import KeysError
from ors_server.keys.file import changed, keys_file
from ors_server.keys.key import Key, Limits, digest_of, make_secret
from ors_server.keys.keys import Keys
from ors_server.settings import Settings

__all__ = ["add_key", "is_loopback", "refuse_open_address"]

#: Name of the key that a server makes for itself.
_FIRST = "first"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or a name; False for an unknown name."""
    found = _addresses_of(host)
    return bool(found) and all(_is_loopback(address) for address in found)


def _addresses_of(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def refuse_open_address(
    settings: Settings, hosts: Sequence[str], *, may_make: bool = True, listens: bool = True
) -> None:
    """Refuse to serve where others reach the server and there is no key; make one where the settings say so.

    A server that ``listens`` at an unknown name fails with its own message. Other hosts may become known.

    Raises ``KeysError``, also where the file of keys cannot be used.
    """
    keys = Keys(keys_file(settings))
    if len(keys) or settings.insecure:
        return
    if settings.make_key and may_make:
        secret = add_key(settings, _FIRST)
        sys.stderr.write(
            f"This server had no key, and made one. It is shown this once; {keys_file(settings)} has its digest.\n\n"
            f"export ORS_API_KEY={secret} OPENREWARD_API_KEY={secret}\n\n"
        )
        return
    open_to_others = [host for host in hosts if not is_loopback(host) and (not listens or _addresses_of(host))]
    if open_to_others:
        raise KeysError(
            f"Other machines reach {open_to_others[0]}, and there is no key in {keys_file(settings)}"
            + (": all were revoked" if keys.wanted else ""),
            "Make one with `ors-server keys add NAME`, or say --insecure (ORS_INSECURE=1) where everyone there may use"
            " this server.",
        )


def add_key(settings: Settings, name: str, limits: Limits | None = None) -> str:
    """Add a key and return its secret, which is kept nowhere. Raises ``KeysError``."""
    secret = make_secret()
    with changed(keys_file(settings)) as keys:
        if any(key.name == name for key in keys):
            raise KeysError(
                f"There is a key {name!r} already", f"Choose another name, or `ors-server keys revoke {name}` first."
            )
        made = datetime.now(UTC).isoformat(timespec="seconds")
        keys.append(Key(name, digest_of(secret.encode()), made, limits or Limits()))
    return secret
