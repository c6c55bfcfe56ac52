"""Names of the adapters that configurations of trainers have: each is the module in the folder of trainers."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import ors_clients
import pytest

TRAINERS = Path(ors_clients.__file__).parent / "trainers"


@pytest.mark.parametrize("name", ["slime.functions", "miles.functions", "miles", "roll.group_filter"])
def test_a_public_name_is_the_same_module(name: str) -> None:
    module = importlib.import_module(f"ors_clients.{name}")
    assert module is importlib.import_module(f"ors_clients.trainers.{name}")
    assert sys.modules[f"ors_clients.{name}"] is module


def test_every_trainer_has_its_public_name() -> None:
    for folder in (entry for entry in TRAINERS.iterdir() if (entry / "__init__.py").exists()):
        spec = importlib.util.find_spec(f"ors_clients.{folder.name}")
        assert spec is not None


def test_what_is_not_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="ors_clients"):
        importlib.import_module("ors_clients.slime.nothing")
    with pytest.raises(ModuleNotFoundError, match="ors_clients"):
        importlib.import_module("ors_clients.verl")


def test_a_public_name_is_a_program(tmp_path: Path) -> None:
    """``python -m``: the trainer, here a stand-in without contents, is imported by the program."""
    (tmp_path / "atroposlib.py").write_text("import sys; raise SystemExit(f'the program has begun: {sys.argv[0]}')")
    command = [sys.executable, "-m", "ors_clients.atropos"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    # Parsers of arguments take their program's name from there.
    assert done.stderr.strip() == f"the program has begun: {TRAINERS / 'atropos' / '__main__.py'}"
