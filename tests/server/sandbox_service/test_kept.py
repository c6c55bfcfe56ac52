"""Code and tasks that a server serves are hidden from sandboxes, wherever they lie on the machine."""

import contextlib
import dataclasses
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from ors_containers import RuntimeUnavailable, Sandbox

from ors_server import Server
from ors_server.hosting.loading.targets import load_target
from ors_server.sandboxes import close_sandbox_service, sandbox_service

_ENVIRONMENT = """
from ors_server import Environment, TextBlock, ToolOutput, tool

class Kept(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    async def get_prompt(self): return [TextBlock(text="")]
    @tool
    async def done(self) -> ToolOutput: return ToolOutput(blocks=[TextBlock(text="")])
"""


@contextlib.asynccontextmanager
async def sandbox_with(tree: Path) -> AsyncGenerator[Sandbox]:
    """Start a sandbox of a new service that has ``tree`` as /opt/tree; skip on a machine that cannot isolate."""
    try:
        service = await sandbox_service()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    try:
        host = service.runtime.host_image()
        image = dataclasses.replace(host, binds=(*host.binds, (tree, "/opt/tree")), user=0, group=0)
        sandbox = await service.open(image)
        yield sandbox
        await sandbox.stop()
    finally:
        await close_sandbox_service()


@pytest.mark.parametrize(
    ("served", "hidden", "kept"),
    [
        ("src/app", "src/app", "src/other"),
        ("src/app/server.py", "src/app", "src/other"),
        ("bin/server.py", "bin/server.py", "bin/program"),
        ("server.py", "server.py", "bin/program"),
        # Compiled modules, and the package that a file belongs to.
        ("bin/server.py", "bin/__pycache__/server.cpython-39.pyc", "bin/__pycache__/program.cpython-39.pyc"),
        ("lib/site-packages/published/envs", "lib/site-packages/published/tasks.py", "lib/site-packages/other.py"),
    ],
)
async def test_served_code_is_not_in_a_sandbox(tmp_path: Path, served: str, hidden: str, kept: str) -> None:
    files = (
        "src/app/solutions.txt",
        "src/other",
        "bin/program",
        "lib/library",
        "lib/site-packages/published/__init__.py",
    )
    for name in {*files, *(name for name in (hidden, kept) if Path(name).suffix)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    target = tmp_path / served
    (target if target.suffix != ".py" else target.parent).mkdir(parents=True, exist_ok=True)
    (target if target.suffix == ".py" else target / "environment.py").write_text(_ENVIRONMENT)
    assert [environment.__name__ for environment in load_target(str(target))] == ["Kept"]
    async with sandbox_with(tmp_path) as sandbox:
        result = await sandbox.run(f"cd /opt/tree; ls -d {kept} {hidden}", timeout=10)
        assert result.text == f"ls: cannot access '{hidden}': No such file or directory\n{kept}\n"


async def test_the_package_of_a_base_class_is_not_in_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class that is served may be short and its base hold the tasks; both are readable when compiled, too."""
    site = tmp_path / "lib/python3/dist-packages"
    site.mkdir(parents=True)
    (site / "kept_base.py").write_text(_ENVIRONMENT)
    (site / "kept_leaf.py").write_text("from kept_base import Kept\n\nclass Leaf(Kept):\n    pass\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    Server(load_target("kept_leaf:Leaf"))
    assert len(list(site.glob("__pycache__/kept_*.pyc"))) == 2
    async with sandbox_with(tmp_path) as sandbox:
        assert (await sandbox.run("find /opt/tree -type f", timeout=10)).text == ""
