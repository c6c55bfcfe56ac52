"""Builds of Dockerfiles: the layers of a plan that the store lacks, and the image's record.

Invariants: a step whose layer exists is not made again, and a stage of which no layer is needed is not built. An image
gets its name when all its layers exist.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ors_containers.builds.client import BuildLimits, run_scripts
from ors_containers.builds.scripts import Script
from ors_containers.errors import InvalidDefinition, InvalidImage, UnknownImage
from ors_containers.image import Image
from ors_containers.images.accounts import docker_account, find_ids
from ors_containers.images.dockerfile.context import BuildContext
from ors_containers.images.dockerfile.ignore import read_ignore_rules
from ors_containers.images.dockerfile.lexer import Source
from ors_containers.images.dockerfile.parser import read_dockerfile
from ors_containers.images.dockerfile.plan import BaseFinder, BuildOptions, plan_build
from ors_containers.images.dockerfile.steps import CopyStep, FolderStep, RunStep, StagePlan, Step
from ors_containers.images.progress import Progress, line_progress
from ors_containers.images.progress import Step as ProgressStep
from ors_containers.images.repository import ImageRepository
from ors_containers.images.storing.layer_store import layer_key, new_upper
from ors_containers.images.storing.records import ImageRecord
from ors_containers.layers.copying import CopyTarget
from ors_containers.layers.tree import LayeredTree
from ors_containers.layers.writer import Entry

__all__ = ["build_dockerfile"]

#: Seconds that one RUN may take.
_TIMEOUT = 3600.0


async def build_dockerfile(
    images: ImageRepository,
    path: Path,
    context: Path,
    name: str,
    options: BuildOptions,
    find_base: BaseFinder,
    progress: Progress | None,
) -> ImageRecord:
    """Build a Dockerfile and save its image; see ``ImageStore.build_dockerfile``."""
    dockerfile = await asyncio.to_thread(read_dockerfile, path)
    files = await asyncio.to_thread(_context, path, context, images.max_size)
    plan = await plan_build(
        dockerfile,
        files,
        options,
        find_base,
        owners=images.layers.owners.tag,
        exists=lambda key: images.layers.path(key).is_dir(),
    )
    builder = _Builder(images, dockerfile.source, progress)
    for note in plan.notes:
        builder.report(note)
    stage = plan.target
    if not stage.layers:
        raise dockerfile.source.error(0, "The image would be empty", "COPY files into it")
    await builder.provide(stage)
    configuration = stage.configuration
    record = ImageRecord(
        name=name,
        layers=stage.layers,
        binds=stage.binds,
        environment=dict(configuration.environment),
        labels=dict(configuration.labels),
        config=dict(configuration.config),
        directory=str(configuration.config.get("WorkingDir") or ""),
        names_user=bool(configuration.user),
        source=str(path),
    )
    origin = layer_key(
        "dockerfile", list(record.layers), *map(dict, (record.environment, record.labels)), record.config
    )
    try:
        existing = images.record(name)
        if existing.origin == origin:
            images.image_of(existing)
            return existing
    except (UnknownImage, InvalidImage):
        pass  # there is none, or it is damaged and replaced
    return images.save(await images.provide_account(replace(record, origin=origin), configuration.user))


def _context(path: Path, folder: Path, limit: int) -> BuildContext:
    if not folder.is_dir():
        raise InvalidDefinition(str(path), 0, f"its context {folder} is not a folder")
    return BuildContext(folder, read_ignore_rules(folder, path), limit=limit)


class _Builder:
    def __init__(self, images: ImageRepository, source: Source, progress: Progress | None) -> None:
        self._images = images
        self._layers = images.layers
        self._source = source
        self._progress = progress

    def report(self, text: str) -> None:
        if self._progress is not None:
            self._progress(ProgressStep(text))

    async def provide(self, stage: StagePlan) -> None:
        """Make the layers of a stage that the store lacks."""
        if stage.base is not None:
            await self.provide(stage.base)
        elif not self._layers.use(stage.base_layers):
            raise UnknownImage(f"The base of stage {stage.name} has lost a layer", "Import or build it again")
        below = stage.base_layers
        for number, step in enumerate(stage.steps, 1):
            label = f"[{stage.name} {number}/{len(stage.steps)}] {step.shown}"
            if self._layers.use([step.key]):
                self.report(f"{label} (made before)")
            else:
                if isinstance(step.work, CopyStep) and step.work.stage is not None:
                    await self.provide(step.work.stage)
                self.report(label)
                await self._make(stage, step, below)
            below = (step.key, *below)

    async def _make(self, stage: StagePlan, step: Step, below: tuple[str, ...]) -> None:
        paths = [self._layers.path(key) for key in below]
        work = step.work

        async def fill(folder: Path) -> int:
            match work:
                case RunStep():
                    return await self._run(stage, step, work, paths, folder)
                case CopyStep():
                    return await self._copy(stage, work, paths, new_upper(folder))
                case FolderStep():
                    return await self._folder(work, paths, new_upper(folder))

        try:
            await self._layers.provide(step.key, f"{step.shown} of {self._source.path}", fill)
        except InvalidDefinition:
            raise
        except InvalidImage as error:
            raise self._source.error(step.line, f"{step.shown}: {error.cause}", error.remedy) from error

    async def _run(self, stage: StagePlan, step: Step, work: RunStep, below: list[Path], folder: Path) -> int:
        image = Image(
            name=f"{self._source.path.name}, stage {stage.name}",
            layers=tuple(below),
            binds=tuple((Path(source), target) for source, target in stage.binds),
            user=0,
            group=0,
            user_name="root",
            home="/",
        )
        account = docker_account(LayeredTree(image.layers), work.user)
        script = Script(
            label="RUN",
            text=work.text,
            user=account.user,
            group=account.group,
            groups=account.groups if account.user else (),
            environment={"HOME": account.home, **work.environment},
            directory=work.directory,
            arguments=work.arguments,
        )
        async with self._layers.builds:
            built = await run_scripts(
                image,
                [script],
                folder,
                owners=self._layers.owners,
                limits=BuildLimits(disk=self._images.max_size, seconds=_TIMEOUT),
                network=work.network,
                scratch=work.mounts,
                said=line_progress(self._progress),
                state=self._images.state,
                where=lambda _script, _line: f"{self._source.path}, line {step.line}: `{step.shown}`",
            )
        return built.size

    async def _folder(self, work: FolderStep, below: list[Path], upper: Path) -> int:
        tree = LayeredTree(below)
        if tree.find(tree.resolve(work.path, last=True)) is not None:
            return 0
        account = docker_account(tree, work.user)
        entry = Entry(work.path, "directory", mode=0o755, user=account.user, group=account.group)
        return await self._layers.owners.write(upper, [entry], below)

    async def _copy(self, stage: StagePlan, work: CopyStep, below: list[Path], upper: Path) -> int:
        tree = LayeredTree(below)
        resolved = f"/{tree.resolve(work.target, last=True)}/"
        for _, bound in stage.binds:
            if resolved.startswith(f"{bound}/"):
                raise InvalidImage(f"{work.target} would be hidden: {bound} is this machine's own there")
        user, group = find_ids(tree, work.chown) if work.chown else (None, None)
        sources = [
            source._replace(layers=[str(self._layers.path(key)) for key in source.layers]) for source in work.sources
        ]
        target = CopyTarget(work.target, user, group, work.mode)
        return await self._layers.owners.copy_files(upper, below, sources, target, limit=self._images.max_size)
