"""Scripts of interpreters, by their arguments, and the places where a Python looks for modules first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ors_containers.linux.interpreters import interpretation
from ors_containers.linux.path_record import PathRecord


@pytest.mark.parametrize(
    ("command", "candidates", "looks_here"),
    [
        ("/bin/bash run.sh a b", "run.sh a b", False),
        ("/bin/bash -eu run.sh", "run.sh", False),
        ("/bin/bash -ec x answer", "", False),
        ("busybox -sh x", None, False),
        ("/usr/bin/python3.12 -u main.py data", "main.py data", True),
        ("/venv/bin/python -X dev -Wcommon main.py", "dev main.py", True),
        ("/usr/bin/python3 -m pytest /tests", "", True),
        ("/usr/bin/python3 -qc x answer", "", True),
        ("/usr/bin/python3 -Im pytest", "", False),
        ("/usr/bin/python3 -I main.py", "main.py", False),
        ("/usr/bin/python3 main.py -I -c", "main.py", True),
        ("/usr/bin/python3 - answer", "", True),
        ("/usr/bin/perl -Ilib -e x answer", "", False),
        ("/usr/bin/java -jar app.jar", "app.jar", False),
        ("/usr/bin/node --test run.js", "run.js", False),
        ("/usr/bin/grep -c 42 answer", None, False),
        ("/app/run.sh x", None, False),
    ],
)
def test_which_arguments_may_be_the_script(command: str, candidates: str | None, looks_here: bool) -> None:
    found = interpretation(command.split()[0], command.split())
    if candidates is None:
        assert found is None
    else:
        assert found is not None
        assert (found.candidates, found.looks_here) == (tuple(candidates.split()), looks_here)


def test_a_program_of_many_is_the_one_that_it_is_called() -> None:
    found = interpretation("/bin/busybox", ["sh", "run.sh"])
    assert found is not None
    assert found.candidates == ("run.sh",)


def test_scripts_and_places_of_modules_are_recorded(tmp_path: Path) -> None:
    for folder in ("work/bin", "tests", "more"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("work/main.py", "work/run.sh", "work/__main__.py", "tests/check.py"):
        (tmp_path / file).touch()
    (tmp_path / "tests/link.py").symlink_to("/work/main.py")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)

    def recorded(command: str, search_path: str | None = None) -> tuple[str, str]:
        record = PathRecord(root)
        record.interpret(command.split()[0], command.split(), "/work", search_path)
        return " ".join(sorted(record.paths["scripts"])), " ".join(sorted(record.paths["searched"]))

    try:
        assert recorded("sh run.sh main.py") == ("/work/run.sh", "")
        assert recorded("sh -c run.sh") == ("", "")
        assert recorded("python3 -m x") == ("", "/work")
        assert recorded("python3 /tests/check.py run.sh") == ("/tests/check.py", "/tests")
        assert recorded("python3 none ../tests/link.py") == ("/tests/link.py /work/main.py", "/work")
        assert recorded("python3 .") == ("", "/work")
        assert recorded("python3 -I -m x", "../more:") == ("", "/more /work")
        assert recorded("cat run.sh", "/more") == ("", "")
    finally:
        os.close(root)
