"""Family: tar, gzip and zip archives.

Archives that tasks begin with are written without compression, so that their bytes do not depend on the machine's zlib.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Mapping

from .draft import Draft, breach, python, swap
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
    files: dict[str, bytes] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(8, 14))):
        extension = extensions[index % len(extensions)]
        files[f"{folders[index % len(folders)]}{name}.{extension}"] = draft.text(draft.number(40, 300))
    return files


def _check_tar(draft: Draft, path: str, expected: Mapping[str, bytes]) -> None:
    draft.final.test(
        "archive is a gzipped tar",
        f"assert content({path!r})[:2] == b'\\x1f\\x8b'\nassert tarfile.open({path!r}, 'r:gz').getmembers()",
    )
    opened = f"with tarfile.open({path!r}) as archive:\n"
    read = "    found = [(os.path.normpath(member.name), member) for member in archive if not member.isdir()]\n"
    draft.final.test(
        "archive has all files",
        opened
        + read
        + f"missing = set({sorted(expected)!r}) - {{name for name, _ in found}}\nassert not missing, missing",
    )
    draft.final.test(
        "archive has nothing else",
        opened + read + "names = [name for name, _ in found]\n"
        f"assert set(names) <= set({sorted(expected)!r}), sorted(names)\n"
        "assert len(names) == len(set(names)), 'a file is there twice'",
    )
    draft.final.test(
        "members have the right content",
        f"expected = { {name: data.decode() for name, data in expected.items()}!r}\n"
        + opened
        + read
        + "    for name, member in found:\n"
        "        if name in expected:\n"
        "            assert member.isreg(), name\n"
        "            assert archive.extractfile(member).read().decode('utf-8') == expected[name], name",
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
    expected = {
        f"{name}/{path}": data
        for path, data in files.items()
        if not path.endswith(f".{left_out}") and not path.startswith(f"{folder}/")
    }
    oracle = f"tar -czf {packed} -C /home/user --exclude='*.{left_out}' --exclude={name}/{folder} {name}\n"

    def altered(change: str) -> str:
        """Return Bash that changes a copy of the directory and packs the copy."""
        return f"mkdir ~/copy && cp -r {root} ~/copy && cd ~/copy && {change}\n" + swap(
            oracle, "-C /home/user", "-C ~/copy"
        )

    draft.say(
        draft.pick(f"Please make a backup of {root}.", f"I want to send {root} to a colleague as one file."),
        draft.require(
            f"Create the gzip-compressed tar archive {packed}.",
            breach("a tar that is not compressed", "archive is a gzipped tar", swap=("tar -czf", "tar -cf")),
            breach("a tar compressed as xz is", "archive is a gzipped tar", swap=("tar -czf", "tar -cJf")),
        ),
        draft.require(
            f"Its members must be named {name}/..., that is, unpacking it anywhere creates a directory {name} with the "
            "same structure inside.",
            breach(
                "names without the directory",
                "archive has all files",
                "archive has nothing else",
                swap=(
                    f"-C /home/user --exclude='*.{left_out}' --exclude={name}/{folder} {name}",
                    f"-C {root} --exclude='*.{left_out}' --exclude=./{folder} .",
                ),
            ),
            breach(
                "names from the root",
                "archive has all files",
                "archive has nothing else",
                swap=(
                    f"-C /home/user --exclude='*.{left_out}' --exclude={name}/{folder} {name}",
                    f"-C / --exclude='*.{left_out}' --exclude={root[1:]}/{folder} {root[1:]}",
                ),
            ),
        ),
        draft.require(
            f"Leave out all files whose name ends in .{left_out}, wherever they are,",
            breach(
                "files that were to be left out", "archive has nothing else", swap=(f" --exclude='*.{left_out}'", "")
            ),
            breach(
                "files that were to be left out only in the first directory",
                "archive has nothing else",
                swap=(
                    f"--exclude='*.{left_out}'",
                    f"--no-wildcards-match-slash --anchored --exclude='{name}/*.{left_out}'",
                ),
            ),
        ),
        draft.require(
            f"and the directory {root}/{folder} with everything in it.",
            breach(
                "a directory that was to be left out",
                "archive has nothing else",
                swap=(f" --exclude={name}/{folder}", ""),
            ),
        ),
        draft.require(
            "All other files must be in the archive, as they are,",
            breach("a file missing", "archive has all files", swap=(" -C", f" --exclude={max(expected)} -C")),
            breach(
                "a file with another content",
                "members have the right content",
                instead=altered(f"echo more >> {max(expected)}"),
            ),
            breach(
                "a link in place of a file",
                "members have the right content",
                instead=altered(f"ln -sf /etc/hostname {max(expected)}"),
            ),
        ),
        draft.require(
            "and nothing else (entries for directories do not matter).",
            breach(
                "one more file",
                "archive has nothing else",
                instead=altered(f"echo more > {name}/more.txt"),
            ),
            breach(
                "one more link",
                "archive has nothing else",
                instead=altered(f"ln -s /etc {name}/more"),
            ),
        ),
        draft.leave(which=f"{root}/{min(path for path in files if path.endswith(f'.{left_out}'))}"),
    )
    draft.initial.absent(packed)
    _check_tar(draft, packed, expected)
    draft.honest(
        "names that begin with ./", swap=(f"--exclude={name}/{folder} {name}", f"--exclude=./{name}/{folder} ./{name}")
    )
    draft.honest(
        "files without their directories",
        swap=(
            f"--exclude={name}/{folder} {name}",
            f"--no-recursion $(cd ~ && find {name} -type f ! -name '*.{left_out}' ! -path '{name}/{folder}/*')",
        ),
    )
    draft.honest(
        "an empty directory of what was left out",
        swap=(f"--exclude={name}/{folder} ", f"--exclude='{name}/{folder}/*' "),
    )
    draft.honest("another format of tar", swap=("tar -czf", "tar --format=pax -czf"))
    draft.honest(
        "made by Python",
        instead=python(
            """
        import os, tarfile
        with tarfile.open(@packed@, "w:gz") as archive:
            for name in @names@:
                archive.add(os.path.join("/home/user", name), name)
        """,
            packed=packed,
            names=sorted(expected),
        ),
    )
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
    base = output.rpartition("/")[2]
    example = next(name for name in expected if "/" in name)
    wanted_path = f"{output}/{max(expected)}"
    other = next(name for name in files if not name.endswith(f".{wanted}"))
    draft.say(
        draft.pick(f"I have an archive, {packed}.", f"Somebody sent me {packed}."),
        draft.require(
            f"Extract the files whose name ends in .{wanted} into {output} (it does not exist yet).",
            breach("a file missing", f"files of {base} have the right content", after=f"rm {wanted_path}"),
            breach(
                "a file of another content",
                f"files of {base} have the right content",
                after=f"echo more >> {wanted_path}",
            ),
            breach(
                "a link in place of a file",
                f"files of {base} have the right content",
                after=f"mv {wanted_path} ~/moved && ln -s ~/moved {wanted_path}",
            ),
        ),
        draft.require(
            f"Drop the leading directory {prefix} from their paths: {prefix}/{example} must become {output}/{example}.",
            breach(
                "the leading directory kept",
                f"{base} holds nothing else",
                f"files of {base} have the right content",
                swap=('name.split("/", 1)[1]', "name"),
            ),
        ),
        draft.require(
            "Subdirectories below that are kept.",
            breach(
                "all files in one directory",
                f"{base} holds nothing else",
                f"files of {base} have the right content",
                swap=('name.split("/", 1)[1]', "os.path.basename(name)"),
            ),
        ),
        draft.require(
            f"There must be nothing else in {output}, no other files and no empty directories,",
            breach(
                "every file extracted",
                f"{base} holds nothing else",
                swap=(f"if name.endswith({f'.{wanted}'!r})", "if True"),
            ),
            breach(
                "one more file", f"{base} holds nothing else", after=f"echo x > {output}/{other.rpartition('/')[2]}"
            ),
            breach("one more directory, empty", f"{base} holds nothing else", after=f"mkdir {output}/{prefix}"),
        ),
        draft.untouched("and the archive itself must stay as it is."),
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
    draft.honest("a list of the files beside it", after=f"find {output} -type f > {root}/list.txt")
    draft.honest("a scratch file in /tmp", swap=("open(path", 'open("/tmp/part", "wb").close(); open(path'))
    draft.honest("closed to others", swap=("import os,", "import os; os.umask(0o077); import"))
    draft.solve(oracle, swap(oracle, 'name.split("/", 1)[1]', "name"), "\n".join(sorted(expected)))


def _convert(draft: Draft) -> None:
    root = draft.project()
    files = _tree(draft, ("txt", "csv", "dat"))
    source = draft.file(f"{root}/{draft.pick('bundle', 'delivery', 'data')}.tar.gz", stored_gzip(tar(files)), keep=True)
    target = source.replace(".tar.gz", ".zip")
    manifest = source.replace(".tar.gz", ".manifest.txt")
    here = [path.rpartition("/")[2] for path in (target, manifest)]
    one = min(files)
    add = "python3 -c \"import zipfile; zipfile.ZipFile('{}', 'a').writestr('{}', '{}')\""
    draft.say(
        draft.pick(
            f"Our Windows users cannot open {source}.",
            f"The archive {source} is needed as a zip file.",
        ),
        draft.require(
            f"Make {target} with the same files: the same member names and contents,",
            breach(
                "a file missing",
                "zip has all files",
                swap=("archive.writestr(name, data)", f"name == {one!r} or archive.writestr(name, data)"),
            ),
            breach(
                "other names",
                "zip has all files",
                "zip has nothing else",
                swap=("archive.writestr(name, data)", 'archive.writestr("data/" + name, data)'),
            ),
            breach(
                "another content",
                "zip members have the right content",
                swap=("archive.writestr(name, data)", "archive.writestr(name, data.upper())"),
            ),
            breach(
                "a tar of another name",
                "zip has all files",
                "zip has nothing else",
                "zip members have the right content",
                after=f"cp {source} {target}",
            ),
        ),
        draft.require(
            "and no further files (entries for directories do not matter).",
            breach("one more member", "zip has nothing else", after=add.format(target, "more.txt", "x")),
            breach(
                "a file twice",
                "zip has nothing else",
                swap=(
                    "archive.writestr(name, data)",
                    f"archive.writestr(name, data); name == {one!r} and archive.writestr(name, data)",
                ),
            ),
        ),
    )
    names = "* has the right lines"
    draft.say(
        draft.require(
            f"Also write {manifest} with one line for each file in the archive:",
            breach("a line missing", names, after=f"sed -i 1d {manifest}"),
            breach("a line for the archive too", names, after=f"echo '1 ~~~' >> {manifest}"),
        ),
        draft.require(
            "its size in bytes, one space, and its member name;",
            breach("a tab in place of the space", names, after=f"sed -i 's/ /\\t/' {manifest}"),
            breach("the name first", names, after=f"sed -Ei 's/(.*) (.*)/\\2 \\1/' {manifest}"),
            breach("blocks in place of bytes", names, swap=("{len(data)}", "{-(-len(data) // 512)}")),
        ),
        draft.require(
            "sorted by member name in byte order (LC_ALL=C).",
            breach(
                "sorted backwards",
                "lines of * are in order",
                swap=("sorted(source.getnames())", "sorted(source.getnames(), reverse=True)"),
            ),
        ),
        draft.every_line(manifest),
        draft.untouched(f"Do not change {source},"),
        draft.nothing_else(f"and leave nothing else in {root}.", made=here),
    )
    listing = "".join(f"{len(files[name])} {name}\n" for name in sorted(files))
    draft.initial.absent(target)
    draft.result(manifest, listing)
    opened = (
        f"assert stat.S_ISREG(os.lstat({target!r}).st_mode)\n"
        f"archive = zipfile.ZipFile({target!r})\n"
        "names = [name for name in archive.namelist() if not name.endswith('/')]\n"
    )
    draft.final.test("zip has all files", opened + f"assert set({sorted(files)!r}) <= set(names), names")
    draft.final.test(
        "zip has nothing else",
        opened + f"assert set(names) <= set({sorted(files)!r}), names\n"
        "assert len(names) == len(set(names)), 'a file is there twice'",
    )
    draft.final.test(
        "zip members have the right content",
        f"expected = { {name: data.decode() for name, data in files.items()}!r}\n" + opened + "for name in names:\n"
        "    if name in expected:\n"
        "        assert stat.S_IFMT(archive.getinfo(name).external_attr >> 16) in (0, stat.S_IFREG), name\n"
        "        assert archive.read(name).decode('utf-8') == expected[name], name",
    )
    draft.honest("files that are not compressed", swap=("ZIP_DEFLATED", "ZIP_STORED"))
    draft.honest("another compression", swap=("ZIP_DEFLATED", "ZIP_LZMA"))
    again = """
        import zipfile
        with zipfile.ZipFile(@target@) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(@target@, "w") as archive:
            for name in reversed(files):
                archive.writestr(name, files[name])
        """
    draft.honest("members in another order", after=python(again, target=target))
    draft.honest("entries for directories", after=add.format(target, "folder/", ""))
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
