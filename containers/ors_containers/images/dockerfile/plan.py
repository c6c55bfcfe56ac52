"""The plan of a build: the stages that its target needs, as steps with keys.

A key is a digest of the layers below, the instruction with its variables expanded, and the content, modes and links of
the files that it copies. So a step with the same key makes the same layer, whichever Dockerfile it is in.
Planning reads the Dockerfile and the files of the context; it starts no program and writes no file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ors_containers.errors import InvalidDefinition, InvalidImage, UnknownImage
from ors_containers.images.dockerfile.configuration import (
    PLATFORM,
    Configuration,
    apply_metadata,
    automatic_arguments,
    expanded,
)
from ors_containers.images.dockerfile.context import BuildContext
from ors_containers.images.dockerfile.copy_step import OtherTree, plan_copy
from ors_containers.images.dockerfile.parser import Dockerfile, Instruction, StageText, read_trigger
from ors_containers.images.dockerfile.run_step import plan_run
from ors_containers.images.dockerfile.steps import CopyStep, FolderStep, Plan, RunStep, StagePlan, Step
from ors_containers.images.dockerfile.variables import split_words
from ors_containers.images.storing.layer_store import layer_key
from ors_containers.images.storing.records import ImageRecord

__all__ = ["BaseFinder", "BuildOptions", "plan_build"]

#: Finds the image of a FROM or ``COPY --from``. Raises ``UnknownImage`` and the errors of a build.
BaseFinder = Callable[[str], Awaitable[ImageRecord]]

#: Layers of one image: overlayfs has room for the names of about 400.
_MAX_LAYERS = 250


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The caller's choices for a build."""

    #: Values of ARGs by name.
    arguments: Mapping[str, str]
    #: The stage to build; empty for the last.
    target: str = ""
    network: bool = False


async def plan_build(
    dockerfile: Dockerfile,
    context: BuildContext,
    options: BuildOptions,
    find_base: BaseFinder,
    *,
    owners: str,
    exists: Callable[[str], bool],
) -> Plan:
    """Return the plan of a Dockerfile.

    ``owners`` is the tag of the owners of layers; ``exists`` returns whether the store has a layer. Raises
    ``InvalidDefinition`` with file and line, and what ``find_base`` raises.
    """
    return await _Planner(dockerfile, context, options, find_base, owners, exists).plan()


class _Planner:
    def __init__(
        self,
        dockerfile: Dockerfile,
        context: BuildContext,
        options: BuildOptions,
        find_base: BaseFinder,
        owners: str,
        exists: Callable[[str], bool],
    ) -> None:
        self._source = dockerfile.source
        self._texts = dockerfile.stages
        self._context = context
        self._options = options
        self._find_base = find_base
        self._owners = owners
        self._exists = exists
        self._declared: set[str] = set()
        self._notes: list[str] = []
        self._stages: dict[int, StagePlan] = {}
        self._images: dict[str, ImageRecord] = {}
        self._globals = automatic_arguments()
        for each in dockerfile.arguments:
            for name, default in self._argument_words(each, self._globals):
                if name in options.arguments or default is not None:
                    self._globals[name] = options.arguments.get(name, default or "")

    async def plan(self) -> Plan:
        target = self._options.target
        last = self._stage_index(target, len(self._texts)) if target else len(self._texts) - 1
        if last is None:
            names = ", ".join(stage.name or str(number) for number, stage in enumerate(self._texts))
            raise self._source.error(0, f"It has no stage {target!r}", f"Stages: {names}")
        for number in sorted(self._needed(last)):
            await self._plan_stage(number, self._texts[number])
        unused = sorted(set(self._options.arguments) - self._declared)
        if unused:
            self._notes.append(f"No ARG is called {', '.join(unused)}")
        return Plan(tuple(self._stages.values()), tuple(dict.fromkeys(self._notes)))

    def _stage_index(self, name: str, before: int) -> int | None:
        """Return the number of a stage, given by its name or number, among the first ``before``."""
        for number, stage in enumerate(self._texts[:before]):
            if stage.name == name.lower():
                return number
        return int(name) if name.isdigit() and int(name) < before else None

    def _base_of(self, number: int) -> tuple[str, int | None]:
        """Return the name in a stage's FROM, and the number of the stage that it means."""
        stage = self._texts[number]
        name = expanded(self._source, stage.start.line, stage.base, self._globals)
        return name, None if name.isdigit() else self._stage_index(name, number)

    def _needed(self, last: int) -> set[int]:
        """Return the stages that stage ``last`` is made from, itself included."""
        needed: set[int] = set()
        waiting: list[int | None] = [last]
        while waiting:
            number = waiting.pop()
            if number is None or number in needed:
                continue
            needed.add(number)
            waiting.append(self._base_of(number)[1])
            copies = [each for each in self._texts[number].instructions if each.word == "COPY" and each.flag("from")]
            waiting += [self._stage_index(each.flag("from"), number) for each in copies]
        return needed

    async def _plan_stage(self, number: int, text: StageText) -> None:
        line = text.start.line
        platform = expanded(self._source, line, text.start.flag("platform"), self._globals)
        if platform and platform.split("/")[:2] != PLATFORM.split("/"):
            raise self._source.error(
                line, f"FROM --platform={platform} is not this machine's {PLATFORM}", "Leave the flag out"
            )
        name, own = self._base_of(number)
        stage = StagePlan(text.name or str(number))
        triggers: Sequence[str] = ()
        if not name:
            raise self._source.error(line, f"FROM {text.base} names no image", "Give its ARG a value: --build-arg")
        if own is not None:
            base = self._stages[own]
            stage.base, stage.base_layers, stage.binds = base, base.layers, base.binds
            stage.configuration = replace(base.configuration, own_command=False)
        elif name != "scratch":
            record = await self._image(line, name)
            stage.base_layers, stage.binds = record.layers, record.binds
            config = record.docker_config
            triggers = config.get("OnBuild") or ()
            stage.configuration = Configuration(dict(record.environment), dict(record.labels), config=config)
        stage.configuration = stage.configuration.with_config(OnBuild=[])
        for trigger in triggers:
            await self._add(number, stage, read_trigger(self._source, line, trigger))
        for each in text.instructions:
            await self._add(number, stage, each)
            if len(stage.layers) > _MAX_LAYERS:
                raise self._source.error(
                    each.line, f"The image has more than {_MAX_LAYERS} layers", "Join its RUN and COPY instructions"
                )
        self._stages[number] = stage

    async def _image(self, line: int, name: str) -> ImageRecord:
        if name not in self._images:
            try:
                self._images[name] = await self._find_base(name)
            except InvalidDefinition:
                raise  # of another file: it has a line of its own
            except (InvalidImage, UnknownImage) as error:
                raise self._source.error(line, error.cause, error.remedy) from error
        return self._images[name]

    async def _add(self, number: int, stage: StagePlan, each: Instruction) -> None:
        """Add an instruction to a stage."""
        match each.word:
            case "RUN":
                self._run(stage, each)
            case "COPY" | "ADD":
                other = await self._other_tree(number, each)
                configuration = stage.configuration
                work, described = await plan_copy(
                    self._source, each, configuration, self._context, other, self._notes.append
                )
                self._step(stage, each, work, self._key(stage, "copy", described))
            case "WORKDIR":
                self._workdir(stage, each)
            case "ARG":
                self._argument(stage, each)
            case _:
                stage.configuration = apply_metadata(self._source, each, stage.configuration)

    def _key(self, stage: StagePlan, kind: str, *inputs: object) -> str:
        return layer_key(kind, self._owners, list(stage.layers), stage.binds, *inputs)

    @staticmethod
    def _step(stage: StagePlan, each: Instruction, work: RunStep | CopyStep | FolderStep, key: str) -> None:
        stage.steps.append(Step(each.line, each.shown, key, work))

    def _run(self, stage: StagePlan, each: Instruction) -> None:
        if not stage.layers:
            raise self._source.error(each.line, "RUN has an empty image, without a shell", "COPY its files first")
        with_network = plan_run(self._source, each, stage.configuration, note=self._notes.append)
        work = replace(with_network, network=with_network.network and self._options.network)
        inputs: list[object] = [work.arguments, work.text, work.user, work.directory, work.environment]
        inputs += [[mount.path, mount.mode, mount.user, mount.group] for mount in work.mounts]
        key, best = (self._key(stage, "run", inputs, run.network) for run in (work, with_network))
        # A layer that was made with a network serves a build without one as well.
        self._step(stage, each, work, best if self._exists(best) else key)

    async def _other_tree(self, number: int, each: Instruction) -> OtherTree | None:
        name = each.flag("from")
        if not name:
            return None
        found = self._stage_index(name, number)
        if found is not None:
            return OtherTree(self._stages[found].layers, self._stages[found])
        return OtherTree((await self._image(each.line, name)).layers)

    def _workdir(self, stage: StagePlan, each: Instruction) -> None:
        text = expanded(self._source, each.line, each.text, stage.configuration.variables)
        if not text:
            raise self._source.error(each.line, f"WORKDIR {each.text} is empty")
        path = stage.configuration.path(text).rstrip("/") or "/"
        stage.configuration = stage.configuration.with_config(WorkingDir=path)
        if path != "/":
            work = FolderStep(path, stage.configuration.user)
            self._step(stage, each, work, self._key(stage, "folder", path, work.user))

    def _argument(self, stage: StagePlan, each: Instruction) -> None:
        values = dict(stage.configuration.arguments)
        for name, default in self._argument_words(each, stage.configuration.variables):
            if name in self._options.arguments:
                values[name] = self._options.arguments[name]
            elif default is not None:
                values[name] = default
            elif name in self._globals:
                values[name] = self._globals[name]
        stage.configuration = replace(stage.configuration, arguments=values)

    def _argument_words(self, each: Instruction, variables: Mapping[str, str]) -> list[tuple[str, str | None]]:
        """Return names and defaults of an ARG."""
        try:
            words = split_words(each.text, self._source.escape)
        except ValueError as error:
            raise self._source.error(each.line, str(error)) from error
        found: list[tuple[str, str | None]] = []
        for word in words:
            name, equals, value = word.partition("=")
            self._declared.add(name)
            found.append((name, expanded(self._source, each.line, value, variables) if equals else None))
        return found
