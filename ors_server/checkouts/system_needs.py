"""Needs of an environment beyond Python, read from its source.

Sandboxes are the arguments of ``SandboxSettings``; data are texts that begin with ``/orwd_data``; secrets are the keys
that are read from ``secrets``; a judge and a search engine are known by the packages that call them. A text that is put
together at run time is shown with ``*`` for the parts that are unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ors_server.checkouts.sources import Sources

__all__ = ["DATA_MOUNT", "UNKNOWN_IMAGE", "Needs", "read_needs"]

#: The folder of an environment's data, as its author's code names it.
DATA_MOUNT = "/orwd_data"
#: An image that each task names.
UNKNOWN_IMAGE = "*"

_JUDGES = frozenset({"openai", "anthropic", "google", "litellm"})
_SEARCH = frozenset({"tavily", "exa_py", "serpapi", "ddgs", "duckduckgo_search"})
_NETWORK = frozenset({"requests", "httpx", "aiohttp", "huggingface_hub", "datasets", "nltk", "wikipedia", "boto3"})
_SEARCH_MODULES = ("openreward.search_backends", "openreward.tools.search", "openreward.tools.web")


@dataclass
class Needs:
    """The needs of one environment; a mapping has the place in the source, as ``file.py:12``."""

    #: Image references; patterns with ``*`` where a task decides.
    images: dict[str, str] = field(default_factory=dict[str, str])
    sizes: dict[str, str] = field(default_factory=dict[str, str])
    #: Paths below the data folder; empty for the folder itself.
    data: dict[str, str] = field(default_factory=dict[str, str])
    #: Sandboxes that mount the data folder.
    buckets: dict[str, str] = field(default_factory=dict[str, str])
    sidecars: dict[str, str] = field(default_factory=dict[str, str])
    #: Sandboxes with an open network, and those that block it.
    open_network: dict[str, str] = field(default_factory=dict[str, str])
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    judges: dict[str, str] = field(default_factory=dict[str, str])
    search: dict[str, str] = field(default_factory=dict[str, str])
    #: Packages with which the environment's own process may fetch something.
    network: dict[str, str] = field(default_factory=dict[str, str])
    #: Names of environments that its sandboxes belong to, as ``owner/Name``.
    environments: dict[str, str] = field(default_factory=dict[str, str])


def read_needs(sources: Sources) -> Needs:
    """Read the needs of a checkout's program."""
    needs = Needs()
    for file, tree in sources.trees.items():
        _Reader(needs, file, tree).visit(tree)
    return needs


class _Reader(ast.NodeVisitor):
    def __init__(self, needs: Needs, file: Path, tree: ast.Module) -> None:
        self._needs = needs
        self._file = file.name
        self._constants = _constants(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note_module(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level:
            self._note_module(node.module or "", node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # Texts in which the folder only occurs are prompts and documentation.
        if isinstance(node.value, str) and node.value.startswith(DATA_MOUNT) and len(node.value.split()) == 1:
            inside = node.value.removeprefix(DATA_MOUNT)
            if inside[:1] in ("", "/"):
                self._note(self._needs.data, inside.strip("/"), node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _is_secrets(node.value):
            self._note_secret(node.slice, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name == "SandboxSettings":
            self._note_sandbox({keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}, node)
            return
        if name in ("get", "pop") and isinstance(function, ast.Attribute) and _is_secrets(function.value) and node.args:
            self._note_secret(node.args[0], node)
        self.generic_visit(node)

    def _note_sandbox(self, given: Mapping[str, ast.expr], node: ast.AST) -> None:
        needs = self._needs
        if "environment" in given:
            self._note(needs.environments, self._text(given["environment"]), node)
        self._note(needs.images, self._text(given["image"]) if "image" in given else UNKNOWN_IMAGE, node)
        self._note(needs.sizes, self._text(given["machine_size"]) if "machine_size" in given else UNKNOWN_IMAGE, node)
        blocked = given.get("block_network")
        if not (isinstance(blocked, ast.Constant) and blocked.value is True):
            self._note(needs.open_network, "open" if "network" not in given else "filtered", node)
        if "bucket_config" in given and not _is_none(given["bucket_config"]):
            self._note(needs.buckets, "bucket", node)
        if "sidecars" in given and not _is_none(given["sidecars"]):
            self._note(needs.sidecars, "sidecars", node)
        for part in given.values():
            for inner in ast.walk(part):
                if isinstance(inner, ast.keyword) and inner.arg == "image":  # of a sidecar
                    self._note(needs.images, self._text(inner.value), node)

    def _note_module(self, name: str, node: ast.AST) -> None:
        top = name.partition(".")[0]
        if top in _JUDGES and name != "google":
            self._note(self._needs.judges, top, node)
        if top in _SEARCH or name.startswith(_SEARCH_MODULES):
            self._note(self._needs.search, name, node)
        if top in _NETWORK or name == "urllib.request":
            self._note(self._needs.network, top, node)

    def _note_secret(self, key: ast.expr, node: ast.AST) -> None:
        name = self._text(key)
        if name != UNKNOWN_IMAGE:
            self._note(self._needs.secrets, name, node)
            if name.startswith(("tavily", "exa_", "serp", "brave")):
                self._note(self._needs.search, name, node)

    def _note(self, where: dict[str, str], name: str, node: ast.AST) -> None:
        where.setdefault(name, f"{self._file}:{getattr(node, 'lineno', 1)}")

    def _text(self, expression: ast.expr) -> str:
        """Return a text that the source spells out, with ``*`` for what a run decides."""
        match expression:
            case ast.Constant(value=str(value)):
                return value
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in self._constants:
                return self._constants[name]
            case ast.JoinedStr(values=values):
                text = "".join(self._text(value) if isinstance(value, ast.Constant) else "*" for value in values)
                return text or UNKNOWN_IMAGE
            case _:
                return UNKNOWN_IMAGE


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that names of a module or of its classes stand for."""
    found: dict[str, str] = {}
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (statement for body in bodies for statement in body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def _is_secrets(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in ("secrets", "_secrets")) or (
        isinstance(node, ast.Attribute) and node.attr in ("secrets", "_secrets")
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
