"""The terminal environment's modules, loaded as a server loads them: by path, in a package of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ors_server.hosting.folder_imports import folder_package
from tests.support.paths import ROOT

__all__ = [
    "FOLDER",
    "blame",
    "canary",
    "endless",
    "environment",
    "generated",
    "generation",
    "grading",
    "imported_code",
    "plain_tests",
    "preparation",
    "reading_programs",
    "references",
    "settings",
    "task",
    "trusted_surroundings",
    "verification",
    "writing",
]

FOLDER = ROOT / "environments" / "terminal"

if TYPE_CHECKING:
    from environments.terminal import (
        blame,
        canary,
        endless,
        environment,
        generated,
        generation,
        grading,
        imported_code,
        plain_tests,
        preparation,
        reading_programs,
        references,
        settings,
        task,
        trusted_surroundings,
        verification,
        writing,
    )
else:
    _package = folder_package(FOLDER)
    blame = _package.load("blame")
    canary = _package.load("canary")
    imported_code = _package.load("imported_code")
    environment = _package.load("environment")
    endless = _package.load("endless")
    generated = _package.load("generated")
    generation = _package.load("generation")
    grading = _package.load("grading")
    plain_tests = _package.load("plain_tests")
    preparation = _package.load("preparation")
    references = _package.load("references")
    reading_programs = _package.load("reading_programs")
    settings = _package.load("settings")
    task = _package.load("task")
    trusted_surroundings = _package.load("trusted_surroundings")
    verification = _package.load("verification")
    writing = _package.load("writing")
