"""The environment variables that an image's own shell scripts set."""

from __future__ import annotations

from collections.abc import Sequence

from ors_containers.builds.client import BuildLimits, run_scripts
from ors_containers.builds.scripts import Script
from ors_containers.errors import StartFailed
from ors_containers.image import Image
from ors_containers.images.repository import ImageRepository
from ors_containers.images.storing.records import ImageRecord

__all__ = ["apptainer_environment", "script_variables"]

#: Variables that the shell sets for itself.
_SHELL_VARIABLES = frozenset(("PWD", "OLDPWD", "SHLVL", "_", "IFS", "OPTIND", "PS1", "PS2", "PS4", "PPID"))

#: Apptainer sources these scripts before it runs anything in an image.
_SOURCED = """\
for script in /.singularity.d/env/*.sh; do
  case "$script" in */99-*|*/94-*|*/95-*|*/01-*) continue;; esac
  . "$script" >/dev/null 2>&1 || true
done
"""


async def apptainer_environment(images: ImageRepository, layers: Sequence[str], name: str) -> dict[str, str]:
    """Return the variables that the scripts in ``/.singularity.d/env`` set.

    They are run in a build sandbox. The result is empty where this machine cannot start one.
    """
    base = images.base_of(ImageRecord(name=name, layers=tuple(layers)))
    variables = {"PATH": base.variables["PATH"], "HOME": "/root"}
    try:
        return await script_variables(images, base, "environment", _SOURCED, variables)
    except StartFailed:
        return {}


async def script_variables(
    images: ImageRepository, image: Image, label: str, text: str, before: dict[str, str]
) -> dict[str, str]:
    """Run a script in a build sandbox with the variables ``before``, and return those that are different at its end.

    Raises what ``run_scripts`` raises.
    """
    script = Script(label, f"{text}exec env -0\n", environment=before, capture=True)
    async with images.layers.folder() as folder:
        built = await run_scripts(
            image,
            [script],
            folder,
            owners=images.layers.owners,
            limits=BuildLimits(disk=images.max_size, seconds=60.0),
            state=images.state,
        )
    return _changed_variables(built.captured, before)


def _changed_variables(output: bytes, before: dict[str, str]) -> dict[str, str]:
    """Return the variables in the output of ``env -0`` that differ from ``before``."""
    found: dict[str, str] = {}
    for line in output.decode(errors="replace").split("\0"):
        name, equals, value = line.partition("=")
        if equals and name not in _SHELL_VARIABLES and before.get(name) != value:
            found[name] = value
    return found
