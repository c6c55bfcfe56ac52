"""The users of a container's programs, and what every program of a user has: variables, directory and rlimits.

Invariant: a name is looked up in the container's own files, of which at most ``_MOST`` bytes are read, and an account
has ids of the container's user namespace only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ors_containers.container import ContainerSettings, Network
from ors_containers.errors import FileError, InvalidCommand
from ors_containers.image import Image
from ors_containers.launcher.messages import Program, User
from ors_containers.linux.confinement.capabilities import CONTAINER_CAPABILITIES, NET_RAW
from ors_containers.linux.limits.kernel_limits import RESOURCES
from ors_containers.runtimes.containers.container_files import ContainerFiles
from ors_containers.runtimes.runtime_state import RuntimeState

__all__ = ["Account", "container_program", "container_user", "find_account", "user_of"]

_IDS = 65536
#: Bytes of /etc/passwd and of /etc/group that are read.
_MOST = 1 << 20


class Account(NamedTuple):
    """A user by the container's files."""

    name: str
    user: int
    group: int
    home: str
    groups: tuple[int, ...] = ()


_ROOT = Account("root", 0, 0, "/root")


def container_user(image: Image, settings: ContainerSettings | None, runtime: RuntimeState, network: Network) -> User:
    """Return the user of a container's commands: the settings', else the image's, else root."""
    user, group, groups = (image.user, image.group, image.groups) if image.names_user else (0, 0, ())
    if settings is not None and settings.user is not None:
        user = settings.user
        group, groups = (image.group, image.groups) if user == image.user else (0 if user == 0 else user, ())
    if settings is not None and settings.group is not None:
        group = settings.group
    capabilities = CONTAINER_CAPABILITIES
    if network == "open":
        capabilities = [capability for capability in capabilities if capability != NET_RAW]
    return User(user, group, runtime.mapping.one_id, capabilities, list(groups))


def container_program(
    image: Image,
    user: User,
    environment: Mapping[str, str],
    resources: Mapping[str, int],
    account: Account | None = None,
) -> Program:
    """Return what every program of a container has: its variables, directory, user and rlimits.

    ``account`` names the user and its home, for a user that is not the container's own.
    """
    variables = dict(image.variables)
    if account is None and (user.id != image.user or user.one_id):
        root = user.id == 0 or user.one_id
        account = _ROOT if root else Account(str(user.id), user.id, user.group, "/")
    if account is not None:
        own = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
        variables |= own | dict(image.environment)
    return Program(
        arguments=[],
        environment=variables | dict(environment),
        directory=image.directory or "/",
        user=user,
        resources={"CORE": 0, **RESOURCES, **resources},
    )


def user_of(account: Account, own: User) -> User:
    """Return the user of an account in the container of the user ``own``.

    Raises ``InvalidCommand`` where the container has one id, and it is another.
    """
    if not own.one_id:
        return own._replace(id=account.user, group=account.group, groups=list(account.groups))
    if account.user not in (0, own.id):
        raise InvalidCommand(
            f"No command can run as {account.name}: this machine gives a container one user id",
            "Install uidmap and give this user a range of ids in /etc/subuid and /etc/subgid",
        )
    return own


async def find_account(files: ContainerFiles, wanted: str | int) -> Account | None:
    """Return the account of a name or an id; None for a name that does not exist and an id above the container's."""
    name = str(wanted)
    if name in ("0", "root"):
        return _ROOT
    accounts = [account for fields in await _lines(files, "/etc/passwd") if (account := _account(fields))]
    found = next((account for account in accounts if account.name == name), None)
    if found is None and name.isdecimal():
        identity = int(name) if len(name) < 8 else _IDS
        if identity >= _IDS:
            return None
        found = next((account for account in accounts if account.user == identity), Account(name, identity, 0, "/"))
    if found is None:
        return None
    groups = [
        int(fields[2])
        for fields in await _lines(files, "/etc/group")
        if len(fields) >= 4 and _is_id(fields[2]) and found.name in fields[3].split(",")
    ]
    return found._replace(groups=tuple(groups[:64]))


def _account(fields: list[str]) -> Account | None:
    if len(fields) < 6 or not _is_id(fields[2]) or not _is_id(fields[3]):
        return None
    return Account(fields[0], int(fields[2]), int(fields[3]), fields[5] if fields[5].startswith("/") else "/")


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) < 8 and int(text) < _IDS


async def _lines(files: ContainerFiles, path: str) -> list[list[str]]:
    """Return the fields of a file's lines; none of a file that is not there or cannot be read."""
    try:
        content, _ = await files.read(path, 0, _MOST)
    except FileError:
        return []
    return [line.split(":") for line in content.replace(b"\0", b"").decode(errors="replace").splitlines()]
