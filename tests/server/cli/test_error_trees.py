"""The trees of errors drawn in the packages' ``errors`` modules: every error of the package, under its base."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

_NODE = re.compile(r"^    ((?:│   |    )*)[├└]── (\w+)")


def drawn(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the root of a drawn tree, and a map of its other errors to their parents."""
    branch: list[str] = []
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if not branch:
            if root := re.fullmatch(r"    (\w+)(?: \(\w+\))?", line):
                branch = [root[1]]
        elif node := _NODE.match(line):
            branch[len(node[1]) // 4 + 1 :] = [node[2]]
            found.append((node[2], branch[-2]))
    return branch[0], found


def defined(package: Path, root: str) -> dict[str, list[str]]:
    """Return the errors below ``root`` in a package's source, including modules that need a trainer to be imported."""
    bases: dict[str, list[str]] = {}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    found: dict[str, list[str]] = {root: []}
    while new := {name for name, above in bases.items() if name not in found and not found.keys().isdisjoint(above)}:
        found |= {name: bases[name] for name in new}
    del found[root]
    return found


@pytest.mark.parametrize("package", ["ors_server", "containers/ors_containers", "clients/ors_clients"])
def test_the_tree_has_every_error(package: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package / "errors.py").read_text("utf-8")), clean=False) or ""
    root, nodes = drawn(text)
    errors = defined(ROOT / package, root)
    assert sorted(name for name, _ in nodes) == sorted(errors)
    for name, above in nodes:
        assert above in errors[name], name
