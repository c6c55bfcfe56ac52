"""Clients whose worker is killed: an infrastructure failure for its sessions, and nothing for the others."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import InfrastructureFailure
from ors_clients.models import ToolResult

from tests.server.gateway.conftest import WIRE, start_several
from tests.support.waiting import until


@pytest.mark.long
async def test_calls_under_way_end_typed_or_with_their_result(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire") as several:
        async with AsyncClient(several.url) as client:
            environment = client.environment("wire")
            sessions = [environment.session(split="train", index=0) for _ in range(12)]
            for session in sessions:
                await session.__aenter__()
            calls = [
                asyncio.create_task(session.call("step", {"text": "x", "milliseconds": 6000})) for session in sessions
            ]  # long enough for the report that has all of them: there is one each second
            await until(lambda: sum(row["calls"] for row in several.workers()) == 12)
            first = several.workers()[0]
            os.kill(first["pid"], signal.SIGKILL)
            results = await asyncio.gather(*calls, return_exceptions=True)
            failures = [result for result in results if isinstance(result, BaseException)]
            assert 0 < len(failures) < 12
            assert all(isinstance(failure, InfrastructureFailure) for failure in failures), failures
            assert all("the worker that held it ended" in str(failure) for failure in failures)
            answered = [result for result in results if isinstance(result, ToolResult)]
            assert all(result.metadata == {"run": 1} for result in answered)
            for session in sessions:
                await session.__aexit__(None, None, None)
