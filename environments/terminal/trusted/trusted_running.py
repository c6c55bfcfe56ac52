"""Runs the tests of an examination, plainly or with pytest, and cleans up after each.

Invariant: what a test has started is ended, and what it has made is removed, before the next test begins, unless it
belongs to the module or to a fixture for several tests.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Callable, Generator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ors_containers.graders.process_isolation import ProcessIsolation

    from .trusted_guard import Guard
    from .trusted_programs import Programs
    from .trusted_reports import DETAIL_LIMIT, Reports
    from .trusted_surroundings import Scratch, processes_of
else:
    from trusted_reports import DETAIL_LIMIT
    from trusted_surroundings import processes_of

#: File name of the tests' text in tracebacks. pytest collects an empty file of this name.
TESTS = "test_state.py"

#: pytest's own plugins that tests of a state do not need: they cost time or write files.
_UNNEEDED = ("cacheprovider", "doctest", "faulthandler", "junitxml", "pastebin", "setuponly", "setupplan", "stepwise")


def load(tests: str, text: str, state: State) -> ModuleType:
    """Execute the tests' module. Its source is the text of the request, not a file."""
    module = ModuleType("test_state")
    module.__file__ = tests
    sys.modules[module.__name__] = state.module = module
    try:
        with state.keeping():
            exec(compile(text, tests, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - trusted
    except Exception as error:
        state.error = error
        raise
    return module


def run_plainly(tests: str, text: str, scratch: str, state: State, start: Callable[[], None]) -> int:
    """Call one test after another. Return pytest's exit status. Only for modules that ``plain_tests`` accepts."""
    start()
    try:
        module = load(tests, text, state)
    except Exception:  # noqa: BLE001 - the module's own, kept in the state
        return 2
    functions = [
        (name, value) for name, value in vars(module).items() if name.startswith("test") and type(value) is FunctionType
    ]
    for name, function in functions:
        state.programs.test = name
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - a test fails by whatever it raises, SystemExit too
            state.note_failure(name, describe(error, tests))
        else:
            state.note_success(name)
        state.clean_up()
    return 5 if not functions else 1 if state.has_failures else 0


def describe(error: BaseException, tests: str) -> str:
    """Describe an exception: its line in the tests and its message."""
    line, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == tests:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an exception of the tests' own making may say anything
        said = "…"
    return f"{TESTS}:{line}: {linecache.getline(tests, line).strip()}\n{type(error).__name__}: {said}"


def run_with_pytest(tests: str, text: str, scratch: str, state: State, start: Callable[[], None]) -> int:
    """Let pytest collect and run the tests. Return its exit status."""
    import pathlib

    import pytest

    class Tests(pytest.Module):
        """The module at ``tests`` as pytest collects it."""

        def _getobj(self) -> ModuleType:
            return load(tests, text, state)

    class Plugin:
        """pytest's hooks: results of tests, clean-up after each, and the folder for temporary files."""

        @pytest.hookimpl(trylast=True)
        def pytest_configure(self, config: Any) -> None:
            # pytest's own base folder would be the tests' user's: a program with a descriptor of it could write to it.
            # A program of the agent that is given one of the folders cannot guess the name of another.
            config._tmp_path_factory._basetemp = pathlib.Path(scratch)

            def mktemp(basename: str, numbered: bool = True) -> Any:
                return unguessable(scratch, basename)

            config._tmp_path_factory.mktemp = mktemp

        def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> pytest.Module:
            return cast("Any", Tests).from_parent(parent, path=module_path)

        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any) -> Generator[Any, Any, Any]:
            with contextlib.nullcontext() if fixturedef.scope == "function" else state.keeping():
                return (yield)

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            state.programs.test = nodeid.rpartition("::")[2]

        def pytest_runtest_logfinish(self) -> None:
            state.clean_up()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                state.note_failure(report.nodeid.rpartition("::")[2], report.longreprtext)
            elif report.when == "call" and report.passed:
                state.note_success(report.nodeid.rpartition("::")[2])

    arguments = [
        *("-q", "-c", os.devnull, "--rootdir", scratch, "--noconftest", "--import-mode=importlib"),
        *("--assert=plain", "--capture=no", "--tb=short"),
        *(word for name in _UNNEEDED for word in ("-p", f"no:{name}")),
        tests,
    ]
    start()
    return int(pytest.main(arguments, plugins=[Plugin()]))


def unguessable(scratch: str, name: str) -> Any:
    """Make a folder for temporary files, in a folder of its own whose name is random. Return its path."""
    import pathlib
    import tempfile

    made = pathlib.Path(tempfile.mkdtemp(dir=scratch), f"{name}0")
    made.mkdir(mode=0o700)
    return made


class State:
    """State of a run: results, and the programs and files that the tests have created."""

    def __init__(
        self,
        shielded: ProcessIsolation,
        end: Callable[[set[int]], None],
        scratch: Scratch,
        programs: Programs,
        said: Reports,
    ) -> None:
        self.programs = programs
        self._shield = shielded
        self._end = end
        self._scratch = scratch
        self._started = shielded.started
        self._said = said
        #: The tests' module, and the exception that its execution raised.
        self.module: ModuleType | None = None
        self.error: Exception | None = None

    def note_success(self, name: str) -> None:
        """Report a test that passed."""
        self._said.note_success(name)

    def note_failure(self, name: str, detail: str) -> None:
        """Report a test that failed."""
        self._said.failed[name] = detail[:DETAIL_LIMIT]

    def fault(self, tests: str, guard: Guard) -> dict[str, Any]:
        """Return the exception that the module raised, if it did, and whether an honest solution would meet it, too."""
        error = self.error
        if error is None:
            return {}
        # A module that cannot be imported is the task's fault; a module that fails on what it finds is the agent's.
        # A syntax error in another file is the agent's, too: the tests read Python that it wrote.
        # So is a module that the tests look for where the agent could have put it.
        own = (isinstance(error, ImportError) and all(map(guard.is_trusted, sys.path))) or (
            isinstance(error, SyntaxError) and error.filename == tests
        )
        return {"error": f"{type(error).__name__}: {error}", "own": own}

    @property
    def has_failures(self) -> bool:
        """Return whether a test has failed."""
        return bool(self._said.failed)

    @property
    def started(self) -> int:
        """Return the number of programs that the tests have started."""
        return self._shield.started - 1

    @property
    def exhausted(self) -> bool:
        """Return whether the tests wanted to start more programs than can be kept apart."""
        return self._shield.exhausted

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Keep the programs and files of this block: those of the module, and of fixtures for several tests."""
        with self._shield.keeping(), self._scratch.keeping():
            yield

    def clean_up(self, *, last: bool = False) -> None:
        """End the programs that a test has started and remove its temporary files. ``last`` ends all programs."""
        if self._started != self._shield.started:
            kept = set[int]()
            if not last:
                halves = self._shield.halves
                kept = self._shield.kept | {halves[pid] for pid in processes_of(self.module) if pid in halves}
            self._end(kept)
            if not kept:
                self._started = self._shield.started
        self._scratch.clean(self.module)
