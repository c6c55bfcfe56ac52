"""Task routes: both spellings, index and range semantics, and the methods of an author's class that are called."""

import asyncio
from typing import Any, cast

import pytest

from ors_server import Blocks, JSONObject, Server, TextBlock
from tests.server.protocol import foreign
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo

TASKS = [{"id": f"train-{number}"} for number in range(4)]


@pytest.mark.parametrize("prefix", ["", "/echo"])
@pytest.mark.parametrize("route", ["task", "get_task"])
async def test_one_task_in_both_spellings_with_env_name(serve: Serve, route: str, prefix: str) -> None:
    """Section 8, "single task routes"; 6.4 pitfall 2: openreward and TRL read ``env_name``."""
    response = await serve(Echo).post(f"{prefix}/{route}", {"split": "train", "index": 2})
    assert response.json() == {"task": {"id": "train-2"}, "env_name": "echo"}


@pytest.mark.parametrize("prefix", ["", "/echo"])
@pytest.mark.parametrize("route", ["task_range", "get_task_range"])
async def test_a_range_in_both_spellings_with_env_name(serve: Serve, route: str, prefix: str) -> None:
    response = await serve(Echo).post(f"{prefix}/{route}", {"split": "train", "start": 1, "stop": 3})
    assert response.json() == {"tasks": TASKS[1:3], "env_name": "echo"}


async def test_all_tasks_and_their_number(serve: Serve) -> None:
    client = serve(Echo)
    assert (await client.post("/echo/tasks", {"split": "train"})).json() == {"tasks": TASKS, "env_name": "echo"}
    assert (await client.post("/num_tasks", {"split": "train"})).json() == {"num_tasks": 4}


async def test_ranges_are_python_slices(serve: Serve) -> None:
    """Section 5: None, negative and clamped bounds; a start after the stop is an empty list."""
    client = serve(Echo)
    bounds = [(None, None), (0, 2), (2, None), (None, -1), (-2, None), (-99, 99), (3, 1), (4, 9), (0, 0), (-1, -3)]
    for start, stop in bounds:
        response = await client.post("/task_range", {"split": "train", "start": start, "stop": stop})
        assert response.json()["tasks"] == TASKS[start:stop], (start, stop)


async def test_an_index_may_be_a_numeric_string(serve: Serve) -> None:
    """Section 1: ``"0"`` is accepted."""
    client = serve(Echo)
    assert (await client.create("s", {"split": "train", "index": "2"})).status_code == 200
    assert (await client.get("/prompt", "s")).json()[0]["text"] == "prompt of train-2"


@pytest.mark.parametrize("index", [4, -1, -5, 10**6])
async def test_an_index_outside_the_split_is_400(serve: Serve, index: int) -> None:
    """Bad input: unknown index."""
    client = serve(Echo)
    for path in ("/task", "/create"):
        response = await client.post(path, {"split": "train", "index": index}, "s")
        assert response.status_code == 400
        assert response.json()["detail"].startswith("Invalid index")
        assert str(index) in response.json()["detail"]


async def test_an_unknown_split_is_400_everywhere_and_names_the_known(serve: Serve) -> None:
    """Bad input: unknown split."""
    client = serve(Echo)
    for path in ("/tasks", "/num_tasks", "/task", "/get_task", "/task_range", "/get_task_range", "/create"):
        body: dict[str, object] = {"split": "trian"}
        if path in ("/task", "/get_task", "/create"):
            body["index"] = 0
        response = await client.post(path, body, "s")
        assert response.status_code == 400
        assert response.json()["detail"].startswith("Invalid split")
        assert "train" in response.json()["detail"]


async def test_a_task_list_is_requested_once(serve: Serve) -> None:
    """Section 9, performance: the reference lists again for each index."""
    asked: list[str] = []

    class Counted(Echo):
        @classmethod
        async def list_tasks(cls, split: str) -> list[JSONObject]:
            asked.append(split)
            await asyncio.sleep(0.02)
            return [{"id": f"{split}-{number}"} for number in range(3)]

    client = serve(Counted)
    bodies = [{"split": "train", "index": index} for index in (0, 1, 2)]
    answers = await asyncio.gather(*(client.post("/task", body) for body in bodies))
    assert [answer.json()["task"]["id"] for answer in answers] == ["train-0", "train-1", "train-2"]
    await client.post("/tasks", {"split": "train"})
    await client.open()
    assert asked == ["train"]


async def test_a_failed_listing_is_retried(serve: Serve) -> None:
    attempts: list[int] = []

    class Flaky(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            attempts.append(1)
            if len(attempts) == 1:
                raise OSError("the index is away")
            return [{"id": "x"}]

    client = serve(Flaky)
    failed = await client.post("/tasks", {"split": "train"})
    assert (failed.status_code, failed.json()) == (500, {"detail": "OSError: the index is away"})
    assert (await client.post("/tasks", {"split": "train"})).json()["tasks"] == [{"id": "x"}]


class Indexed(Echo):
    """Tasks by index only."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return 1_000_000

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        return {"id": f"{split}-{range(1_000_000)[index]}"}


async def test_an_environment_by_index_only(serve: Serve) -> None:
    client = serve(Indexed)
    listed = await client.post("/tasks", {"split": "train"})
    assert listed.status_code == 400
    assert listed.json()["detail"] == (
        "list_tasks is not supported for this environment. Use the index-based API (num_tasks + get_task) instead."
    )
    assert (await client.post("/num_tasks", {"split": "train"})).json() == {"num_tasks": 1_000_000}
    assert (await client.post("/task", {"split": "train", "index": 999_999})).json()["task"] == {"id": "train-999999"}
    assert (await client.post("/task_range", {"split": "test", "start": -2})).json()["tasks"] == [
        {"id": "test-999998"},
        {"id": "test-999999"},
    ]
    outside = await client.post("/task", {"split": "train", "index": 1_000_000})
    assert (outside.status_code, outside.json()["detail"].split(".")[0]) == (400, "Invalid index")


async def test_synchronous_task_methods(serve: Serve) -> None:
    """Issue, item 2: sync or async everywhere."""

    class Sync(Echo):
        @classmethod
        def num_tasks(cls, split: str) -> int:
            return 2

        @classmethod
        def get_task(cls, split: str, index: int) -> JSONObject:
            return [{"id": "a"}, {"id": "b"}][index]

        @classmethod
        def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[JSONObject]:
            tasks: list[JSONObject] = [{"id": "a"}, {"id": "b"}]
            return tasks[start:stop]

    client = serve(Sync)
    assert (await client.post("/num_tasks", {"split": "train"})).json() == {"num_tasks": 2}
    assert (await client.post("/task", {"split": "train", "index": 1})).json()["task"] == {"id": "b"}
    assert (await client.post("/task_range", {"split": "train", "stop": 1})).json()["tasks"] == [{"id": "a"}]


async def test_an_index_error_in_get_task_range_is_400(serve: Serve) -> None:
    class Short(Indexed):
        @classmethod
        async def get_task(cls, split: str, index: int) -> JSONObject:
            raise IndexError(index)

    response = await serve(Short).post("/task_range", {"split": "train", "start": 0, "stop": 2})
    assert response.status_code == 400
    assert response.json()["detail"].startswith("Invalid index range")


async def test_an_instance_cannot_change_another_ones_task(serve: Serve) -> None:
    class Greedy(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            self.seen = str(task_spec["id"])
            cast("dict[str, object]", task_spec)["id"] = "spoilt"

        def get_prompt(self) -> Blocks:
            return [TextBlock(text=self.seen)]

    client = serve(Greedy)
    for _ in range(2):
        sid = await client.open()
        assert (await client.get("/prompt", sid)).json()[0]["text"] == "train-0"
    assert (await client.post("/task", {"split": "train", "index": 0})).json()["task"] == {"id": "train-0"}


async def test_a_task_that_raises_on_create_leaves_nothing(serve: Serve) -> None:
    class Failing(Indexed):
        @classmethod
        async def get_task(cls, split: str, index: int) -> JSONObject:
            raise RuntimeError("no such file")

    client = serve(Failing)
    response = await client.create("s")
    assert (response.status_code, response.json()) == (500, {"detail": "RuntimeError: no such file"})
    assert (await client.post("/ping", sid="s")).status_code == 404


async def test_a_subclass_has_its_own_tasks(serve: Serve) -> None:
    """Section 9: the references' caches leak between a class and its subclass."""

    class Parent(Echo):
        pass

    class Child(Parent):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{"id": "only"}]

    client = serve(Parent, Child)
    assert (await client.post("/parent/num_tasks", {"split": "train"})).json() == {"num_tasks": 4}
    assert (await client.post("/child/num_tasks", {"split": "train"})).json() == {"num_tasks": 1}
    assert (await client.post("/child/num_tasks", {"split": "test"})).status_code == 400
    assert len((await client.get("/parent/splits")).json()) == 2


async def test_tasks_are_counted_by_split() -> None:
    """``Server.count_tasks``: by split, None where the environment does not know."""

    class Uncountable(Echo):
        @classmethod
        async def num_tasks(cls, split: str) -> int:
            if split == "test":
                raise OSError("not mounted")
            return 7

    server = Server([Echo, Uncountable])
    assert await server.count_tasks("echo") == {"train": 4, "test": 4}
    assert await server.count_tasks("Uncountable") == {"train": 7, "test": None}


@pytest.mark.parametrize("base", [Echo, foreign.OpenRewardGame, foreign.OrsGame])
@pytest.mark.parametrize("private", [(), ("secret",)])
@pytest.mark.parametrize("index", [-1, 3, 10_000])
async def test_an_index_that_num_tasks_excludes_reaches_no_class(
    serve: Serve, base: Any, private: tuple[str, ...], index: int
) -> None:
    """Of each SDK: a class that makes a task of any index would otherwise play one of another split."""
    asked: list[int | None] = []

    def num_tasks(split: str) -> int:
        return 3

    def get_task(split: str, index: int) -> JSONObject:
        asked.append(index)
        return {"id": str(index), "word": str(index)}

    def get_task_range(split: str, start: int | None = None, stop: int | None = None) -> list[JSONObject]:
        asked.extend((start, stop))
        return [{"id": str(each), "word": str(each)} for each in range(start or 0, 99 if stop is None else stop)]

    methods: Any = {"num_tasks": num_tasks, "get_task": get_task, "get_task_range": get_task_range}
    members = {name: staticmethod(method) for name, method in methods.items()}
    client = serve(type("AnyIndex", (base,), {**members, "private_task_fields": private}))
    for path in ("/task", "/get_task", "/create"):
        refused = await client.post(path, {"split": "train", "index": index}, "s")
        assert refused.status_code == 400, path
        assert f"{index} is outside split 'train', which has 3 tasks" in refused.json()["detail"]
    assert asked == []
    for path in ("/task_range", "/get_task_range"):
        served = await client.post(path, {"split": "train", "start": 1, "stop": 10_000})
        assert [task["id"] for task in served.json()["tasks"]] == ["1", "2"]
    assert all(each is None or 0 <= each <= 3 for each in asked)


async def test_a_split_may_grow(serve: Serve) -> None:
    counts = iter([1, 2])

    class Growing(Indexed):
        @classmethod
        async def num_tasks(cls, split: str) -> int:
            return next(counts)

    client = serve(Growing)
    for index in (0, 1):
        assert (await client.post("/task", {"split": "train", "index": index})).status_code == 200


async def test_a_class_that_does_not_count_is_served_any_index_from_0(serve: Serve) -> None:
    class Uncounted(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            raise NotImplementedError

        @classmethod
        def get_task(cls, split: str, index: int) -> JSONObject:
            return {"id": str(index)}

    client = serve(Uncounted)
    assert (await client.post("/task", {"split": "train", "index": 7})).json()["task"] == {"id": "7"}
    refused = await client.post("/task", {"split": "train", "index": -1})
    assert (refused.status_code, refused.json()["detail"].split(".")[0]) == (400, "Invalid index")
