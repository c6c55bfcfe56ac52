"""Inspect's own checks of a sandbox, on the sandbox that ``ORS_CHECKED`` describes; run by the plug-ins' Python."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from ors_containers.plugins.inspect import OrsSandboxConfig, OrsSandboxEnvironment


@pytest_asyncio.fixture
async def sandbox_env() -> AsyncIterator[Any]:
    described: Any = json.loads(os.environ["ORS_CHECKED"])
    config = described if isinstance(described, str) else OrsSandboxConfig(**described)
    sandboxes = await OrsSandboxEnvironment.sample_init("self_check", config, {})
    yield sandboxes["default"]
    await OrsSandboxEnvironment.sample_cleanup("self_check", config, sandboxes, False)
