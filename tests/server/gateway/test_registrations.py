"""Registrations of nodes that hold the cluster's key and send what a gateway cannot use."""

import json
from typing import Any

import pytest

from ors_server.cluster.gateway.members.node_lists import Lists, differences
from ors_server.cluster.gateway.members.nodes import Nodes
from ors_server.cluster.gateway.members.placed_ids import SLOTS
from ors_server.cluster.gateway.members.workers import Workers
from ors_server.cluster.gateway.proxy.framing import read_head
from ors_server.cluster.gateway.routing.private_routes import PrivateRoutes
from ors_server.cluster.gateway.routing.routes import Own, WithBody
from ors_server.keys.cluster_key import ClusterKey
from ors_server.wire.version import HANDSHAKE, VERSION

KEY = ClusterKey(b"a key of the tests, long enough")
MEMBER: list[Any] = [5, 0, "tcp:127.0.0.1:9", False, 1.5, [["wire"]], {}, False, ""]
MESSAGE: dict[str, Any] = {
    "name": "one", "instance": "1", "version": VERSION, "handshake": HANDSHAKE, "first": 5, "count": 2,
    "members": [MEMBER], "workers": [{"slot": 5, "state": "serving"}], "leaving": False,
}  # fmt: skip


class Gateway:
    """The private routes of a gateway, and its workers."""

    def __init__(self) -> None:
        self.workers = Workers()
        self.nodes = Nodes(self.workers)
        self._routes = PrivateRoutes(self.nodes, KEY, self.refresh)

    def refresh(self) -> None:
        self.workers.replace(self.nodes.members())

    def refusal(self, request: str, *lines: str) -> int:
        """Return the status of a request that is answered before its body is read."""
        head = read_head("\r\n".join([f"{request} HTTP/1.1", *lines, "", ""]).encode())
        answer = self._routes.route(head, request.split()[1])
        assert isinstance(answer, Own)
        return int(answer.data[9:12])

    def post(self, content: bytes, path: str = "/_ors/nodes") -> int:
        return int(self.answer(content, path)[9:12])

    def drains(self, name: str, first: int, incarnation: int = 0, **changes: Any) -> Any:
        """Register a node with one worker; return what it is to drain."""
        member = [first, incarnation, *MEMBER[2:]]
        own = changed(**{"name": name, "instance": name, "first": first, "count": 1, "members": [member]} | changes)
        return json.loads(self.answer(own).partition(b"\r\n\r\n")[2])["drain"]

    def answer(self, content: bytes, path: str = "/_ors/nodes") -> bytes:
        head = read_head(f"POST {path} HTTP/1.1\r\nx-ors-cluster: {KEY.node_token}\r\n\r\n".encode())
        route = self._routes.route(head, path)
        assert isinstance(route, WithBody)
        answer = route.choose(content)
        assert isinstance(answer, Own)
        return answer.data


def changed(**changes: Any) -> bytes:
    return json.dumps(MESSAGE | changes).encode()


@pytest.mark.parametrize("request_line", ["GET /_ors/nodes", "POST /_ors/nodes", "POST /_ors/drain", "POST /_ors/stop"])
def test_a_request_without_the_clusters_key_is_refused(request_line: str) -> None:
    gateway = Gateway()
    assert gateway.refusal(request_line) == 404
    for token in ("", "another", ClusterKey(b"another key of the tests, long enough").node_token):
        assert gateway.refusal(request_line, f"x-ors-cluster: {token}") == 403


def test_a_registration_is_taken() -> None:
    gateway = Gateway()
    assert gateway.post(changed()) == 200
    assert gateway.post(changed(version="9.9")) == 200, "another package with the same protocol"
    assert [worker.place.slot for worker in gateway.workers] == [5]


BAD_VALUES: list[tuple[int, Any]] = [
    (1, -1), (2, 5), (2, "nowhere"), (4, None), (4, float("nan")), (5, 3), (5, [[]]), (5, [["a"], 3]), (5, [None]),
]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b"{" * 100_000, b"\xff",
        changed(first=-1), changed(first=SLOTS), changed(count=0), changed(first=float("inf")), changed(count=1e300),
        changed(members=None), changed(members=[None]), changed(members=[[]]), changed(workers=None),
        changed(workers=[3]), changed(name=["one"]),
        changed(members=[MEMBER, MEMBER]), changed(members=[[7, *MEMBER[1:]]]), changed(members=[[None, *MEMBER[1:]]]),
        *(changed(members=[[*MEMBER[:place], value, *MEMBER[place + 1 :]]]) for place, value in BAD_VALUES),
    ],
)  # fmt: skip
def test_garbage_is_refused_and_nothing_of_it_kept(content: bytes) -> None:
    """The gateway reads what it has kept at each tick, which must not fail."""
    gateway = Gateway()
    assert gateway.post(changed(name="good", instance="2", first=20, members=[[20, *MEMBER[1:]]])) == 200
    assert gateway.post(content) == 400
    gateway.nodes.pass_time(0.5)
    gateway.refresh()
    assert [row["node"] for row in gateway.nodes.rows()] == ["good"]
    assert [worker.place.slot for worker in gateway.workers] == [20]


@pytest.mark.parametrize("handshake", [0, HANDSHAKE + 1, None, "1"])
def test_another_private_protocol_is_refused(handshake: object) -> None:
    assert Gateway().post(changed(handshake=handshake, version="9.9", members="in another form")) == 409


@pytest.mark.parametrize("deadline", [-1, float("nan"), None, "soon", []])
def test_a_drain_wants_a_number_of_seconds(deadline: object) -> None:
    gateway = Gateway()
    gateway.post(changed())
    assert gateway.post(json.dumps({"names": ["one"], "deadline": deadline}).encode(), "/_ors/drain") == 400


DRAIN_ALL = json.dumps({"names": ["one", "two"], "deadline": 9}).encode()


def test_nodes_are_drained_one_after_the_other() -> None:
    """All at once, nodes of one worker would leave no worker for new sessions until their last session has ended."""
    gateway = Gateway()
    assert (gateway.drains("one", 1), gateway.drains("two", 2)) == ([], [])
    assert gateway.post(DRAIN_ALL, "/_ors/drain") == 200
    assert (gateway.drains("two", 2), gateway.drains("one", 1), gateway.drains("two", 2)) == ([], [[[1], 9.0]], [])
    leaving = [[1, 0, MEMBER[2], True, *MEMBER[4:]]]
    assert (gateway.drains("one", 1, members=leaving), gateway.drains("two", 2)) == ([], [])
    assert (gateway.drains("one", 1, incarnation=1), gateway.drains("two", 2)) == ([], [[[2], 9.0]])
    assert (gateway.drains("two", 2, incarnation=1), gateway.drains("one", 1, incarnation=1)) == ([], [])


def test_a_node_that_goes_holds_up_no_drain() -> None:
    gateway = Gateway()
    gateway.drains("one", 1)
    gateway.drains("two", 2)
    gateway.post(DRAIN_ALL, "/_ors/drain")
    assert gateway.drains("one", 1) == [[[1], 9.0]]
    assert gateway.post(changed(name="one", instance="one", leaving=True)) == 200
    gateway.nodes.pass_time(0.5)
    assert gateway.drains("two", 2) == [[[2], 9.0]]


def test_a_new_worker_that_is_given_up_ends_the_drain_of_all() -> None:
    gateway = Gateway()
    gateway.drains("one", 1)
    gateway.drains("two", 2)
    gateway.post(DRAIN_ALL, "/_ors/drain")
    assert gateway.drains("one", 1) == [[[1], 9.0]]
    assert gateway.drains("one", 1, workers=[{"slot": 1, "state": "out"}]) == []
    assert gateway.drains("two", 2) == []


def test_a_node_with_another_list_of_tasks_gets_no_sessions_until_the_older_node_has_left() -> None:
    gateway = Gateway()

    def register(name: str, first: int, started: float, digest: str, *, leaving: bool = False) -> None:
        lists = {"wire": {"train": [digest], "test": ["t"]}}
        members = [] if leaving else [[first, *MEMBER[1:]]]
        own = {"name": name, "instance": name, "first": first, "count": 1, "members": members, "leaving": leaving}
        assert gateway.post(changed(**own, started=started, task_lists=lists)) == 200
        gateway.refresh()

    def taking() -> list[int]:
        return [worker.place.slot for worker in gateway.workers if not worker.draining]

    register("new", 1, 20.0, "b")
    assert taking() == [1]
    register("old", 2, 10.0, "a")  # known later by this gateway; the older one counts for each gateway
    register("same", 3, 30.0, "a")
    assert taking() == [2, 3]
    assert [row["state"] for row in gateway.nodes.rows()] == ["other tasks", "serving", "serving"]
    register("old", 2, 10.0, "a", leaving=True)
    register("same", 3, 30.0, "a", leaving=True)
    assert taking() == [1]


def test_lists_that_were_not_listed_yet_differ_from_none() -> None:
    nodes: list[tuple[float, str, Lists]] = [
        (1.0, "first", {"wire": {"train": ["a"]}}),
        (2.0, "idle", {}),
        (3.0, "other split", {"wire": {"test": ["b"]}}),
        (4.0, "its workers differ", {"wire": {"train": ["c", "a"]}}),
        (5.0, "differs", {"wire": {"train": ["c"], "test": ["b"]}}),
    ]
    assert differences(nodes) == {"differs": ("wire", "train")}


def test_nodes_are_stopped_all_at_once() -> None:
    gateway = Gateway()
    gateway.drains("one", 1)
    gateway.drains("two", 2)
    assert gateway.post(DRAIN_ALL, "/_ors/stop") == 200
    assert all(member.draining for member in gateway.nodes.members())
    message = changed(name="two", instance="two", first=2, count=1, members=[])
    assert gateway.nodes.register(json.loads(message))["stop"] == 9.0
    assert gateway.post(json.dumps({"names": ["three"], "deadline": 9}).encode(), "/_ors/stop") == 409
