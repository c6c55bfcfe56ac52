"""Folders of Harbor tasks: an answer of 42, asked for in several ways, some of which our containers refuse."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PLAYED", "REFUSED", "write_tasks"]

_DOCKERFILE = "FROM host\nRUN mkdir -p /app && chown user /app\nENV SAYS=x\nWORKDIR /app\nCOPY data.txt /app/\n"
_SOLUTION = """#!/bin/bash
set -e
[ "$(cat data.txt)$SAYS$FROM_TASK" = dataxt ]
echo 42 > answer
id -un > who
"""
_TEST = """#!/bin/bash
[ -x /tests/check/tool ] && [ -e /app/data.txt ] && [ "$(cat /app/answer)" = 42 ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""
#: Tables of task.toml by the task's name, and the text of a file beside environment/Dockerfile or of tests/Dockerfile.
PLAYED = {
    "shared": "",
    "as-user": '[agent]\nuser = "user"\n',
    "separate": '[verifier]\nenvironment_mode = "separate"\n',
    "separate-image": '[verifier]\nenvironment_mode = "separate"\n',
}
#: Words of the reason by the task's name.
REFUSED = {
    "compose": "runs no compose files",
    "gpu": "does not support GPU",
    "allowlist": "network_mode='allowlist' is not supported",
    "no-base": "no-such-image",
}


def write_tasks(folder: Path) -> tuple[Path, Path]:
    """Write the folders; return those that are played and those that are refused."""
    for name, tables in PLAYED.items():
        task = _write(folder / "played" / name, tables)
        if name == "separate-image":
            (task / "tests" / "Dockerfile").write_text("FROM host\nCOPY . /tests/\n")
    for name in REFUSED:
        environment = {"gpu": "gpus = 1", "allowlist": 'network_mode = "allowlist"\nallowed_hosts = ["example.com"]'}
        task = _write(folder / "refused" / name, "", environment.get(name, ""))
        if name == "compose":
            (task / "environment" / "docker-compose.yaml").write_text("services:\n  main:\n    build: .\n")
        if name == "no-base":
            (task / "environment" / "Dockerfile").write_text("FROM no-such-image\n")
    return folder / "played", folder / "refused"


def _write(task: Path, tables: str, environment: str = "") -> Path:
    for folder in ("environment", "solution", "tests/check"):
        (task / folder).mkdir(parents=True)
    limits = "cpus = 1\nmemory_mb = 512\nstorage_mb = 256"
    (task / "task.toml").write_text(
        f'schema_version = "1.3"\nartifacts = ["/app"]\n[task]\nname = "tests/{task.name}"\n{tables}'
        f'[environment]\n{limits}\n{environment}\n[environment.env]\nFROM_TASK = "t"\n'
    )
    (task / "instruction.md").write_text("Write 42 into /app/answer.\n")
    (task / "environment" / "Dockerfile").write_text(_DOCKERFILE)
    (task / "environment" / "data.txt").write_text("data\n")
    for path, text in (("solution/solve.sh", _SOLUTION), ("tests/test.sh", _TEST), ("tests/check/tool", "#!/bin/sh\n")):
        (task / path).write_text(text)
        (task / path).chmod(0o755)
    return task
