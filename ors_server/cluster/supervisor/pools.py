"""Pools: workers of one server that serve other environments than the rest, with an interpreter of their own.

A pool is a table of a TOML file:

    [[pool]]
    targets = ["my_env/"]
    python = "my_env/.venv/bin/python"   # by default that of the server; it has ors-server as well
    workers = 2                          # by default 1

Relative paths are those of the file's folder.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ors_server.cluster.errors import PoolsError
from ors_server.worker import PROGRAM

__all__ = ["SANDBOX_WORKER", "Pool", "Program", "read_pools"]

#: The module of the worker of sandboxes and data folders.
SANDBOX_WORKER = "ors_server.cluster.sandbox_worker"


#: Returns a program with arguments to which a command is added.
Program = Callable[[Sequence[Path]], Sequence[str]]


class Pool(NamedTuple):
    """Workers with the same environments."""

    #: Start one worker: ``serve`` with its targets.
    arguments: Sequence[str]
    workers: int
    #: Interpreter that runs them.
    python: str = sys.executable
    #: The rest is for ``ors-server host`` and for the worker of the sandboxes.
    module: str = PROGRAM
    #: Name in the log; the lines of a pool that has one begin with it.
    name: str = ""
    #: Working folder, which is then not on the path of imports.
    folder: Path | None = None
    #: The variables in the place of the server's own.
    environ: Mapping[str, str] | None = None
    #: Returns the program and arguments that start the interpreter; its argument are folders of other workers.
    program: Program | None = None
    #: Names under which an environment that cannot be served is refused with the reason, while the other pools serve.
    names: Sequence[str] = ()
    #: Why it cannot be served, where that is known before its worker is started.
    failure: str = ""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    targets: Annotated[list[str], Field(min_length=1)]
    python: str = sys.executable
    workers: Annotated[int, Field(ge=1, le=1024)] = 1


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pool: Annotated[list[_Table], Field(min_length=1)]


def read_pools(file: Path) -> list[Pool]:
    """Read the pools of a file. Raises ``PoolsError``."""
    remedy = 'A pool is written as [[pool]] with targets = ["my_env/"], and perhaps python = "…" and workers = 2.'
    try:
        tables = _File.model_validate(tomllib.loads(file.read_text("utf-8"))).pool
    except OSError as error:
        raise PoolsError(f"Cannot read the pools in {file}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise PoolsError(f"{file}: {place}: {first['msg']}", remedy) from None
    except ValueError as error:
        raise PoolsError(f"{file} is not TOML: {error}", remedy) from None
    return [_pool(table, file) for table in tables]


def _pool(table: _Table, file: Path) -> Pool:
    # Not resolved: the interpreter of a virtual environment is a link, and its place says which environment it has.
    python = Path(file.absolute().parent, table.python)
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise PoolsError(f"{file}: {python} is not an interpreter", "Name the bin/python of a virtual environment.")
    return Pool(["serve", *(_target(target, file) for target in table.targets)], table.workers, str(python))


def _target(target: str, file: Path) -> str:
    path, separator, name = target.partition(":")
    found = Path(file.absolute().parent, path)
    return f"{found}{separator}{name}" if found.exists() else target
