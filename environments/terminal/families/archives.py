"""tar, gzip and zip archives.

Archives that tasks begin with are written without compression, byte by byte the same whatever zlib a machine has.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Mapping

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS

__all__ = ["FAMILY", "stored_gzip", "stored_zip", "tar"]

#: 1 January 2024, of every member.
_TIME = 1_704_067_200


def stored_gzip(data: bytes) -> bytes:
    """``data`` in gzip's format, not compressed."""
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
    """A tar archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), _TIME, 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def stored_zip(files: Mapping[str, bytes]) -> bytes:
    """A zip archive of these files, not compressed."""
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
    files: dict[str, bytes] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(8, 14))):
        extension = extensions[index % len(extensions)]
        files[f"{folders[index % len(folders)]}{name}.{extension}"] = draft.text(draft.number(40, 300))
    return files


def _check_tar(draft: Draft, path: str, expected: Mapping[str, bytes]) -> None:
    draft.final.test(
        f"{path.rpartition('/')[2]} is a gzipped tar",
        f"assert content({path!r})[:2] == b'\\x1f\\x8b'\nassert tarfile.open({path!r}, 'r:gz').getmembers()",
    )
    draft.final.test(
        "archive has the right members",
        f"with tarfile.open({path!r}, 'r:gz') as archive:\n"
        "    names = sorted(os.path.normpath(member.name) for member in archive if not member.isdir())\n"
        f"assert names == {sorted(expected)!r}",
    )
    draft.final.test(
        "members have the right content",
        f"expected = { {name: data.decode() for name, data in expected.items()}!r}\n"
        f"with tarfile.open({path!r}, 'r:gz') as archive:\n"
        "    for member in archive:\n"
        "        if not member.isdir():\n"
        "            assert member.isreg(), member.name\n"
        "            text = archive.extractfile(member).read().decode('utf-8')\n"
        "            assert text == expected[os.path.normpath(member.name)], member.name",
    )


def _pack(draft: Draft) -> None:
    root = draft.project()
    name = root.rpartition("/")[2]
    left_out, folder = draft.pick("log", "tmp", "bak"), draft.pick("tmp", "cache", "scratch")
    files = _tree(draft, ("txt", left_out, "csv", "md"))
    files[f"{folder}/{draft.pick(*WORDS)}.txt"] = draft.text(60)
    for path, data in files.items():
        draft.file(f"{root}/{path}", data, keep=True)
    packed = f"/home/user/{name}-{draft.number(2020, 2029)}.tar.gz"
    draft.say(
        draft.pick(f"Please make a backup of {root}.", f"I want to send {root} to a colleague as one file."),
        f"Create the gzip-compressed tar archive {packed}. Its members must be named {name}/..., that is, unpacking "
        f"it anywhere creates a directory {name} with the same structure inside.",
        f"Leave out all files whose name ends in .{left_out}, wherever they are, and the directory {root}/{folder} "
        "with everything in it. All other files must be in the archive, and nothing else (entries for directories do "
        "not matter).",
        draft.leave(),
    )
    expected = {
        f"{name}/{path}": data
        for path, data in files.items()
        if not path.endswith(f".{left_out}") and not path.startswith(f"{folder}/")
    }
    draft.initial.absent(packed)
    _check_tar(draft, packed, expected)
    oracle = f"tar -czf {packed} -C /home/user --exclude='*.{left_out}' --exclude={name}/{folder} {name}\n"
    draft.solve(oracle, swap(oracle, f" --exclude='*.{left_out}'", ""), "\n".join(sorted(expected)))


def _unpack(draft: Draft) -> None:
    root = draft.project()
    kind = draft.pick("tar.gz", "tar", "zip")
    wanted, prefix = draft.pick("csv", "json", "md"), draft.pick("export", "dump", "snapshot")
    files = {f"{prefix}/{path}": data for path, data in _tree(draft, ("txt", wanted, "log")).items()}
    data = stored_zip(files) if kind == "zip" else tar(files)
    packed = draft.file(f"{root}/{prefix}.{kind}", stored_gzip(data) if kind == "tar.gz" else data, keep=True)
    output = f"{root}/{draft.pick('extracted', 'out', 'selected')}"
    expected = {path.removeprefix(f"{prefix}/"): data for path, data in files.items() if path.endswith(f".{wanted}")}
    example = next(iter(expected))
    draft.say(
        draft.pick(f"I have an archive, {packed}.", f"Somebody sent me {packed}."),
        f"Extract only the files whose name ends in .{wanted} into {output} (it does not exist yet), and drop the "
        f"leading directory {prefix} from their paths: {prefix}/{example} must become {output}/{example}.",
        "Subdirectories below that are kept.",
        f"There must be no other files in {output}, and the archive itself must stay as it is.",
    )
    draft.initial.absent(output)
    draft.final.files(output, expected)
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
        packed=packed,
        ending=f".{wanted}",
        output=output,
    )
    draft.solve(oracle, swap(oracle, 'name.split("/", 1)[1]', "name"), "\n".join(sorted(expected)))


def _convert(draft: Draft) -> None:
    root = draft.project()
    files = _tree(draft, ("txt", "csv", "dat"))
    source = draft.file(f"{root}/{draft.pick('bundle', 'delivery', 'data')}.tar.gz", stored_gzip(tar(files)), keep=True)
    target = source.replace(".tar.gz", ".zip")
    manifest = source.replace(".tar.gz", ".manifest.txt")
    draft.say(
        draft.pick(
            f"Our Windows users cannot open {source}.",
            f"The archive {source} is needed as a zip file.",
        ),
        f"Make {target} with the same files: the same member names and contents, and no further files (entries for "
        "directories do not matter).",
    )
    draft.say(
        f"Also write {manifest} with one line for each file in the archive: its size in bytes, one space, and its "
        "member name; sorted by member name in byte order (LC_ALL=C).",
        draft.every_line(),
        f"Do not change {source}, and leave nothing else in {root}.",
    )
    listing = "".join(f"{len(files[name])} {name}\n" for name in sorted(files))
    draft.initial.absent(target)
    draft.initial.absent(manifest)
    draft.final.text(manifest, listing)
    draft.final.test(
        "zip has the right members",
        f"assert stat.S_ISREG(os.lstat({target!r}).st_mode)\n"
        f"names = sorted(name for name in zipfile.ZipFile({target!r}).namelist() if not name.endswith('/'))\n"
        f"assert names == {sorted(files)!r}",
    )
    draft.final.test(
        "zip members have the right content",
        f"expected = { {name: data.decode() for name, data in files.items()}!r}\n"
        f"archive = zipfile.ZipFile({target!r})\n"
        "for name, text in expected.items():\n"
        "    assert archive.read(name).decode('utf-8') == text, name",
    )
    here = sorted(path.rpartition("/")[2] for path in (source, target, manifest))
    draft.final.test("nothing else is left", f"assert sorted(os.listdir({root!r})) == {here!r}")
    oracle = python(
        """
        import tarfile, zipfile
        source = tarfile.open(@source@)
        with zipfile.ZipFile(@target@, "w", zipfile.ZIP_DEFLATED) as archive:
            lines = []
            for name in sorted(source.getnames()):
                data = source.extractfile(name).read()
                archive.writestr(name, data)
                lines.append(f"{len(data)} {name}\\n")
        open(@manifest@, "w").write("".join(lines))
        """,
        source=source,
        target=target,
        manifest=manifest,
    )
    draft.solve(oracle, swap(oracle, "archive.writestr(name, data)", 'archive.writestr("data/" + name, data)'), listing)


FAMILY = Family(
    "archives",
    "Pack, unpack and convert tar, gzip and zip archives",
    (_pack, _unpack, _convert),
    ("python3", "tar", "gzip"),
)
