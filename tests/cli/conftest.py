"""The command line for tests: in this process for checks of its output, and as a real process for signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ors_cli import main

from tests.support.servers import StartServer, starting

#: A complete environment; tests replace the class's name and the code before the class.
ENVIRONMENT = '''
from pydantic import BaseModel
from {package} import Environment, TextBlock, ToolOutput, tool
{head}

class Words(BaseModel):
    text: str


class {name}(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{{"id": "one"}}, {{"id": "two"}}]

    def get_prompt(self):
        return [TextBlock(type="text", text="Say something.")]

    @tool
    def say(self, params: Words) -> ToolOutput:
        """Say something."""
        return ToolOutput(blocks=[TextBlock(type="text", text=str({answer}))], reward=1.0, finished=True)
'''


@dataclass
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]
WriteEnvironment = Callable[..., Path]


@pytest.fixture
def write_environment(tmp_path: Path) -> WriteEnvironment:
    """Return a function that writes ``<folder>/environment.py`` with one class and returns the folder."""

    def write(
        folder: str,
        name: str = "Talk",
        *,
        package: str = "ors_server",
        head: str = "",
        answer: str = "params.text",
        file: str = "environment.py",
    ) -> Path:
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / file).write_text(ENVIRONMENT.format(name=name, package=package, head=head, answer=answer))
        return path

    return write


@pytest.fixture(autouse=True)
def _fresh_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Forget modules that a test imports from folders."""
    monkeypatch.setattr("ors_server.hosting.loading.folder_imports._packages", {})
    monkeypatch.setattr("ors_server.hosting.loading.folder_imports._packages_by_name", {})
    finders, path, modules = list(sys.meta_path), list(sys.path), set(sys.modules)
    yield
    sys.meta_path[:] = finders
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("ors_environment_") or "tmp" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Return a function that runs ``ors-server`` with arguments in this process."""
    # Wide enough that messages are not wrapped.
    monkeypatch.setenv("COLUMNS", "300")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ors-server", *map(str, arguments)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start real servers, each a process of its own."""
    with starting(tmp_path) as start:
        yield start
