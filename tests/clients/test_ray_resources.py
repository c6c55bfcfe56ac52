"""Resources under each name by which clusters report them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ors_clients.trainers.roll.ray_resources import tolerant_ray, tolerant_resources


@pytest.mark.parametrize(
    ("reported", "cpus", "gpus"),
    [
        ({"CPU": 8.0, "GPU": 2.0, "memory": 1.0}, 8.0, 2.0),
        ({"num_cpus": 8.0, "num_gpus": 2.0}, 8.0, 2.0),
        ({"CPU": 4.0}, 4.0, 0.0),
        ({"GPU": 2.0}, 0.0, 2.0),
        ({}, 0.0, 0.0),
        ({"CPU": 4.0, "num_cpus": 8.0}, 4.0, 0.0),
    ],
)
def test_both_names_are_there(reported: dict[str, float], cpus: float, gpus: float) -> None:
    found = tolerant_resources(reported)
    assert (found["CPU"], found["GPU"]) == (cpus, gpus)
    assert found["num_gpus"] == gpus
    assert reported.items() <= found.items()


def test_ray_is_tolerant_while_the_resources_are_read_and_itself_afterwards() -> None:
    def nodes() -> list[dict[str, object]]:
        return [{"NodeID": "a", "Resources": {"GPU": 2.0}}, {"NodeID": "b", "Resources": None}]

    ray = SimpleNamespace(nodes=nodes, available_resources=lambda: {"GPU": 2.0}, cluster_resources=lambda: {"GPU": 2.0})

    def start() -> None:
        """Run ROLL's ResourceManager on nodes that were started without processors for Ray."""
        with tolerant_ray(ray):
            ordered = sorted(ray.nodes(), key=lambda node: node["Resources"]["CPU"])
            assert [node["NodeID"] for node in ordered] == ["a", "b"]
            assert ray.available_resources()["CPU"] == 0
            assert ray.cluster_resources()["num_gpus"] == 2
            raise KeyError("an error inside")

    with pytest.raises(KeyError, match="an error inside"):
        start()
    assert ray.nodes is nodes
    assert "CPU" not in ray.available_resources()
