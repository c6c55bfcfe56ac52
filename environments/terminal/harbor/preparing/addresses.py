"""Addresses that scripts fetch with ``curl``, and what they get where this machine has it elsewhere.

    [addresses]
    "https://astral.sh/uv/*/install.sh" = { package = "uv=={1}" }   # {1} is what the first * stands for
    "https://example.org/setup.sh" = { file = "setup.sh" }

A script's text is not changed. Its image gets a ``curl`` that answers those addresses of the table which the script
names, and passes all others on. The answer is the file, or a script that installs the programs of a package's wheel for
the user, as the published installer of uv does; the wheel comes from the package index.

Invariant: only addresses that the operator's table has are answered, and only what the script's text names is fetched.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ors_containers import Image

from ors_server import DefinitionError, InfrastructureFailure

if TYPE_CHECKING:
    from ors_containers.images import ImageStore
    from ors_containers.layers.writer import Entry

__all__ = ["SHIPPED", "Answer", "addresses_layer", "named_answers", "read_addresses", "unknown_hosts"]

#: The package whose programs an address installs, or the file that it is.
Answer = str | Path

#: Answers by patterns of addresses.
SHIPPED: Mapping[str, Answer] = {
    "https://astral.sh/uv/*/install.sh": "uv=={1}",
    "https://astral.sh/uv/install.sh": "uv",
}
_PLACE = "/opt/ors-addresses"
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+_-]+)?")
_ADDRESS = re.compile(r"https?://[^\s'\"|;)<>`\\]+")
_COMMENT = re.compile(r"^\s*#.*", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
_CURL = """#!/bin/sh
# Answers addresses of the operator's table; every other call is the image's own curl.
answer= output= next=
for word in "$@"; do
    if [ -n "$next" ]; then output=$word next=; continue; fi
    case "$word" in
{cases}
    -o|--output) next=1 ;;
    esac
done
if [ -n "$answer" ]; then
    if [ -n "$output" ]; then exec cp "$answer" "$output"; fi
    exec cat "$answer"
fi
for program in /usr/bin/curl /bin/curl; do
    if [ -x "$program" ]; then exec "$program" "$@"; fi
done
echo "sh: curl: not found" >&2
exit 127
"""
_INSTALLER = """#!/bin/sh
set -e
target=${{UV_INSTALL_DIR:-$HOME/.local/bin}}
mkdir -p "$target"
cp {folder}/* "$target/"
echo "export PATH=\\"$target:\\$PATH\\"" >"$target/env"
"""


def read_addresses(file: Path | None) -> dict[str, Answer]:
    """Return the shipped table, with the rows of the operator's ``file`` before it. Raises ``DefinitionError``."""
    if file is None:
        return dict(SHIPPED)
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DefinitionError(f"The table of addresses {file} cannot be read: {error}", "Correct the file.") from error
    rows: Any = table.get("addresses", {})
    found: dict[str, Answer] = {}
    for pattern, row in cast("dict[str, Any]", rows).items() if isinstance(rows, dict) else ():
        match row:
            case {"package": str(package)}:
                found[pattern] = package
            case {"file": str(name)} if (file.parent / name).is_file():
                found[pattern] = file.parent / name
            case _:
                wanted = 'neither package = "NAME=={1}" nor file = "NAME" of a file that exists'
                raise DefinitionError(f"{file}: {pattern!r} has {wanted}", "Correct the file.")
    return {**found, **{pattern: answer for pattern, answer in SHIPPED.items() if pattern not in found}}


def named_answers(text: str, table: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the addresses that a script's text names and the table has, each with its answer.

    An address with a variable (``tool-${ARCH}.tar.gz``) names each one of the table that it can become.
    """
    found: dict[str, Answer] = {}
    for address in dict.fromkeys(_ADDRESS.findall(text)):
        constants = _VARIABLE.split(address)
        if len(constants) > 1:
            possible = re.compile(".*".join(map(re.escape, constants)))
            found |= {
                known: answer for known, answer in table.items() if "*" not in known and possible.fullmatch(known)
            }
            continue
        for pattern, answer in table.items():
            match = re.fullmatch("([^/]*)".join(map(re.escape, pattern.split("*"))), address)
            if match is not None:
                if isinstance(answer, str):
                    answer = re.sub(r"\{(\d+)\}", lambda number, match=match: match[int(number[1])], answer)
                if isinstance(answer, Path) or _PACKAGE.fullmatch(answer):
                    found[address] = answer
                break
    return found


def unknown_hosts(text: str) -> list[str]:
    """Return the hosts of a script's addresses that this machine cannot look up; ``curl -s`` does not name them."""
    hosts = {urlsplit(match[0]).hostname for match in _ADDRESS.finditer(_COMMENT.sub("", text))}
    return sorted(host for host in hosts if host and not _VARIABLE.search(host) and not _is_known(host))


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, 443))
    except (OSError, UnicodeError):
        return False


async def addresses_layer(store: ImageStore, image: Image, answers: Mapping[str, Answer]) -> str:
    """Return the key of a layer with the ``curl`` that answers addresses.

    Raises ``InfrastructureFailure`` for a package, and ``OSError`` for a file that cannot be read.
    """
    from ors_containers.images.building.derive import layer_identity
    from ors_containers.images.storing.layer_store import layer_key, new_upper
    from ors_containers.layers.writer import Entry

    files = {address: answer.read_bytes() for address, answer in answers.items() if isinstance(answer, Path)}
    inputs = {
        address: sha256(files[address]).hexdigest() if address in files else str(answers[address])
        for address in answers
    }
    key = layer_key(
        "addresses", store.layers.owners.tag, layer_identity(store.layers, image), inputs, _CURL, _INSTALLER
    )

    async def fill(folder: Path) -> int:
        entries = [Entry(_PLACE, "directory", mode=0o755)]
        cases: list[str] = []
        for number, (address, answer) in enumerate(answers.items()):
            place = f"{_PLACE}/{number}"
            if isinstance(answer, str):
                wheels = folder / str(number)
                await _download(answer, wheels)
                entries += [Entry(place, "directory", mode=0o755), *await asyncio.to_thread(_programs, wheels, place)]
            content = files[address] if address in files else _INSTALLER.format(folder=place).encode()
            entries.append(Entry(f"{place}.answer", "file", content, mode=0o644))
            cases.append(f"    '{address}') answer={place}.answer ;;")
        curl = _CURL.replace("{cases}", "\n".join(cases)).encode()
        entries.append(Entry("/usr/local/sbin/curl", "file", curl, mode=0o755))
        return await store.layers.owners.write(new_upper(folder), entries, image.layers)

    await store.layers.provide(key, f"addresses of {', '.join(map(str, answers.values()))}", fill)
    return key


async def _download(package: str, folder: Path) -> None:
    """Download the wheel of a package by this machine's pip. Raises ``InfrastructureFailure``."""
    command: Sequence[str] = ("-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, package, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await process.communicate()
    except BaseException:  # also of a cancelled call
        process.kill()
        raise
    if process.returncode:
        problem = said.decode(errors="replace").strip()[-300:]
        raise InfrastructureFailure(f"The package {package} cannot be downloaded: {problem}", "Look at pip's settings.")


def _programs(folder: Path, place: str) -> list[Entry]:
    """Return the programs of the wheel in ``folder``, as files at ``place``."""
    from ors_containers.layers.writer import Entry

    entries: list[Entry] = []
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                folder_name, _, last = name.rpartition("/")
                if folder_name.endswith(".data/scripts") and last:
                    entries.append(Entry(f"{place}/{last}", "file", archive.read(name), mode=0o755))
    return entries
