"""From an environment to the classes whose instances TRL's trainers call environments.

``GRPOTrainer`` calls a factory in its own process, and its reward functions are given the slots. ``AsyncGRPOTrainer``
(``trl.experimental.async_grpo``) pickles the factories into a process of its own, gives its reward functions no slots,
and asks each slot for ``get_reward`` instead. A slot with ``get_reward`` would be counted twice by ``GRPOTrainer``:
once by itself and once by ``environment_reward``. So the two trainers get different classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ors_clients.client.sync_client import Client, Environment
from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.control_texts import control_texts_of
from ors_clients.trainers.trl.slots import EnvironmentSlot, EnvironmentSpec
from ors_clients.trainers.trl.tools import tool_method, tool_name
from ors_server.protocol import TerminalToolSpec, ToolSpec

__all__ = ["AsyncSlot", "AsyncSlotFactory", "slot_class"]

#: Names that mean something to TRL, or that a slot's episode state has.
_TAKEN = frozenset(["failure", "finished", "get_reward", "last_output", "metadata", "reset", "reward", "rewards"])


class AsyncSlot(EnvironmentSlot):
    """A slot that owns its reward, as ``AsyncGRPOTrainer`` wants it."""

    def get_reward(self) -> float | None:
        """Return the episode's reward, or None if the trainer has to leave it out; end the session."""
        return self._end()


def slot_class(
    kind: type[EnvironmentSlot],
    spec: EnvironmentSpec,
    remote: Environment,
    tools: Sequence[ToolSpec],
    terminal_tool: TerminalToolSpec | None,
    *,
    images: bool,
    failed_resets: int,
    tokenizer: Any = None,
) -> type[EnvironmentSlot]:
    """Return a subclass of ``kind`` for one environment, with a method a tool."""
    attributes: dict[str, Any] = {
        "_spec": spec,
        "_remote": remote,
        "_terminal_tool": terminal_tool,
        "_images": images,
        "_control_texts": control_texts_of(tokenizer),
        "_failed_resets": failed_resets,
    }
    taken = {*_TAKEN, *dir(kind)}
    for tool in tools:
        name = tool_name(tool.name, taken)
        taken.add(name)
        attributes[name] = tool_method(tool, name, EnvironmentSlot._call)  # pyright: ignore[reportPrivateUsage]
    return type(f"{kind.__name__}[{spec.name}]", (kind,), attributes)


class AsyncSlotFactory:
    """Makes the slots of one environment in whatever process it was pickled into, with a client of its own there.

    Raises ``ConfigurationError`` for an environment with a terminal tool: ``AsyncGRPOTrainer`` does not tell a slot its
    rollout's last message, so such an episode could never be scored.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        tools: Sequence[ToolSpec],
        terminal_tool: TerminalToolSpec | None,
        *,
        url: str | None,
        api_key: str | None,
        failed_resets: int,
    ) -> None:
        if terminal_tool is not None:
            raise ConfigurationError(
                f"{spec.environment} is answered by a rollout's last message ({terminal_tool.name}), which"
                " AsyncGRPOTrainer does not hand over",
                "Train on it with GRPOTrainer",
            )
        self._spec = spec
        self._tools = list(tools)
        self._server = (url, api_key)
        self._failed_resets = failed_resets
        self._made: type[EnvironmentSlot] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def __call__(self) -> EnvironmentSlot:
        """Return a slot. All slots of a process have one class, by which the trainer finds their reward."""
        if self._made is None:
            url, api_key = self._server
            remote = Client(url, api_key=api_key).environment(self._spec.environment)
            self._made = slot_class(
                AsyncSlot, self._spec, remote, self._tools, None, images=False, failed_resets=self._failed_resets
            )
        return self._made()
