"""Places that the recorded runs of a verifier leave out of an agent's files, and those that are outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_containers import Image
from ors_containers.layers.leaving_out import LeftOut
from ors_containers.sandbox import RecordedPaths

from .parts import harbor_agents_programs, harbor_left_out

#: What an image and a verifier's layer have, besides folders of the system.
IMAGE = (
    *("app/x", "data/input", "db/main", "root/.bashrc", "venv/bin/python", "venv/lib/a.py", "home/u/x", "output/.x"),
    *("app/v/bin/python", "app/v/pyvenv.cfg", "app/v-1/bin/run"),
)
FETCHED = ("root/.local/bin/uv", "app/.tests/bin/python", "fetched/lib/a.py")


def rule(tmp_path: Path, work: str = "/app") -> harbor_left_out.UsedPaths:
    for layer, files in {"image": IMAGE, "fetched": FETCHED, "tests": ("tests/test.sh", "logs/verifier/x")}.items():
        for path in files:
            place = tmp_path / layer / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    image = Image("image", (tmp_path / "image",), directory=work, home="/root")
    return harbor_left_out.UsedPaths(image, tmp_path / "tests", [tmp_path / "fetched"])


def left_by(rules: LeftOut) -> set[str]:
    return {*rules.paths, *rules.closed}


def used(**kinds: str) -> RecordedPaths:
    return RecordedPaths(**{kind: frozenset(words.split()) for kind, words in kinds.items()})


@pytest.mark.parametrize(
    ("work", "seen", "paths", "folders"),
    [
        pytest.param("/app", used(executed="/usr/bin/sh", opened="/etc/x /tests/a"), "", "", id="the system"),
        pytest.param(
            "/app", used(opened="/data/input /app/x", missing="/data/y"), "/data/input /data/y", "", id="data"
        ),
        pytest.param("/app", used(executed="/venv/bin/python", opened="/venv/lib/a.py"), "/venv", "", id="a prefix"),
        pytest.param(
            "/app", used(missing="/root/.config/uv/uv.toml"), "/root/.config", "", id="the first that is absent"
        ),
        pytest.param("/app", used(opened="/fetched/lib/a.py"), "/fetched", "", id="a fetched folder"),
        pytest.param(
            "/app", used(missing="/conftest.py", listed="/data /app /"), "/conftest.py", "/ /data", id="lists"
        ),
        pytest.param("/app", used(missing="/app/out", opened="/app/x", listed="/app"), "", "", id="the task's folder"),
        pytest.param("/app", used(executed="/app/.tests/bin/python"), "/app/.tests", "", id="fetched into the task's"),
        pytest.param("/root", used(missing="/root/.config/x /root/out"), "", "", id="a home as folder"),
        pytest.param("/", used(missing="/out", listed="/"), "/out", "/", id="no folder"),
        pytest.param("/tests", used(), "", "", id="Harbor's own folder"),
    ],
)
def test_which_places_are_left_out(tmp_path: Path, work: str, seen: RecordedPaths, paths: str, folders: str) -> None:
    made = rule(tmp_path, work)
    found, plain = made.left_out(seen), made.left_out(RecordedPaths())
    assert (left_by(found) - left_by(plain), {*found.folders}) == ({*paths.split()}, {*folders.split()})
    assert {"/usr", "/etc", "/tests", "/logs/verifier"} <= left_by(plain)
    assert {"/tests", "/logs/verifier"} <= {*found.closed}
    assert {"/data/input", "/venv"}.isdisjoint(found.closed)
    assert list(found.kept) == ([] if work in ("/", "/tests") else [work])
    assert made.left_out(RecordedPaths(), found) == found


@pytest.mark.parametrize(
    ("seen", "written", "outputs", "left"),
    [
        pytest.param(used(missing="/out/a/b.txt"), "out/a/b.txt", "/out", "", id="a new folder"),
        pytest.param(
            used(missing="/data/y", opened="/data/input"), "data/y", "/data/y", "/data/input", id="a new file"
        ),
        pytest.param(
            used(opened="/db/main /data/input", missing="/db/log"), "db/main", "/db", "/data/input", id="states"
        ),
        pytest.param(
            used(missing="/root/out /root/.config/x"), "root/out", "/root/out", "/root/.config", id="in a home"
        ),
        pytest.param(
            used(missing="/root/.config/x"), "root/.config/x", "", "/root/.config", id="a hidden file of a home"
        ),
        pytest.param(used(listed="/output /data"), "output/y", "", "/data", id="a folder that is listed"),
        pytest.param(used(executed="/venv/bin/python"), "venv/lib/a.py", "", "/venv", id="a prefix"),
        pytest.param(used(opened="/fetched/lib/a.py"), "fetched/lib/a.py", "", "/fetched", id="a fetched folder"),
        pytest.param(used(opened="/etc/x"), "etc/x", "", "", id="the system"),
        pytest.param(used(listed="/", missing="/conftest.py"), "out/x", "", "/ /conftest.py", id="what is not used"),
    ],
)
def test_which_places_are_outputs(tmp_path: Path, seen: RecordedPaths, written: str, outputs: str, left: str) -> None:
    made = rule(tmp_path)
    place = tmp_path / "solution" / written
    place.parent.mkdir(parents=True)
    place.touch()
    found = made.with_outputs(made.left_out(seen), tmp_path / "solution")
    assert set(found.kept) - {"/app"} == {*outputs.split()}
    plain = made.left_out(RecordedPaths())
    assert (left_by(found) | {*found.folders}) - left_by(plain) == {*left.split()}
    assert left_by(plain) <= left_by(found)


@pytest.mark.parametrize(
    ("seen", "left", "searched"),
    [
        pytest.param(used(searched="/app /usr/bin /tests /data"), "", "/app /data", id="where a Python looks"),
        pytest.param(
            used(opened="/app/x /app/l.py", missing="/app/__pycache__/l.cpython-311.pyc", listed="/app /usr/lib"),
            "/app/l.py /app/__pycache__/l.cpython-311.pyc",
            "/app",
            id="a module of the image",
        ),
        pytest.param(used(executed="/app/run", scripts="/app/run.sh"), "/app/run /app/run.sh", "", id="programs"),
        pytest.param(used(missing="/app/uv.toml /uv.toml /app/out"), "/uv.toml /app/uv.toml", "", id="settings"),
        pytest.param(
            used(missing="/app/bin/sh /app/out/cat", executed="/usr/bin/sh", opened="/usr/bin/cat"),
            "/app/bin/sh",
            "",
            id="a program before others",
        ),
        pytest.param(
            used(
                executed="/app/v/bin/python /app/v-1/bin/run", opened="/app/A.egg-info/x", missing="/app/b.egg-info/y"
            ),
            "/app/v /app/A.egg-info/x /app/b.egg-info/y /app/v-1/bin/run",
            "",
            id="a virtual environment, and what distributions say",
        ),
    ],
)
def test_what_a_verifier_takes_from_the_tasks_folder_is_left_out(
    tmp_path: Path, seen: RecordedPaths, left: str, searched: str
) -> None:
    made = rule(tmp_path)
    found, plain = made.left_out(seen), made.left_out(RecordedPaths())
    assert (left_by(found) - left_by(plain), {*found.searched}) == ({*left.split()}, {*searched.split()})
    assert made.left_out(RecordedPaths(), found) == found
    # The solution's are the agent's.
    for path in ("app/uv.toml", "app/run", "app/m.py", "app/x"):
        place = tmp_path / "solution" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    own = made.with_outputs(found, tmp_path / "solution")
    assert {path for path in left_by(own) if path.startswith("/app")} == {
        path for path in left.split() if path.startswith("/app") and path not in ("/app/uv.toml", "/app/run")
    }
    assert (own.own, own.kept) == (("/app/m.py",) if "/app" in own.searched else (), ("/app",))
    # A verifier that runs the agent's programs sees them all.
    known = made.without_modules(found)
    assert not any(path.startswith("/app") for path in (*left_by(known), *known.searched, *known.own))
    assert left_by(plain) <= left_by(known)


def test_programs_of_the_agent_are_seen_in_the_record(tmp_path: Path) -> None:
    own = {
        "run.sh": b"#!",
        "module.py": b"",
        "old.pyc": b"",
        "library.so": b"\x7fELF.",
        "answer": b"42",
        "data.py": b"",
    }
    (tmp_path / "app").mkdir()
    for name, content in own.items():
        (tmp_path / "app" / name).write_bytes(content)
    (tmp_path / "app/link").symlink_to("library.so")
    read = used(executed="/bin/sh", opened="/app/answer /app/data.py /app/link /usr/lib/x.so", missing="/app/none")
    assert harbor_agents_programs.programs_run(read, tmp_path) == ""
    for seen, named in (
        (used(executed="/app/run.sh"), "/app/run.sh"),
        (used(opened="/app/answer", scripts="/app/answer"), "/app/answer"),
        (used(opened="/app/module.py", missing="/app/__pycache__/module.cpython-311.pyc"), "/app/module.py"),
        (used(opened="/app/module.py /app/__pycache__/module.cpython-311.pyc"), "/app/module.py"),
        (used(opened="/app/old.pyc"), "/app/old.pyc"),
        (used(opened="/app/library.so"), "/app/library.so"),
    ):
        found = harbor_agents_programs.programs_run(seen, tmp_path)
        assert found == f"the verifier runs programs of the agent: {named}"
