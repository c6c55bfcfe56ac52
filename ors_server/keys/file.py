"""The file of keys: ``keys.json`` in the data directory, or where ``ORS_KEYS_FILE`` says.

It has names, digests and limits, and no secret of a client. Log-in cookies are signed with the digests, so the file is
private all the same: it is written with mode 600, and refused where others may read it or the group may write it.

Invariants: the file is replaced whole, so that a reader never sees a half of it; commands that change it take a lock
beside it. A file without any key is not the same as no file: a server whose last key was revoked stays closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from ors_containers.linux.file_locks import try_lock
from pydantic import BaseModel, Field, ValidationError, field_validator

from ors_server.keys.errors import KeysError
from ors_server.keys.key import NAME, Key, Limits
from ors_server.settings import Settings

__all__ = ["FILE_NAME", "changed", "keys_file", "read_keys", "stamp_of"]

FILE_NAME = "keys.json"
#: Seconds to wait for another command that changes the file.
_PATIENCE = 10.0
#: Bytes above which a file is not one of keys.
_LARGEST = 16 * 2**20

#: Identity of the contents of a file and of its owner and mode.
Stamp = tuple[int, int, int, int]


class _Entry(BaseModel):
    name: Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: str = ""
    limits: Limits = Limits()


class _File(BaseModel):
    version: Literal[1]
    keys: list[_Entry]

    @field_validator("keys")
    @classmethod
    def _check(cls, keys: list[_Entry]) -> list[_Entry]:
        if len({key.name for key in keys}) < len(keys):
            raise ValueError("two keys have the same name")
        return keys


def keys_file(settings: Settings) -> Path:
    """Return the path of the file for these settings."""
    path = settings.keys_file if settings.keys_file is not None else settings.data_dir / FILE_NAME
    with contextlib.suppress(RuntimeError):  # without a home directory ``~`` stays, and the file is not found
        return path.expanduser()
    return path


def stamp_of(path: Path) -> Stamp | None:
    """Return the identity of the file's contents; None where there is no file. Raises ``OSError``."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def read_keys(path: Path) -> list[Key] | None:
    """Read the keys; None where there is no file. Raises ``KeysError``."""
    try:
        with path.open("rb") as file:
            _check_access(path, os.fstat(file.fileno()))
            content = file.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise KeysError(
            f"The file of keys {path} cannot be read: {error.strerror or error}",
            "It has to belong to the user of the server, with mode 600 (`ors-server keys` writes it so).",
        ) from None
    try:
        given: Any = json.loads(content) if len(content) <= _LARGEST else None
        found = _File.model_validate(given)
    except (ValueError, RecursionError) as error:
        raise KeysError(
            f"{path} is not a file of keys: {_explain(error)}",
            "Restore it from a copy, or remove it and make new keys with `ors-server keys add NAME`.",
        ) from None
    return [Key(entry.name, bytes.fromhex(entry.sha256), entry.created, entry.limits) for entry in found.keys]


def _check_access(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise KeysError(f"{path} is not a file", "Name a file, or remove it.")
    if status.st_uid not in (0, os.geteuid()):
        raise KeysError(f"The file of keys {path} belongs to another user, who could add a key", f"`chown` it: {path}.")
    if mode & 0o027:
        raise KeysError(f"The file of keys {path} is open to others (mode {mode:o})", f"`chmod 600 {path}`.")


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON at line {error.lineno}"
    return "no JSON"


@contextlib.contextmanager
def changed(path: Path) -> Generator[list[Key]]:
    """Yield the keys to be changed in place, and write them back after the block. Raises ``KeysError``."""
    path = Path(os.path.realpath(path))  # a link to a file elsewhere stays a link
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_name(f"{path.name}.lock")):
            keys = read_keys(path) or []
            yield keys
            _write(path, keys)
    except OSError as error:
        raise KeysError(
            f"The file of keys {path} cannot be written: {error.strerror or error}",
            "Make room and check the folder, or name another with --keys-file.",
        ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise KeysError(f"Another process holds the lock {path}", "Wait for its end, then try again.")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, keys: Sequence[Key]) -> None:
    entries = [
        {
            "name": key.name,
            "sha256": key.digest.hex(),
            "created": key.created,
            "limits": key.limits.model_dump(exclude_none=True),
        }
        for key in keys
    ]
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "keys": entries}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:  # the file must not stay behind, whatever it is
        Path(temporary).unlink(missing_ok=True)
        raise
