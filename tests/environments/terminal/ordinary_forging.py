"""Program of test_forging, run as a user that is not root, with the system's Python: prints the reward of each try."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from ors_containers import ApptainerRuntime, BubblewrapRuntime, Limits, RuntimeUnavailable
from ors_containers.graders.portable_python import Toolset
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

forging: Any = importlib.import_module("forms.forging")
grading: Any = importlib.import_module("terminal.grading")


async def main(folder: str, kind: type[NamespaceRuntime], chances: list[tuple[str, str]]) -> object:
    tools = Toolset(Path(folder))
    said: list[object] = []
    try:
        async with kind() as runtime:
            image = runtime.host_image()
            image = dataclasses.replace(image, binds=(*image.binds, tools.bind))
            for form, how in chances:
                tried = forging.FORMS[form]
                async with runtime.sandbox(image, Limits(memory=256 * 2**20, disk=64 * 2**20, pids=64)) as sandbox:
                    await sandbox.run(forging.setup_of(tried, how), timeout=20)
                    tests = forging.module_of(tried, how)
                    verdict = await grading.run_tests(sandbox, tools, tests, live=how == "live", timeout=30)
                    said.append([form, how, verdict.how, verdict.detail])
            return {"notes": runtime.describe().notes, "said": said}
    except RuntimeUnavailable as error:
        return {"unavailable": str(error)}


if __name__ == "__main__":
    kinds = {"apptainer": ApptainerRuntime, "bubblewrap": BubblewrapRuntime}
    print(json.dumps(asyncio.run(main(sys.argv[2], kinds[sys.argv[3]], json.loads(sys.argv[4])))))
