"""``EnvironmentMixture`` against our server, without TRL: rows, tools, episodes, rewards, and the end of sessions.

What TRL itself makes of it is in tests/long/test_trl_mixture.py.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import base64
import gc
import inspect
import io
import json
import pickle
import re
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ors_clients.errors import ConfigurationError, RequestRefused, SessionLost
from ors_clients.trainers.trl import EnvironmentMixture, EnvironmentSpec, environment_reward, unless_failed
from ors_clients.trainers.trl.columns import task_columns, unite_columns
from ors_clients.training.config import TrainingConfiguration

from tests.clients.lost_rollout_table import expected
from tests.clients.trl_environments import PIXEL
from tests.support.paths import DOCS, RECIPES
from tests.support.servers import served

ENVIRONMENTS = Path(__file__).with_name("trl_environments.py")
AWKWARD = f"{ENVIRONMENTS}:AwkwardEnvironment"
ANSWERING = f"{ENVIRONMENTS}:AnsweringEnvironment"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with served(tmp_path_factory.mktemp("server"), "echo", AWKWARD, ANSWERING) as address:
        yield address


@pytest.fixture
def mixture(url: str) -> Generator[EnvironmentMixture]:
    with EnvironmentMixture(["echoenvironment", "awkwardenvironment", "answeringenvironment"], url=url) as made:
        yield made


def alive(url: str, session_id: str) -> bool:
    """Return whether the server still has the session."""
    request = urllib.request.Request(f"{url}/ping", method="POST", headers={"X-Session-ID": session_id})
    try:
        with urllib.request.urlopen(request, timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def slot_of(mixture: EnvironmentMixture, name: str) -> Any:
    """Return a slot. Its methods exist only at runtime."""
    return mixture.environment_factory[name]()


def session_of(slot: Any) -> str:
    return slot._session.id


def test_the_example_of_the_documentation_gives_a_number_to_every_episode(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example that gives None to a rollout that never called a tool trains a model to call none."""
    given: list[dict[str, Any]] = []

    class GRPOTrainer:
        def __init__(self, **options: Any) -> None:
            given.append(options)

        def train(self) -> None:
            """Play an episode without a call."""
            (factory,) = given[0]["environment_factory"].values()
            slot = factory()
            slot.reset(task_index=0)
            given[0]["rewards"] = given[0]["reward_funcs"]([slot])

    module = types.ModuleType("trl")
    vars(module).update(GRPOTrainer=GRPOTrainer, GRPOConfig=dict)
    monkeypatch.setitem(sys.modules, "trl", module)
    monkeypatch.setattr(EnvironmentMixture, "train_dataset", [])  # made by a package that the gate does not have
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "clients.md").read_text("utf-8"), re.DOTALL)
    code = next(block for block in blocks if "trl" in block)
    exec(compile(code.replace("http://127.0.0.1:8080", url), "clients.md", "exec"), {})
    assert given[0]["rewards"] == [0.0]


# --- the dataset ---------------------------------------------------------------------------------


def test_a_row_shows_the_public_fields_and_opens_its_task(mixture: EnvironmentMixture) -> None:
    rows = mixture._rows(mixture.environments["awkwardenvironment"])
    assert [row["task_index"] for row in rows] == list(range(5))
    assert rows[3] == {
        "prompt": [{"role": "user", "content": ""}],
        "environment": "awkwardenvironment",
        "split": "train",
        "task_index": 3,
        "number": 3,
        "task_prompt": "a field with a trainer's name",
        "task_environment": "another",
        "task_spec": {"number": -1},
        "nested": {"key 3": 3},
        "mixed": 3,
        "tags": ["a", "b"],
    }
    slot = slot_of(mixture, "awkwardenvironment")
    # A row goes to `reset` whole; neither its fields nor those of other environments choose the task.
    assert str(slot.reset(**rows[3] | {"target": None})).startswith("Say 3.")
    assert unite_columns(rows)["prompt"] == [row["prompt"] for row in rows]


def test_listed_columns_only(url: str) -> None:
    spec = EnvironmentSpec("awkwardenvironment", num_tasks=1, columns=["number", "_hidden", "no such field"])
    with EnvironmentMixture([spec], url=url) as mixture:
        [row] = mixture._rows(spec)
    assert set(row) == {"prompt", "environment", "split", "task_index", "number", "_hidden"}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"num_tasks": 2}, [0, 1]),
        ({"num_tasks": 99}, [0, 1, 2, 3, 4]),
        ({"indices": [3, 1]}, [3, 1]),
    ],
)
def test_tasks_are_chosen(url: str, selection: dict[str, Any], expected: list[int]) -> None:
    spec = EnvironmentSpec("awkwardenvironment", **selection)
    with EnvironmentMixture([spec], url=url) as mixture:
        assert [row["number"] for row in mixture._rows(spec)] == expected


def test_rows_of_another_split_open_tasks_of_that_split(mixture: EnvironmentMixture) -> None:
    spec = EnvironmentSpec("awkwardenvironment", split="test")
    row = mixture._rows(spec)[2]
    slot = slot_of(mixture, "awkwardenvironment")  # made for the split train
    assert str(slot.reset(**row)).startswith("Say 102.")


def test_a_system_prompt_stands_before_the_task(url: str) -> None:
    with EnvironmentMixture(["echoenvironment"], url=url, system_prompt="Be brief.") as mixture:
        [row, *_] = mixture._rows(mixture.environments["echoenvironment"])
    assert row["prompt"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]


def test_columns_are_united() -> None:
    rows = [
        {"a": 1, "same": [1], "mixed": "x", "nested": {"k": 1}, "empty": [], "number": 1},
        {"b": "y", "same": [2, 3], "mixed": 2, "nested": {"j": 2}, "empty": [None], "number": 1.5},
    ]
    assert unite_columns(rows) == {
        "a": [1, None],
        "same": [[1], [2, 3]],
        "mixed": ['"x"', "2"],
        "nested": ['{"k": 1}', '{"j": 2}'],
        "empty": ["[]", "[null]"],
        "number": [1.0, 1.5],
        "b": [None, "y"],
    }


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), json_values), max_size=4))
def test_every_row_gets_its_own_values_back_from_arrow(rows: list[dict[str, Any]]) -> None:
    arrow: Any = pytest.importorskip("pyarrow", reason="Parquet's library, which datasets stands on")
    columns = unite_columns([task_columns(row, None) for row in rows])
    for name, values in arrow.table(columns).to_pydict().items():
        for row, kept in zip(rows, values, strict=True):
            given = row.get(name)
            assert kept == given or (isinstance(kept, str) and json.loads(kept) == given)


# --- tools ---------------------------------------------------------------------------------------


def call(slot: Any, tool: str, **arguments: Any) -> Any:
    return getattr(slot, tool)(**arguments)


@pytest.fixture
def awkward(mixture: EnvironmentMixture) -> Any:
    slot = slot_of(mixture, "awkwardenvironment")
    slot.reset(task_index=1)
    return slot


def test_tools_of_any_name_can_be_called(awkward: Any) -> None:
    for name, alias in [
        ("get-weather", "get-weather"),
        ("class", "class"),
        ("files/read", "files_read"),
        ("finished", "finished_tool"),  # the episode's state
        ("get_reward", "get_reward_tool"),  # names that TRL calls
        ("reset", "reset_tool"),
    ]:
        assert call(awkward, alias) == f"this is {name}"
    assert awkward.finished is False


def test_parameters_of_any_name_can_be_given(awkward: Any) -> None:
    assert call(awkward, "odd", in_file="a", class_="b") == "a b '' None"
    assert call(awkward, "odd", **{"in-file": "a", "class": "b"}) == "a b '' None"


def test_null_for_what_cannot_be_null_is_left_out(awkward: Any) -> None:
    assert call(awkward, "odd", in_file="a", note=None, limit=None) == "a none '' None"


def test_a_tool_that_only_some_tasks_have_is_bound(awkward: Any) -> None:
    assert call(awkward, "rare") == "rare"


def test_an_unknown_tool_is_reported(awkward: Any) -> None:
    assert awkward._call("no such tool", {}).startswith("Error: ")
    assert (awkward.failure, awkward.rewards) == (None, [None])


def test_environments_keep_their_own_tools(mixture: EnvironmentMixture) -> None:
    echo, awkward = (slot_of(mixture, name) for name in ("echoenvironment", "awkwardenvironment"))
    assert hasattr(echo, "echo")
    assert not hasattr(echo, "say")
    assert not hasattr(awkward, "echo")


# --- episodes ------------------------------------------------------------------------------------


def test_a_solved_episode(awkward: Any) -> None:
    assert call(awkward, "say", number=7) == "wrong"
    assert (awkward.reward, awkward.finished) == (0.0, False)
    assert call(awkward, "say", number=1) == "right"
    assert awkward.rewards == [0.0, 1.0]
    assert awkward.metadata == [{"said": 7}, {"said": 1}]
    assert (awkward.reward, awkward.finished, awkward.last_output) == (1.0, True, "right")
    assert environment_reward([awkward]) == [1.0]


def test_a_call_after_the_end_changes_nothing(awkward: Any) -> None:
    call(awkward, "say", number=1)
    assert "finished" in call(awkward, "say", number=7)
    assert (awkward.rewards, awkward.last_output) == ([1.0], "right")
    assert environment_reward([awkward]) == [1.0]


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("say", {}, "Error: "),
        ("say", {"number": 1, "extra": float("nan")}, ""),
        ("say", {"number": 1, "extra": json.loads("[" * 301 + "]" * 301)}, "Error: "),  # the server refuses it: 422
    ],
)
def test_mistakes_of_the_model_are_reported_and_the_episode_goes_on(
    awkward: Any, tool: str, arguments: dict[str, Any], text: str
) -> None:
    answer = call(awkward, tool, **arguments)
    assert answer.startswith(text)
    assert answer
    assert awkward.failure is None
    if not awkward.finished:
        assert call(awkward, "say", number=1) == "right"
    assert environment_reward([awkward]) == [1.0]


def test_no_output_and_images(url: str, awkward: Any) -> None:
    assert call(awkward, "nothing") == "(no output)"
    assert call(awkward, "picture") == "look:\n[image]"
    pillow: Any = pytest.importorskip("PIL.Image", reason="Pillow reads images")
    with EnvironmentMixture(["awkwardenvironment"], url=url, images=True) as mixture:
        slot = slot_of(mixture, "awkwardenvironment")
        for content in (slot.reset(task_index=1), call(slot, "picture")):
            text, image = content
            assert text["type"] == "text"
            assert image["type"] == "image"
            assert image["image"].tobytes() == pillow.open(io.BytesIO(base64.b64decode(PIXEL))).tobytes()


def test_a_tool_before_reset_is_a_mistake(mixture: EnvironmentMixture) -> None:
    with pytest.raises(RuntimeError, match="reset"):
        call(slot_of(mixture, "awkwardenvironment"), "say", number=1)


# --- rewards -------------------------------------------------------------------------------------


def test_an_episode_without_a_score_has_the_reward_0(awkward: Any) -> None:
    assert awkward.reward is None
    assert environment_reward([awkward]) == [0.0]


def test_an_episode_that_the_infrastructure_failed_is_left_out(mixture: EnvironmentMixture, awkward: Any) -> None:
    call(awkward, "say", number=7)
    answer = call(awkward, "lose")
    assert answer == call(awkward, "say", number=1)  # it cannot go on
    assert answer.startswith("Error: ")
    assert isinstance(awkward.failure, SessionLost)
    metrics: list[tuple[str, float]] = []
    echo = slot_of(mixture, "echoenvironment")
    echo.reset(task_index=0)
    echo.echo(text="hello")

    def log(name: str, value: float) -> None:
        metrics.append((name, value))

    rewards = environment_reward([awkward, echo, object()], log_metric=log)
    assert expected("TRL", "`environment_reward`") == "left out"
    assert rewards == [None, 1.0, None]
    assert metrics == [
        ("environments/awkwardenvironment/failed", 1.0),
        ("environments/awkwardenvironment/lost/session_lost", 1.0),
        ("environments/echoenvironment/failed", 0.0),
        ("environments/echoenvironment/reward", 1.0),
    ]

    def length(environments: list[Any], **_: Any) -> list[float]:
        return [5.0] * len(environments)

    assert unless_failed(length)(environments=[awkward, echo]) == [None, 5.0]

    def doubled(environments: list[Any], **_: Any) -> list[float]:
        """Return the rewards by the function of TRL's guide."""
        return [environment.reward * 2.0 for environment in environments]

    lost = slot_of(mixture, "echoenvironment")
    lost.failure = SessionLost("before it had a reward")
    assert unless_failed(doubled)(environments=[lost, echo, awkward]) == [None, 2.0, None]
    awkward.reset(task_index=1)
    assert (awkward.failure, environment_reward([awkward])) == (None, [0.0])


class Played:
    """The part of a slot that ``unless_failed`` reads."""

    def __init__(self, failed: bool = False) -> None:
        self.failure = SessionLost("gone") if failed else None


def test_a_custom_reward_function_does_not_see_failed_episodes() -> None:
    """It gets TRL's arguments, each list with the entries of the same rollouts."""
    slots = [Played(), Played(failed=True), Played(), Played(failed=True)]
    extra: dict[str, list[Any]] = {}
    state = object()
    seen: dict[str, Any] = {}

    def own(prompts: list[str], environments: list[Any], log_extra: Any, **columns: Any) -> list[float | None]:
        seen.update(columns, prompts=prompts, environments=environments)
        log_extra("length", [len(prompt) for prompt in prompts])
        return [0.5, None]

    columns: dict[str, Any] = {
        "prompts": ["a", "bb", "ccc", "dddd"],
        "completions": [[1], [2], [3], [4]],
        "completion_ids": [[10], [20], [30], [40]],
        "number": [0, 1, 2, 3],
        "trainer_state": state,
    }
    log_extra: Callable[..., Any] = extra.__setitem__
    assert unless_failed(own)(environments=slots, log_extra=log_extra, **columns) == [0.5, None, None, None]
    assert seen == {
        "prompts": ["a", "ccc"],
        "completions": [[1], [3]],
        "completion_ids": [[10], [30]],
        "number": [0, 2],
        "trainer_state": state,
        "environments": [slots[0], slots[2]],
    }
    assert extra == {"length": [1, None, 3, None]}
    assert columns["number"] == [0, 1, 2, 3]  # it is shared by all reward functions

    seen.clear()
    assert unless_failed(own)(environments=[Played(failed=True)], log_extra=log_extra, prompts=["a"]) == [None]
    assert not seen
    with pytest.raises(ValueError, match=r"longer|shorter"):
        unless_failed(own)(environments=slots[:2], log_extra=log_extra, prompts=["a", "b"])


async def test_a_coroutine_function_stays_a_coroutine_function() -> None:
    async def own(environments: list[Any], **_: Any) -> list[float]:
        return [1.0 for _ in environments]

    class Own:
        async def __call__(self, environments: list[Any], **_: Any) -> list[float]:
            return [2.0 for _ in environments]

    slots = [Played(failed=True), Played()]
    for function, rewards in ((own, [None, 1.0]), (Own(), [None, 2.0])):
        wrapped = unless_failed(function)
        assert inspect.iscoroutinefunction(wrapped)
        assert await wrapped(environments=slots, prompts=["a", "b"]) == rewards
    assert unless_failed(own).__name__ == "own"


def test_the_last_message_goes_to_the_terminal_tool(mixture: EnvironmentMixture) -> None:
    slots = [slot_of(mixture, "answeringenvironment") for _ in range(7)]
    for slot in slots:
        slot.reset(task_index=0)
    calling = {"role": "assistant", "content": "2", "tool_calls": [{"type": "function"}]}
    completions: list[Any] = [
        [{"role": "assistant", "content": "2"}],
        [{"role": "assistant", "content": "3"}],
        [calling],
        "2",
        # Without tools TRL leaves the thinking in the text. If the thinking was cut off, there is no answer yet.
        [{"role": "assistant", "content": "<think>Not 3.</think>\n\n2"}],
        [{"role": "assistant", "content": "Not 3.</think>\n\n2"}],
        [{"role": "assistant", "content": "<think>2"}],
    ]
    assert environment_reward(slots, completions) == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert [slot.finished for slot in slots] == [True, True, False, False, True, True, False]


# --- AsyncGRPOTrainer ----------------------------------------------------------------------------


@pytest.fixture
def async_slot(url: str) -> Callable[[], Any]:
    """Return slots as in the process into which ``AsyncGRPOTrainer`` pickles the factories."""
    with EnvironmentMixture(["awkwardenvironment"], url=url) as mixture:
        [factory] = pickle.loads(pickle.dumps(mixture.async_environment_factory)).values()
    return factory


def test_a_slot_owns_its_reward_in_another_process(async_slot: Callable[[], Any]) -> None:
    winner, loser, idle, lost = (async_slot() for _ in range(4))
    assert type(winner) is type(loser)  # the trainer finds their reward by the type
    for slot in (winner, loser, idle, lost):
        assert "Say 2." in slot.reset(task_index=2, prompt=[], split="train")
    winner.say(number=2)
    loser.say(number=7)
    lost.say(number=2)
    lost.reset(task_index=2)
    lost.lose()
    assert [slot.get_reward() for slot in (winner, loser, idle, lost)] == [1.0, 0.0, 0.0, None]
    assert all(slot._session is None for slot in (winner, loser, idle, lost))


def test_no_reward_is_counted_twice(async_slot: Callable[[], Any]) -> None:
    """``GRPOTrainer`` adds a column for a slot that has ``get_reward``."""
    slot = async_slot()
    slot.reset(task_index=2)
    slot.say(number=2)
    assert environment_reward([slot]) == [None]
    assert slot.get_reward() == 1.0


def test_what_the_asynchronous_trainer_cannot_do_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="async_environment_factory"):
        environment_reward(completions=[[]], prompts=[[]])
    with (
        EnvironmentMixture(["answeringenvironment"], url=url) as answering,
        pytest.raises(ConfigurationError, match="last message"),
    ):
        assert answering.async_environment_factory
    with (
        EnvironmentMixture(["awkwardenvironment"], url=url, images=True) as seeing,
        pytest.raises(ConfigurationError, match="as text"),
    ):
        assert seeing.async_environment_factory


# --- failures at the beginning -------------------------------------------------------------------


def test_an_episode_that_cannot_begin_is_left_out_until_too_many_cannot(url: str) -> None:
    specs = [
        EnvironmentSpec("awkwardenvironment", name="broken", secrets={"broken": "set-up"}),
        EnvironmentSpec("awkwardenvironment", name="whole"),
    ]
    with EnvironmentMixture(specs, url=url, failed_resets=2, probed_tasks=0) as mixture:
        broken, other = (slot_of(mixture, "broken") for _ in range(2))
        assert broken.reset(task_index=0) == other.reset(task_index=0) == ""
        assert environment_reward([broken, other]) == [None, None]
        assert str(call(broken, "say", number=0)).startswith("Error: ")
        whole = slot_of(mixture, "whole")
        whole.reset(task_index=0)
        with pytest.raises(SessionLost, match="sandbox did not start"):
            broken.reset(task_index=0)


@pytest.mark.long
def test_a_full_server_is_retried(tmp_path: Path) -> None:
    with (
        served(tmp_path / "server", "echo", ORS_MAX_SESSIONS="1") as url,
        EnvironmentMixture(["echoenvironment"], url=url) as mixture,
    ):
        first, second = (slot_of(mixture, "echoenvironment") for _ in range(2))
        first.reset(task_index=0)
        timer = threading.Timer(0.3, first._close)
        timer.start()
        assert "world" in second.reset(task_index=1)
        timer.join()
        assert second.failure is None


def test_mistakes_of_the_run_end_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no environments"):
        EnvironmentMixture([])
    with pytest.raises(ConfigurationError, match="Two environments named 'echo'"):
        EnvironmentMixture(["echo", EnvironmentSpec("awkwardenvironment", name="echo")])
    with pytest.raises(ConfigurationError, match="num_tasks"):
        EnvironmentSpec("echo", num_tasks=1, indices=[0])
    with EnvironmentMixture(["echoenvironment", "nowhere"], url=url) as mixture:
        with pytest.raises(RequestRefused):
            _ = mixture.environment_factory
        slot = mixture._factory(mixture.environments["echoenvironment"])()
        with pytest.raises(RequestRefused):
            slot.reset(task_index=99)
        with pytest.raises(RequestRefused):
            slot.reset(task_index=0, split="validation")
    assert "hunter2" not in repr(EnvironmentSpec("echo", secrets={"key": "hunter2"}))


def test_a_configuration_of_the_cookbook_is_a_mixture(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("grader_key", "opens")
    configuration = TrainingConfiguration.parse(
        {
            "environments": {
                "awkwardenvironment": {"splits": ["train", "test"], "num_samples": 2, "nonterminal_reward": -0.5},
                "echoenvironment": None,
            },
            "secrets": {"grader_key": None},
            "system_prompt_template": "Be brief.",
            "base_url": url,
        }
    )
    with EnvironmentMixture.from_configuration(configuration) as mixture:
        assert list(mixture.environments) == ["awkwardenvironment:train", "awkwardenvironment:test", "echoenvironment"]
        spec = mixture.environments["awkwardenvironment:test"]
        assert spec.secrets == {"grader_key": "opens"}
        assert [row["number"] for row in mixture._rows(spec)] == [100, 101]
        slot = slot_of(mixture, "awkwardenvironment:test")
        slot.reset(task_index=0, split="test")
        assert environment_reward([slot]) == [-0.5]
    with pytest.raises(ConfigurationError, match="chat template"):
        EnvironmentMixture.from_configuration(configuration.model_copy(update={"system_prompt_template": "{tools}"}))


def test_the_recipes_environments_are_a_mixture() -> None:
    recipe = RECIPES / "trl" / "environments.yaml"
    mixture = EnvironmentMixture.from_configuration(TrainingConfiguration.load(recipe))
    assert list(mixture.environments) == ["kanishk/EndlessTerminals", "echoenvironment"]
    assert mixture.environments["kanishk/EndlessTerminals"].reward.reduction == "last"


# --- the end of sessions -------------------------------------------------------------------------


def test_a_slot_holds_one_session_which_the_reward_ends(url: str, mixture: EnvironmentMixture) -> None:
    slot = slot_of(mixture, "echoenvironment")
    slot.reset(task_index=0)
    first = session_of(slot)
    slot.reset(task_index=1)
    second = session_of(slot)
    assert [alive(url, session) for session in (first, second)] == [False, True]
    environment_reward([slot])
    assert not alive(url, second)


def test_sessions_end_with_the_mixture_and_with_their_slot(url: str) -> None:
    with EnvironmentMixture(["echoenvironment"], url=url) as mixture:
        factory = mixture.environment_factory["echoenvironment"]
        slots = [factory() for _ in range(20)]
        slot = None
        for slot in slots:
            slot.reset(task_index=0)
        sessions = [session_of(slot) for slot in slots]
        slot = slots.pop()
        del slot
        gc.collect()
        deadline = time.monotonic() + 60  # in the background
        while alive(url, sessions[-1]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [alive(url, session) for session in sessions[-2:]] == [True, False]
    assert not any(alive(url, session) for session in sessions)
    mixture.close()


def test_sessions_end_with_the_process(url: str) -> None:
    script = f"""
from ors_clients.trainers.trl import EnvironmentMixture
slot = EnvironmentMixture(["echoenvironment"], url={url!r}).environment_factory["echoenvironment"]()
slot.reset(task_index=0)
print(slot._session.id)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert not alive(url, finished.stdout.strip())
    assert finished.stderr == ""
