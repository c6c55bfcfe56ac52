"""``scripts/install-packages`` gives uv what pip is set up with, and goes back to pip where it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

#: Both programs write down their arguments; pip also tells its settings.
PIP = """
import json, os, sys
if sys.argv[1:3] == ["config", "list"]:
    print(os.environ["SETTINGS"], end="")
elif sys.argv[-1] != "uv":
    print(json.dumps(["pip", *sys.argv[1:]]))
    sys.exit(3)
else:
    sys.exit(int(os.environ["STATUS_OF_GETTING_UV"]))
"""
UV = """
import json, os, sys
print(json.dumps(["uv", *sys.argv[1:], os.environ.get("SSL_CERT_FILE")]))
sys.exit(int(os.environ["STATUS_OF_UV"]))
"""


def run(folder: Path, *settings: str, getting_uv: int = 0, uv: int = 0) -> tuple[int, list[list[Any]]]:
    """Return the exit status and the calls of uv and pip."""
    for name, program in (("pip", PIP), ("uv", UV)):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "__main__.py").write_text(program)
    variables = {"SETTINGS": "\n".join(settings), "STATUS_OF_UV": str(uv), "STATUS_OF_GETTING_UV": str(getting_uv)}
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "install-packages"), "--editable", ".[dev]"],
        env=environment | variables | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_uv_gets_what_pip_is_set_up_with(tmp_path: Path) -> None:
    status, (call,) = run(
        tmp_path,
        ":env:.find-links='/variable'",
        ":env:.timeout='9'",
        "global.cert='/certificates'",
        "global.extra-index-url='file:///one file:///two'",
        "global.find-links='/file'",
        "freeze.exclude='it is of another command'",
    )
    assert status == 0
    assert call[0] == "uv"
    assert call[-1] == "/certificates"
    options = ["--index", "file:///one", "--index", "file:///two", "--find-links", "/variable"]
    assert call[call.index(sys.executable) + 1 : -1] == [*options, "--editable", ".[dev]"]


@pytest.mark.parametrize(
    "kept_from_uv", [{"settings": ["global.no-index='true'"]}, {"getting_uv": 1}, {"uv": 2}], ids=str
)
def test_pip_installs_where_uv_cannot(tmp_path: Path, kept_from_uv: dict[str, Any]) -> None:
    status, calls = run(tmp_path, *kept_from_uv.pop("settings", []), **kept_from_uv)
    assert status == 3
    assert calls[-1][:2] == ["pip", "install"]
    assert calls[-1][-2:] == ["--editable", ".[dev]"]
    assert len(calls) == (2 if "uv" in kept_from_uv else 1)
