"""The counts of keys in files that processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ors_server.keys.errors import KeyBusy
from ors_server.keys.key import Key, Limits, digest_of
from ors_server.keys.usage import Kind, Usage
from tests.support.processes import open_descriptors


def _open_in(folder: Path) -> int:
    """Return how many descriptors of this process are files of the folder."""
    links = [Path("/proc/self/fd", name) for name in open_descriptors()]
    return sum(link.is_symlink() and str(link.readlink()).startswith(f"{folder}/") for link in links)


def test_a_process_that_ended_leaves_no_descriptor(tmp_path: Path) -> None:
    key = Key("agents", digest_of(b"secret"), limits=Limits(sessions=1))
    usage = Usage(tmp_path, 0)
    usage.begin(key, Kind.SESSIONS)
    one = _open_in(tmp_path)
    for slot in range(1, 6):
        other = Usage(tmp_path, slot)
        with pytest.raises(KeyBusy):
            other.begin(key, Kind.SESSIONS)
        with pytest.raises(KeyBusy):
            usage.begin(key, Kind.SESSIONS)  # counts the other's
        assert _open_in(tmp_path) > one
        del other
        with pytest.raises(KeyBusy):
            usage.begin(key, Kind.SESSIONS)  # finds that it has ended
        assert _open_in(tmp_path) == one
        assert len(list(tmp_path.iterdir())) == 1
