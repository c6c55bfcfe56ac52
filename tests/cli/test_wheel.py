"""The wheel in image folders: built from the checkout, which an installation remembers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ors_cli.authoring.wheel import WheelError, wheel

import ors_server

Install = Callable[[Path], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Return a function that lets this package be one that was installed from a path."""

    def install(source: Path) -> None:
        class Installed:
            def read_text(self, name: str) -> str:
                assert name == "direct_url.json"
                return json.dumps({"url": source.as_uri(), "dir_info": {}})

        monkeypatch.setattr(ors_server, "__file__", str(tmp_path / "site-packages" / "ors_server" / "__init__.py"))

        def distribution(name: str) -> Installed:
            assert name == "orsd"
            return Installed()

        monkeypatch.setattr("ors_cli.authoring.wheel.distribution", distribution)

    return install


def test_an_installation_from_a_wheel_gives_that_wheel(install: Install, tmp_path: Path) -> None:
    file = tmp_path / "of mine" / "orsd-0.9-py3-none-any.whl"
    file.parent.mkdir()
    file.write_bytes(b"wheel")
    install(file)
    assert wheel() == (file.name, b"wheel")


def test_an_installation_from_elsewhere_is_refused(install: Install, tmp_path: Path) -> None:
    install(tmp_path / "gone")
    with pytest.raises(WheelError, match="gone is none") as caught:
        wheel()
    assert "pip install" in caught.value.remedy


def test_a_build_that_fails_says_why(install: Install, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("nonsense")
    install(tmp_path)
    with pytest.raises(WheelError) as caught:
        wheel()
    assert str(tmp_path) in caught.value.cause
    assert "hatchling" in caught.value.remedy
