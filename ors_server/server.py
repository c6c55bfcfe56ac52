"""A server process for environments.

    Server([MyEnvironment]).run(port=8080)

Takes classes written for ``ors_server``, ``openreward`` or ``ors-sdk``, and behaves as both SDKs' ``Server`` does:
``app`` is an ASGI application that can be tested without a socket, ``run`` serves it until it is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ors_server.errors import OrsError
from ors_server.hosting.catalogue import Catalogue, HostedEnvironment, why_unavailable
from ors_server.hosting.executors import ThreadPool
from ors_server.hosting.start_guard import refuse_while_importing
from ors_server.http.app import OrsApp
from ors_server.http.gc_tuning import Collector
from ors_server.http.routes.operations import RESERVED_NAMES
from ors_server.http.serving import serve_application
from ors_server.keys.exposure import is_loopback
from ors_server.sandboxes import announce_code, use_settings
from ors_server.sessions.registry import Sessions
from ors_server.settings import ReturnErrors, Settings
from ors_server.wire.version import VERSION
from ors_server.worker import identity

__all__ = ["Server"]

logger = logging.getLogger("ors_server.server")


class Server:
    """Hosts environment classes; the first is the default.

    ``return_errors`` says how much clients see of exceptions in environments, as in both SDKs; it overrides
    ``settings``. ``aliases`` are more names: ``{"owner/Name": "myenvironment"}``. ``unavailable`` names environments
    that cannot be served here, with the remedy that clients get; a class may declare this itself
    (``Environment.unavailable``).

    Raises ``DefinitionError`` (a ``ValueError``) for a class that cannot be hosted, and ``TypeError`` for anything that
    is not a class of an environment.
    """

    def __init__(
        self,
        environments: Sequence[Any],
        return_errors: ReturnErrors | None = None,
        *,
        settings: Settings | None = None,
        aliases: Mapping[str, str] | None = None,
        unavailable: Mapping[str, str] | None = None,
    ) -> None:
        settings = settings or Settings()
        if return_errors is not None:
            settings = settings.model_copy(update={"return_errors": return_errors})
        self.settings = settings
        tools_pool = ThreadPool("ors-tool", settings.tool_threads)
        lifecycle_pool = ThreadPool("ors-lifecycle", settings.lifecycle_threads)
        hosted: list[HostedEnvironment] = []
        reasons = dict(unavailable or {})
        for environment in environments:
            cls = _as_class(environment)
            with use_settings(settings):
                names, reason = why_unavailable(cls, RESERVED_NAMES)
            if reason:
                reasons.update(dict.fromkeys(names, reason))
            else:
                hosted.append(HostedEnvironment(cls, settings, tools_pool, lifecycle_pool, RESERVED_NAMES))
        self.catalogue = Catalogue(hosted, aliases, reasons, RESERVED_NAMES)
        self.sessions = Sessions(self.catalogue, settings, tools_pool, lifecycle_pool)

    @cached_property
    def app(self) -> OrsApp:
        """The ASGI application, made at first use. The local mode of ors-clients never uses it."""
        return OrsApp(self.sessions)

    @property
    def environments(self) -> list[HostedEnvironment]:
        """The hosted environments, the default first."""
        return list(self.catalogue.environments)

    async def count_tasks(self, environment_name: str) -> dict[str, int | None]:
        """Count the tasks of each split; None where the environment cannot. Raises ``UnknownEnvironment``."""
        hosted = self.catalogue.by_path(environment_name)
        counts: dict[str, int | None] = {}
        for split in hosted.splits:
            try:
                counts[split.name] = await hosted.tasks.count(split.name)
            except OrsError:
                counts[split.name] = None
            except Exception as error:  # an author's num_tasks may raise anything; the server still serves
                logger.warning("counting tasks failed", exc_info=error, extra={"environment": hosted.name})
                counts[split.name] = None
        return counts

    def run(self, host: str = "0.0.0.0", port: int = 8080) -> None:  # noqa: S104 - the default of both SDKs
        """Serve until interrupted. Raises ``PortInUse``."""
        refuse_while_importing()
        self.settings = Settings.model_validate({**self.settings.model_dump(), "host": host, "port": port})
        self.serve()

    def serve(self, *, on_ready: Callable[[str], None] | None = None) -> None:
        """Serve until interrupted, at the settings' host and port or where they say to ``listen`` for a proxy.

        ``on_ready`` gets the address once the server listens. Raises ``PortInUse``.
        """
        refuse_while_importing()
        collector = Collector()

        def ready(url: str) -> None:
            if self.settings.listen is None and not self.settings.insecure:
                self._warn_if_open(self.settings.host)
            collector.start()
            self.sessions.on_left = collector.left
            self.sessions.maintenance = collector.run_maintenance
            names = ",".join(self.catalogue.names)
            logger.info("serving", extra={"url": url, "environments": names, "version": VERSION})
            if on_ready is not None:
                on_ready(url)

        worker = identity()
        if worker is not None:
            announce_code(worker)
        found = [self.catalogue.all_names(hosted) for hosted in self.environments]
        try:
            unavailable = self.catalogue.unavailable
            serve_application(self.app, self.settings, self.sessions, found, unavailable, ready)
        finally:
            if self.sessions.on_left is not None:
                self.sessions.on_left = self.sessions.maintenance = None
                collector.stop()

    def _warn_if_open(self, host: str) -> None:
        if not self.app.authenticator.keys.wanted and not is_loopback(host):
            logger.warning(
                "every process that reaches this address may use the server",
                extra={"host": host, "remedy": "`ors-server keys add NAME`, or host='127.0.0.1', or ORS_INSECURE=1"},
            )


def _as_class(environment: Any) -> type:
    cls: type = environment if isinstance(environment, type) else type(environment)
    if not hasattr(cls, "list_splits") or not any(hasattr(cls, name) for name in ("get_prompt", "get_messages")):
        raise TypeError(f"{cls.__name__} is not an Environment: derive it from ors_server.Environment")
    return cls
