"""The terminal environment's modules, loaded as a server loads them: by path, in a package of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ors_server.hosting.loading.folder_imports import folder_package
from tests.support.paths import ROOT

__all__ = [
    "FOLDER",
    "canary",
    "endless",
    "environment",
    "episode",
    "failure_cause",
    "generated",
    "generation",
    "grader_lines",
    "grading",
    "harbor_addresses",
    "harbor_agents_programs",
    "harbor_ctrf_report",
    "harbor_discovery",
    "harbor_files",
    "harbor_final_states",
    "harbor_folder",
    "harbor_left_out",
    "harbor_record",
    "harbor_regrading",
    "harbor_reports",
    "harbor_reward",
    "harbor_source",
    "harbor_templates",
    "harbor_verification",
    "harbor_workers",
    "imported_code",
    "plain_tests",
    "preparation",
    "reading_programs",
    "reference_states",
    "settings",
    "task",
    "task_folders",
    "terminal_bench",
    "trusted_surroundings",
    "verification",
    "writing",
]

FOLDER = ROOT / "environments" / "terminal"

if TYPE_CHECKING:
    from environments.terminal import (
        environment,
        episode,
        failure_cause,
        grading,
        preparation,
        reference_states,
        settings,
        task,
    )
    from environments.terminal.harbor import ctrf_report as harbor_ctrf_report
    from environments.terminal.harbor import discovery as harbor_discovery
    from environments.terminal.harbor import files as harbor_files
    from environments.terminal.harbor import folder as harbor_folder
    from environments.terminal.harbor import record as harbor_record
    from environments.terminal.harbor import reward as harbor_reward
    from environments.terminal.harbor import source as harbor_source
    from environments.terminal.harbor import templates as harbor_templates
    from environments.terminal.harbor.playing import final_states as harbor_final_states
    from environments.terminal.harbor.playing import regrading as harbor_regrading
    from environments.terminal.harbor.playing import verification as harbor_verification
    from environments.terminal.harbor.preparing import addresses as harbor_addresses
    from environments.terminal.harbor.preparing import agents_programs as harbor_agents_programs
    from environments.terminal.harbor.preparing import left_out as harbor_left_out
    from environments.terminal.harbor.preparing import workers as harbor_workers
    from environments.terminal.harbor.terminal_bench import conversion as terminal_bench
    from environments.terminal.tasks import endless, generated, generation, harbor_reports, verification, writing
    from environments.terminal.tasks import folders as task_folders
    from environments.terminal.tests_code import canary, grader_lines, imported_code, plain_tests, reading_programs
    from environments.terminal.trusted import trusted_surroundings
else:
    _package = folder_package(FOLDER)
    failure_cause = _package.load("failure_cause")
    canary = _package.load("tests_code.canary")
    harbor_ctrf_report = _package.load("harbor.ctrf_report")
    harbor_discovery = _package.load("harbor.discovery")
    harbor_files = _package.load("harbor.files")
    harbor_final_states = _package.load("harbor.playing.final_states")
    harbor_regrading = _package.load("harbor.playing.regrading")
    harbor_folder = _package.load("harbor.folder")
    harbor_addresses = _package.load("harbor.preparing.addresses")
    harbor_agents_programs = _package.load("harbor.preparing.agents_programs")
    harbor_left_out = _package.load("harbor.preparing.left_out")
    harbor_record = _package.load("harbor.record")
    harbor_reports = _package.load("tasks.harbor_reports")
    harbor_reward = _package.load("harbor.reward")
    harbor_workers = _package.load("harbor.preparing.workers")
    harbor_source = _package.load("harbor.source")
    harbor_templates = _package.load("harbor.templates")
    harbor_verification = _package.load("harbor.playing.verification")
    imported_code = _package.load("tests_code.imported_code")
    environment = _package.load("environment")
    episode = _package.load("episode")
    endless = _package.load("tasks.endless")
    generated = _package.load("tasks.generated")
    generation = _package.load("tasks.generation")
    grader_lines = _package.load("tests_code.grader_lines")
    grading = _package.load("grading")
    plain_tests = _package.load("tests_code.plain_tests")
    preparation = _package.load("preparation")
    reference_states = _package.load("reference_states")
    reading_programs = _package.load("tests_code.reading_programs")
    settings = _package.load("settings")
    terminal_bench = _package.load("harbor.terminal_bench.conversion")
    task_folders = _package.load("tasks.folders")
    task = _package.load("task")
    trusted_surroundings = _package.load("trusted.trusted_surroundings")
    verification = _package.load("tasks.verification")
    writing = _package.load("tasks.writing")
