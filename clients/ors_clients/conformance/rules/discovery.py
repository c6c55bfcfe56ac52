"""Rules of the server itself and of discovery: environments, splits, tools and tasks."""

from __future__ import annotations

from typing import Any, cast

from ors_clients.conformance.rule import OURS, RECOMMENDED, REQUIRED, Broken, NotTried, Rules, kept, plain
from ors_clients.conformance.schemas import Schema
from ors_clients.conformance.shapes import fit
from ors_clients.conformance.subject import DERIVED, PROBE, Subject
from ors_clients.conformance.values import as_list, as_object
from ors_server.protocol import ListToolsOutput, Split

__all__ = ["RULES"]

RULES = rule = Rules()
_NOWHERE = "no-such-environment"


@rule(
    "server.health",
    REQUIRED,
    tried="GET /health",
    expected='200 {"status": "ok"}',
    why="launchers and proxies wait for it before they send episodes",
)
async def health(subject: Subject) -> str:
    answer = (await subject.wire.get("/health")).expect(200)
    return kept(answer.object().get("status") == "ok", answer)


@rule(
    "server.version",
    RECOMMENDED,
    tried="GET /version",
    expected='200 {"version": text}',
    why="a log of a run cannot say which server played it",
)
async def version(subject: Subject) -> str:
    answer = (await subject.wire.get("/version")).expect(200)
    return kept(isinstance(answer.object().get("version"), str), answer)


@rule(
    "server.environments",
    REQUIRED,
    tried="GET /list_environments",
    expected="a list of names, the default first",
    why="every client chooses its environment from it",
)
async def environments(subject: Subject) -> str:
    answer = (await subject.wire.get("/list_environments")).expect(200)
    names = fit(answer, list[str])
    if not names or not all(names) or len({name.lower() for name in names}) != len(names):
        raise Broken(f"{answer}: empty, or the same name twice")
    return str(answer)


@rule(
    "server.errors",
    REQUIRED,
    tried="POST /create without an id, POST /call with half a body",
    expected='a 4xx with {"detail": …}',
    why="openreward's client raises what is in detail; of anything else it shows nothing",
)
async def errors(subject: Subject) -> str:
    answers = [
        await subject.wire.post("/create", {}),
        await subject.wire.request("POST", subject.path("call"), content=b'{"name": ', sid="nowhere", follow=True),
    ]
    for answer in answers:
        kept(400 <= answer.status < 500, answer)
        answer.detail()
    return str(answers[-1])


@rule(
    "server.unknown-path",
    REQUIRED,
    tried="GET a path of three segments that no server has",
    expected="404",
    why="both clients take a 404 for a route that an older server lacks, and fall back to another one",
)
async def unknown_path(subject: Subject) -> str:
    return str((await subject.wire.get("/no/such/path", follow=True)).expect(404))


@rule(
    "server.unknown-environment",
    RECOMMENDED,
    tried=f"GET /{_NOWHERE}/tools",
    expected="404 with a detail that names the environment, and no redirect",
    why="a mistyped name is otherwise sent on to a path that does not exist, and the error names that",
)
async def unknown_environment(subject: Subject) -> str:
    answer = (await subject.wire.get(f"/{_NOWHERE}/tools")).expect(404)
    return kept(_NOWHERE in answer.detail(), answer)


@rule(
    "discovery.splits",
    REQUIRED,
    tried="GET /{env}/splits",
    expected='[{"name", "type"}], with the type train, validation or test',
    why="both clients build their Split from these keys, and trainers choose tasks by the type",
)
async def splits(subject: Subject) -> str:
    answer = (await subject.wire.get(subject.path("splits"))).expect(200)
    if not fit(answer, list[Split]):
        raise Broken(f"{answer}: no split")
    return str(answer)


@rule(
    "discovery.tools",
    REQUIRED,
    tried="GET /{env}/tools",
    expected='{"tools": [{"name", "description", "input_schema"}]} with exactly these keys',
    why="both clients call ToolSpec(**tool): a further key, or a missing one, raises TypeError",
)
async def tools(subject: Subject) -> str:
    answer = (await subject.wire.get(subject.path("tools"))).expect(200)
    _check_tools(fit(answer, ListToolsOutput))
    return str(answer)


def _check_tools(listed: dict[str, Any]) -> None:
    names = [tool["name"] for tool in listed["tools"]]
    if not names and not listed.get("terminal_tool"):
        raise Broken("no tool is listed")
    if len(set(names)) != len(names):
        raise Broken(f"a name is listed twice: {plain(', '.join(names), 120)}")


@rule(
    "discovery.schemas",
    REQUIRED,
    tried="each input_schema against the meta-schema of JSON schema",
    expected="a valid schema of an object, or null",
    why="inference engines compile the schema into a grammar or a prompt, and refuse another one",
)
async def schemas(subject: Subject) -> str:
    tools = subject.tools
    for tool in tools:
        given: Any = tool.get("input_schema")
        if given is not None and (problem := Schema(given).problem):
            raise Broken(f"the input_schema of {plain(tool['name'], 60)} {plain(problem, 200)}")
    return f"{len(tools)} tools"


@rule(
    "discovery.tool-names",
    RECOMMENDED,
    tried="names of tools and of their arguments",
    expected="Python identifiers",
    why="TRL leaves out a tool whose name, or whose argument's name, is not one",
)
async def tool_names(subject: Subject) -> str:
    for tool in subject.tools:
        names: list[str] = [tool["name"], *as_object(as_object(tool.get("input_schema")).get("properties"))]
        for name in names:
            if not name.isidentifier():
                raise Broken(f"{plain(name, 60)!r} of the tool {plain(tool['name'], 60)!r}")
    return f"{len(subject.tools)} tools"


@rule(
    "discovery.case",
    REQUIRED,
    tried="GET /{ENV}/tools with the name in capitals",
    expected="200",
    why="clients send the class's name as its author spelt it",
)
async def case(subject: Subject) -> str:
    name = subject.environment.upper()
    return str((await subject.wire.get(subject.path("tools", name), follow=True)).expect(200))


@rule(
    "discovery.bare-paths",
    REQUIRED,
    tried="GET /tools, without an environment",
    expected="the tools of the default environment",
    why="openreward's client without a variant, and with it TRL, sends bare paths only",
)
async def bare_paths(subject: Subject) -> str:
    answer = (await subject.wire.get("/tools", follow=True)).expect(200)
    fit(answer, ListToolsOutput)
    return str(answer)


@rule(
    "discovery.deployment",
    RECOMMENDED,
    tried="GET /tools with X-Deployment: owner/{env} for the second environment",
    expected="its tools, and not those of the default",
    why="openreward's environments.get(NAME) names its environment in this header only, and would train on another one",
)
async def deployment(subject: Subject) -> str:
    default = subject.names[0] if subject.names else ""
    other = next((name for name in subject.names if name != default), None)
    if other is None:
        raise NotTried("one environment is hosted; the rule needs two")
    if {PROBE, DERIVED} <= set(subject.names):
        # The probe's two classes have the same tools, and other numbers of tasks.
        other = PROBE if default == DERIVED else DERIVED
        chosen = await subject.wire.post("/num_tasks", {"split": "train"}, headers={"X-Deployment": f"owner/{other}"})
        right = await subject.wire.post(subject.path("num_tasks", other), {"split": "train"})
    else:
        chosen = await subject.wire.get("/tools", headers={"X-Deployment": f"owner/{other}"})
        right = await subject.wire.get(subject.path("tools", other))
    if chosen.status in (307, 308):
        raise Broken(f"{chosen}: redirected to {plain(chosen.headers.get('location', ''), 60)}")
    if chosen.expect(200).json() != right.expect(200).json():
        raise Broken(f"{chosen}, where {right}")
    return str(chosen)


# --- tasks ---------------------------------------------------------------------------------------


async def _listed(subject: Subject) -> list[Any]:
    answer = await subject.wire.post(subject.path("tasks"), {"split": subject.split})
    if answer.status == 400 and "not supported" in answer.detail():
        raise NotTried("this environment has tasks by index only")
    value = answer.expect(200).object().get("tasks")
    if not isinstance(value, list):
        raise Broken(f"{answer}: no list of tasks")
    return cast("list[Any]", value)


@rule(
    "tasks.list",
    REQUIRED,
    tried="POST /{env}/tasks",
    expected='{"tasks": [object, …], "env_name": name}; or 400 "list_tasks is not supported …"',
    why="openreward's client reads env_name beside the tasks and raises KeyError without it",
)
async def list_tasks(subject: Subject) -> str:
    tasks = await _listed(subject)
    answer = await subject.wire.post(subject.path("tasks"), {"split": subject.split})
    fit(answer, dict[str, Any])
    if not all(isinstance(task, dict) for task in tasks) or not isinstance(answer.object().get("env_name"), str):
        raise Broken(f"{answer}: a task that is not an object, or no env_name")
    return f"{len(tasks):,} tasks of {subject.split}"


@rule(
    "tasks.count",
    REQUIRED,
    tried="POST /{env}/num_tasks",
    expected='{"num_tasks": n}, as many as /tasks lists',
    why="trainers draw indices below it: TRL asks for each of them",
)
async def count_tasks(subject: Subject) -> str:
    answer = (await subject.wire.post(subject.path("num_tasks"), {"split": subject.split})).expect(200)
    number = answer.object().get("num_tasks")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Broken(str(answer))
    try:
        listed = len(await _listed(subject))
    except NotTried:
        return str(answer)
    if listed != number:
        raise Broken(f"{answer}, and /tasks lists {listed:,}")
    return str(answer)


@rule(
    "tasks.one",
    REQUIRED,
    tried="POST /{env}/task with the index 0",
    expected='{"task": the first of /tasks, "env_name": name}',
    why="openreward's get_task raises KeyError without env_name: TRL cannot train",
)
async def one_task(subject: Subject) -> str:
    assert subject.task_count
    answer = (await subject.wire.post(subject.path("task"), {"split": subject.split, "index": 0})).expect(200)
    given = answer.object()
    if not isinstance(given.get("task"), dict) or not isinstance(given.get("env_name"), str):
        raise Broken(f"{answer}: no task, or no env_name")
    try:
        listed = await _listed(subject)
    except NotTried:
        return str(answer)
    if given["task"] != listed[0]:
        raise Broken(f"{answer}, where /tasks begins with {plain(str(listed[0]), 80)}")
    return str(answer)


@rule(
    "tasks.range",
    REQUIRED,
    tried="POST /{env}/task_range from 0 to 2, and from 1 to 1",
    expected='{"tasks": as a Python slice of the list, "env_name": name}',
    why="openreward's get_task_range raises KeyError without env_name, and resumed runs ask for the rest of a split",
)
async def task_range(subject: Subject) -> str:
    number = subject.task_count
    for start, stop in ((0, 2), (1, 1)):
        body = {"split": subject.split, "start": start, "stop": stop}
        answer = (await subject.wire.post(subject.path("task_range"), body)).expect(200)
        given = answer.object()
        if not isinstance(given.get("tasks"), list) or len(as_list(given["tasks"])) != len(range(number)[start:stop]):
            raise Broken(f"{answer}, for a slice of {start}:{stop} of {number:,}")
        if not isinstance(given.get("env_name"), str):
            raise Broken(f"{answer}: no env_name")
    return f"slices of {number:,} tasks"


@rule(
    "tasks.other-spelling",
    OURS,
    tried="POST /{env}/get_task, as the specification spells it",
    expected="the same as /task",
    why="a client written from the specification uses this path",
)
async def other_spelling(subject: Subject) -> str:
    assert subject.task_count
    answer = await subject.wire.post(subject.path("get_task"), {"split": subject.split, "index": 0})
    return kept(isinstance(answer.expect(200).object().get("task"), dict), answer)


@rule(
    "tasks.stable",
    REQUIRED,
    tried="POST /{env}/tasks twice",
    expected="the same tasks in the same order",
    why="an index means another task otherwise: rewards of a group belong to several tasks",
)
async def stable_tasks(subject: Subject) -> str:
    first, second = await _listed(subject), await _listed(subject)
    if first != second:
        place = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        raise Broken(f"{len(first):,} and {len(second):,} tasks, different from index {place} on")
    return f"{len(first):,} tasks"


@rule(
    "tasks.invalid-split",
    REQUIRED,
    tried="POST /{env}/num_tasks with a split that is not there",
    expected='400 "Invalid split"',
    why="clients show the detail: a 500 would be taken for a broken server and retried",
)
async def invalid_split(subject: Subject) -> str:
    answer = await subject.wire.post(subject.path("num_tasks"), {"split": "no-such-split"})
    return kept(answer.expect(400).detail().startswith("Invalid split"), answer)


@rule(
    "tasks.invalid-index",
    REQUIRED,
    tried="POST /{env}/task with an index past the end",
    expected='400 "Invalid index"',
    why="clients show the detail: a 500 would be taken for a broken server and retried",
)
async def invalid_index(subject: Subject) -> str:
    body = {"split": subject.split, "index": subject.task_count + 1_000_000}
    answer = await subject.wire.post(subject.path("task"), body)
    return kept(answer.expect(400).detail().startswith("Invalid index"), answer)


@rule(
    "tasks.of-a-subclass",
    REQUIRED,
    tried=f"num_tasks of {DERIVED}, a subclass of {PROBE} with other tasks, after that of its base",
    expected="its own number",
    why="caches kept on the class give a subclass the tasks of its base: the model trains on the wrong ones",
    probe=True,
)
async def tasks_of_a_subclass(subject: Subject) -> str:
    if DERIVED not in subject.names:
        raise NotTried(f"needs the environment {DERIVED} beside {PROBE}")
    for name, split, number in ((PROBE, "train", 3), (DERIVED, "train", 1)):
        answer = (await subject.wire.post(subject.path("num_tasks", name), {"split": split})).expect(200)
        if answer.object().get("num_tasks") != number:
            raise Broken(f"{answer}, where {name} has {number}")
    answer = (await subject.wire.post(subject.path("task", DERIVED), {"split": "train", "index": 0})).expect(200)
    return kept(answer.object().get("task") == {"label": "derived"}, answer)
