"""Print what every way and mutator of tasks earns, and why, when run with names as arguments.

A name is a family, for the first task of each shape, or a task (`csv_join-000017`).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from ors_containers import BubblewrapRuntime

from tests.environments.terminal_families.loading import load_generation
from tests.environments.terminal_families.mutators import MUTATORS
from tests.environments.terminal_families.sandboxes import Play, play
from tests.environments.terminal_families.ways import EVERYWHERE, drafted


async def main(names: list[str]) -> None:
    """Play the tasks."""
    families = load_generation().FAMILIES
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        runtime = BubblewrapRuntime(Path(folder))
        await runtime.start()
        try:
            for name in names:
                family, _, seed = name.partition("-")
                for number in [int(seed)] if seed else range(len(families[family].shapes)):
                    await show(runtime, family, number)
        finally:
            await runtime.close()


async def show(runtime: BubblewrapRuntime, family: str, seed: int) -> None:
    """Play one task."""
    one = drafted(family, seed)
    print(f"# {one.task.name}\n\n{one.task.prompt}")
    rows = [
        ("nothing done", Play()),
        ("the oracle", Play(one.task.oracle)),
        ("the near miss", Play(one.task.near_miss)),
    ]
    for demand, ways in one.forbidden.items():
        rows += [(f"forbidden: {way.what} ({demand})", Play(way.script, solved=way.solved)) for way in ways]
    rows += [(f"honest: {way.what}", Play(way.script, solved=way.solved)) for way in (*one.honest, *EVERYWHERE)]
    rows += [(f"mutator: {mutator}", Play(mutator=mutator, solved=True)) for mutator in MUTATORS]
    for (what, _), played in zip(rows, await play(runtime, one.task, [row for _, row in rows]), strict=True):
        if played.applied:
            reward = int(not played.failed)
            print(
                f"{reward} | {what[:150]!r} | status {played.status} {str(played.failed)[:220]} {played.output[:200]}"
            )
    print()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
