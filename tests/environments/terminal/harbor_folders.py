"""Folders of Harbor tasks for tests: good ones, and broken ones with the words of their error."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["BROKEN", "GOOD", "Broken", "write_broken", "write_harbor_folder"]

FILES: Mapping[str, str | bytes] = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Write 42 to /app/answer.txt.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": "#!/bin/bash\ngrep -qx 42 /app/answer.txt && echo 1 >/logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/bash\necho 42 >/app/answer.txt\n",
}


def write_harbor_folder(
    parent: Path, name: str, files: Mapping[str, str | bytes | None] | None = None, config: str | None = None
) -> Path:
    """Write a task; ``files`` override the usual ones, and None leaves a file out. ``config`` is its task.toml."""
    folder = parent / name
    folder.mkdir(parents=True)
    content = {**FILES, **(files or {}), **({} if config is None else {"task.toml": config})}
    for path, text in content.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


_PUBLISHED = """
version = "1.0"
[metadata]
author_name = "A"
difficulty = "hard"
tags = ["a", "b"]
released = 2025-11-07T10:00:00Z
[verifier]
timeout_sec = 900.0
[agent]
timeout_sec = 900
[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 4096
storage_mb = 10240
"""

#: Settings by name.
GOOD: Mapping[str, str] = {
    "empty": "",
    "only a version": 'version = "1.0"',
    "an early version": 'version = "0.0"',
    "version 1.1": 'schema_version = "1.1"',
    "version 1.4": 'schema_version = "1.4"',
    "both versions": 'schema_version = "1.2"\nversion = "1.0"',
    "as published": _PUBLISHED,
    "a package": (
        '[task]\nname = "org/the.task-1"\nversion = "2"\ndescription = "A task"\n'
        'authors = [{name = "A", email = "a@example.org"}, {name = "B"}]\nkeywords = ["k"]'
    ),
    "a size in G": '[environment]\nmemory = "4G"\nstorage = "10g"',
    "a size in M": '[environment]\nmemory = "512M"\nstorage = " 1.5G "',
    "a size in K": '[environment]\nmemory = "2048K"',
    "both sizes, equal": '[environment]\nmemory = "2G"\nmemory_mb = 2048',
    "no internet": "[environment]\nallow_internet = false",
    "internet": "[environment]\nallow_internet = true",
    "internet and a mode": '[environment]\nallow_internet = true\nnetwork_mode = "no-network"',
    "an allow-list": (
        '[environment]\nnetwork_mode = "allowlist"\n'
        'allowed_hosts = ["Some.ORG.", "*.example.com", "192.0.2.1", "192.0.2.0/24", "2001:DB8::0:1", "2001:db8::/32"]'
    ),
    "networks by phase": (
        '[agent]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["some.org"]\n'
    ),
    "users": '[agent]\nuser = "agent"\n[verifier]\nuser = 1000',
    "variables": (
        '[environment.env]\nA = "1"\nB = "${B:-two}"\n[verifier.env]\nKEY = "${KEY}"\n[solution.env]\nKEY = "${KEY}"'
    ),
    "a table of variables in a line": '[solution]\nenv = { A = "a" }',
    "an image": '[environment]\ndocker_image = "ubuntu:24.04"',
    "Linux, in capitals": '[environment]\nos = "Linux"',
    "no GPU": "[environment]\ngpus = 0\ngpu_types = []",
    "no MCP server": "[environment]\nmcp_servers = []",
    "skills": '[environment]\nskills_dir = "/skills"',
    "a folder": '[environment]\nworkdir = "/app"',
    "a health check": '[environment.healthcheck]\ncommand = "true"\ninterval_sec = 1\nretries = 5',
    "a shared verifier": '[verifier]\nenvironment_mode = "shared"',
    "a separate verifier": '[verifier]\nenvironment_mode = "separate"',
    "a verifier's environment": (
        '[verifier.environment]\ncpus = 2\nmemory = "1G"\nallow_internet = false\n[verifier.environment.env]\nX = "y"'
    ),
    "a verifier's image": '[verifier.environment]\ndocker_image = "python:3.12"',
    "artifacts": (
        'artifacts = ["/app/out", "relative.txt", {source = "/logs/x", destination = "x/y", exclude = ["*.tmp"]}, '
        '{source = "/a", service = "main", destination = ""}]'
    ),
    "collect hooks": (
        '[[verifier.collect]]\ncommand = "dump"\n[[verifier.collect]]\ncommand = "d"\nservice = " main "\n'
        'timeout_sec = 5\nuser = "postgres"'
    ),
    "no steps": "steps = []",
    "unknown keys": '[solution]\ntimeout_sec = 3\n[reward]\nx = 1\n[environment]\nimage = "x"',
    "a source": 'source = "somewhere"\nmulti_step_reward_strategy = "final"',
}


@dataclass(frozen=True)
class Broken:
    """A folder that cannot be used."""

    #: The error's words after the folder's path.
    words: str
    config: str | None = None
    files: Mapping[str, str | bytes | None] = field(default_factory=dict[str, str | bytes | None])
    #: A change of the folder that cannot be written as a text.
    change: Callable[[Path], object] | None = None
    #: Whether Harbor 0.24 refuses the folder, too, when it loads it; None where it waits without end.
    also_harbor: bool | None = True


def _link(path: str, target: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / path).unlink(missing_ok=True)
        (folder / path).symlink_to(target)

    return change


def _pipe(path: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / path).unlink(missing_ok=True)
        os.mkfifo(folder / path)

    return change


def _bad_name(folder: Path) -> None:
    (folder / os.fsdecode(b"tests/\xff.py")).write_text("")


def _environment(text: str, words: str, *, also_harbor: bool = True) -> Broken:
    return Broken(f"task.toml: {words}", f"[environment]\n{text}", also_harbor=also_harbor)


#: Folders by the fault.
BROKEN: Mapping[str, Broken] = {
    "no TOML": Broken("task.toml, line 2: it is not TOML", "[agent]\ntimeout_sec =\n"),
    "cut TOML": Broken("task.toml, line 2: it is not TOML", 'source = "a"\n[agent'),
    "a key twice": Broken("task.toml, line 2: it is not TOML", "source = 'a'\nsource = 'b'"),
    "deep TOML": Broken("task.toml: it is nested too deeply", "a = " + "[" * 100_000),
    "a deep table": Broken("task.toml: agent.timeout_sec: Input", f"[agent.timeout_sec.{'a.' * 20_000}a]"),
    "a deep name of a server": Broken(
        "not supported here: MCP servers (environment.mcp_servers: )",
        f"[[environment.mcp_servers]]\nurl = 'x'\n[environment.mcp_servers.name.{'a.' * 20_000}a]",
    ),
    "settings not UTF-8": Broken("task.toml, line 2: it is not UTF-8", files={"task.toml": b'# a\nsource = "\xff"\n'}),
    "huge settings": Broken(
        "task.toml: it is larger than 1 MiB", files={"task.toml": "#" * (1 << 20 | 1)}, also_harbor=False
    ),
    "settings in other case": Broken(
        "task.toml: the file is missing; Task.toml is there, and case counts",
        files={"task.toml": None, "Task.toml": ""},
    ),
    "settings elsewhere": Broken(
        "task.toml: its link leads out of the task's folder",
        change=_link("task.toml", "../elsewhere.toml"),
        also_harbor=False,
    ),
    "settings that are a pipe": Broken("task.toml: it is a pipe", change=_pipe("task.toml"), also_harbor=None),
    "a version that is a number": Broken("task.toml: schema_version is 1.0: ", "version = 1.0"),
    "version 2": Broken("task.toml: schema_version is '2.0'", 'schema_version = "2.0"', also_harbor=False),
    "a table that is a text": Broken("task.toml: agent is 'x': ", 'agent = "x"'),
    "a name without an organisation": Broken("task.toml: task.name is 'hello'", '[task]\nname = "hello"'),
    "a name that leads out": Broken("task.toml: task.name is 'a/..b'", '[task]\nname = "a/..b"'),
    "a task without a name": Broken("task.toml: task.name: Field required", '[task]\nversion = "1"'),
    "a time that is a word": Broken("task.toml: agent.timeout_sec is 'long'", '[agent]\ntimeout_sec = "long"'),
    "no time": Broken("task.toml: verifier.timeout_sec is 0", "[verifier]\ntimeout_sec = 0", also_harbor=False),
    "endless time": Broken("task.toml: agent.timeout_sec is inf", "[agent]\ntimeout_sec = inf", also_harbor=False),
    "a size without a unit": _environment('memory = "4"', "environment: memory is '4', not a size"),
    "a size that is a number": _environment("memory = 4", "environment: memory is 4, not", also_harbor=False),
    "two sizes": _environment(
        'memory = "4G"\nmemory_mb = 1', "environment: memory is '4G', 4096 MB, and memory_mb is 1"
    ),
    "less than nothing": _environment("storage_mb = -1", "environment.storage_mb is -1", also_harbor=False),
    "an unknown system": _environment('os = "plan9"', "environment.os is 'plan9'"),
    "an unknown network": _environment('network_mode = "some"', "environment.network_mode is 'some'"),
    "hosts without a list": _environment('allowed_hosts = ["a.b"]', "environment: allowed_hosts needs network_mode"),
    "a host that is an address of the web": _environment(
        'network_mode = "allowlist"\nallowed_hosts = ["https://a.b/c"]', "environment.allowed_hosts: 'https://a.b/c'"
    ),
    "a range with a host": _environment(
        'network_mode = "allowlist"\nallowed_hosts = ["10.0.0.1/8"]', "environment.allowed_hosts: '10.0.0.1/8'"
    ),
    "a phase's hosts without a mode": Broken("task.toml: agent: allowed_hosts needs", "[agent]\nallowed_hosts = []"),
    "a variable that is a number": _environment("env = {A = 1}", "environment.env.A is 1"),
    "a variable without a name": _environment("env = {'a b' = ''}", "environment.env: 'a b' is not", also_harbor=False),
    "a user with a space": Broken("task.toml: agent.user is 'a b'", '[agent]\nuser = "a b"', also_harbor=False),
    "a relative folder": _environment('workdir = "app"', "environment.workdir is 'app'", also_harbor=False),
    "shared with an environment": Broken(
        "task.toml: verifier: environment_mode", '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]'
    ),
    "an artifact that leads out": Broken("task.toml: artifacts[0] is '/a/../b'", 'artifacts = ["/a/../b"]'),
    "an artifact's place": Broken(
        "task.toml: artifacts[0].destination is '/x'", 'artifacts = [{source = "/a", destination = "/x"}]'
    ),
    "an artifact over the list": Broken(
        "task.toml: artifacts[0].destination is 'manifest.json'",
        'artifacts = [{source = "/a", destination = "manifest.json"}]',
    ),
    "no instruction": Broken("instruction.md: the file is missing", files={"instruction.md": None}),
    "an instruction elsewhere": Broken(
        "instruction.md: its link leads out of the task's folder",
        change=_link("instruction.md", "/etc/passwd"),
        also_harbor=False,
    ),
    "an empty instruction": Broken("instruction.md: it is empty", files={"instruction.md": " \n"}, also_harbor=False),
    "no tests": Broken("tests/test.sh: the file is missing", files={"tests/test.sh": None}),
    "tests for Windows alone": Broken(
        "tests/test.sh: the file is missing", files={"tests/test.sh": None, "tests/test.bat": ""}
    ),
    "tests elsewhere": Broken(
        "tests/data: its link leads out of the task's folder", change=_link("tests/data", "/etc")
    ),
    "tests in a circle": Broken("its links form a circle", change=_link("tests/again", ".")),
    "a pipe among the tests": Broken("tests/pipe: it is a pipe", change=_pipe("tests/pipe"), also_harbor=False),
    "a name that is not UTF-8": Broken("tests: the name b'\\xff.py' in it", change=_bad_name, also_harbor=False),
    "a solution elsewhere": Broken("solution/solve.sh: its link leads", change=_link("solution/solve.sh", "/bin/true")),
    "no image": Broken(
        "environment/Dockerfile: the file is missing, and task.toml names no image",
        files={"environment/Dockerfile": None},
        also_harbor=False,
    ),
    # What follows is good for Harbor and not supported here.
    "a compose file": Broken(
        "task.toml: not supported here: compose files (environment/docker-compose.yaml)",
        files={"environment/docker-compose.yaml": "services: {}\n"},
        also_harbor=False,
    ),
    "steps": Broken(
        "task.toml: not supported here: several steps ([[steps]])",
        '[[steps]]\nname = "one"',
        {"steps/one/instruction.md": "Do it.", "steps/one/tests/test.sh": ""},
        also_harbor=False,
    ),
    "Windows": Broken(
        "task.toml: not supported here: Windows",
        '[environment]\nos = "windows"',
        {"tests/test.bat": ""},
        also_harbor=False,
    ),
    "GPUs": _environment("gpus = 2", "not supported here: GPUs (environment.gpus = 2)", also_harbor=False),
    "a TPU": _environment('tpu = {type = "v6e", topology = "2x4"}', "not supported here: TPUs", also_harbor=False),
    "an MCP server": _environment(
        '[[environment.mcp_servers]]\nname = "desk"\nurl = "http://desk/mcp"',
        "not supported here: MCP servers (environment.mcp_servers: desk)",
        also_harbor=False,
    ),
    "several services": Broken(
        "task.toml: not supported here: several services ('db' of",
        'artifacts = [{source = "/x", service = "db"}]',
        also_harbor=False,
    ),
    "earlier turns": Broken(
        "task.toml: not supported here: earlier turns (trajectory.json)",
        files={"trajectory.json": "{}"},
        also_harbor=False,
    ),
    "all of it": Broken(
        "not supported here: GPUs (verifier.environment.gpus = 1), compose files (tests/docker-compose.yaml)",
        "[verifier.environment]\ngpus = 1",
        {"tests/docker-compose.yaml": "", "environment/docker-compose.yml": ""},
        also_harbor=False,
    ),
}


def write_broken(parent: Path, fault: str) -> Path:
    """Write a broken folder, with the files that its links lead to."""
    broken = BROKEN[fault]
    folder = write_harbor_folder(parent, fault.replace(" ", "-"), broken.files, broken.config)
    (parent / "elsewhere.toml").write_text("")
    if broken.change is not None:
        broken.change(folder)
    return folder
