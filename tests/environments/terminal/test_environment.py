"""Episodes from prompt to reward: tools, budgets, and the data that a client may and may not see."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NoReturn

import pytest
import pytest_asyncio
from ors_containers import (
    BubblewrapRuntime,
    CommandResult,
    Image,
    Limits,
    MachineOverloaded,
    Sandbox,
    SandboxDied,
    SandboxStopped,
    ShellFailed,
    StartFailed,
)
from ors_containers.errors import BuildFailed, RuntimeUnavailable
from ors_containers.graders.portable_python import Toolset

from ors_server import InfrastructureFailure, Server, Settings
from ors_server.hosting.errors import InvalidTask
from ors_server.protocol import VERDICT
from tests.support.http_client import Client

from .conftest import Service
from .parts import environment, grading, settings, task
from .parts import episode as episodes
from .play import environment_of, episode, own_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

FINAL = "def test_secret_name():\n    assert open('/home/user/answer').read() == 'SECRET-EXPECTED\\n'\n"
TASK = own_task(FINAL)
SOLVE = "echo SECRET-EXPECTED > answer"


@pytest.fixture(scope="module", params=["bubblewrap"])
def runtime_name(request: pytest.FixtureRequest) -> str:
    """Select one runtime: the environment uses sandboxes in the same way on every runtime."""
    return request.param


# ── the prompt and the tools ──


async def test_the_prompt_is_the_task_and_the_rules(service: Service) -> None:
    made = settings.TerminalSettings(steps=7, command_timeout=3, episode_timeout=100)
    async with episode(service, own_task(FINAL, prompt="Write a file.\n"), made) as played:
        (block,) = await played.instance.get_prompt()
        task_text, _, rules = block.text.partition("\n\n")
        assert task_text == "Write a file."
        for words in ("/home/user", "`bash`", "`done`", "at most 7 commands", "3 seconds each", "100 seconds"):
            assert words in rules


async def test_the_class_is_served_under_its_names() -> None:
    own = environment.TerminalEnvironment
    assert (own.name(), tuple(own.aliases)) == ("terminalenvironment", ("kanishk/EndlessTerminals",))
    tools = {spec.name: spec.input_schema for spec in own.list_tools().tools}
    assert set(tools) == {"bash", "done"}
    assert tools["done"] is None
    assert tools["bash"] is not None
    assert tools["bash"]["required"] == ["command"]


async def test_the_shell_is_one_and_stays(service: Service) -> None:
    async with episode(service, TASK) as played:
        assert await played.text("cd /tmp; export A=1; f() { echo f; }; echo out; echo err >&2") == "out\nerr"
        assert await played.text("pwd; echo $A; f; id -un") == "/tmp\n1\nf\nuser"
        assert await played.text("true") == "[no output]"
        assert await played.text("echo no; false") == "no\n[exit status 1]"
        assert await played.text("exit 3") != ""
        assert (await played.text("pwd; echo $A")).endswith("/tmp\n1")


async def test_a_command_over_its_time_is_ended(service: Service) -> None:
    async with episode(service, TASK, settings.TerminalSettings(command_timeout=0.5)) as played:
        started = time.monotonic()
        shown = await played.text("echo begun; sleep 100; echo never")
        assert shown.startswith("begun\n[The command was ended after")
        assert time.monotonic() - started < 20
        assert await played.text("echo alive") == "alive"


@pytest.mark.parametrize("letter", ["x", "é", "語", "🙂"])
async def test_long_output_keeps_its_head_and_its_tail(service: Service, letter: str) -> None:
    async with episode(service, TASK, settings.TerminalSettings(output=1000)) as played:
        whole = await played.text(f"printf '{letter}%.0s' {{1..994}}; echo; echo end")
        assert whole == f"{letter * 994}\nend"
        cut = await played.text(f"echo begin; printf '{letter}%.0s' {{1..50000}}; echo; echo end")
        assert cut.startswith(f"begin\n{letter * 490}")
        assert cut.endswith(f"{letter * 490}\nend")
        assert "left out" in cut
        assert len(cut) < 1100


async def test_output_that_is_not_text_is_shown(service: Service) -> None:
    async with episode(service, TASK) as played:
        assert await played.text(r"printf 'a\377\000\033b'") == "a\ufffd\0\033b"


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800"])
async def test_commands_that_no_shell_accepts_are_reported(service: Service, command: str) -> None:
    async with episode(service, TASK) as played:
        assert "was not run" in await played.text(command)
        assert await played.text("echo alive") == "alive"


# ── the end ──


async def test_done_grades(service: Service) -> None:
    for command, reward, words in ((SOLVE, 1.0, "The task is solved."), ("true", 0.0, "The task is not solved.")):
        async with episode(service, TASK) as played:
            first = await played.bash(command)
            assert (first.reward, first.finished) == (None, False)
            assert first.metadata == {"exit_status": 0, "steps_left": 15}
            output = await played.done()
            assert (output.reward, output.finished) == (reward, True)
            metadata = dict(output.metadata or {})
            # The server takes the verdict off: of all that is sent, nothing names a test.
            [test] = metadata.pop(VERDICT)["tests"]
            assert (test["name"], test["outcome"]) == ("test_secret_name", "passed" if reward else "failed")
            assert metadata == {"ended": "graded", "steps": 1}
            assert [block.model_dump()["text"] for block in output.blocks] == [words]


async def test_an_episode_without_commands_earns_nothing(service: Service) -> None:
    async with episode(service, TASK) as played:
        assert (await played.done()).reward == 0.0


async def test_the_end_frees_the_sandbox(service: Service) -> None:
    async with episode(service, TASK) as played:
        await played.bash("true")
        await played.done()
        sandbox = service.opened[-1]
        async with asyncio.timeout(20):
            while True:
                try:
                    await sandbox.run("true", timeout=1)
                except SandboxStopped:
                    break


@pytest.mark.parametrize(("last", "reward"), [(SOLVE, 1.0), ("echo wrong > answer", 0.0)])
async def test_spent_steps_are_graded_like_done(service: Service, last: str, reward: float) -> None:
    async with episode(service, TASK, settings.TerminalSettings(steps=3)) as played:
        for _ in range(2):
            assert not (await played.bash("echo again")).finished
        output = await played.bash(f"{last}; echo last")
        assert (output.reward, output.finished) == (reward, True)
        text = output.blocks[0].model_dump()["text"]
        assert text.startswith("last\n\nThe last of the 3 commands is used")
        assert text.endswith("The task is solved." if reward else "The task is not solved.")


async def test_spent_time_is_not_graded(service: Service) -> None:
    made = settings.TerminalSettings(episode_timeout=0.6, command_timeout=10)
    for tool in ("bash", "done"):
        async with episode(service, TASK, made) as played:
            await played.bash(SOLVE)
            assert not (await played.bash("true")).finished
            late = await played.bash("echo slow; sleep 100") if tool == "bash" else None
            if late is None:
                time.sleep(0.7)  # noqa: ASYNC251 - nothing else happens here
                late = await played.done()
            assert (late.reward, late.finished) == (0.0, True)
            assert late.metadata == {"ended": "time", "steps": 3 if tool == "bash" else 2}
            assert late.blocks[0].model_dump()["text"].endswith("The episode's time of 0.6 s is over.")


async def test_time_counts_from_the_first_call(service: Service) -> None:
    async with episode(service, TASK, settings.TerminalSettings(episode_timeout=2.0)) as played:
        time.sleep(2.1)  # noqa: ASYNC251 - a trainer that opens its sessions long before it uses them
        await played.bash(SOLVE)
        assert (await played.done()).reward == 1.0


async def test_waiting_for_others_is_given_back(service: Service) -> None:
    """The command took longer than the episode may, and others used the processors meanwhile."""
    async with episode(service, TASK, settings.TerminalSettings(episode_timeout=2.0)) as played:
        sandbox = played.instance._require()  # pyright: ignore[reportPrivateUsage]
        assert isinstance(sandbox, Sandbox)
        run = sandbox.run

        async def slow(command: str, *, timeout: float, output_limit: int | None = None) -> CommandResult:
            result = await run(command, timeout=timeout, output_limit=output_limit)
            time.sleep(2.1)  # noqa: ASYNC251 - nothing else happens here
            return dataclasses.replace(result, waited=2.1)

        sandbox.run = slow
        assert not (await played.bash(SOLVE)).finished
        assert (await played.done()).reward == 1.0


async def test_files_outside_of_the_home_count_too(service: Service) -> None:
    tests = "def test_a(): assert open('/tmp/there').read() == '1\\n'"
    async with episode(service, own_task(tests)) as played:
        await played.bash("echo 1 > /tmp/there")
        assert (await played.done()).reward == 1.0


# ── tasks with an image, and with running processes ──


async def test_files_set_up_and_start_are_there(service: Service) -> None:
    files = {
        "/home/user/data/in.txt": generated_file(b"content\n", 0o600),
        "/home/user/link": generated_file(link="data/in.txt"),
        "/home/user/empty": generated_file(directory=True, mode=0o700),
    }
    image = task.PreparedImage(files, "echo made > data/made; test $(id -un) = user")
    live = own_task(
        "import os\ndef test_a():\n  assert os.path.exists('/tmp/pid')\n  os.kill(int(open('/tmp/pid').read()), 0)",
        image=image,
        start="sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid",
        grading="live",
    )
    async with episode(service, live) as played:
        shown = await played.text("cat link data/made; stat -c '%U %a' data/in.txt empty; pwd; jobs")
        assert shown == "content\nmade\nuser 600\nuser 700\n/home/user"
        assert (await played.done()).reward == 1.0
    async with episode(service, live) as played:
        await played.bash("kill $(cat /tmp/pid); sleep 0.2")
        assert (await played.done()).reward == 0.0


def generated_file(content: bytes = b"", mode: int = 0o644, link: str | None = None, directory: bool = False) -> Any:
    """Return a file of a generated task."""
    from importlib import import_module

    families = import_module(f"{environment.__name__.rpartition('.')[0]}.families.task")
    return families.GeneratedFile(content, mode, link, directory)


# ── the client's view ──


class Served:
    """The environment behind a server in this process."""

    def __init__(self, cls: type[environment.TerminalEnvironment]) -> None:
        self.server = Server([cls], settings=Settings())
        self.client = Client(self.server.app)


@pytest_asyncio.fixture(loop_scope="module")
async def serve() -> AsyncIterator[Callable[[type[environment.TerminalEnvironment]], Client]]:
    started: list[Served] = []

    def start(cls: type[environment.TerminalEnvironment]) -> Client:
        started.append(Served(cls))
        return started[-1].client

    yield start
    for served in started:
        await served.client.close()
        await served.server.sessions.close()


Serve = Callable[[type[environment.TerminalEnvironment]], Client]


async def test_no_client_sees_what_graders_know(
    service: Service, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(environment_of(service, TASK))
    seen: list[str] = []
    with caplog.at_level(logging.INFO):
        for path, body in (
            ("/tasks", {"split": "train"}),
            ("/task", {"split": "train", "index": 0}),
            ("/task_range", {"split": "train"}),
        ):
            response = await client.post(path, body)
            assert response.status_code == 200
            seen.append(response.text)
        for command in ("false", SOLVE.replace("SECRET-EXPECTED", "guess")):
            sid = await client.open({"task_spec": {"id": "own"}}, sid=command)
            seen += [(await client.get(path, sid)).text for path in ("/prompt", "/messages", "/task_tools", "/tools")]
            seen.append(json.dumps((await client.call(sid, "bash", {"command": command})).result))
            found = await client.call(
                sid, "bash", {"command": "env; ls -la / ~; find /home /tmp /var /.e* -name '*test_*' 2>&1"}
            )
            seen.append(json.dumps(found.result))
            seen.append(json.dumps((await client.call(sid, "done")).result))
    assert json.loads(seen[0])["tasks"] == [{"id": "own"}]
    for text in (*seen, caplog.text):
        assert "SECRET" not in text
        assert "test_secret_name" not in text


async def test_the_tests_output_is_in_the_log_at_level_debug(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="ors_server.terminal"):
        async with episode(service, TASK) as played:
            await played.done()
    (record,) = [record for record in caplog.records if record.message == "graded"]
    assert "test_secret_name" in vars(record)["detail"]
    assert (vars(record)["task"], vars(record)["verdict"]) == ("own", "failed")


@pytest.mark.parametrize("spec", [{}, {"id": 3}, {"id": "none-000001"}, {"id": "../x"}, {"name": "own"}])
async def test_an_unknown_task_is_the_clients_mistake(spec: dict[str, Any]) -> None:
    class Own(environment.TerminalEnvironment):
        settings = settings.TerminalSettings()

    with pytest.raises(InvalidTask):
        Own(spec)


# ── failures of the machine ──


class Failing(Service):
    """Sandboxes that fail, each in one way."""

    def __init__(self, good: Service, how: str) -> None:
        super().__init__(good.runtime, good._folder, good._toolset)  # pyright: ignore[reportPrivateUsage]
        self.how = how

    async def toolset(self) -> Toolset:
        if self.how == "toolset":
            raise RuntimeUnavailable("There is no ldd", "Install it")
        return await super().toolset()

    async def open(self, image: Image, limits: Limits | None = None) -> Sandbox:
        if self.how == "start":
            raise StartFailed("The sandbox did not come up")
        sandbox = await super().open(image, limits)

        async def fail(*_: object, **__: object) -> NoReturn:
            raise SandboxDied(sandbox.id)

        async def shell(*_: object, **__: object) -> NoReturn:
            raise ShellFailed("no shell")

        if self.how in ("run", "shell"):
            sandbox.run = fail if self.how == "run" else shell

        async def overloaded(*_: object, **__: object) -> NoReturn:
            raise MachineOverloaded("Sandbox work waited 9.0 s for processors that others used", "Use fewer")

        if self.how == "examine":
            sandbox.examine = fail
        if self.how == "run, overloaded":
            sandbox.run = overloaded
        if self.how == "examine, overloaded":
            sandbox.examine = overloaded
        return sandbox


@pytest.mark.parametrize("how", ["start", "toolset"])
async def test_a_sandbox_that_does_not_start_is_a_503(service: Service, serve: Serve, how: str) -> None:
    client = serve(environment_of(Failing(service, how), TASK))
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert response.status_code == 503
    assert "X-Backend-State" not in response.headers
    assert response.json()["detail"].startswith("InfrastructureError: ")
    refused = await client.call_response(sid, "done")
    assert refused.status_code == 503


@pytest.mark.parametrize(
    ("how", "tool"),
    [
        ("run", "bash"),
        ("examine", "done"),
        ("examine", "last"),
        ("run, overloaded", "bash"),
        ("examine, overloaded", "done"),
        ("examine, overloaded", "last"),
    ],
)
async def test_a_sandbox_that_dies_is_never_a_reward(service: Service, serve: Serve, how: str, tool: str) -> None:
    made = settings.TerminalSettings(steps=1 if tool == "last" else 16)
    client = serve(environment_of(Failing(service, how), TASK, made))
    sid = await client.open()
    reply = await client.call(sid, "done" if tool == "done" else "bash", {"command": "true"})
    assert reply.error.startswith("InfrastructureError: Sandbox ")
    gone = await client.call_response(sid, "done")
    assert (gone.status_code, "Session lost: InfrastructureError" in gone.text) == (410, True)


async def test_tests_that_cannot_grade_are_never_a_reward(service: Service, serve: Serve) -> None:
    client = serve(environment_of(service, own_task("import requests\ndef test_a(): pass")))
    reply = await client.call(await client.open(), "done")
    assert reply.error.startswith("InfrastructureError: The tests cannot be imported: ModuleNotFoundError")


@pytest.mark.parametrize("how", ["passed", "failed", "timed out", "killed"])
async def test_tests_that_pass_are_the_only_reward(
    service: Service, monkeypatch: pytest.MonkeyPatch, how: Literal["passed", "failed", "timed out", "killed"]
) -> None:
    async def grade_episode(*_: object, **__: object) -> grading.Verdict:
        return grading.Verdict(how == "passed", how)

    monkeypatch.setattr(episodes, "grade_episode", grade_episode)
    async with episode(service, TASK) as played:
        output = await played.instance.done()
    assert (output.reward, output.finished) == (float(how == "passed"), True)


async def test_a_set_up_that_fails_is_a_503_that_names_the_task(service: Service, serve: Serve) -> None:
    broken = own_task(FINAL, image=task.PreparedImage({}, "echo why; false"))
    client = serve(environment_of(service, broken))
    response = await client.get("/prompt", await client.open())
    assert response.status_code == 503
    assert "The task 'own' cannot be prepared" in response.json()["detail"]


async def test_a_start_that_fails_leaves_no_sandbox(service: Service) -> None:
    played = episode(service, own_task(FINAL, start="echo why; exit 4"))
    with pytest.raises(InfrastructureFailure, match="status 4, why"):
        await played.instance.setup()
    opened: Any = service.opened[-1]
    assert opened.id not in getattr(opened, "_runtime").sandboxes  # noqa: B009 - the runtime's own list


async def test_without_a_shell_the_episode_can_still_be_graded(service: Service) -> None:
    async with episode(Failing(service, "shell"), own_task("def test_a(): pass")) as played:
        assert "was not run" in await played.text("echo x")
        assert (await played.done()).reward == 1.0


async def test_build_network_is_offered_where_a_build_lacks_it(service: Service, tmp_path: Any) -> None:
    from .folders import write_folder
    from .parts import endless, preparation

    words = "    echo 'Temporary failure resolving packages.example'\n"
    for name, said, offered in (("task_a", words, True), ("task_b", "", False)):
        definition = f"Bootstrap: localimage\nFrom: host\n\n%post\n{said}    false\n"
        folder = write_folder(tmp_path, name, files={"container.def": definition})
        with pytest.raises(BuildFailed) as failed:
            await preparation.task_image(service, endless.read_task(folder), settings.TerminalSettings())
        assert ("ORS_TERMINAL_BUILD_NETWORK" in failed.value.remedy) is offered
        assert "--network" not in str(failed.value)
    assert isinstance(service.runtime, BubblewrapRuntime)


async def test_a_folders_name_may_be_anything(service: Service, tmp_path: Any) -> None:
    from .folders import write_folder
    from .parts import endless, preparation

    for name in ("task_" + "x" * 240, "task_a\nb", "task_é "):
        folder = write_folder(tmp_path, name)
        image = await preparation.task_image(service, endless.read_task(folder), settings.TerminalSettings())
        assert service.store.record(image.name).source == str(folder / "container.def")
