"""Comparers of compressed files and archives: members with kind, permissions, owner and content, in any order.

Part of the text of an examination (``program``). Bytes outside of the members are refused, and so are members whose
names are there twice or lead out of the archive. Entries of folders are free, as long as their permissions are usable.
"""

from __future__ import annotations

import grp
import io
import os
import pwd
import stat
import struct
import tarfile
import zipfile
import zlib

from .tree import content, digest

__all__ = ["form_gzip", "form_tar", "form_zip"]

#: Bytes of what an archive holds.
_UNPACKED = 50_000_000
#: What an extended header of a tar member may say. Other readers take more from it: attributes, holes, a character set.
_PAX = ("path", "linkpath", "size", "uid", "gid", "uname", "gname", "mtime", "atime", "ctime")
#: Extra fields of a zip member: large sizes, and times and owners as several writers note them.
_EXTRA = (0x0001, 0x000A, 0x5455, 0x5855, 0x7875)


def form_gzip(path: str) -> bytes:
    """Return what a file of one gzip member holds. Name and time in its header are free."""
    packed = content(path)
    assert packed[3:4] in (b"\0", b"\b"), f"{path} is not gzip, or has more than a name in its header"
    unpacking = zlib.decompressobj(31)
    data = unpacking.decompress(packed, _UNPACKED)
    assert unpacking.eof, f"{path} is cut off or far too large"
    assert not unpacking.unused_data, f"{path} has bytes after its end"
    return data


def member_name(name: str, names: set[str]) -> str:
    """Return a member's name without ``./`` and the slash of a folder. Fail if it is there twice or leads out."""
    assert ".." not in name.split("/"), f"the member {name} leads through .."
    plain = os.path.normpath(name)
    assert not name.startswith("/"), f"the member {name} has an absolute name"
    assert plain not in names, f"the member {name} is there twice"
    names.add(plain)
    return plain


def form_tar(path: str, compression: str = "", folders: str = "") -> list[list[str]]:
    """Return the members of a tar archive, which is packed with gzip if ``compression`` is ``gz``.

    ``folders`` are the folders that may have entries, one per line.
    """
    data = form_gzip(path) if compression else content(path)
    kinds = {tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}
    found: list[list[str]] = []
    names: set[str] = set()
    user, group = owner_names()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            name = member_name(member.name, names)
            more = [key for key in (*member.pax_headers, *archive.pax_headers) if key not in _PAX]
            assert not (more or member.issparse()), f"the member {name} has holes or attributes: {more}"
            # Where it is unpacked, names count more than numbers.
            own = (member.uid, member.gid) == (os.geteuid(), os.getegid())
            own = own and member.uname in ("", user) and member.gname in ("", group)
            owner = "own" if own else f"{member.uid}:{member.gid}"
            if member.isdir():
                usable = own and member.mode & 0o7700 == 0o700
                assert usable, f"the folder {name} has odd permissions or another owner"
                assert not folders or name in (".", *folders.split("\n")), f"the folder {name} is in the archive"
                continue
            file = archive.extractfile(member) if member.isreg() else None
            inside = digest(file.read()) if file is not None else member.linkname
            kind = kinds.get(member.type, f"special {member.type!r}")
            found.append([name, kind, f"{member.mode & 0o7777:04o}", owner, inside])
        end = data[archive.offset :]
    assert data.endswith(bytes(1024)), f"{path} has no end"
    assert not end.strip(b"\0"), f"{path} has bytes after its end"
    return sorted(found)


def owner_names() -> tuple[str, str]:
    """Return the names of the user and the group, empty where they have none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return "", ""


def form_zip(path: str, modes: str = "", folders: str = "") -> list[list[str]]:
    """Return the members of a zip archive. How each is compressed is free.

    ``folders`` are the folders that may have entries, one per line.
    Permissions are compared with ``modes`` only: many writers do not take them from the file. They must be usable.
    """
    data = content(path)
    found: list[list[str]] = []
    names: set[str] = set()
    end, gaps = 0, (0,)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
        assert data[-22:-18] == b"PK\5\6", f"{path} has a comment or bytes after its end"
        assert sum(member.file_size for member in members) < _UNPACKED, f"{path} is far too large"
        for member in members:
            name = member_name(member.filename, names)
            assert name == member.filename.rstrip("/"), f"the member {member.filename} has another name"
            assert not (folders and member.is_dir()) or name in folders.split("\n"), (
                f"the folder {name} is in the archive"
            )
            assert not member.flag_bits & 1, f"{path} is encrypted"
            assert member.header_offset - end in gaps, f"{path} has bytes before the member {name}"
            end, extra = after_header(data, member)
            # Sizes may follow the data of a member, in several forms.
            gaps = (12, 16, 20, 24) if member.flag_bits & 8 else (0,)
            more = [field for field in (*extra_fields(member.extra), *extra_fields(extra)) if field not in _EXTRA]
            assert not more, f"the member {name} has unknown fields: {more}"
            # Only writers on Unix have a mode.
            mode = member.external_attr >> 16 if member.create_system == 3 else stat.S_IRUSR
            known = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
            assert known and mode & 0o7400 == 0o400, f"the member {name} is special or has odd permissions"
            inside = digest(archive.read(member))
            if not member.is_dir():
                kind = "link" if stat.S_ISLNK(mode) else "file"
                found.append([name, kind, f"{mode & 0o777:04o}" if modes else "", member.comment.hex(), inside])
        assert archive.start_dir - end in gaps, f"{path} has bytes after its members"
    return sorted(found)


def after_header(data: bytes, member: zipfile.ZipInfo) -> tuple[int, bytes]:
    """Return where the data of a zip member ends, and the extra fields of the header before it."""
    name, extra = struct.unpack_from("<HH", data, member.header_offset + 26)
    start = member.header_offset + 30 + name
    return start + extra + member.compress_size, data[start : start + extra]


def extra_fields(extra: bytes) -> list[int]:
    """Return the numbers of a zip header's extra fields."""
    found: list[int] = []
    while extra:
        number, size = struct.unpack_from("<HH", extra)
        found.append(number)
        extra = extra[4 + size :]
    return found
