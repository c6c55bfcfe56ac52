"""The stages of one task: each tries one thing, and its result is kept, so that a killed run goes on where it was.

``image`` builds what the agent starts from. ``fetch`` runs the task's ``test.sh`` once with a network and keeps what it
fetched. ``seal`` runs the same script without a network: exit status and reward must be the same. ``nothing``,
``oracle`` and ``cheat`` play the task: nothing earns 0, the solution earns 1, and a loop that writes the reward 0.

Invariant: a stage is tried on what the stages before it have kept, and by the way that grades episodes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ors_containers import Image, SandboxError
from ors_containers.errors import BuildFailed
from ors_containers.layers.leaving_out import LeftOut

from ors_server import OrsError

from ..folder import HarborTask
from ..playing.agent import open_agent
from ..playing.folder_layers import folder_layer
from ..playing.judging import judge_container
from ..playing.verification import (
    SEALED_FILES,
    Containers,
    Verification,
    agent_image,
    run_verifier,
    verifier_variables,
    wanted_hosts,
)
from ..record import STAGES, Record, StageResult
from ..refusals import not_prepared
from ..reward import JSON_FILE, TEXT_FILE, Reward, read_reward
from ..templates import VariableMissing, filled
from .addresses import Answer, addresses_layer, named_answers, unknown_hosts
from .agents_programs import programs_run
from .fetched import keep_toolchain
from .left_out import ALWAYS, UsedPaths
from .scripts import run_with_network

if TYPE_CHECKING:
    from ors_containers.images.image_map import ImageMap
    from ors_containers.images.storing.records import ImageRecord

__all__ = ["Preparation", "prepare_task"]

#: Seconds of a solution, where its task names none.
_SOLUTION_PATIENCE = 3600.0
#: The cheat that Harbor pays where the verifier shares the agent's container.
_CHEAT = (
    "setsid sh -c 'while :; do mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt; sleep 0.1; done' "
    ">/dev/null 2>&1 </dev/null & sleep 0.5"
)
_TAIL = 400
#: A script that writes 0 whatever happens ends alike with a network and without, also where no part of it works.
_NOT_SHOWN = "the folder has no solution, so nothing shows that its verifier can give 1 here"


class _StageFailed(Exception):
    """A stage has failed; the text says why, and ``outputs`` are what its programs printed.

    ``unneeded`` are hosts without which the verifier did its work.
    """

    def __init__(self, reason: str, *outputs: str, unneeded: Collection[str] = ()) -> None:
        super().__init__(reason)
        self.outputs = outputs
        self.unneeded = unneeded


@dataclass(frozen=True)
class Preparation:
    """The things that preparations share: containers, the image map, the operator's variables, and choices."""

    service: Containers
    images: ImageMap
    variables: Mapping[str, str]
    #: The folder of the records.
    records: Path
    #: What addresses that scripts fetch are answered with here, by their patterns.
    addresses: Mapping[str, Answer]
    #: Take a task whose verdict an agent could write, with a mark.
    flag: bool = False
    #: Take a task without a solution, of which nothing shows that its verifier can give 1.
    without_solution: bool = False


async def prepare_task(
    preparation: Preparation,
    task: HarborTask,
    key: str,
    *,
    again: bool = False,
    on_stage: Callable[[str, StageResult], None] | None = None,
) -> Record:
    """Run the stages that a task's record lacks, and keep each result; ``again`` runs all of them.

    Stops after a stage that fails, which the next call tries again.
    """
    record = None if again else Record.load(preparation.records, key)
    if record is None or record.name != task.name:
        record = Record(key, task.name, str(task.folder))
    stages = _Stages(preparation, task)
    for name in STAGES:
        known = record.stages.get(name)
        if known is not None and known.outcome != "fails" and record.is_kept(preparation.service.store):
            continue
        begun = time.monotonic()
        try:
            record, result = await stages.run(name, record)
        except BuildFailed as error:
            result = _failure(" ".join(filter(None, (error.cause, error.remedy))), error.output)
        except _StageFailed as failure:
            result = _failure(str(failure), *failure.outputs, unneeded=failure.unneeded)
        except (SandboxError, OrsError, VariableMissing) as error:
            result = _failure(str(error))
        except OSError as error:
            result = _failure(f"a file cannot be read or written: {error}")
        result = replace(result, seconds=round(time.monotonic() - begun, 1))
        record = record.with_stage(name, result)
        record.save(preparation.records)
        if on_stage is not None:
            on_stage(name, result)
        if result.outcome == "fails":
            break
    return record


class _Stages:
    def __init__(self, preparation: Preparation, task: HarborTask) -> None:
        self._service = preparation.service
        self._store = preparation.service.store
        self._images = preparation.images
        self._variables = preparation.variables
        self._flag = preparation.flag
        self._without_solution = preparation.without_solution
        self._addresses = preparation.addresses
        self._task = task

    async def run(self, name: str, record: Record) -> tuple[Record, StageResult]:
        stage: Callable[[Record], Awaitable[tuple[Record, StageResult]]] = getattr(self, f"_{name}")
        return await stage(record)

    async def _image(self, record: Record) -> tuple[Record, StageResult]:
        task = self._task
        name = f"harbor-{record.key[:24]}"
        if asked := not_prepared(task.config):
            raise _StageFailed(f"not prepared here: {', '.join(asked)}")
        if task.dockerfile is not None:
            text = await asyncio.to_thread(task.dockerfile.read_text, "utf-8")
            answers = named_answers(text, self._addresses)

            async def find_base(base: str) -> ImageRecord:
                found = await self._images.record(base)
                if not answers:
                    return found
                key = await addresses_layer(self._store, self._store.docker_image(found), answers)
                return replace(found, layers=(key, *found.layers))

            context = task.dockerfile.parent
            try:
                await self._store.build_dockerfile(
                    task.dockerfile, context, name=name, network=True, find_base=find_base
                )
            except BuildFailed as error:
                unknown = [] if wanted_hosts(error.output) else await asyncio.to_thread(unknown_hosts, text)
                if not unknown:
                    raise
                raise _StageFailed(
                    f"{error.cause}; hosts not known here: {', '.join(unknown)}", error.output
                ) from error
        else:
            found = await self._images.record(task.config.environment.docker_image or "")
            self._store.save(replace(found, name=name))
        return replace(record, image=name), StageResult("holds")

    async def _fetch(self, record: Record) -> tuple[Record, StageResult]:
        task, store = self._task, self._store
        image = self._agent_image(record)
        tests = await folder_layer(store, task.folder / "tests", "/tests", "test.sh", record.key, SEALED_FILES)
        toolchain = [tests, *await self._answers(image, task.folder / "tests" / "test.sh")]
        over = replace(image, layers=(*map(store.layers.path, toolchain), *image.layers))
        runs: list[tuple[int, float | None, str]] = []

        async def fill(folder: Path) -> int:
            run = await run_with_network(
                store, over, "/tests/test.sh", folder,
                environment=verifier_variables(task, self._variables), user=str(task.config.verifier.user or ""),
                seconds=_patience(task.config.verifier.timeout_sec),
            )  # fmt: skip
            reward = read_reward(run.files.get(JSON_FILE), run.files.get(TEXT_FILE))
            if not isinstance(reward, Reward):
                raise _StageFailed(f"with a network, exit status {run.exit_status}: {reward.detail}", run.output)
            runs.append((run.exit_status, reward.value, run.output))
            await keep_toolchain(store.layers.owners, folder / "upper", image.directory)
            return run.size

        # A key of its own: what a run fetches does not follow from what it is given.
        key = secrets.token_hex(32)
        await store.layers.provide(key, f"verifier of {task.name}", fill, shared=True)
        ((status, reward, output),) = runs
        record = replace(record, toolchain=(*toolchain, key), exit_status=status, reward=reward)
        known = store.record(record.image)
        store.compose(f"{record.image}-verifier", (*record.toolchain, *known.layers), like=record.image)
        return record, StageResult("holds", f"exit status {status}, reward {reward:g}{_not_found(output)}")

    async def _seal(self, record: Record) -> tuple[Record, StageResult]:
        found = await run_verifier(self._service, self._task, record, self._variables, recorded=True)
        if (found.exit_status, found.value) != (record.exit_status, record.reward):
            whole = f"with a network exit status {record.exit_status}, reward {record.reward:g}"
            raise _StageFailed(f"{whole}; without, {found.described}", found.output)
        left_out = await asyncio.to_thread(self._rule(record).left_out, found.used)
        record = replace(record, left_out=left_out, mark="", unneeded=tuple(wanted_hosts(found.output)))
        return record, StageResult("holds", f"{found.seconds:.1f} s")

    async def _nothing(self, record: Record) -> tuple[Record, StageResult]:
        if record.reward != 0:
            raise _StageFailed(f"the start state earns {record.reward:g}")
        return record, StageResult("holds")

    async def _oracle(self, record: Record) -> tuple[Record, StageResult]:
        task, store = self._task, self._store
        if task.solution is None:
            if not self._without_solution:
                raise _StageFailed(f"{_NOT_SHOWN}. Add a solution/solve.sh, or take the task with --without-solution")
            return record, StageResult("absent", _NOT_SHOWN)
        image = self._agent_image(record)
        keys = [await folder_layer(store, task.folder / "solution", "/solution", "solve.sh", record.key)]
        keys += await self._answers(image, task.folder / "solution" / "solve.sh")
        over = replace(image, layers=(*map(store.layers.path, keys), *image.layers))
        environment = {**task.config.environment.env, **task.config.solution.env}
        async with store.layers.folder() as folder:
            run = await run_with_network(
                store, over, "/solution/solve.sh", folder, environment=self._variables_of(environment),
                user=str(task.config.agent.user or ""), seconds=_patience(task.config.agent.timeout_sec),
            )  # fmt: skip
            changes = folder / "upper"
            whole = await self._verify(record, changes, ALWAYS, recorded=True)
            if whole.value != 1:
                solution = f"the solution ends with exit status {run.exit_status}, the verifier with {whole.described}"
                raise _StageFailed(solution, run.output, whole.output, unneeded=record.unneeded)
            rule = self._rule(record)
            ran = await asyncio.to_thread(programs_run, whole.used, changes)
            strict = await asyncio.to_thread(rule.left_out, whole.used, record.left_out)
            outputs = await asyncio.to_thread(rule.with_outputs, strict, changes)
            if ran:
                outputs, strict = rule.without_modules(outputs), rule.without_modules(strict)
            chosen, judged = None, whole
            for left_out in dict.fromkeys((outputs, strict)):  # the second leaves out what the first does, and more
                judged = await self._verify(record, changes, left_out)
                if judged.value != 1:
                    break
                chosen = left_out
        if chosen is not None and not ran:
            others = [path for path in chosen.kept if path not in strict.kept]
            detail = f"the agent's beside its folder: {', '.join(others)}" if others else ""
            return replace(record, left_out=chosen), StageResult("holds", detail)
        why = ran or "the verdict needs files of the agent that the verifier runs or reads as configuration"
        if not self._flag:
            without = f"; without them: {judged.described}" if chosen is None else ""
            raise _StageFailed(f"{why}{without}", judged.output, unneeded=record.unneeded)
        return replace(record, left_out=chosen or ALWAYS, mark=why), StageResult("holds", why)

    async def _cheat(self, record: Record) -> tuple[Record, StageResult]:
        agent = await open_agent(self._service, self._task, record, self._variables, network=False)
        async with agent.container:
            await agent.container.execute(["/bin/sh", "-c", _CHEAT], timeout=30)
            found = await judge_container(self._service, self._task, record, self._variables, agent.container)
        if found.value != 0:
            raise _StageFailed(f"a loop that writes the reward ends with {found.described}")
        return record, StageResult("holds")

    # ── details ──

    async def _verify(
        self, record: Record, changes: Path, left_out: LeftOut, *, recorded: bool = False
    ) -> Verification:
        below = self._agent_image(record).layers
        await self._store.layers.owners.leave_out(changes, left_out, below)
        return await run_verifier(self._service, self._task, record, self._variables, changes, recorded=recorded)

    async def _answers(self, image: Image, script: Path) -> list[str]:
        """Return the key of the layer that answers the addresses of a script; none where it names none."""
        answers = named_answers(await asyncio.to_thread(script.read_text, "utf-8"), self._addresses)
        return [await addresses_layer(self._store, image, answers)] if answers else []

    def _rule(self, record: Record) -> UsedPaths:
        tests, *fetched = map(self._store.layers.path, record.toolchain)
        return UsedPaths(self._agent_image(record), tests, fetched)

    def _agent_image(self, record: Record) -> Image:
        return agent_image(self._store, record, self._task.config.environment.workdir)

    def _variables_of(self, env: Mapping[str, str]) -> dict[str, str]:
        return filled(env, self._variables)


def _patience(seconds: float | None) -> float:
    """Return the time of a run with a network, which fetches what a graded run has."""
    return max(_SOLUTION_PATIENCE, 2 * (seconds or 0.0))


def _failure(reason: str, *outputs: str, unneeded: Collection[str] = ()) -> StageResult:
    """Return a failed result: the reason, the hosts that programs could not find, and the end of each output."""
    ends = [output.strip()[-_TAIL:] for output in outputs]
    return StageResult(
        "fails", "\n".join([f"{reason.rstrip('.')}{_not_found(*outputs, unneeded=unneeded)}", *filter(None, ends)])
    )


def _not_found(*outputs: str, unneeded: Collection[str] = ()) -> str:
    hosts = [host for host in wanted_hosts("\n".join(outputs)) if host not in unneeded]
    return f"; hosts that were not found: {', '.join(hosts)}" if hosts else ""
