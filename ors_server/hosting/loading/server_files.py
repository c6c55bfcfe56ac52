"""Find the classes that a Python file passes to its own ``Server([...])``, without running the server.

Most published environments end in ``if __name__ == "__main__": Server([MyEnv]).run()``. The file is imported under
another name, so that this block does not run. Its calls of ``Server`` are read from the source, and the names in their
first argument are looked up in the module. An import in the block or function of the call is executed, because it only
binds a name. Values that depend on a run (arguments of the command line, a list that is appended to) are unknown: a
part of the list would be a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ors_server.hosting.dialects import is_environment_class, is_server_class

__all__ = ["classes_given_to_server", "line_that_serves"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OTHER_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
_IMPORTS = (ast.Import, ast.ImportFrom)


class _Unknown(Exception):
    """The value depends on a run of the file."""


def classes_given_to_server(module: ModuleType) -> list[type] | None:
    """Return the classes that an imported module's file passes to ``Server``, in order; None where they are unknown.

    Calls outside of functions take precedence over calls in functions. Raises what the file's own imports raise.
    """
    if module.__file__ is None:
        return None
    outside: list[list[type] | None] = []
    inside: list[list[type] | None] = []
    for scope, call in _server_calls(_parse(Path(module.__file__)), vars(module)):
        try:
            classes = _classes(scope.value(_argument(call)))
        except _Unknown:
            classes = None
        (inside if isinstance(scope.node, _FUNCTIONS) else outside).append(classes)
    handed = dict[type, None]()
    for classes in outside or inside:
        if classes is None:
            return None
        handed.update(dict.fromkeys(classes))
    return list(handed) or None


def line_that_serves(file: Path) -> int | None:
    """Return the line at which an import of the file would start its server and never return, if there is one.

    Raises ``SyntaxError`` and ``OSError``.
    """
    tree = _parse(file)
    at_import = list(_at_import(tree))
    servers = {
        target.id
        for statement in at_import
        if isinstance(statement, ast.Assign) and _is_named_server(statement.value)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    serving = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, _FUNCTIONS) and any(_runs_server(node, servers) for node in _walk(function))
    }
    for node in at_import:
        if isinstance(node, ast.Call) and (
            _runs_server(node, servers) or (isinstance(node.func, ast.Name) and node.func.id in serving)
        ):
            return node.lineno
    return None


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes(), str(file))


# --- what runs when --------------------------------------------------------------------------------


def _walk(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module, block or function, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _OTHER_SCOPES):
            yield from _walk(child)


def _at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that an import runs: neither functions nor ``if __name__ == "__main__"``."""
    for statement in tree.body:
        yield statement
        if not isinstance(statement, _OTHER_SCOPES) and not _is_main_block(statement):
            yield from _walk(statement)


def _is_main_block(statement: ast.AST) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _runs_server(node: ast.AST, servers: set[str]) -> bool:
    """Return whether this is ``Server([...]).run()``, ``server.run()`` or ``uvicorn.run(...)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("run", "serve")):
        return False
    receiver = node.func.value
    if isinstance(receiver, ast.Name):
        return receiver.id in servers or receiver.id in ("server", "uvicorn")
    return _is_named_server(receiver)


def _is_named_server(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) == "Server"


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# --- calls of Server -------------------------------------------------------------------------------


def _server_calls(tree: ast.Module, namespace: Mapping[str, Any]) -> Iterator[tuple[_Scope, ast.Call]]:
    """Yield every call of an SDK's ``Server`` or of a class derived from it, with its scope."""
    module = _Scope(None, list(_at_import(tree)), namespace)
    inner = [statement for statement in tree.body if _is_main_block(statement)]
    inner += [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    for scope in (module, *(_Scope(node, list(_walk(node)), namespace) for node in inner)):
        for node in scope.nodes:
            if isinstance(node, ast.Call) and _is_server(node.func, scope):
                yield scope, node


def _is_server(function: ast.expr, scope: _Scope) -> bool:
    # The scope executes imports only for a name that means Server.
    if scope.original_name(function) != "Server" and scope.is_local(function):
        return False
    try:
        return is_server_class(scope.value(function))
    except _Unknown:
        return False


def _argument(call: ast.Call) -> ast.expr:
    for keyword in call.keywords:
        if keyword.arg == "environments":
            return keyword.value
    if not call.args:
        raise _Unknown
    return call.args[0]


def _classes(value: Any) -> list[type]:
    """Return the classes in an argument of ``Server``; an instance counts as its class, as in both SDKs."""
    if not isinstance(value, (list, tuple)):
        raise _Unknown
    classes = [entry if isinstance(entry, type) else type(entry) for entry in cast("list[Any]", value)]
    if not all(is_environment_class(cls) for cls in classes):
        raise _Unknown
    return classes


class _Scope:
    """Names as a block or function of a module sees them."""

    def __init__(self, node: ast.AST | None, nodes: list[ast.AST], namespace: Mapping[str, Any]) -> None:
        #: A function or an ``if __name__ == "__main__"`` block; None for the code that an import runs.
        self.node = node
        self.nodes = nodes
        self._namespace = namespace
        self._resolving: set[str] = set()

    def value(self, expression: ast.expr) -> Any:
        """Evaluate a name, a dotted name or a list of them. Raises ``_Unknown``, and what imports raise."""
        match expression:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=owner, attr=name):
                try:
                    return getattr(self.value(owner), name)
                except AttributeError:
                    raise _Unknown from None
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [entry for element in elements for entry in self._entries(element)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [*self._list(left), *self._list(right)]
            case ast.Call(func=function):
                # An instance: its class is known without making it.
                cls = self.value(function)
                if is_environment_class(cls):
                    return cls
                raise _Unknown
            case _:
                raise _Unknown

    def original_name(self, function: ast.expr) -> str:
        """Return the last part of a dotted name, as it was before an ``import … as`` of the scope."""
        name = _last_name(function)
        for node in self.nodes if isinstance(function, ast.Name) else ():
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.asname == name:
                        return alias.name
        return name

    def is_local(self, expression: ast.expr) -> bool:
        """Return whether the first part of a dotted name is bound in the scope."""
        while isinstance(expression, ast.Attribute):
            expression = expression.value
        return isinstance(expression, ast.Name) and bool(self._bindings(expression.id))

    def _entries(self, element: ast.expr) -> list[Any]:
        return self._list(element.value) if isinstance(element, ast.Starred) else [self.value(element)]

    def _list(self, expression: ast.expr) -> list[Any]:
        value = self.value(expression)
        if not isinstance(value, (list, tuple)):
            raise _Unknown
        return list(cast("list[Any]", value))

    def _named(self, name: str) -> Any:
        if name in self._resolving:
            raise _Unknown
        bindings = self._bindings(name)
        if len(bindings) > 1:
            raise _Unknown
        if not bindings:
            value = self._namespace.get(name)
            if value is None or (isinstance(value, list) and self._is_changed(name)):
                raise _Unknown
            return cast(Any, value)
        statement = bindings[0]
        if isinstance(statement, _IMPORTS):
            names = dict(self._namespace)
            exec(compile(ast.Module([statement], []), "<import>", "exec"), names)  # noqa: S102 - the author's own import
            return names[name]
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None or self._is_changed(name):
            raise _Unknown
        self._resolving.add(name)
        try:
            return self.value(statement.value)
        finally:
            self._resolving.discard(name)

    def _is_changed(self, name: str) -> bool:
        """Return whether a list may be changed in place in the scope, as by ``environments.append(X)``."""
        return self.node is not None and any(
            isinstance(node, (ast.Attribute, ast.Subscript))
            and isinstance(node.value, ast.Name)
            and node.value.id == name
            for node in self.nodes
        )

    def _bindings(self, name: str) -> list[ast.AST]:
        """Return the nodes that bind the name in the scope; none where the module's value counts."""
        found: list[ast.AST] = []
        for node in self.nodes if self.node is not None else ():
            match node:
                case ast.Assign(targets=[ast.Name(id=bound)]) | ast.AnnAssign(target=ast.Name(id=bound)):
                    names = {bound}
                case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                    names = {alias.asname or alias.name.partition(".")[0] for alias in aliases}
                case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
                    names = {bound}
                case ast.arg(arg=bound):
                    names = {bound}
                case ast.AugAssign(target=target):
                    names = _stored(target)
                case ast.Delete(targets=targets) | ast.Assign(targets=targets):
                    names = set[str]().union(*map(_stored, targets))
                case ast.For(target=target) | ast.AsyncFor(target=target) | ast.NamedExpr(target=target):
                    names = _stored(target)
                case ast.withitem(optional_vars=ast.expr() as target):
                    names = _stored(target)
                case _:
                    continue
            if name in names:
                found.append(node)
        return found


def _stored(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
