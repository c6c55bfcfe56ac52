"""The data folder that a name means, for each key."""

import json
from pathlib import Path

import pytest

from ors_server.errors import UnknownEnvironment
from ors_server.keys.key import ANYONE, Key
from ors_server.sandbox_service.data_folders import FindFolder, listed_folders

OF_WALK = Key("hosted:Walk", b"", environment="Walk")


@pytest.fixture
def find(tmp_path: Path) -> FindFolder:
    file = tmp_path / "folders.json"
    file.write_text(json.dumps({"walk": "/data/walk", "owner/walk": "/data/walk", "swim": "/data/swim"}))
    return listed_folders(file)


@pytest.mark.parametrize("name", ["walk", "Walk", " Owner/Walk", "other/WALK"])
def test_a_listed_name(find: FindFolder, name: str) -> None:
    assert find(name, ANYONE) == find(name, OF_WALK) == Path("/data/walk")


def test_anothers_folder_does_not_exist_for_an_environments_key(find: FindFolder) -> None:
    assert find("owner/swim", Key("trainer", b"")) == Path("/data/swim")
    with pytest.raises(UnknownEnvironment, match="swim") as caught:
        find("owner/swim", OF_WALK)
    assert "hosts: walk, owner/walk" in str(caught.value)


def test_a_name_that_is_not_listed(find: FindFolder, tmp_path: Path) -> None:
    with pytest.raises(UnknownEnvironment, match="walk, owner/walk, swim"):
        find("GR/Stroll", ANYONE)
    assert find("GR/Stroll", OF_WALK) == Path("/data/walk")
    (tmp_path / "folders.json").write_text('{"walk": "/data/walk", "owner/walk": "/data/walk"}')
    assert find("GR/Stroll", ANYONE) == Path("/data/walk")
