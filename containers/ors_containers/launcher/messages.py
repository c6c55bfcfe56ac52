"""Messages between the server and the launcher: requests, responses, and the records in them.

A message is one JSON array ``[id, class, fields]`` on a socket of packets; descriptors travel beside it. The id of a
response is that of its request; ``Exited`` answers no request and has id 0.
"""

# Annotations are evaluated here: ``records`` reads them.

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ors_containers.launcher.records import InvalidRecord, from_json, to_json
from ors_containers.linux.confinement.user_namespaces import IdMap

__all__ = [
    "MESSAGE_SIZE",
    "Bind",
    "Done",
    "EndCommand",
    "EndProcesses",
    "Enter",
    "Entered",
    "Envelope",
    "Examine",
    "ExamineHere",
    "Examining",
    "Exited",
    "Failed",
    "FileFound",
    "OpenFile",
    "Opened",
    "PackedProgram",
    "Program",
    "RenameFile",
    "Request",
    "Response",
    "Root",
    "RootDirectory",
    "SettleContainer",
    "StartApptainer",
    "StartBubblewrap",
    "StartContainer",
    "Started",
    "StatFile",
    "User",
    "WarmStart",
    "open_envelope",
    "read_request",
    "read_response",
    "seal",
]

#: Largest message either way, in bytes; a Unix socket takes 200 KiB at once with Linux's default buffers.
MESSAGE_SIZE = 128 * 1024


# ── records ──


class User(NamedTuple):
    """The user of a sandbox's processes, as its user namespace numbers it."""

    id: int
    group: int
    #: The namespace has this id only, and the kernel has given it to every process that enters.
    one_id: bool
    #: A container's: root has these, and no process can get another. A sandbox's processes have none.
    capabilities: list[int] = []  # noqa: RUF012 - a named tuple's default, which is never changed
    #: A container's: other groups of its processes.
    groups: list[int] = []  # noqa: RUF012 - as above


class Bind(NamedTuple):
    """A file or directory of the host that appears in the sandbox."""

    source: str
    target: str
    is_directory: bool


class RootDirectory(NamedTuple):
    """A directory of the sandbox's root that the image may lack."""

    path: str
    mode: int
    user: int
    group: int


class Root(NamedTuple):
    """The root of a new sandbox."""

    #: An empty directory of the host, where everything is mounted in a mount namespace of the child's own.
    stage: str
    layers: list[str]
    binds: list[Bind]
    #: Paths that are left out, relative to the layer or bound tree that is the key.
    hidden: dict[str, list[str]]
    directories: list[RootDirectory]
    mapping: IdMap
    #: Bytes and files that the sandbox may write.
    disk: int
    inodes: int
    #: The folder of the host for the file that is the disk; empty for a tmpfs.
    disk_folder: str = ""
    #: Programs with the set-user-id bit get their owner's rights.
    setuid: bool = False
    #: As root: the loop device of each layer that is the upper directory of an ended container's disk.
    frozen: dict[str, str] = {}  # noqa: RUF012 - a named tuple's default, which is never changed
    #: As an ordinary user: the folders of git objects in the layers, relative to the root.
    object_stores: list[str] = []  # noqa: RUF012 - a named tuple's default, which is never changed


class Program(NamedTuple):
    """A program that is executed in a sandbox."""

    #: The first is the path to execute.
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    user: User
    #: rlimits by the name of ``resource.RLIMIT_…``.
    resources: dict[str, int]


# ── requests ──


class StartBubblewrap(NamedTuple):
    """Start a sandbox through bubblewrap. Descriptors: a pipe for its status, a pipe for its errors."""

    root: Root
    program: str
    arguments: list[str]
    #: Files by which a process joins its control groups.
    groups: list[str]


class StartApptainer(NamedTuple):
    """Start a sandbox through Apptainer. Descriptors: a pipe for its status, a pipe for its errors."""

    root: Root
    program: str
    #: The search path for the programs that Apptainer runs itself.
    path: str
    user: User


class StartContainer(NamedTuple):
    """Start a docker-like container.

    Descriptors: a pipe for its status, a pipe for its errors; a socket to which the directory of its files is sent, and
    with ``refuse_names`` a socket of its network; where ``root.disk_folder`` is one, the content of a new disk; for a
    sidecar, a pidfd of the main container's process 1.
    """

    root: Root
    groups: list[str]
    host_name: str
    #: Content by name of the files in /etc that the container gets instead of the image's.
    files: dict[str, str]
    #: IPv4 networks that are made unreachable, of a main container.
    blocked: list[str]
    #: Bytes of /dev/shm.
    shared_memory: int
    #: Process id of the main container's process 1, whose network and user namespace are joined; 0 for a main one.
    main: int
    #: Bind a socket to ``launcher.container.REFUSING_SERVER``.
    refuse_names: bool = False


class SettleContainer(NamedTuple):
    """Remove what Apptainer leaves open in a container. Descriptor: a pidfd of its process 1."""

    #: Process id of process 1.
    process_1: int
    one_id: bool
    #: Targets of the image's binds, which stay mounted.
    targets: list[str]


class Enter(NamedTuple):
    """Start a program in a sandbox. Descriptors: a pidfd of process 1 or a gate, then those the program gets."""

    program: Program
    groups: list[str]
    #: The first descriptor is a socket at which process 1's pidfd arrives when the sandbox has come up.
    gate: bool
    #: The program's numbers for the descriptors after the first; 0 to 2 are /dev/null otherwise.
    at: list[int]
    #: The last descriptor is a file with the text of a command for the program, a shell.
    script: bool = False
    #: The last descriptor is a file with a ``PackedProgram`` as JSON instead, and the program gets no number for it.
    packed: bool = False
    #: The very last descriptor is a socket, which gets that of ``seccomp.recording_filter``, or why there is none.
    record: bool = False
    #: An examination has hidden the sandbox's processes from one another, and they are shown again.
    show_processes: bool = False


class PackedProgram(NamedTuple):
    """The parts of a program that may be longer than a message."""

    arguments: list[str]
    environment: dict[str, str]
    #: A directory that must be there; empty for the program's own.
    directory: str


class WarmStart(NamedTuple):
    """A Python with which a program may be started that has imported what the program needs."""

    #: The toolset on the machine, and in sandboxes.
    folder: str
    at: str
    #: The program as a module of the examination's files, whose ``main`` returns the exit status.
    module: str
    #: The folder of the toolset's packages, and the names of modules to import beforehand.
    packages: str
    ahead: list[str]
    #: The same for the same files and modules.
    key: str


class Examine(NamedTuple):
    """Start an examination.

    Descriptors: a pidfd of process 1, packed files (``packed_files``), its input, its output, and a pipe that the
    server closes to end it. For a warm Python, files of the control groups follow in the place of ``groups``.
    """

    program: Program
    groups: list[str]
    keep_processes: bool
    #: Process id inside of the shell, which is ended; 0 if there is none.
    shell: int
    #: How the program may be started without executing it.
    warm: WarmStart | None = None


class ExamineHere(NamedTuple):
    """Start an examination with a copy of this process, a warm Python.

    Descriptors: a socket with the ``Examine``, which so only the copy reads, and a pidfd of process 1.
    """

    #: No process but process 1 goes on: the copy may become the program, without another one that watches it.
    is_frozen: bool


class OpenFile(NamedTuple):
    """Open a regular file. Descriptor: a pidfd of process 1."""

    path: str
    flags: int
    mode: int
    parents: bool
    user: User
    directory: str
    #: ``mode`` is for a new file only; one that is there keeps its own.
    keep_mode: bool = False


class StatFile(NamedTuple):
    """Describe a path. Descriptor: a pidfd of process 1."""

    path: str
    follow: bool
    user: User
    directory: str


class EndCommand(NamedTuple):
    """End processes. Descriptor: a pidfd of process 1."""

    shell: int
    #: Start time by process id, which is a string since it is a key in JSON.
    keep_pids: dict[str, int]
    #: As ``ShellHost.end_command`` says, or ``examination``.
    how: str


class EndProcesses(NamedTuple):
    """Kill a process, its descendants and the processes of its session. Descriptor: a pidfd of process 1."""

    #: As the sandbox numbers it.
    process: int


class RenameFile(NamedTuple):
    """Rename a file. Descriptor: a pidfd of process 1."""

    path: str
    target: str
    user: User
    directory: str


# ── responses ──


class Started(NamedTuple):
    """The process that becomes bwrap or Apptainer."""

    process: int


class Entered(NamedTuple):
    """The process of a program, as the host and as the sandbox numbers it."""

    process: int
    inner: int
    #: The kernel let System V IPC be bounded.
    ipc_bounded: bool


class Examining(NamedTuple):
    """The process that watches an examination's program and ends with its exit status."""

    #: None if a process of the agent killed it as it started.
    process: int | None
    #: It is the program itself: nothing ends it, and what it leaves, when the server closes the pipe.
    is_program: bool = False


class Opened(NamedTuple):
    """An open file of ``size`` bytes; the descriptor is the receiver's."""

    descriptor: int
    size: int


class FileFound(NamedTuple):
    """Fields of ``sandbox.FileStatus``."""

    kind: str
    size: int
    mode: int
    user: int
    group: int
    modified: float
    link: str | None


class Done(NamedTuple):
    """Success of a request that has no result."""


class Failed(NamedTuple):
    """The errno and the text of an error."""

    number: int
    text: str


class Exited(NamedTuple):
    """A process that a response named has ended."""

    process: int
    code: int


Request = (
    (StartBubblewrap | StartApptainer | StartContainer | SettleContainer)
    | (Enter | Examine | ExamineHere | OpenFile | StatFile | RenameFile)
    | (EndCommand | EndProcesses)
)
Response = Started | Entered | Examining | Opened | FileFound | Done | Failed | Exited

_REQUESTS: Mapping[str, type[Request]] = {kind.__name__: kind for kind in Request.__args__}
_RESPONSES: Mapping[str, type[Response]] = {kind.__name__: kind for kind in Response.__args__}


class Envelope(NamedTuple):
    """A message whose fields have not been checked."""

    id: int
    kind: str
    fields: Any


def seal(identity: int, message: Request | Response) -> bytes:
    """Encode a message."""
    return json.dumps([identity, type(message).__name__, to_json(message)]).encode()


def open_envelope(data: bytes) -> Envelope:
    """Decode a message except for its fields."""
    identity, kind, fields = json.loads(data)
    return Envelope(identity, kind, fields)


def read_request(envelope: Envelope) -> Request:
    """Return the request in an envelope. Raises ``InvalidRecord``."""
    if envelope.kind not in _REQUESTS:
        raise InvalidRecord(f"There is no request {envelope.kind}")
    return from_json(_REQUESTS[envelope.kind], envelope.fields)


def read_response(envelope: Envelope) -> Response:
    """Return the response in an envelope. Raises ``InvalidRecord``."""
    if envelope.kind not in _RESPONSES:
        raise InvalidRecord(f"There is no response {envelope.kind}")
    return from_json(_RESPONSES[envelope.kind], envelope.fields)
