"""The actor of one machine of Ray: it starts ``ors-server node`` as its child, which ends with it.

Ray starts an actor that died again, on the same machine, and with it another node. The actor's process is Ray's own; a
node and its workers never import Ray.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from ors_server.cluster.ray.key_pipe import key_pipe
from ors_server.cluster.ray.orders import NodeFailed, NodeOrder
from ors_server.worker import PROGRAM

__all__ = ["NodeActor"]


class NodeActor:
    """The actor. It starts its node when it is made. Raises ``NodeFailed``."""

    def __init__(self, order: NodeOrder) -> None:
        # Ray's variables are for Ray's processes.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        try:
            with key_pipe(order.key) as (descriptor, variables):
                self._node = subprocess.Popen(
                    [sys.executable, "-m", PROGRAM, *order.arguments, "--end-with-stdin"],
                    env=inherited | dict(order.variables) | variables,
                    cwd=order.folder if Path(order.folder).is_dir() else "/",
                    stdin=subprocess.PIPE,  # it ends with this process, however that ends
                    pass_fds=(descriptor,),
                )
        except OSError as error:
            raise NodeFailed(f"The node cannot be started: {error}") from None
        self._stopping = False
        threading.Thread(target=self._end_with_node, daemon=True).start()
        threading.Thread(target=_end_with_raylet, args=(os.getppid(),), daemon=True).start()

    def process(self) -> int:
        """Return the process id of the node."""
        return self._node.pid

    def wait(self) -> int:
        """Wait until the node ends; return its exit status."""
        return self._node.wait()

    def stop(self, seconds: float) -> None:
        """Have the node stop, and wait for its end for at most so many seconds."""
        self._stopping = True
        self._node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._node.wait(seconds)

    def hurry(self) -> None:
        """End the wait for the node's sessions."""
        self._node.terminate()

    def _end_with_node(self) -> None:
        """End the actor with its node: the driver, if there is one, makes another after a pause."""
        self._node.wait()
        if not self._stopping:
            ray = import_module("ray")
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _end_with_raylet(raylet: int) -> None:
    """End this process when its raylet has ended, which Ray leaves to chance: the node's place is free again."""
    while os.getppid() == raylet:
        time.sleep(1.0)
    os._exit(1)
