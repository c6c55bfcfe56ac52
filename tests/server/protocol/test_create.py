"""``/create``: at most one instance for each id, idempotent, and without leftovers where the constructor fails."""

import asyncio
import threading

import pytest

from ors_server import Blocks, JSONObject, TextBlock
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo
from tests.support.http_client import secrets_header

TASK: dict[str, object] = {"split": "train", "index": 0}


class Journal:
    """Record of instances that were built, set up and torn down."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def count(self, step: str) -> int:
        return self.taken.count(step)


def journaled(journal: Journal, *, seconds: float = 0.0, failures: int = 0) -> type[Echo]:
    """Return an environment whose constructor takes a while and fails the first ``failures`` times."""

    class Journaled(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            journal.taken.append("init")
            threading.Event().wait(seconds)
            if journal.count("init") <= failures:
                raise RuntimeError("cannot be built")

        def setup(self) -> None:
            journal.taken.append("setup")

        def teardown(self) -> None:
            journal.taken.append("teardown")

    return Journaled


async def test_the_same_request_again_is_answered_the_same(serve: Serve) -> None:
    """Section 8, "duplicate create"; 6.4 pitfall 9."""
    journal = Journal()
    client = serve(journaled(journal))
    for _ in range(3):
        response = await client.create("s")
        assert (response.status_code, response.json()) == (200, {"sid": "s"})
    await client.get("/prompt", "s")
    assert journal.taken == ["init", "setup"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"split": "train", "index": 1}, {}),
        ({"split": "test", "index": 0}, {}),
        ({"task_spec": {"id": "train-0"}}, {}),
        (TASK, {"X_Secrets": secrets_header({"a": {"value": "b"}})}),
    ],
)
async def test_another_request_with_the_same_id_is_400(
    serve: Serve, body: dict[str, object], headers: dict[str, str]
) -> None:
    client = serve(Echo)
    await client.open(sid="s")
    response = await client.create("s", body, **headers)
    assert response.status_code == 400
    assert response.json()["detail"].startswith("Session already exists")
    assert (await client.get("/prompt", "s")).json()[0]["text"] == "prompt of train-0"


async def test_the_order_of_a_tasks_keys_does_not_matter(serve: Serve) -> None:
    client = serve(Echo)
    assert (await client.create("s", {"task_spec": {"a": 1, "b": 2}})).status_code == 200
    assert (await client.create("s", {"task_spec": {"b": 2, "a": 1}})).status_code == 200


async def test_a_hundred_at_once_build_one_instance(serve: Serve) -> None:
    """Bad input: a hundred concurrent ``/create`` with one id. Section 9, "create race"."""
    journal = Journal()
    client = serve(journaled(journal, seconds=0.1))
    responses = await asyncio.gather(*(client.create("s") for _ in range(100)))
    assert [response.status_code for response in responses] == [200] * 100
    assert {response.text for response in responses} == {'{"sid":"s"}'}
    assert (await client.get("/prompt", "s")).status_code == 200
    assert journal.taken == ["init", "setup"]
    await client.post("/delete", sid="s")
    assert journal.taken == ["init", "setup", "teardown"]


async def test_a_hundred_at_once_with_two_payloads(serve: Serve) -> None:
    """The first wins; different payloads get 400, and one instance is built."""
    journal = Journal()
    client = serve(journaled(journal, seconds=0.1))
    bodies: list[dict[str, object]] = [{"split": "train", "index": number % 2} for number in range(100)]
    responses = await asyncio.gather(*(client.create("s", body) for body in bodies))
    assert sorted(response.status_code for response in responses) == [200] * 50 + [400] * 50
    assert len({number % 2 for number, response in enumerate(responses) if response.status_code == 200}) == 1
    assert journal.count("init") == 1


async def test_a_constructor_that_raises_leaves_nothing(serve: Serve) -> None:
    """Section 3: nothing is registered; the id is free again, and an unbuilt instance is not torn down."""
    journal = Journal()
    client = serve(journaled(journal, failures=1))
    response = await client.create("s")
    assert (response.status_code, response.json()) == (500, {"detail": "RuntimeError: cannot be built"})
    for response in (await client.get("/prompt", "s"), await client.post("/ping", sid="s")):
        assert (response.status_code, response.json()) == (404, {"detail": "Active environment not found"})
    assert journal.taken == ["init"]
    assert (await client.create("s", {"split": "train", "index": 1})).status_code == 200
    assert (await client.get("/prompt", "s")).json()[0]["text"] == "prompt of train-1"


async def test_a_hundred_at_once_whose_constructor_raises(serve: Serve) -> None:
    journal = Journal()
    client = serve(journaled(journal, seconds=0.05, failures=1))
    responses = await asyncio.gather(*(client.create("s") for _ in range(100)))
    assert {response.status_code for response in responses} == {500}
    assert journal.taken == ["init"]
    assert (await client.create("s")).status_code == 200


@pytest.mark.parametrize("mode", ["none", "exception", "stacktrace"])
async def test_what_a_client_sees_of_a_constructors_exception(serve: Serve, mode: str) -> None:
    """``return_errors``, as in both SDKs."""
    client = serve(journaled(Journal(), failures=1), return_errors=mode)
    detail: str = (await client.create("s")).json()["detail"]
    if mode == "none":
        assert detail == "Internal Server Error"
    elif mode == "exception":
        assert detail == "RuntimeError: cannot be built"
    else:
        assert detail.startswith("Traceback (most recent call last)")
        assert detail.rstrip().endswith("RuntimeError: cannot be built")


class Abort(BaseException):
    """An exception that ``except Exception`` does not catch."""


@pytest.mark.parametrize(
    "raised", [SystemExit(1), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError(), GeneratorExit(), Abort()]
)
async def test_a_constructor_that_would_end_the_process_only_fails(serve: Serve, raised: BaseException) -> None:
    class Exiting(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            if task_spec["id"] == "train-0":
                raise raised
            super().__init__(task_spec, secrets)

    client = serve(Exiting)
    response = await client.create("s")
    assert response.status_code == 500
    assert response.json()["detail"]
    assert (await client.post("/ping", sid="s")).status_code == 404
    assert (await client.create("s", {"split": "train", "index": 1})).status_code == 200


async def test_a_constructor_gets_keywords(serve: Serve) -> None:
    """Section 10: the server always passes ``task_spec`` and ``secrets`` by name."""

    class Keywords(Echo):
        def __init__(self, *, secrets: dict[str, str], task_spec: JSONObject) -> None:
            super().__init__(task_spec, secrets)

        def get_prompt(self) -> Blocks:
            return [TextBlock(text=f"{self.task_spec} {self.secrets}")]

    client = serve(Keywords)
    sid = await client.open()
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "{'id': 'train-0'} {}"


async def test_a_client_that_hangs_up_does_not_undo_anothers_session(serve: Serve) -> None:
    journal = Journal()
    client = serve(journaled(journal, seconds=0.2))
    first = asyncio.create_task(client.create("s"))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait((first,))
    assert (await client.create("s")).status_code == 200
    assert (await client.get("/prompt", "s")).status_code == 200
    assert journal.taken == ["init", "setup"]


async def test_many_sessions_are_built_at_the_same_time(serve: Serve) -> None:
    """Blocking constructors do not delay other sessions."""
    together = threading.Barrier(20)

    class Meeting(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            together.wait(5)

    client = serve(Meeting)
    responses = await asyncio.gather(*(client.create(f"s{number}") for number in range(20)))
    assert {response.status_code for response in responses} == {200}
