"""Family: tar, gzip and zip archives.

Archives that tasks begin with are written without compression, so that their bytes do not depend on the machine's zlib.
"""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS

__all__ = ["FAMILY", "stored_gzip", "stored_zip", "tar"]

#: Time stamp of every member: 1 January 2024.
_TIME = 1_704_067_200


def stored_gzip(data: bytes) -> bytes:
    """Return ``data`` in gzip's format, uncompressed."""
    blocks = [data[start : start + 65535] for start in range(0, len(data), 65535)] or [b""]
    stored = b"".join(
        bytes([index == len(blocks) - 1])
        + len(block).to_bytes(2, "little")
        + (len(block) ^ 0xFFFF).to_bytes(2, "little")
        + block
        for index, block in enumerate(blocks)
    )
    end = zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + stored + end


def tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), _TIME, 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def stored_zip(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of these files, uncompressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, data)
    return buffer.getvalue()


def _tree(draft: Draft, extensions: tuple[str, ...]) -> dict[str, bytes]:
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 2))]
    folders.append(f"{folders[1]}{draft.pick('deep', 'more', 'old')}/")
    names = draft.some(WORDS, draft.number(9, 15))
    files: dict[str, bytes] = {}
    for index, name in enumerate(names[1:]):
        extension = extensions[index % len(extensions)]
        files[f"{folders[index % len(folders)]}{name}.{extension}"] = draft.text(draft.number(40, 300))
    # An extension that is not at the end.
    return {**files, f"{folders[-1]}{names[0]}.{extensions[1]}.txt": draft.text(50)}


def folders_of(paths: Iterable[str]) -> str:
    """Return the folders of these paths, one per line."""
    return "\n".join(sorted({str(folder) for path in paths for folder in PurePosixPath(path).parents} - {"."}))


def _pack(draft: Draft) -> None:
    root = draft.project()
    name = draft.pick("website", "thesis", "accounts", "journal")
    left_out, folder = draft.pick("log", "tmp", "bak"), draft.pick("tmp", "cache", "scratch")
    files = _tree(draft, ("txt", left_out, "csv", "md"))
    nested = f"{next(path for path in files if '/' in path).partition('/')[0]}/{folder}/{draft.pick(*WORDS)}.txt"
    files |= {f"{folder}/{draft.pick(*WORDS)}.txt": draft.text(60), nested: draft.text(60)}
    for index, (path, data) in enumerate(files.items()):
        draft.file(f"{root}/{name}/{path}", data, (0o644, 0o640, 0o755)[index % 3])
    packed = f"{root}/{name}-{draft.number(2020, 2029)}.tar.gz"
    members = f"-C {root} --exclude='*.{left_out}' --exclude={name}/{folder} {name}"
    draft.say(
        draft.pick(
            f"Please make a backup of {root}/{name}.", f"I want to send {root}/{name} to a colleague as one file."
        ),
        f"! Create the gzip-compressed tar archive {packed}.",
        f"! Its members must be named {name}/..., that is, unpacking it anywhere creates a directory {name} with the "
        "same structure inside.",
        f"! Leave out all files whose name ends in .{left_out}, wherever they are,",
        f"! and the directory {root}/{name}/{folder} with everything in it.",
        "! All other files must be in the archive once, as they are (content, permissions, owner),",
        "! and no further files.",
    )
    draft.form(
        packed,
        "tar",
        "gz",
        folders_of(f"{name}/{path}" for path in files if not path.startswith(f"{folder}/")),
        sentence="The order of members, their times, and entries for their directories (with usual permissions) are up "
        "to you.",
    )
    oracle = f"tar -czf {packed} {members}\n"
    draft.solve(oracle, swap(oracle, f" --exclude='*.{left_out}'", ""))


def _unpack(draft: Draft) -> None:
    root = draft.project()
    kind = draft.pick("tar.gz", "tar", "zip")
    wanted, prefix = draft.pick("csv", "json", "md"), draft.pick("export", "dump", "snapshot")
    files = {f"{prefix}/{path}": data for path, data in _tree(draft, ("txt", wanted, "log")).items()}
    data = stored_zip(files) if kind == "zip" else tar(files)
    packed = draft.file(f"{root}/{prefix}.{kind}", stored_gzip(data) if kind == "tar.gz" else data)
    output = f"{root}/{draft.pick('extracted', 'out', 'selected')}"
    example = next(path for path in files if path.endswith(f".{wanted}") and path.count("/") > 1)
    draft.say(
        draft.pick(f"I have an archive, {packed}.", f"Somebody sent me {packed}."),
        f"! Extract the files whose name ends in .{wanted} into {output} (it does not exist yet).",
        f"! Drop the leading directory {prefix} from their paths: {example} must become "
        f"{output}/{example.partition('/')[2]}.",
        "! Subdirectories below that are kept.",
        f"! There must be nothing else in {output}, no other files and no empty directories.",
    )
    reader = "zipfile.ZipFile(@packed@)" if kind == "zip" else "tarfile.open(@packed@)"
    members, read = ("namelist()", "read(name)") if kind == "zip" else ("getnames()", "extractfile(name).read()")
    oracle = python(
        f"""
        import os, tarfile, zipfile
        archive = {reader}
        for name in archive.{members}:
            if name.endswith(@ending@):
                path = os.path.join(@output@, name.split("/", 1)[1])
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "wb").write(archive.{read})
        """,
        ending=f".{wanted}",
    )
    draft.solve(oracle, swap(oracle, 'name.split("/", 1)[1]', "name"))


def _convert(draft: Draft) -> None:
    root = draft.project()
    files = _tree(draft, ("txt", "csv", "dat"))
    source = draft.file(f"{root}/{draft.pick('bundle', 'delivery', 'data')}.tar.gz", stored_gzip(tar(files)))
    target = source.replace(".tar.gz", ".zip")
    manifest = source.replace(".tar.gz", ".manifest.txt")
    draft.say(
        draft.pick(f"Our Windows users cannot open {source}.", f"The archive {source} is needed as a zip file."),
        f"! Make {target} with the same files: the same member names and contents,",
        "! each once, and no further files.",
    )
    draft.say(
        f"! Also write {manifest} with one line for each file in the archive:",
        "! its size in bytes, one space, and its member name;",
        "! sorted by member name in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    draft.form(
        target,
        "zip",
        "",
        folders_of(files),
        sentence="How the members of the zip file are compressed, their order, times and permissions, and entries for "
        "their directories are up to you; comments and encryption are not.",
    )
    oracle = python("""
        import tarfile, zipfile
        source = tarfile.open(@source@)
        with zipfile.ZipFile(@target@, "w", zipfile.ZIP_DEFLATED) as archive:
            lines = []
            for name in sorted(source.getnames()):
                data = source.extractfile(name).read()
                archive.writestr(name, data)
                lines.append(f"{len(data)} {name}\\n")
        open(@manifest@, "w").write("".join(lines))
        """)
    draft.solve(oracle, swap(oracle, "archive.writestr(name, data)", 'archive.writestr("data/" + name, data)'))


FAMILY = Family(
    "archives",
    "Pack, unpack and convert tar, gzip and zip archives",
    (_pack, _unpack, _convert),
    ("python3", "tar", "gzip"),
)
