"""The request that the server sends to the process of a build sandbox."""

# Annotations are evaluated here: ``records`` reads them.

from typing import NamedTuple

from ors_containers.launcher.messages import Bind, RootDirectory
from ors_containers.linux.confinement.user_namespaces import IdMap

__all__ = ["OVER_LIMIT", "SCRIPT_AT", "BuildRequest", "BuildScript", "HomeOwner"]

#: Where a script's text is open; the shell reads ``/proc/self/fd/9``.
SCRIPT_AT = 9
#: The text on standard error, which is empty otherwise, when more bytes were written than the limit.
OVER_LIMIT = "over the limit"


class BuildScript(NamedTuple):
    """A script of a build."""

    text: str
    arguments: list[str]
    user: int
    group: int
    environment: dict[str, str]
    directory: str
    #: Its standard output goes to the pipe ``BuildRequest.answer``.
    capture: bool
    #: Groups beside ``group``.
    others: list[int]


class HomeOwner(NamedTuple):
    """A user whose home the files of root become part of; id and home for an image that does not know the name."""

    name: str
    user: int
    home: str


class BuildRequest(NamedTuple):
    """A build, on the standard input of its process."""

    #: Process id of the server, with which the build ends.
    server: int
    #: The random word that begins the process's own lines of output.
    mark: str
    #: Files by which a process joins its control groups.
    groups: list[str]
    #: An empty directory of the host, where everything is mounted in a mount namespace of the process's own.
    stage: str
    #: A directory with ``upper`` and ``work``.
    disk: str
    layers: list[str]
    binds: list[Bind]
    directories: list[RootDirectory]
    mapping: IdMap
    network: bool
    #: Files of the host for a build with a network.
    network_files: list[str]
    #: Directories that are not kept.
    temporary: list[str]
    #: Directories that are empty at first and not kept; they are ``scratch0``, … beside ``upper``.
    scratch: list[str]
    #: Bytes in each temporary directory.
    memory: int
    #: Bytes that may be written; 0 for no limit.
    limit: int
    #: rlimits by the name of ``resource.RLIMIT_…``.
    resources: dict[str, int]
    own: HomeOwner | None
    scripts: list[BuildScript]
    #: Descriptor of the pipe for the output of captured scripts.
    answer: int
