"""Images of registries, fetched with a program of this machine where there is a network."""

from __future__ import annotations

import shutil

from ors_containers.errors import ProgramMissing
from ors_containers.images.importers import import_image
from ors_containers.images.programs import run_program
from ors_containers.images.progress import Progress, Step, line_progress
from ors_containers.images.repository import ImageRepository
from ors_containers.images.storing.records import ImageRecord

__all__ = ["fetch_image", "find_fetcher"]


def find_fetcher(reference: str, *, place: str = "") -> tuple[str, str]:
    """Return name and path of this machine's program that fetches from registries.

    ``place`` begins the message of an error. Raises ``ProgramMissing``.
    """
    for name in ("skopeo", "podman", "apptainer", "singularity"):
        program = shutil.which(name)
        if program is not None:
            return name, program
    raise ProgramMissing(
        f"{place}fetching {reference} takes skopeo, podman or apptainer; none is here",
        f"Install one (Debian, Ubuntu: apt install skopeo). {_without_network(reference)}",
    )


def _without_network(name: str) -> str:
    return f"Without a network, import an archive of it under this name: ors-server image import FILE --name {name}"


async def fetch_image(
    images: ImageRepository, reference: str, name: str, progress: Progress | None, *, place: str = ""
) -> ImageRecord:
    """Fetch an image and save it under ``name``.

    ``reference`` has been checked: no program can take it for an option. Raises ``ProgramMissing``, ``BuildFailed``
    where it cannot be fetched, and the errors of an import.
    """
    kind, program = find_fetcher(reference, place=place)
    if progress is not None:
        progress(Step(f"Fetching {reference}"))
    async with images.layers.folder() as folder:
        archive = folder / ("image.tar" if kind in ("skopeo", "podman") else "sandbox")
        if kind == "skopeo":
            commands = [[program, "copy", f"docker://{reference}", f"oci-archive:{archive}"]]
        elif kind == "podman":
            commands = [
                [program, "pull", "--policy", "missing", reference],
                [program, "save", "--format", "oci-archive", "-o", str(archive), reference],
            ]
        else:
            commands = [[program, "build", "--sandbox", str(archive), f"docker://{reference}"]]
        problem = f"{place}{reference} cannot be fetched"
        for command in commands:
            await run_program(command, problem, on_line=line_progress(progress), remedy=_without_network(name))
        return await import_image(images, archive, name, "", progress, source=f"docker {reference}")
