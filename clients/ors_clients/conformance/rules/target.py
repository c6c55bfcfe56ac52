"""Rules of an environment, tried on a target that this check serves itself: random episodes, and what they leave.

The episodes are played once, for all rules: each a session of a random task with random valid calls, until it is
finished. The same ``--seed`` plays the same ones.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from ors_clients.conformance.generator import NoInput
from ors_clients.conformance.rule import RECOMMENDED, REQUIRED, Broken, NotTried, Rules, Warned, plain
from ors_clients.conformance.shapes import fit
from ors_clients.conformance.subject import Reply, Subject
from ors_clients.conformance.target import Observer, State
from ors_clients.conformance.values import as_list, as_object
from ors_clients.conformance.wire import Wire
from ors_server.protocol import Blocks

__all__ = ["RULES"]

RULES = rule = Rules()
#: Calls of one episode, tasks whose prompts are read, and tasks of a split that are compared.
_CALLS, _PROMPTS, _TASKS = 8, 10, 5_000
#: Seconds that a process may take to free what ended sessions held.
_PATIENCE = 3.0


@dataclass
class Episode:
    """One random episode."""

    index: int
    calls: list[tuple[str, Reply]] = field(default_factory=list[tuple[str, Reply]])
    finished: bool = False
    #: The call after the finishing one.
    afterwards: Reply | None = None
    #: Tools for which no valid input could be made.
    without_input: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def rewards(self) -> list[Any]:
        """The rewards that came, whatever they are."""
        return [
            reply.output["reward"]
            for _, reply in self.calls
            if reply.error is None and reply.result["ok"] and reply.output.get("reward") is not None
        ]


def _observer(subject: Subject) -> Observer:
    """Return the observer of the target's process. Raises ``NotTried`` where another's server is checked."""
    if subject.observer is None:
        raise NotTried("only for a target: folder, file.py or module:Class")
    return subject.observer


async def _play(subject: Subject, index: int) -> Episode:
    episode = Episode(index)
    body = {"env_name": subject.environment, "split": subject.split, "index": index}
    async with subject.session(body) as sid:
        listed = (await subject.wire.get(subject.path("task_tools"), sid)).expect(200).object().get("tools")
        tools = [as_object(tool) for tool in as_list(listed)]
        for _ in range(_CALLS):
            if not tools:
                break
            tool = subject.random.choice(tools)
            try:
                input = subject.generator.input(tool.get("input_schema"))
            except NoInput as error:
                episode.without_input[tool["name"]] = str(error)
                continue
            reply = await subject.call(sid, tool["name"], input, timeout=60.0)
            episode.calls.append((tool["name"], reply))
            if reply.error is None and reply.result["ok"] and reply.output.get("finished"):
                episode.finished = True
                episode.afterwards = await subject.call(sid, tool["name"], input)
                break
    return episode


async def _episodes(subject: Subject) -> list[Episode]:
    """Play the episodes, or return those that were played. Raises ``NotTried`` and ``Broken``."""
    observer = _observer(subject)
    if not subject.episodes:
        number = subject.task_count
        # One before the first state: what is kept for all sessions is made in it.
        subject.episodes.append(await _play(subject, 0))
        await asyncio.sleep(0.1)
        subject.before = await observer.state()
        for _ in range(subject.options.episodes):
            subject.episodes.append(await _play(subject, subject.random.randrange(min(number, _TASKS))))
    return cast("list[Episode]", subject.episodes)


@rule(
    "target.calls",
    REQUIRED,
    tried="random episodes with random valid calls, of the tools that their sessions list",
    expected="a result for each call; none is refused as invalid, and no tool raises",
    why="a model sends such calls: a tool that raises on one ends the episode in openreward's client",
)
async def calls(subject: Subject) -> str:
    episodes = await _episodes(subject)
    number = 0
    for episode in episodes:
        for name, reply in episode.calls:
            number += 1
            if reply.error is not None:
                raise Broken(f"the tool {plain(name, 40)} raised on task {episode.index}: {plain(reply.error, 160)}")
            if not reply.result["ok"]:
                raise Broken(
                    f"a valid call of {plain(name, 40)} was refused: {plain(str(reply.result.get('error')), 160)}"
                )
    skipped = {name: reason for episode in episodes for name, reason in episode.without_input.items()}
    if skipped:
        raise Warned(
            f"{number} calls; no input was found for " + plain("; ".join(f"{n}: {r}" for n, r in skipped.items()))
        )
    if not number:
        raise NotTried("no session lists a tool")
    return f"{number} calls in {len(episodes)} episodes"


@rule(
    "target.rewards",
    REQUIRED,
    tried="the rewards of the random episodes",
    expected="numbers, finite, and within --reward-range where one is given",
    why="trainers compute advantages from them: one infinite or misplaced reward spoils a whole group",
)
async def rewards(subject: Subject) -> str:
    episodes = await _episodes(subject)
    found: list[float] = []
    for episode in episodes:
        for reward in episode.rewards:
            if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
                raise Broken(f"{plain(str(reward), 60)} on task {episode.index}")
            found.append(float(reward))
    if subject.options.rewards is not None:
        low, high = subject.options.rewards
        for reward in found:
            if not low <= reward <= high:
                raise Broken(f"{reward:g}, which is not within {low:g} to {high:g}")
    if not found:
        return "no call had a reward"
    return f"{len(found)} rewards from {min(found):g} to {max(found):g}"


@rule(
    "target.full-reward",
    RECOMMENDED,
    tried="the sum of rewards of each random episode",
    expected="less than the full reward (the upper end of --reward-range, else 1)",
    why="a task that random calls solve teaches a model nothing, or its grader can be cheated",
)
async def full_reward(subject: Subject) -> str:
    full = subject.options.rewards[1] if subject.options.rewards else 1.0
    episodes = await _episodes(subject)
    for episode in episodes:
        numbers = [reward for reward in episode.rewards if isinstance(reward, int | float)]
        if numbers and sum(numbers) >= full:
            raise Warned(f"random calls earned {sum(numbers):g} on task {episode.index} of {plain(subject.split, 40)}")
    return f"none of {len(episodes)} episodes"


@rule(
    "target.finished",
    REQUIRED,
    tried="a further call in each random episode that was finished",
    expected="a result with ok: false and the reason episode_finished",
    why="a model that goes on earns its reward again and again",
)
async def finished(subject: Subject) -> str:
    ended = [episode for episode in await _episodes(subject) if episode.afterwards is not None]
    if not ended:
        raise NotTried("no random episode was finished; more --episodes, or another --seed")
    for episode in ended:
        reply = episode.afterwards
        assert reply is not None
        if reply.error is not None or reply.result["ok"] or reply.result.get("reason") != "episode_finished":
            raise Broken(str(reply))
    return f"{len(ended)} episodes"


@rule(
    "target.prompts",
    REQUIRED,
    tried=f"the prompts of up to {_PROMPTS} tasks of each split",
    expected="well-formed blocks, with some text or an image",
    why="the model reads nothing else of its task",
)
async def prompts(subject: Subject) -> str:
    _observer(subject)
    number = 0
    answer = await subject.wire.get(subject.path("splits"))
    for split in cast("list[dict[str, Any]]", answer.expect(200).json()):
        counted = await subject.wire.post(subject.path("num_tasks"), {"split": split["name"]})
        count = counted.expect(200).object()["num_tasks"]
        for index in sorted(subject.random.sample(range(count), min(count, _PROMPTS))):
            body = {"env_name": subject.environment, "split": split["name"], "index": index}
            sid, created = await subject.create(body)
            try:
                created.expect(200)
                answer = (await subject.wire.get(subject.path("prompt"), sid, timeout=60.0)).expect(200)
            finally:
                await subject.end(sid)
            blocks = fit(answer, Blocks)
            if not any(block["type"] == "image" or block["text"].strip() for block in blocks):
                raise Broken(f"the prompt of task {index} of {plain(split['name'], 40)} is empty")
            number += 1
    return f"{number} prompts"


@rule(
    "target.same-prompt",
    RECOMMENDED,
    tried="the prompt of the first task, in two sessions",
    expected="the same",
    why="the rollouts of a group are compared: with other prompts they have played other tasks",
)
async def same_prompt(subject: Subject) -> str:
    _observer(subject)
    read: list[Any] = []
    for _ in range(2):
        async with subject.session({**subject.task(), "split": subject.split, "index": 0}) as sid:
            read.append((await subject.wire.get(subject.path("prompt"), sid, timeout=60.0)).expect(200).json())
    if read[0] != read[1]:
        raise Broken(f"{plain(str(read[0]), 120)}, and then {plain(str(read[1]), 120)}")
    return "the same"


@rule(
    "target.same-tasks",
    REQUIRED,
    tried="the tasks of each split, in this process and in a second one",
    expected="the same tasks in the same order",
    why="an index means another task on another worker, or after a restart: a resumed run trains on what it has seen",
)
async def same_tasks(subject: Subject) -> str:
    observer = _observer(subject)
    first = await _tasks(subject, subject.wire)
    async with observer.second() as url:
        other = subject.wire.another(url)
        try:
            second = await _tasks(subject, other)
        finally:
            await other.close()
    for split, (count, tasks) in first.items():
        if second.get(split) != (count, tasks):
            others = second.get(split, (0, []))
            place = next((n for n, (a, b) in enumerate(zip(tasks, others[1], strict=False)) if a != b), None)
            raise Broken(
                f"{plain(split, 40)}: {count:,} and {others[0]:,} tasks"
                + (f", different from index {place} on" if place is not None else "")
            )
    return ", ".join(f"{plain(split, 40)}: {count:,} tasks" for split, (count, _) in first.items())


async def _tasks(subject: Subject, wire: Wire) -> dict[str, tuple[int, list[Any]]]:
    found: dict[str, tuple[int, list[Any]]] = {}
    answer = await wire.get(subject.path("splits"))
    for split in cast("list[dict[str, Any]]", answer.expect(200).json()):
        name = str(split["name"])
        counted = await wire.post(subject.path("num_tasks"), {"split": name}, timeout=60.0)
        body = {"split": name, "start": 0, "stop": _TASKS}
        ranged = await wire.post(subject.path("task_range"), body, timeout=60.0)
        found[name] = (counted.expect(200).object()["num_tasks"], ranged.expect(200).object()["tasks"])
    return found


@rule(
    "target.private-fields",
    REQUIRED,
    tried="the tasks of /tasks, /task and /task_range, where the class has private_task_fields, or a name like it",
    expected="none of these fields, each of which some task has",
    why="trainers store tasks in their data sets: the model would be trained on the answers",
)
async def private_fields(subject: Subject) -> str:
    observer = _observer(subject)
    environment = subject.environment.lower()
    start = await observer.state()
    if misspelt := start.misspelt.get(environment):
        raise Broken(f"the class has {plain(', '.join(misspelt), 80)}, which is not private_task_fields")
    names = start.private.get(environment, [])
    if not names:
        raise NotTried("the class has no private_task_fields")
    where = {"split": subject.split}
    answers = [
        await subject.wire.post(subject.path("tasks"), where),
        await subject.wire.post(subject.path("task"), {**where, "index": 0}),
        await subject.wire.post(subject.path("task_range"), where),
    ]
    for answer in answers:
        given = answer.object()
        for task in as_list(given.get("tasks", [given.get("task")])):
            if shown := set(names) & set(as_object(task)):
                raise Broken(f"{answer.request}: {', '.join(sorted(shown))}")
    read = await _tasks(subject, subject.wire)
    absent = set(names) - set((await observer.state()).withheld.get(environment, []))
    if absent:
        came = f"no task has a field {plain(', '.join(sorted(absent)), 120)}"
        if all(len(tasks) == count for count, tasks in read.values()):
            raise Broken(came)
        raise Warned(f"{came}, of the first {_TASKS:,} of each split")
    return ", ".join(names)


async def _settled(subject: Subject) -> tuple[State, State]:
    """Return the state before the episodes and after them, once it no longer changes."""
    await _episodes(subject)
    observer = _observer(subject)
    assert subject.before is not None
    wanted = subject.before.teardowns + subject.options.episodes
    after = await observer.state()
    for _ in range(int(_PATIENCE / 0.1)):
        if after.teardowns >= wanted and not any(
            len(held) > len(subject.before.held[kind]) for kind, held in after.held.items()
        ):
            break
        await asyncio.sleep(0.1)
        after = await observer.state()
    return subject.before, after


@rule(
    "target.teardown",
    REQUIRED,
    tried="the teardowns of the random episodes",
    expected="one for each, and none raises",
    why="containers and files of an episode stay behind, or those of another are removed",
)
async def teardown(subject: Subject) -> str:
    observer = _observer(subject)
    # Counted from here: other rules have sessions of their own.
    start = await observer.state()
    if subject.environment.lower() not in start.counted:
        raise NotTried("the class has no teardown")
    for number in range(subject.options.episodes):
        await _play(subject, number % subject.task_count)
    wanted = start.teardowns + subject.options.episodes
    after = await observer.state()
    for _ in range(int(_PATIENCE / 0.1)):
        if after.teardowns >= wanted:
            break
        await asyncio.sleep(0.1)
        after = await observer.state()
    if after.teardowns != wanted:
        raise Broken(f"{after.teardowns - start.teardowns} for {subject.options.episodes} episodes")
    if raised := after.raised[len(start.raised) :]:
        raise Broken(f"{len(raised)} of {wanted - start.teardowns} raised: {plain(raised[0], 160)}")
    return f"{subject.options.episodes} for as many episodes"


@rule(
    "target.leftovers",
    RECOMMENDED,
    tried="threads, processes, open files and temporary files of the server, before and after the random episodes",
    expected="not one more for each episode",
    why="a run has a hundred thousand episodes: what each leaves ends the server",
)
async def leftovers(subject: Subject) -> str:
    before, after = await _settled(subject)
    left: list[str] = []
    for kind, held in after.held.items():
        new = Counter(held) - Counter(before.held[kind])
        if new.total() >= max(subject.options.episodes, 1):
            left.append(f"{new.total()} {kind}: {plain(', '.join(sorted(new)[:3]), 100)}")
    if left:
        raise Broken(f"after {subject.options.episodes} episodes " + "; ".join(left))
    return f"nothing after {subject.options.episodes} episodes"
