"""Program of test_harbor_ordinary_user, run as a user that is not root: prepares a Harbor folder and plays it.

Prints the prepared records, the reward of each way to play, and the limits that the runtime keeps.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ors_cli.managing.terminal_work import terminal_module
from ors_clients import local
from ors_containers import RuntimeUnavailable, find_runtime


async def _reward(commands: list[str]) -> float:
    async with local(terminal_module("environment").TerminalEnvironment, split="train", index=0) as session:
        for command in commands:
            await session.call("bash", {"command": command})
        output = await session.call("done", {})
        assert output.finished, output
        return output.reward or 0.0


async def _holds() -> dict[str, bool]:
    async with find_runtime("bubblewrap")() as runtime:
        return {enforcement.limit: enforcement.holds for enforcement in runtime.describe().enforcements}


async def main(ways: Mapping[str, list[str]]) -> object:
    """Return what is printed."""
    try:
        holds = await _holds()
    except RuntimeUnavailable as error:
        return {"unavailable": str(error)}
    return {"holds": holds, "rewards": {name: await _reward(commands) for name, commands in ways.items()}}


if __name__ == "__main__":
    folder = os.environ["ORS_TERMINAL_TASKS"]
    prepared = subprocess.run(
        [sys.executable, "-m", "ors_cli", "tasks", "prepare", folder, "--json"], capture_output=True, text=True
    )
    result: Any = asyncio.run(main(json.loads(sys.argv[1])))
    if "unavailable" not in result:
        listed = json.loads(prepared.stdout) if prepared.stdout else prepared.stderr
        result["prepared"] = listed
        result["owners"] = sorted({path.stat().st_uid for path in Path(os.environ["ORS_IMAGES"]).iterdir()})
    print(json.dumps(result))
