"""``serve --engine ray``: a driver that places nodes on the machines of Ray, and a gateway unless there are others.

Both are child processes. The gateway serves whatever becomes of Ray: the driver ends when Ray's head is away for a
minute, and is started again until it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from ors_containers.linux.syscalls import end_with_parent

from ors_server.cluster.errors import RayFailed
from ors_server.cluster.ray.key_pipe import key_pipe
from ors_server.cluster.ray.orders import REFUSED, DriverOrder
from ors_server.settings import Settings
from ors_server.worker import PROGRAM

__all__ = ["Launcher"]

logger = logging.getLogger("ors_server.ray")

#: Seconds before the driver is started again: the first and the longest pause.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
#: Seconds that the children get at a stop, beyond those in which the sessions end.
_GRACE = 60.0


class Launcher:
    """The children of ``serve --engine ray``. ``port`` is that of its gateway; None where there are others."""

    def __init__(self, order: DriverOrder, settings: Settings, port: int | None) -> None:
        self._order = order
        self._settings = settings
        self._port = port
        self._stopping = asyncio.Event()
        self._gateway: asyncio.subprocess.Process | None = None
        self._driver: asyncio.subprocess.Process | None = None

    async def run(self, on_connected: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT. Raises ``RayFailed``."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._interrupt)
        ended = asyncio.create_task(self._serve())
        driving = asyncio.create_task(self._drive(on_connected))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((ended, driving, stopping), return_when="FIRST_COMPLETED")
            failed = driving.exception() if driving.done() else None
            if failed is not None:
                raise failed
            if ended.done() and not self._stopping.is_set():
                raise RayFailed(f"The gateway ended with status {ended.result()}", "Its last lines say why.")
        finally:
            self._stopping.set()
            logger.info("stopping")
            self._terminate(self._gateway)
            self._write("stop")
            await asyncio.wait((driving, ended), timeout=self._settings.shutdown_timeout + _GRACE)
            for task in (driving, stopping):
                task.cancel()
            logger.info("stopped")

    def _interrupt(self) -> None:
        """Begin to stop; a second Ctrl-C ends the wait for sessions."""
        if self._stopping.is_set():
            self._write("hurry")
            self._terminate(self._gateway, signal.SIGKILL)
        self._stopping.set()

    async def _serve(self) -> int:
        """Run the gateway, if there is one, and return its exit status."""
        if self._port is None:
            await self._stopping.wait()
            return 0
        arguments = ["gateway", "--host", self._settings.host, "--port", str(self._port)]
        with key_pipe(self._order.key) as (descriptor, variables):
            self._gateway = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", PROGRAM, *arguments),
                env={**os.environ, **self._order.variables, **variables},
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(descriptor,),
                start_new_session=True,
                # A launcher that was killed must not keep the port: the next one with the same key takes its nodes.
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )
        if self._stopping.is_set():
            self._terminate(self._gateway)
        return await self._gateway.wait()

    async def _drive(self, on_connected: Callable[[], None]) -> None:
        """Keep a driver. Raises ``RayFailed`` where the first one cannot be started."""
        pause, connected = _PAUSE, False
        while not self._stopping.is_set():
            self._driver = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ors_server.cluster.ray.driver"),
                env={**os.environ, **self._order.variables},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            self._write(json.dumps(self._order._asdict()))
            assert self._driver.stdout is not None
            if await self._driver.stdout.readline():
                if not connected:
                    on_connected()
                pause, connected = _PAUSE, True
            status = await self._driver.wait()
            if self._stopping.is_set():
                return
            if status == REFUSED and not connected:
                raise RayFailed("No node can be started on Ray", "The line above says why.")
            logger.warning(
                "the driver of Ray ended; sessions go on, nodes join when Ray is back", extra={"status": status}
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _write(self, line: str) -> None:
        if self._driver is not None and self._driver.returncode is None and self._driver.stdin is not None:
            self._driver.stdin.write(f"{line}\n".encode())

    @staticmethod
    def _terminate(child: asyncio.subprocess.Process | None, number: int = signal.SIGTERM) -> None:
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)
