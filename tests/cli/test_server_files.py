"""Files and folders with a server of their own, as in published environments: ``Server([MyEnv]).run()``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ors_server.hosting.errors import TargetError
from ors_server.hosting.loading.targets import load_target
from ors_server.server import Server

WriteEnvironment = Callable[..., Path]

MAIN = 'if __name__ == "__main__":\n    '


def names_of(target: object) -> list[str]:
    return [environment.__name__ for environment in load_target(str(target))]


@pytest.fixture
def folder(write_environment: WriteEnvironment) -> Path:
    """Write a folder whose module ``env_classes`` has two environments and a base class."""
    path = write_environment("published", "First", file="env_classes.py")
    write_environment("published", "Second", file="other_classes.py")
    return path


# --- environments that the file passes to Server ---------------------------------------------------


@pytest.mark.parametrize("package", ["openreward.environments", "ors", "ors_server"])
@pytest.mark.parametrize("name", ["server.py", "app.py", "main.py", "env.py", "environment.py", "__init__.py"])
def test_the_form_of_published_environments(write_environment: WriteEnvironment, package: str, name: str) -> None:
    """As a file, and as a folder whose file has one of the usual names."""
    folder = write_environment("published", "Talk", package=package, file="talking.py")
    file = folder / name
    file.write_text(
        f"from {package} import Server\n\nfrom talking import Talk\n\n{MAIN}server = Server([Talk])\n    server.run()\n"
    )
    assert names_of(folder) == ["Talk"]
    assert names_of(f"{folder}:Talk") == ["Talk"]
    (served,) = load_target(str(folder if name == "__init__.py" else file))
    assert [hosted.name for hosted in Server([served]).environments] == ["talk"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        # The block of the file, with its own imports, names and arguments.
        (f"{MAIN}Server([Second, First]).run(port=9000)", ["Second", "First"]),
        (f"{MAIN}Server(environments=[Second], return_errors='none').run()", ["Second"]),
        (f"{MAIN}Server(return_errors='none', environments=(Second,)).run()", ["Second"]),
        (f"{MAIN}Server([Second({{}})]).run()", ["Second"]),
        (f"{MAIN}Server([other_classes.Second]).run()", ["Second"]),
        (f"{MAIN}served = [Second]\n    server = Server(served)\n    server.run()", ["Second"]),
        (f"{MAIN}served: list[type] = [Second]\n    Server([*served, First]).run()", ["Second", "First"]),
        (f"served = [Second]\n{MAIN}Server(served + [First]).run()", ["Second", "First"]),
        (f"{MAIN}import other_classes as o\n    Server([o.Second]).run()", ["Second"]),
        (f"{MAIN}from other_classes import Second as S\n    Server([S, S]).run()", ["Second"]),
        (f"{MAIN}import ors_server as api\n    api.Server([Second]).run()", ["Second"]),
        (f"{MAIN}from ors_server import Server as Host\n    Host([Second]).run()", ["Second"]),
        (f"class Mine(Server):\n    pass\n\n{MAIN}Mine([Second]).run()", ["Second"]),
        (f"{MAIN}if sys.argv:\n        print('starting')\n    Server([Second]).run()", ["Second"]),
        # An application for uvicorn, and functions.
        ("app = Server([Second]).app", ["Second"]),
        ("def main(port: int = 80) -> None:\n    Server([Second]).run(port=port)\n\n" + MAIN + "main()", ["Second"]),
        ("async def serve():\n    from other_classes import Second as Late\n    Server([Late]).run()", ["Second"]),
        (f"def test():\n    Server([First])\n    Server([no])\n\n{MAIN}Server([Second]).run()", ["Second"]),
        # Calls of another function called Server do not count.
        ("def build(Server):\n    return Server([Second])", ["First", "Second"]),
        ("class Server:\n    def __init__(self, it): ...\n\napp = Server([Second])", ["First", "Second"]),
        # Arguments that only a run would reveal: all imported classes.
        (f"{MAIN}served = [Second]\n    served.append(First)\n    Server(served).run()", ["First", "Second"]),
        (f"served = [Second]\n{MAIN}served += [First]\n    Server(served).run()", ["First", "Second"]),
        (f"{MAIN}Server([globals()[sys.argv[1]]]).run()", ["First", "Second"]),
        (f"{MAIN}Server([cls for cls in (Second,)]).run()", ["First", "Second"]),
        (f"{MAIN}chosen = Second if sys.argv else First\n    Server([chosen]).run()", ["First", "Second"]),
        (f"{MAIN}Server(*[[Second]]).run()", ["First", "Second"]),
        (f"{MAIN}Server([]).run()", ["First", "Second"]),
        (f"{MAIN}Server([int]).run()", ["First", "Second"]),
        (f"{MAIN}Server([No.such]).run()\n\nclass No: ...", ["First", "Second"]),
        (f"{MAIN}a = b\n    b = a\n    Server(a).run()", ["First", "Second"]),
        # The file's own list is closer to the author's intention than the imported classes.
        (f"environments = [First]\n{MAIN}Server([Second]).run()", ["Second"]),
        (f"environments = ['data']\n{MAIN}Server([Second]).run()", ["Second"]),
    ],
)  # fmt: skip
def test_the_classes_that_a_file_passes_to_its_server(folder: Path, source: str, names: list[str]) -> None:
    file = folder / "server.py"
    file.write_text(
        "import sys\nimport other_classes\nfrom ors_server import Server\n"
        f"from env_classes import First\nfrom other_classes import Second\n\n{source}\n"
    )
    assert names_of(file) == names


def test_the_main_block_does_not_run(folder: Path) -> None:
    """Except for the imports of the names it passes: no arguments are parsed, no class is created."""
    (folder / "server.py").write_text(
        "import argparse\nfrom ors_server import Server\nfrom env_classes import First as Base\n\n"
        "class First(Base):\n    def __init__(self, *a, **k): raise SystemExit('made')\n\n"
        f"{MAIN}parser = argparse.ArgumentParser()\n    parser.add_argument('file')\n"
        "    arguments = parser.parse_args()\n    import no_such_module\n    Server([First()]).run(arguments.port)\n"
    )
    assert names_of(folder) == ["First"]


def test_only_some_of_the_classes_of_a_file(write_environment: WriteEnvironment) -> None:
    folder = write_environment("published", "Debug", file="server.py")
    with (folder / "server.py").open("a") as file:
        file.write(f"\n\nclass Real(Debug):\n    pass\n\nfrom ors_server import Server\n{MAIN}Server([Real]).run()\n")
    assert names_of(folder) == ["Real"]
    assert names_of(f"{folder}:Debug") == ["Debug"]


# --- its imports -----------------------------------------------------------------------------------


def test_imported_classes_but_bases_and_private_ones(folder: Path) -> None:
    with (folder / "env_classes.py").open("a") as file:
        file.write("\n\nclass Third(First):\n    pass\n\nclass _Fourth(First):\n    pass\n")
    (folder / "server.py").write_text(
        "from ors_server import Environment, Toolset\nfrom other_classes import Second\n"
        "from env_classes import First, Third, _Fourth\nAlias = Second\n"
    )
    assert names_of(folder) == ["Second", "Third"]


def test_a_file_without_environments_gives_way_to_the_next(folder: Path) -> None:
    """A folder may have game logic in ``environment.py``."""
    (folder / "environment.py").write_text("class Board:\n    pass\n")
    (folder / "main.py").write_text("from other_classes import Second\n")
    assert names_of(folder) == ["Second"]
    assert names_of(f"{folder}:Second") == ["Second"]
    (folder / "main.py").unlink()
    with pytest.raises(TargetError, match=r"environment\.py has no class that derives from Environment"):
        load_target(str(folder))
    with pytest.raises(TargetError, match=r"environment\.py has no class Second"):
        load_target(f"{folder}:Second")


def test_a_file_that_does_not_load_does_not_give_way(folder: Path) -> None:
    (folder / "environment.py").write_text("1 / 0\n")
    (folder / "main.py").write_text("from other_classes import Second\n")
    with pytest.raises(TargetError, match="ZeroDivisionError"):
        load_target(str(folder))


def test_a_package_imports_itself_by_its_own_name(write_environment: WriteEnvironment, tmp_path: Path) -> None:
    folder = write_environment(
        "my_package/envs", "Talk", head="from my_package.words import here", answer="here"
    ).parent
    (folder / "__init__.py").touch()
    (folder / "envs" / "__init__.py").write_text("from my_package.envs.environment import Talk\n")
    (folder / "words.py").write_text("import my_package.state\nhere = my_package.state.value\n")
    (folder / "state.py").write_text("value = 7\n")
    (folder / "server.py").write_text(
        f"import my_package\nfrom my_package import envs\nfrom ors_server import Server\n{MAIN}Server([envs.Talk])\n"
    )
    assert names_of(folder) == ["Talk"]
    # Named by its own path, without its parent on the path: still a folder that is a part of another package.
    with pytest.raises(TargetError, match="named as a module"):
        load_target(str(folder / "envs" / "environment.py"))


def test_an_installed_package_of_the_folders_name_is_not_hidden(write_environment: WriteEnvironment) -> None:
    folder = write_environment("openreward", "Talk", package="openreward.environments")
    (folder / "__init__.py").touch()
    assert names_of(folder) == ["Talk"]


# --- obstacles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        "Server([First]).run()",
        "server = Server([First])\nserver.run(port=8000)",
        "import uvicorn\napp = Server([First]).app\nuvicorn.run(app)",
        "def main():\n    Server([First]).run()\nmain()",
        "try:\n    Server([First]).run()\nexcept KeyboardInterrupt:\n    pass",
        # Calls that are only visible when it runs.
        "def start():\n    Server([First]).run()\ndef main():\n    start()\nmain()",
        "def main():\n    host = Server([First])\n    host.run()\nmain()",
        "host: Server = Server([First])\nhost.run()",
        "from ors_server import Server as Host\nHost([First]).run()",
        "class Program:\n    def go(self):\n        Server([First]).run()\nProgram().go()",
        "import asyncio, uvicorn\n"
        "host = uvicorn.Server(uvicorn.Config(Server([First]).app))\nasyncio.run(host.serve())",
    ],
)
def test_a_file_that_serves_when_it_is_imported(folder: Path, start: str) -> None:
    """The import would never return, and would listen on every interface."""
    (folder / "server.py").write_text(f"from ors_server import Server\nfrom env_classes import First\n{start}\n")
    with pytest.raises(TargetError) as caught:
        load_target(str(folder))
    assert "server.py starts its server when it is imported (line " in caught.value.cause
    assert "__main__" in caught.value.remedy
    with pytest.raises(TargetError, match="starts its server when it is imported"):
        load_target(f"{folder / 'server.py'}:First")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("from no_such_library import Env", "ModuleNotFoundError: No module named 'no_such_library' ("),
        (f"from ors_server import Server\n{MAIN}from no_such_library import Env\n    Server([Env]).run()",
         "ModuleNotFoundError: No module named 'no_such_library'"),
        ("x = = 1", "SyntaxError: invalid syntax ("),
        ("\x00", "source code string cannot contain null bytes"),
    ],
)  # fmt: skip
def test_errors_of_the_files_imports_are_explained(folder: Path, source: str, cause: str) -> None:
    (folder / "server.py").write_text(source)
    with pytest.raises(TargetError) as caught:
        load_target(str(folder))
    assert cause in caught.value.cause
    assert caught.value.cause.startswith(f"{folder / 'server.py'} cannot be imported: ")


# --- the templates of openreward -----------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("template", "name"), [("basic", "BasicEnvironment"), ("sandbox", "SandboxEnv")])
def test_the_templates_of_orwd_serve(tmp_path: Path, template: str, name: str) -> None:
    """The output of openreward's own command, as a folder and as a file."""
    subprocess.run(
        [Path(sys.executable).with_name("orwd"), "init", template, "--template", template],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert names_of(tmp_path / template) == [name]
    (served,) = load_target(str(tmp_path / template / "server.py"))
    assert [hosted.name for hosted in Server([served]).environments] == [name.lower()]
