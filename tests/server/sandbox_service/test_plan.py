"""The container that a request means, without a machine that could start it."""

from pathlib import Path
from typing import Any, cast

import pytest
from ors_containers.container import ContainerSettings
from ors_containers.images.image_map import ImageMap

from ors_server.keys.key import ANYONE
from ors_server.sandbox_service.data_folders import folders_below
from ors_server.sandbox_service.plan import plan_container
from ors_server.sandbox_service.requests import CreateSandbox
from tests.server.sandbox_service.fake import image


class Images:
    """An image map that has every image."""

    async def resolve(self, reference: str) -> Any:
        return image(reference)


async def planned(folder: Path, **fields: Any) -> ContainerSettings:
    body = {"environment": "owner/Name", "image": "base", "machine_size": "2:4", **fields}
    request = CreateSandbox.model_validate(body)
    return (await plan_container(request, cast(ImageMap, Images()), folders_below(folder), ANYONE))[1]


@pytest.mark.parametrize(
    ("fields", "network"),
    [
        ({}, "open"),
        ({"block_network": False}, "open"),
        ({"block_network": True}, "none"),
        ({"network": {"rules": [{"action": "deny", "host": "*"}]}}, "none"),
        ({"network": {"rules": [{"action": "allow", "host": "example.org"}]}}, "none"),
        ({"network": {"enforce": False}}, "open"),
    ],
)
async def test_a_sandbox_has_the_network_that_was_asked_for(
    tmp_path: Path, fields: dict[str, Any], network: str
) -> None:
    assert (await planned(tmp_path, **fields)).network == network


async def test_a_size_is_processors_and_gigabytes(tmp_path: Path) -> None:
    settings = await planned(tmp_path, machine_size="0.5:4")
    assert (settings.cpus, settings.memory) == (0.5, 4 * 2**30)
