"""One run of a task's verifier: its script in a container of its own, without a network, over the agent's files.

The container's root, the highest first: what the run writes, the tests, what they fetched when the task was prepared,
the agent's files, the image. No process of the agent is alive, and only the reward of the run is kept.

Invariant: a reward is one that the script has written in this run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ors_containers import Image
from ors_containers.container import Container, ContainerSettings
from ors_containers.errors import FileError, NoSuchFile
from ors_containers.limits import MIB
from ors_containers.sandbox import RecordedPaths

from ..ctrf_report import REPORT_FILE
from ..folder import HarborTask
from ..record import Record
from ..reward import JSON_FILE, MOST_BYTES, TEXT_FILE, NoReward, Reward, read_reward
from ..templates import filled

if TYPE_CHECKING:
    from ors_containers.images import ImageStore

__all__ = [
    "SEALED_FILES",
    "Containers",
    "Verification",
    "agent_image",
    "container_settings",
    "run_verifier",
    "verifier_variables",
    "wanted_hosts",
]

_APT = "/opt/ors-sealed/apt.conf"
#: Variables that keep programs from waiting for a network which is not there; a task's own win.
_SEALED = {"UV_OFFLINE": "1", "PIP_RETRIES": "0", "npm_config_offline": "true", "APT_CONFIG": _APT}
#: Files that these variables name, for the layer of the tests.
SEALED_FILES = {_APT: 'Acquire::Retries "0";\n'}
#: Bytes of a script's output that are kept.
_MOST_OUTPUT = 1 << 20
#: What programs print of a host that they cannot find.
_HOSTS = re.compile(
    r"could not resolve(?: host)?:? '?([\w.-]+)|failed to resolve '([\w.-]+)'|"
    r"temporary failure resolving '([\w.-]+)'|unable to resolve host address .([\w.-]+)|"
    r"(?:ENOTFOUND|EAI_AGAIN) ([\w.-]+)|connectionpool\(host='([\w.-]+)'|failed to connect to ([\w.-]+) port|"
    r"https?://([\w.-]+)[^\n]*(?:dns error|offline|network)",
    re.IGNORECASE,
)


class Containers(Protocol):
    """The part of ``ors_server.sandboxes.SandboxService`` that Harbor tasks need."""

    @property
    def store(self) -> ImageStore: ...

    async def open_container(self, image: Image, settings: ContainerSettings | None = None) -> Container: ...


@dataclass(frozen=True)
class Verification:
    """Exit status, reward and output of one run of a verifier."""

    exit_status: int
    reward: Reward | NoReward
    timed_out: bool
    seconds: float
    #: Both outputs of the script.
    output: str
    #: The report of its tests that it has written (``REPORT_FILE``); empty for none.
    tests: bytes = b""
    #: The paths that it used, of a run that was recorded.
    used: RecordedPaths = field(default_factory=RecordedPaths)

    @property
    def value(self) -> float | None:
        """The reward; None where there is none."""
        return self.reward.value if isinstance(self.reward, Reward) else None

    @property
    def described(self) -> str:
        """The exit status and the reward in words."""
        if self.timed_out:
            return f"it was ended after {self.seconds:.0f} s"
        reward = f"reward {self.reward.value:g}" if isinstance(self.reward, Reward) else self.reward.detail
        return f"exit status {self.exit_status}, {reward}"


def agent_image(store: ImageStore, record: Record, workdir: str | None) -> Image:
    """Return the image of a prepared task, as Docker runs it. Raises ``UnknownImage`` and ``InvalidImage``."""
    image = store.docker_image(store.record(record.image))
    return dataclasses.replace(image, directory=workdir) if workdir else image


def container_settings(task: HarborTask, environment: Mapping[str, str], *, network: bool = False) -> ContainerSettings:
    """Return the limits and variables of a task's container."""
    asked = task.config.environment
    usual = ContainerSettings()
    return ContainerSettings(
        memory=asked.memory_mb * MIB if asked.memory_mb else usual.memory,
        cpus=asked.cpus or usual.cpus,
        disk=max(asked.storage_mb * MIB, 64 * MIB) if asked.storage_mb else usual.disk,
        environment=environment,
        network="open" if network else "none",
        refuse_names=not network,
    )


def verifier_variables(task: HarborTask, variables: Mapping[str, str]) -> dict[str, str]:
    """Return what a task sets for its verifier. Raises ``VariableMissing``."""
    config = task.config
    return {**filled(config.environment.env, variables), **filled(config.verifier.env, variables)}


async def run_verifier(
    service: Containers,
    task: HarborTask,
    record: Record,
    variables: Mapping[str, str],
    changes: Path | None = None,
    *,
    recorded: bool = False,
) -> Verification:
    """Run a task's script over the layer ``changes`` of an agent's files, for None over the start state.

    With ``recorded``, the paths that it uses are recorded. Raises ``VariableMissing``, and what opening a container
    raises.
    """
    store, verifier = service.store, task.config.verifier
    image = agent_image(store, record, task.config.environment.workdir)
    store.layers.use(record.toolchain)
    above = [store.layers.path(key) for key in record.toolchain]
    image = dataclasses.replace(image, layers=(*above, *([changes] if changes else ()), *image.layers))
    environment = {**_SEALED, **image.environment, **verifier_variables(task, variables)}
    async with await service.open_container(image, container_settings(task, environment)) as container:
        done = await container.execute(
            await asyncio.to_thread(_command, store.layers.path(record.toolchain[0])),
            user=verifier.user,
            timeout=verifier.timeout_sec,
            max_bytes=_MOST_OUTPUT,
            record=recorded,
        )
        contents = [await _content(container, f"/logs/verifier/{name}") for name in (JSON_FILE, TEXT_FILE)]
        tests = await _content(container, f"/logs/verifier/{REPORT_FILE}") or b""
    output = (done.stdout + done.stderr).decode(errors="replace")
    used = done.recorded or RecordedPaths()
    reward = read_reward(*contents)
    return Verification(done.exit_status, reward, done.timed_out, done.seconds, output, tests[:MOST_BYTES], used)


def _command(tests: Path) -> list[str]:
    """Return the command of the script in a layer; bash runs one without ``#!``, as in Harbor's shell."""
    with (tests / "tests" / "test.sh").open("rb") as script:
        return ["/tests/test.sh"] if script.read(2) == b"#!" else ["/bin/bash", "/tests/test.sh"]


def wanted_hosts(output: str) -> list[str]:
    """Return the hosts that programs could not find, by what they printed."""
    found = (name for match in _HOSTS.finditer(output) for name in match.groups() if name)
    return list(dict.fromkeys(found))


async def _content(container: Container, path: str) -> bytes | None:
    """Return a reward file's content; None where there is none, empty for what is not a regular file."""
    try:
        return (await container.read(path, length=MOST_BYTES + 1))[0]
    except NoSuchFile:
        return None
    except FileError:
        return b""
