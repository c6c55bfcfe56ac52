"""Program of test_hidden, run with a copy of the package first on its path: prints what an agent sees of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from ors_containers import ApptainerRuntime, BubblewrapRuntime, RuntimeUnavailable, keep_from_sandboxes
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

_LOOK = """
cd /; grep -rl --devices=skip THE-SOLUTION /opt /layer /usr/lib/python3* 2>/dev/null; echo --
cat /opt/tree/share/link/_bundled/terminal/families/task.py /opt/tree/share/hard.py /opt/tree/served/tests.py 2>&1
cat /proc/self/root/opt/tree/lib/python3/dist-packages/ors_server/secret.py 2>&1; echo --
PYTHONPATH=/opt/tree/lib/python3/dist-packages python3 -c 'import ors_containers.sandbox' 2>&1; echo --
cat /opt/tree/lib/python3/dist-packages/other.py /opt/again/lib/python3/dist-packages/other.py /layer/kept
stat -c '%a %n' /opt/tree /opt/tree/lib /opt/tree/lib/python3; ls /opt/tree/lib/python3/dist-packages
"""


async def main(tree: Path, state: Path, kind: type[NamespaceRuntime]) -> dict[str, object]:
    keep_from_sandboxes(tree / "served")
    runtime = kind(state)
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        return {"unavailable": str(error)}
    try:
        image = runtime.host_image()
        binds = (*image.binds, (tree, "/opt/tree"), (state.parent / "again", "/opt/again"))
        image = dataclasses.replace(image, layers=(*image.layers, state.parent / "root"), binds=binds)
        async with runtime.sandbox(image) as sandbox:
            said = (await sandbox.run(_LOOK, timeout=60)).text
        return {"said": said, "shared": runtime.describe().shared}
    finally:
        await runtime.close()


if __name__ == "__main__":
    kinds = {"apptainer": ApptainerRuntime, "bubblewrap": BubblewrapRuntime}
    print(json.dumps(asyncio.run(main(Path(sys.argv[2]), Path(sys.argv[3]), kinds[sys.argv[4]]))))
