"""The sandboxes of a server: one service an event loop, started at first use and closed with the server.

    sandbox: Sandbox | None = None

    async def setup(self) -> None:
        sandboxes = await sandbox_service()
        self.sandbox = await sandboxes.open(sandboxes.runtime.host_image(), Limits(memory=512 * 2**20))

    async def teardown(self) -> None:
        if self.sandbox is not None:  # None where ``open`` failed
            await self.sandbox.stop()

Which runtime, how many are kept warm and how many may wait are settings (``ORS_SANDBOX_…``). ``ors_containers`` is
imported when the first sandbox is wanted: a server without sandboxes does not pay for it.

An environment need not translate the errors of ``ors_containers``: where an author's code is run
(``hosting.executors``), its ``InfrastructureFailure`` becomes the server's, and its ``Overloaded`` a ``MachineBusy``.
Invariant: a service is used only by the event loop that it was made on.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from ors_server.errors import InfrastructureFailure, MachineBusy, OrsError
from ors_server.settings import Settings

if TYPE_CHECKING:
    from ors_containers.graders.portable_python import Toolset
    from ors_containers.image import Image
    from ors_containers.images import ImageStore
    from ors_containers.limits import Limits
    from ors_containers.runtime import Runtime
    from ors_containers.sandbox import Sandbox
    from ors_containers.scheduling.pool import SandboxPool

__all__ = [
    "SandboxService",
    "asking_with",
    "close_sandbox_service",
    "hold_sandbox_service",
    "keep_code_of",
    "sandbox_error",
    "sandbox_service",
    "sandboxes_unavailable",
]


#: Folders of programs and packages, which sandboxes need: of what is served from one, they lack the module alone.
_COMMON_FOLDERS = frozenset(("bin", "dist-packages", "lib", "lib64", "sbin", "site-packages"))
#: Where environments are served from: their tasks and solutions are no business of a sandbox.
_code: set[Path] = set()


def keep_code_of(file: Path) -> None:
    """Keep a file that environments are served from out of every sandbox, with its folder or the package it is in."""
    path = file.resolve()
    folder = path.parent
    if _is_common(folder):
        # Its compiled forms hold all that it does.
        compiled = (cache_from_source(path, optimization=level) for level in ("", 1, 2))
        _code.update((path, *map(Path, compiled), *path.parent.glob(f"__pycache__/{path.stem}.*.pyc")))
        return
    while (folder.parent / "__init__.py").is_file() and not _is_common(folder.parent):
        folder = folder.parent
    _code.add(folder)


def _is_common(folder: Path) -> bool:
    return folder.name in _COMMON_FOLDERS or all((folder / name).is_dir() for name in ("bin", "lib"))


class SandboxService:
    """Sandboxes, images and the graders' tools of one event loop. Got with ``await sandbox_service()``."""

    def __init__(self, settings: Settings, runtime: Runtime, pool: SandboxPool) -> None:
        self.settings = settings
        #: Started.
        self.runtime = runtime
        self._pool = pool
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
        """The warm sandboxes, and the queue for the others."""
        return self._pool

    async def toolset(self) -> Toolset:
        """Python and pytest for examinations, from outside of every image; made at the first call and kept."""
        if self._toolset is None or (self._toolset.done() and not _succeeded(self._toolset)):
            from ors_containers.graders.portable_python import python_toolset

            self._toolset = asyncio.create_task(python_toolset(self.store.root / "toolsets"))
        return await asyncio.shield(self._toolset)  # one client going away must not undo it for the others

    async def open(self, image: Image, limits: Limits | None = None) -> Sandbox:
        """A started sandbox: a warm one where there is one, else as soon as the machine has room for it.

        The caller stops it. Raises ``Overloaded`` when too many wait for room already or it took too long, and what
        ``Runtime.sandbox`` and ``Sandbox.start`` raise.
        """
        return await self._pool.acquire(image, limits)

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


class _Place:
    """What one event loop has: who uses its service, with which settings, and the service itself once it is made."""

    def __init__(self) -> None:
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.settings: Settings | None = None
        self.making: asyncio.Task[SandboxService] | None = None


#: The settings of the server that is being made and asks its environments whether they can be served.
_asking: ContextVar[Settings | None] = ContextVar("_asking", default=None)
_places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = weakref.WeakKeyDictionary()


def _place() -> _Place:
    return _places.setdefault(asyncio.get_running_loop(), _Place())


def hold_sandbox_service(user: object, settings: Settings) -> None:
    """Say that ``user`` (a server) may use the running loop's service, which is made with the first user's settings."""
    place = _place()
    if not place.users:
        place.settings = settings
    place.users.add(user)


async def sandbox_service() -> SandboxService:
    """The service of the running event loop, started. For asynchronous methods: a thread has no event loop.

    Outside a server it is made with ``Settings()``, and whoever called this calls ``close_sandbox_service`` at the end.
    Raises ``RuntimeUnavailable`` and ``UnknownRuntime``; the next call tries again.
    """
    place = _place()
    if place.making is None:
        place.making = asyncio.create_task(_make(place.settings or Settings()))
    making = place.making
    try:
        return await asyncio.shield(making)
    finally:
        if making.done() and (making.cancelled() or making.exception() is not None) and place.making is making:
            place.making = None


async def close_sandbox_service(user: object | None = None) -> None:
    """Close the running loop's service, unless others than ``user`` use it still. Raises nothing."""
    place = _place()
    if user is not None:
        place.users.discard(user)
    if place.users or place.making is None:
        return
    making, place.making = place.making, None
    await asyncio.wait([making])
    if not making.cancelled() and making.exception() is None:
        await making.result().close()


@contextmanager
def asking_with(settings: Settings) -> Generator[None]:
    """Meanwhile ``sandboxes_unavailable`` goes by these settings."""
    token = _asking.set(settings)
    try:
        yield
    finally:
        _asking.reset(token)


async def sandboxes_unavailable(settings: Settings | None = None) -> str:
    """Why no sandbox can be started on this machine, and what to do about it; empty where they can.

    For ``Environment.unavailable``: it starts the runtime of the server's settings, tries a sandbox and ends both.
    """
    from ors_containers.errors import SandboxError

    try:
        await (await _make(settings or _asking.get() or Settings())).close()
    except SandboxError as error:
        return str(error)
    return ""


async def _make(settings: Settings) -> SandboxService:
    from ors_containers.hidden_paths import keep_from_sandboxes
    from ors_containers.runtime import find_runtime
    from ors_containers.scheduling.admission import Admission
    from ors_containers.scheduling.pool import SandboxPool

    for path in _code:
        keep_from_sandboxes(path)
    runtime = find_runtime(settings.sandbox_runtime)()
    await runtime.start()
    admission = Admission(
        queue=settings.sandbox_queue,
        timeout=settings.sandbox_queue_timeout,
        reserve=settings.sandbox_reserve,
        pressure=settings.sandbox_pressure,
    )
    pool = SandboxPool(runtime, admission, warm=settings.sandbox_warm, warm_total=settings.sandbox_warm_total)
    return SandboxService(settings, runtime, pool)


def sandbox_error(raised: BaseException) -> OrsError | None:
    """The server's own error for one of ``ors_containers`` that an author's code raised; None for any other.

    ``CallerError`` is not among them: it is a fault of the environment's code and reported as such.
    """
    module = sys.modules.get("ors_containers.errors")
    if module is None:  # nobody has imported it, so nobody has raised one
        return None
    from ors_containers.errors import InfrastructureFailure as SandboxFailure
    from ors_containers.errors import Overloaded

    if isinstance(raised, Overloaded):
        return MachineBusy(raised.cause, raised.remedy, raised.retry_after)
    if isinstance(raised, SandboxFailure):
        return InfrastructureFailure(raised.cause, raised.remedy)
    return None
