"""Rollouts as rows of a table, for training and analysis: JSON Lines or Parquet, one row for each rollout.

Both formats have the same columns (``docs/rollouts.md`` lists them). What clients and environments put in freely
(``task_spec``, ``metadata``, ``run_info``, ``rollout_info``, each message's ``metadata`` and ``verdict``, and that of
``regrade``) is JSON text in them: in a table a column has one type, and two environments' tasks have none in common.
Invariant: a file is there whole or not at all, and at no time is more than one row group of rollouts in memory.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from ors_containers.distribution import install_command

from ors_server.rollouts.errors import RolloutError
from ors_server.wire.encoding import encode

__all__ = ["Format", "row_of", "write_json_lines", "write_parquet", "written_whole"]

Format = Literal["jsonl", "parquet"]

_FREE = ("task_spec", "metadata", "run_info", "rollout_info")
#: Bytes of conversations in one row group of a Parquet file.
_ROW_GROUP = 16 * 2**20


def row_of(rollout: dict[str, Any]) -> dict[str, Any]:
    """Return a rollout of ``queries`` as a row."""
    row = {**rollout, **{name: _text(rollout[name]) for name in _FREE}}
    if (again := rollout["regrade"]) is not None:
        row["regrade"] = {**again, "verdict": _text(again["verdict"])}
    texts = ("metadata", "verdict")
    row["messages"] = [{**each, **{name: _text(each[name]) for name in texts}} for each in rollout["messages"]]
    return row


def _text(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def write_json_lines(rollouts: Iterable[dict[str, Any]], output: IO[bytes]) -> None:
    """Write rollouts as JSON Lines."""
    for rollout in rollouts:
        output.write(encode(row_of(rollout)) + b"\n")


def write_parquet(rollouts: Iterable[dict[str, Any]], output: IO[bytes]) -> None:
    """Write rollouts as Parquet (zstd). Raises ``RolloutError`` where pyarrow is not installed."""
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise RolloutError(
            "Parquet needs pyarrow, which is not installed",
            f"Install it ({install_command('parquet')}), or use --format jsonl.",
        ) from error
    schema = _schema(pyarrow)
    with parquet.ParquetWriter(output, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        size = 0

        for rollout in rollouts:
            rows.append(row_of(rollout))
            size += sum(len(message["content"] or "") for message in rollout["messages"])
            if size >= _ROW_GROUP or len(rows) >= 10_000:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows, size = [], 0
        if rows:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))


def _schema(pyarrow: Any) -> Any:
    text, whole, real, truth = pyarrow.string(), pyarrow.int64(), pyarrow.float64(), pyarrow.bool_()
    message = {
        "index": whole,
        "type": text,
        "content": text,
        "summary": text,
        "content_reference": text,
        "name": text,
        "call_id": text,
        "reward": real,
        "is_finished": truth,
        "metadata": text,
        "verdict": text,
        "sent_at": text,
    }
    columns = {
        **dict.fromkeys(("id", "run_id", "run_name", "rollout_name", "environment", "variant", "split"), text),
        "step": whole,
        "created_at": text,
        "num_messages": whole,
        "finished": truth,
        "reward": real,
        "passed": truth,
        "max_reward": real,
        "total_reward": real,
        **dict.fromkeys(("outcome", "outcome_reason", "source", "owner"), text),
        "dropped": whole,
        "counterpart": pyarrow.struct([("id", text), ("reward", real), ("differs", truth)]),
        "regrade": pyarrow.struct(
            [
                *(("reward", real), ("previous_reward", real), ("verdict_mark", text), ("tests", text)),
                *(("graded_at", text), ("verdict", text)),
            ]
        ),
        **dict.fromkeys(_FREE, text),
        "messages": pyarrow.list_(pyarrow.struct(list(message.items()))),
    }
    return pyarrow.schema(list(columns.items()))


WRITERS: dict[Format, Callable[[Iterable[dict[str, Any]], IO[bytes]], None]] = {
    "jsonl": write_json_lines,
    "parquet": write_parquet,
}


@contextmanager
def written_whole(path: Path) -> Generator[IO[bytes]]:
    """Open a file that gets its name when it is complete; until then, and after an error, the former file stays.

    A link stays one, and what it points to is written. A device or a pipe has no name to take: it is written at once.
    Raises ``RolloutError`` where it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as output:
                yield output
            return
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with beside.open("wb") as output:
                yield output
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise RolloutError(
            f"{path} cannot be written: {error.strerror or error}", "Choose another --output."
        ) from error
