"""Folders of Terminal-Bench 1 for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["CONVERTED", "LEFT_OUT", "write_terminal_bench_folder"]

_LOGS = """    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
_COMPOSE = f"""services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${{T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}}
    container_name: ${{T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${{T_BENCH_TEST_DIR}}
{_LOGS}"""

FILES: Mapping[str, str] = {
    "task.yaml": "instruction: |-\n  Write 42.\ndifficulty: easy\ntags: [a, 'b \"c\"']\nmax_agent_timeout_sec: 900\n",
    "docker-compose.yaml": _COMPOSE,
    "Dockerfile": "FROM ubuntu:24.04\nCOPY data /data\nWORKDIR /app",
    "data/numbers.txt": "41\n",
    "run-tests.sh": "#!/bin/bash\npytest $TEST_DIR/test_outputs.py -rA",
    "tests/test_outputs.py": "def test_it(): pass\n",
    "solution.sh": "echo 42 > /app/answer\n",
}


def _service(text: str) -> Mapping[str, str]:
    return {"docker-compose.yaml": _COMPOSE + text}


#: Changes of the files by name; each is converted to the same files as by Harbor.
CONVERTED: Mapping[str, Mapping[str, str | None]] = {
    "as published": {},
    "no solution": {"solution.sh": None},
    "all facts": {
        "task.yaml": (
            "instruction: Do it.\nauthor_name: A\nauthor_email: a@example.org\ndifficulty: hard\ncategory: x\n"
            "estimated_duration_sec: 3\nexpert_time_estimate_min: 1.5\njunior_time_estimate_min: 5\n"
            "max_test_timeout_sec: 12.5\nparser_name: pytest\n"
        )
    },
    "a list of variables": {
        "docker-compose.yaml": _COMPOSE.replace("    environment:", "    environment:\n      - A=b\n      - C=1")
    },
    "a table of variables": {
        "docker-compose.yaml": "version: '3'\nservices:\n  client:\n    build: .\n    environment: {A: b, N: 1}\n"
    },
    "directory, ports, entry point": _service(
        "    working_dir: /srv/app\n    expose: [80, '81']\n    entrypoint: ['a', 'b']\n"
    ),
    "an entry point that is a text": _service("    entrypoint: /start\n    expose: 80\n"),
    "a platform": {**_service("    platform: linux/amd64\n"), "Dockerfile": "FROM a AS b\nFROM c\n"},
    "another platform": {
        **_service("    platform: linux/amd64\n"),
        "Dockerfile": "FROM --platform=linux/arm64 a AS b\nFROM c\n",
    },
    "a context of its own": {
        "docker-compose.yaml": "services:\n  client:\n    build: client\n",
        "Dockerfile": None,
        "client/Dockerfile": "FROM a\nCOPY x /x\n",
        "client/x": "x",
        "README.md": "words",
    },
    "tests in the image": {"Dockerfile": "FROM a\nCOPY tests /tests\nCOPY ./solution.sh /s.sh\n"},
}

#: Changes of the files by name, and the words of the problem.
LEFT_OUT: Mapping[str, tuple[Mapping[str, str | None], str]] = {
    "no compose file": ({"docker-compose.yaml": None}, "docker-compose.yaml: the file is missing"),
    "no YAML": ({"task.yaml": "a: 1\nb: [\n"}, "task.yaml, line 3: it is not YAML"),
    "a list": ({"task.yaml": "- a\n"}, "task.yaml: it is not a table"),
    "deep YAML": ({"task.yaml": "a: " + "[" * 20_000}, "task.yaml: it is nested too deeply"),
    "no instruction": ({"task.yaml": "difficulty: easy\n"}, "task.yaml: instruction: Field required"),
    "a word as a time": (
        {"task.yaml": "instruction: a\nmax_test_timeout_sec: long\n"},
        "task.yaml: max_test_timeout_sec: Input should be a valid number",
    ),
    "typed keys": ({"solution.yaml": "[]"}, "solution.yaml: keys typed into a terminal are not supported"),
    "no tests": ({"run-tests.sh": None}, "run-tests.sh: the file is missing"),
    "two services": (
        {"docker-compose.yaml": "services:\n  client: {build: .}\n  db: {image: x}\n"},
        "several services are not supported: client, db",
    ),
    "no services": ({"docker-compose.yaml": "services: []\n"}, "it has no services"),
    "privileges": (_service("    privileged: true\n"), "not supported here: services.client.privileged"),
    "a network": (_service("networks: {a: {}}\n"), "not supported here: networks"),
    "a volume": (
        {"docker-compose.yaml": "services:\n  client:\n    build: .\n    volumes: ['/:/host']\n"},
        "not supported here: the volume /:/host",
    ),
    "build arguments": (
        {"docker-compose.yaml": "services:\n  client:\n    build: {context: ., args: {A: b}}\n"},
        "not supported here: services.client.build.args",
    ),
    "a context elsewhere": (
        {"docker-compose.yaml": "services:\n  client:\n    build: ../other\n"},
        "services.client.build: there is no Dockerfile in '../other'",
    ),
    "a text that doubles at each alias": (
        {
            "docker-compose.yaml": "services:\n  client:\n    build: .\n    working_dir: &a0 [x]\n"
            + "".join(f"    x{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n" for number in range(1, 60))
            + "    expose: [*a59]\n"
        },
        "not supported here: services.client.x1, services.client.x2",
    ),
    "a variable that doubles at each alias": (
        {
            "docker-compose.yaml": "services:\n  client:\n    build: .\n    environment:\n      A0: &a0 [x]\n"
            + "".join(f"      A{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n" for number in range(1, 60))
        },
        "a text is expected, not a list",
    ),
    "no Dockerfile": ({"Dockerfile": None}, "services.client.build: there is no Dockerfile in '.'"),
    "a variable of the machine": (
        {"docker-compose.yaml": "services:\n  client:\n    build: .\n    environment: [HOME]\n"},
        "environment: 'HOME' has no value",
    ),
}


def write_terminal_bench_folder(parent: Path, name: str, files: Mapping[str, str | None] | None = None) -> Path:
    """Write a task; ``files`` override the usual ones, and None leaves a file out."""
    folder = parent / name
    for path, text in {**FILES, **(files or {})}.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder
