"""The context of a build: the folder whose files COPY and ADD may name.

A Dockerfile and its context may come from a stranger, and every user of a sandbox of the image can read what they copy.

Invariant: no file outside of the folder is read, all links followed within it, and none that ``.dockerignore`` hides.
"""

from __future__ import annotations

import hashlib
import posixpath
from pathlib import Path

from ors_containers.errors import InvalidImage
from ors_containers.images.dockerfile.ignore import IgnoreRules
from ors_containers.layers.copying import (
    CopySource,
    SelectedFile,
    open_regular,
    select_files,
    with_digests,
)
from ors_containers.layers.globs import has_wildcard
from ors_containers.layers.tar import is_archive
from ors_containers.layers.tree import LayeredTree

__all__ = ["BuildContext", "described_source"]


class BuildContext:
    """A folder with its ignored files. ``limit`` is the most bytes that a source may have."""

    def __init__(self, folder: Path, rules: IgnoreRules, *, limit: int) -> None:
        self.folder = folder.resolve()
        self._tree = LayeredTree([self.folder])
        self._rules = rules
        self._limit = limit

    def select(self, pattern: str, *, unpack: bool) -> list[CopySource]:
        """Return the sources that a pattern matches, with the digests of their content.

        ``unpack`` marks archives to be unpacked. Returns none where a pattern with wildcards matches nothing. Raises
        ``InvalidImage`` for a source that is missing or leads out of the folder.
        """
        if posixpath.normpath(pattern).split("/")[0] == "..":
            raise InvalidImage(
                f"The source {pattern} is outside of the context {self.folder}",
                "Put the files into the context, or build with a context that holds them",
            )
        try:
            selected = select_files(
                self._tree, pattern, ignores=self._rules.ignores, may_include=self._rules.may_include
            )
            if not selected and not has_wildcard(pattern):
                raise self._missing(pattern)
            return [self._source(name, files, unpack=unpack) for name, files in selected]
        except OSError as error:
            raise InvalidImage(f"{error.filename or pattern} cannot be read: {error.strerror}") from error

    def _missing(self, pattern: str) -> InvalidImage:
        if select_files(self._tree, pattern):
            return InvalidImage(f"The source {pattern} is hidden by .dockerignore", "Include it there: a line with !")
        return InvalidImage(f"The source {pattern} is not in the context {self.folder}")

    def _source(self, name: str, files: list[SelectedFile], *, unpack: bool) -> CopySource:
        # The context's own user is of no interest to the image.
        files = [file._replace(user=0, group=0) for file in with_digests(files, str(self.folder), self._limit)]
        archive = False
        if unpack and files[0].kind == "file":
            with open_regular(files[0].source, str(self.folder)) as stream:
                archive = is_archive(stream)
        return CopySource(name, files, archive=archive, root=str(self.folder))

    @staticmethod
    def document(name: str, text: str) -> CopySource:
        """Return a here-document as a source."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        return CopySource(name, [SelectedFile("", "file", "", 0o644, 0, 0, 0, digest)], text=text)


def described_source(source: CopySource) -> list[object]:
    """Return JSON values that change when the copy of a source would, times aside.

    As Docker's key: a checkout gives each of its files the time of the checkout, and 20 folders that copy equal files
    would run what follows 20 times. The files have the times of the copy that made the layer.
    """
    files = [
        [file.relative, file.kind, file.source if file.kind == "link" else "", file.mode, file.digest]
        for file in source.files
    ]
    return [source.name, source.archive, hashlib.sha256(repr(files).encode("utf-8", "surrogatepass")).hexdigest()]
