"""The ``openreward`` client behind the rollout core's session interface: the second client of the comparison.

It does what code written for that SDK does: open a session by split and index, ask for the prompt and the tools, call
tools. It is imported into this process, so that both clients have the same engine in the same place. Where it is not
installed, it is taken from the virtual environment that its server has, behind everything that is installed here: it
then runs with this environment's versions of the libraries that both have, aiohttp among them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# The SDK has no types.

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ors_clients.errors import InfrastructureFailure, ServerUnavailable, SessionLost, ToolFailed
from ors_clients.models import ToolResult
from ors_clients.rollouts.sessions_ahead import AheadSession

from ors_benchmarks.harness.candidates import SDKS, PeerUnavailable
from ors_server import Message, TerminalToolSpec, TextBlock, ToolSpec

__all__ = ["peer_sessions", "peer_version"]


@asynccontextmanager
async def peer_sessions(url: str, environment: str, split: str) -> AsyncGenerator[Callable[[int], AheadSession]]:
    """Return a function from a task's index to a session of the ``openreward`` client. Raises ``PeerUnavailable``."""
    sdk = _sdk()
    api_key = os.environ.get("ORS_API_KEY", "")
    async with sdk.AsyncEnvironmentsAPI(base_url=url, api_key=api_key, api_base_url=url) as client:
        chosen = client.get(environment)

        def session(index: int) -> AheadSession:
            return _PeerSession(chosen.session(split=split, index=index))

        yield session


def peer_version() -> str | None:
    """Return the version of the SDK that was imported; None where none was. Installs nothing."""
    return importlib.metadata.version("openreward") if "openreward" in sys.modules else None


def _sdk() -> Any:
    # It asks the network for its newest version otherwise.
    os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"
    if importlib.util.find_spec("openreward") is None:
        [candidate] = [candidate for candidate in SDKS if candidate.name == "openreward"]
        packages = Path(candidate.prepare("--clients ours")).parent.parent.glob("lib/python*/site-packages")
        sys.path.extend(str(folder) for folder in packages)
        importlib.invalidate_caches()
    try:
        return importlib.import_module("openreward")
    except ImportError as error:
        raise PeerUnavailable(
            f"The openreward client cannot be imported here: {error}", "Measure with --clients ours."
        ) from error


class _PeerSession:
    """One session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._open = False

    async def __aenter__(self) -> _PeerSession:
        await self._try(self._session.__aenter__)
        self._open = True
        return self

    async def open_ahead(self) -> _PeerSession:
        """Open it; its server knows no other way."""
        return await self.__aenter__()

    async def begin(self) -> None:
        """Nothing to say."""

    async def close(self) -> None:
        """End it; where that fails, the server's expiry ends it."""
        if self._open:
            self._open = False
            with contextlib.suppress(InfrastructureFailure):
                await self._try(lambda: self._session.__aexit__(None, None, None))

    async def messages(self) -> list[Message]:
        """Return the prompt as one message."""
        blocks = await self._try(self._session.get_prompt)
        return [Message(role="user", blocks=[TextBlock(text=block.text) for block in blocks])]

    async def tools(self) -> list[ToolSpec]:
        """Return the tools of this task."""
        return [
            ToolSpec(name=tool.name, description=tool.description, input_schema=tool.input_schema)
            for tool in await self._try(self._session.list_tools)
        ]

    @property
    def terminal_tool(self) -> TerminalToolSpec | None:
        """None: the benchmark's episodes end with a call."""
        return None

    async def call(self, name: str, input: Mapping[str, Any], /) -> ToolResult:
        """Run a tool."""
        output = await self._try(lambda: self._call(name, input))
        if isinstance(output, ToolResult):
            return output
        blocks = [TextBlock(text=block.text) for block in output.blocks]
        return ToolResult(blocks=blocks, reward=output.reward, finished=output.finished, metadata=output.metadata)

    async def _call(self, name: str, input: Mapping[str, Any]) -> Any:
        try:
            return await self._session.call_tool(name, dict(input))
        except Exception as error:
            if type(error).__name__ != "ToolCallError":
                raise
            # No such tool, or no such input: what the model got wrong, and no tool has run.
            return ToolResult(error=str(error))

    async def _try(self, request: Callable[[], Any]) -> Any:
        try:
            return await request()
        except Exception as error:  # the SDK raises its own errors, aiohttp's and plain ones; each is one of ours
            name = type(error).__name__
            if name == "ToolFailed":
                raise ToolFailed("tool", str(error)) from error
            if name == "SessionTerminatedError":
                raise SessionLost(str(error)) from error
            if isinstance(error, OSError):
                raise ServerUnavailable(str(error)) from error
            raise InfrastructureFailure(f"{name}: {error}") from error
