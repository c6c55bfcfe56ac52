"""The sandboxes of a server: one service an event loop, started at first use and closed with the server.

    sandbox: Sandbox | None = None

    async def setup(self) -> None:
        sandboxes = await sandbox_service()
        self.sandbox = await sandboxes.open(sandboxes.runtime.host_image(), Limits(memory=512 * 2**20))

    async def teardown(self) -> None:
        if self.sandbox is not None:  # None where ``open`` failed
            await self.sandbox.stop()

Settings (``ORS_SANDBOX_…``) choose the runtime, and how many sandboxes are kept warm and may wait. The first sandbox
imports ``ors_containers``: a server without sandboxes does not pay for that.

An environment need not translate the errors of ``ors_containers``: where an author's code is run
(``hosting.executors``), its ``InfrastructureFailure`` becomes the server's, and its ``Overloaded`` a ``MachineBusy``.
Invariant: a service is used only by the event loop that it was made on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ors_server.errors import InfrastructureFailure, MachineBusy, OrsError
from ors_server.settings import Settings
from ors_server.telemetry.counts import SandboxCounts
from ors_server.telemetry.tracing import sandbox_span
from ors_server.worker import Identity

if TYPE_CHECKING:
    from ors_containers.container import Container, ContainerSettings
    from ors_containers.graders.portable_python import Toolset
    from ors_containers.image import Image
    from ors_containers.images import ImageStore
    from ors_containers.limits import Limits
    from ors_containers.runtime import Runtime
    from ors_containers.sandbox import Sandbox
    from ors_containers.scheduling.pool import SandboxPool

__all__ = [
    "SandboxService",
    "announce_code",
    "close_sandbox_service",
    "give_way_while",
    "hide_announced_code",
    "hide_code_from_sandboxes",
    "hold_sandbox_service",
    "running_sandbox_service",
    "sandbox_error",
    "sandbox_service",
    "sandboxes_unavailable",
    "use_settings",
]

logger = logging.getLogger("ors_server.sandboxes")

#: Folders of programs and packages, which sandboxes need: of an environment in one, only the module itself is hidden.
_COMMON_FOLDERS = frozenset(("bin", "dist-packages", "lib", "lib64", "sbin", "site-packages"))
#: Beginning of the names of files in which workers list what is hidden.
_LIST = "hidden-from-sandboxes-"
#: Files and folders that environments are served from: sandboxes must not see their tasks and solutions.
_code: set[Path] = set()


def hide_code_from_sandboxes(file: Path) -> None:
    """Hide a file that environments are served from, with its folder or its package, from every sandbox."""
    path = file.resolve()
    folder = path.parent
    if _is_common(folder):
        # Its compiled forms contain the same.
        compiled = (cache_from_source(path, optimization=level) for level in ("", 1, 2))
        _code.update((path, *map(Path, compiled), *path.parent.glob(f"__pycache__/{path.stem}.*.pyc")))
        return
    while (folder.parent / "__init__.py").is_file() and not _is_common(folder.parent):
        folder = folder.parent
    _code.add(folder)


def announce_code(worker: Identity) -> None:
    """List what was hidden so far in the folder of the server, for the worker that has its sandboxes."""
    Path(worker.folder, f"{_LIST}{worker.slot}").write_text("\0".join(map(str, _code)), errors="surrogateescape")


def hide_announced_code(worker: Identity) -> None:
    """Hide what the workers of the server have listed by now."""
    from ors_containers.linux.confinement.hidden_paths import keep_from_sandboxes

    for file in worker.folder.glob(f"{_LIST}*"):
        for path in filter(None, file.read_text(errors="surrogateescape").split("\0")):
            keep_from_sandboxes(Path(path))


def _is_common(folder: Path) -> bool:
    return folder.name in _COMMON_FOLDERS or all((folder / name).is_dir() for name in ("bin", "lib"))


class SandboxService:
    """Sandboxes, images and the graders' tools of one event loop; ``await sandbox_service()`` returns it."""

    def __init__(self, settings: Settings, runtime: Runtime, pool: SandboxPool) -> None:
        self.settings = settings
        #: Has been started.
        self.runtime = runtime
        self._pool = pool
        self.counts = SandboxCounts()
        pool.on_acquired = self._count
        self._store: ImageStore | None = None
        self._toolset: asyncio.Task[Toolset] | None = None

    @property
    def store(self) -> ImageStore:
        """The images of this machine (``ORS_IMAGES``)."""
        if self._store is None:
            from ors_containers.images import ImageStore

            self._store = ImageStore()
        return self._store

    @property
    def pool(self) -> SandboxPool:
        """The warm sandboxes, and the queue for sandboxes that must start."""
        return self._pool

    async def toolset(self) -> Toolset:
        """Return Python and pytest for examinations, independent of images; made at the first call and kept."""
        if self._toolset is None or (self._toolset.done() and not _succeeded(self._toolset)):
            from ors_containers.graders.portable_python import python_toolset

            self._toolset = asyncio.create_task(python_toolset(self.store.root / "toolsets"))
        return await asyncio.shield(self._toolset)  # a cancelled client must not cancel it for the others

    async def open(self, image: Image, limits: Limits | None = None) -> Sandbox:
        """Return a started sandbox: a warm one if there is one, else one that starts when the machine has room.

        The caller stops it. Raises ``Overloaded`` when too many wait for room already or the wait was too long, and
        what ``Runtime.sandbox`` and ``Sandbox.start`` raise.
        """
        with self._counting_failures(), sandbox_span(image.name):
            return await self._pool.acquire(image, limits, gives_way=_gives_way.get())

    def _count(self, start: Literal["warm", "cold"], seconds: float) -> None:
        self.counts.starts[start].observe(seconds)

    @contextmanager
    def _counting_failures(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            from ors_containers.errors import Overloaded

            self.counts.failures["no_room" if isinstance(error, Overloaded) else "failed"] += 1
            raise

    async def open_container(self, image: Image, settings: ContainerSettings | None = None) -> Container:
        """Return a docker-like container, started when the machine has room. The caller closes it.

        Raises ``Overloaded`` as ``open`` does, and what ``Runtime.open_container`` raises.
        """
        from ors_containers.container import ContainerSettings

        settings = settings or ContainerSettings()
        begun = time.perf_counter()
        with self._counting_failures(), sandbox_span(image.name):
            async with self._pool.admission.starts(settings.limits, container=True, gives_way=_gives_way.get()):
                container = await self.runtime.open_container(image, settings)
        self.counts.starts["container"].observe(time.perf_counter() - begun)
        return container

    async def close(self) -> None:
        """Stop every sandbox and free everything. Raises nothing."""
        if self._toolset is not None and not self._toolset.done():
            self._toolset.cancel()
            await asyncio.wait([self._toolset])
        await self._pool.close()
        await self.runtime.close()
        if self._store is not None:
            self._store.close()


def _succeeded(task: asyncio.Task[Toolset]) -> bool:
    return not task.cancelled() and task.exception() is None


class _LoopState:
    """The service of one event loop, once it is made, with its users and its settings."""

    def __init__(self) -> None:
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.settings: Settings | None = None
        self.making: asyncio.Task[SandboxService] | None = None


#: Returns whether the sandboxes that the running task opens start after those of all others.
_gives_way: ContextVar[Callable[[], bool]] = ContextVar("_gives_way", default=lambda: False)
#: The settings of the server that is being built, while it checks whether its environments can be served.
_used_settings: ContextVar[Settings | None] = ContextVar("_used_settings", default=None)
_states: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = weakref.WeakKeyDictionary()


def _state() -> _LoopState:
    return _states.setdefault(asyncio.get_running_loop(), _LoopState())


def hold_sandbox_service(user: object, settings: Settings) -> None:
    """Register ``user`` (a server) of the running loop's service, which is made with the first user's settings."""
    state = _state()
    if not state.users:
        state.settings = settings
    state.users.add(user)


async def sandbox_service() -> SandboxService:
    """Return the started service of the running event loop. For asynchronous methods: a thread has no event loop.

    Outside a server it is made with ``Settings()``, and the caller calls ``close_sandbox_service`` at the end. Raises
    ``RuntimeUnavailable`` and ``UnknownRuntime``; the next call tries again.
    """
    state = _state()
    if state.making is None:
        # In a context of its own: what it starts outlives the request whose ids its log lines would have.
        state.making = asyncio.create_task(_make(state.settings or Settings()), context=Context())
    making = state.making
    try:
        return await asyncio.shield(making)
    finally:
        if making.done() and (making.cancelled() or making.exception() is not None) and state.making is making:
            state.making = None


def running_sandbox_service() -> SandboxService | None:
    """Return the service of the running event loop if it has been started; to look at, not to hold."""
    making = _state().making
    if making is None or not making.done() or making.cancelled() or making.exception() is not None:
        return None
    return making.result()


async def close_sandbox_service(user: object | None = None) -> None:
    """Close the running loop's service, unless it has users other than ``user``. Raises nothing."""
    state = _state()
    if user is not None:
        state.users.discard(user)
    if state.users or state.making is None:
        return
    making, state.making = state.making, None
    await asyncio.wait([making])
    if not making.cancelled() and making.exception() is None:
        await making.result().close()


def give_way_while(condition: Callable[[], bool]) -> None:
    """Start the sandboxes that the running task opens after those of all others, while ``condition`` holds."""
    _gives_way.set(condition)


@contextmanager
def use_settings(settings: Settings) -> Generator[None]:
    """Use ``settings`` in ``sandboxes_unavailable`` within this block."""
    token = _used_settings.set(settings)
    try:
        yield
    finally:
        _used_settings.reset(token)


async def sandboxes_unavailable(settings: Settings | None = None) -> str:
    """Return why no sandbox can be started on this machine, with the remedy; empty where they can.

    For ``Environment.unavailable``: it starts the runtime of the server's settings, tries a sandbox and ends both.
    """
    from ors_containers.errors import SandboxError

    try:
        await (await _make(settings or _used_settings.get() or Settings())).close()
    except SandboxError as error:
        return str(error)
    return ""


async def _make(settings: Settings) -> SandboxService:
    from ors_containers.container import ContainerPolicy
    from ors_containers.linux.confinement.hidden_paths import keep_from_sandboxes
    from ors_containers.runtime import find_runtime
    from ors_containers.scheduling.admission import Admission
    from ors_containers.scheduling.capacity import CapacityReader
    from ors_containers.scheduling.pool import SandboxPool
    from ors_containers.scheduling.reservations import Reservations, reservations_of_node

    reservations = Reservations() if settings.node_table is None else reservations_of_node(settings.node_table)
    for path in _code:
        keep_from_sandboxes(path)
    runtime = find_runtime(settings.sandbox_runtime)()
    runtime.policy = ContainerPolicy(settings.sandbox_network, settings.sandbox_disk)
    runtime.hold_files = reservations.hold_files
    await runtime.start()
    capacity = CapacityReader(sandbox_memory=settings.sandbox_memory)
    if settings.sandbox_memory is not None and not capacity.measures_sandboxes:
        logger.warning(
            "ORS_SANDBOX_MEMORY has no effect",
            extra={"reason": "no control group of memory can be made here", "remedy": "`ors-server sandbox doctor`"},
        )
    admission = Admission(
        capacity,
        queue=settings.sandbox_queue,
        timeout=settings.sandbox_queue_timeout,
        reserve=settings.sandbox_reserve,
        pressure=settings.sandbox_pressure,
        reservations=reservations,
    )
    pool = SandboxPool(runtime, admission, warm=settings.sandbox_warm, warm_total=settings.sandbox_warm_total)
    return SandboxService(settings, runtime, pool)


def sandbox_error(raised: BaseException) -> OrsError | None:
    """Return the server's error for an error of ``ors_containers`` that an author's code raised; None for any other.

    A ``CallerError`` is not translated: it is a fault of the environment's code and reported as such.
    """
    module = sys.modules.get("ors_containers.errors")
    if module is None:  # not imported, so not raised either
        return None
    from ors_containers.errors import InfrastructureFailure as SandboxFailure
    from ors_containers.errors import Overloaded

    if isinstance(raised, Overloaded):
        return MachineBusy(raised.cause, raised.remedy, raised.retry_after)
    if isinstance(raised, SandboxFailure):
        return InfrastructureFailure(raised.cause, raised.remedy)
    return None
