"""Runs trusted tests in an interpreter that the agent cannot reach, and says how they went.

It is given to the examination of a sandbox as its program, run by the toolset's Python with ``-I -S -B``. The tests'
text and a nonce come on standard input, so neither is ever in a file, and the verdict goes out on a descriptor that no
program started by a test inherits, together with the nonce. So what a test starts (the agent's script, or ``git`` with
the agent's configuration) can read neither the tests nor the nonce, nor speak for the grader. It can end the grader,
which earns nothing.

A test that would run the agent's Python code *inside* this process would give it the grader: an audit hook refuses
that, and the task is reported as one that cannot be graded. So is one whose tests need a network, if that is certain:
a host that an agent's service or file leads the tests to is no fault of theirs, and they fail on it like on any other.

Invariant: code runs in this process only if it comes from the toolset or is the tests' own text. Nothing but the
standard library and pytest is imported; no configuration, plugin or conftest of anybody's is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import linecache
import os
import signal
import sys
from collections.abc import Callable, Generator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ors_containers.graders.shield import Shield

    from .trusted_endings import Endings
    from .trusted_guard import Guard
    from .trusted_links import LinksIntoProc
    from .trusted_surroundings import Scratch, is_trusted_folder, prepare_environment, processes_of
else:
    # Its other parts lie beside it, and nothing else does yet; afterwards nothing is imported from there.
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 - pathlib is one import more before the guard
    from trusted_endings import Endings
    from trusted_guard import Guard
    from trusted_links import LinksIntoProc
    from trusted_surroundings import Scratch, is_trusted_folder, prepare_environment, processes_of

    del sys.path[0]

#: What the tests' text is called in tracebacks; an empty file of this name is what pytest collects.
TESTS = "test_state.py"

#: How it ended, and the exit status that says the same.
PASSED, FAILED, BROKEN, INTERNAL = "passed", "failed", "broken", "internal"
REFUSED, EMPTY, NETWORK, KILLED = "refused", "empty", "network", "killed"
STATUS = {PASSED: 0, FAILED: 1, BROKEN: 2, INTERNAL: 3, REFUSED: 4, EMPTY: 5, NETWORK: 6, KILLED: 7}

#: In characters; as JSON each is up to twelve bytes of the 64 KiB that the grader keeps of what is said.
_DETAIL_LIMIT = 5_000
#: pytest's own plugins that no test of a state needs: they cost time, or write files.
_UNNEEDED = ("cacheprovider", "doctest", "faulthandler", "junitxml", "pastebin", "setuponly", "setupplan", "stepwise")
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


def main() -> int:
    """Read the request, run the tests, write the verdict. Returns the exit status."""
    if not (sys.flags.isolated and sys.flags.no_site and sys.flags.dont_write_bytecode):
        return STATUS[INTERNAL]
    # Whoever sends it ends this process; as an exception it would look like a fault of the grader.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not protect():
        return STATUS[INTERNAL]
    request = json.loads(sys.stdin.buffer.read())
    verdict = os.dup(1)  # not inheritable, as every descriptor that Python makes
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    def say(**words: Any) -> None:
        line = json.dumps({"nonce": request["nonce"], **words}).encode() + b"\n"
        while line:
            line = line[os.write(verdict, line) :]

    try:
        outcome, detail = run_tests(request, lambda: say(ready=True))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault of the grader and has to be told
        outcome, detail = INTERNAL, f"{type(error).__name__}: {error}"
    say(outcome=outcome, detail=detail[:_DETAIL_LIMIT])
    return STATUS[outcome]


def protect() -> bool:
    """Close this process to those that have its user: its memory and descriptors, in /proc and by tracing. Returns
    whether that worked."""
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return library.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


def run_tests(request: dict[str, Any], ready: Callable[[], None]) -> tuple[str, str]:
    """Run the request's tests: how they went, and what there is to say of it."""
    sys.path.append(request["packages"])
    if TYPE_CHECKING:
        from ors_containers.graders import leftovers, shield
    else:
        import leftovers
        import shield

    scratch: str = request["scratch"]
    text: str = request["tests"]
    prepare_environment(scratch, text)
    tests = f"{scratch}/{TESTS}"
    with open(tests, "w", encoding="utf-8"):  # noqa: PTH123 - pathlib is one import more before the guard
        pass
    linecache.cache[tests] = (len(text), None, text.splitlines(keepends=True), tests)
    guard = Guard(tuple(f"{folder.rstrip('/')}/" for folder in request["trusted"]), tests, text)
    home = os.environ.get("HOME", "/")
    endings = Endings(text, lambda folder: is_trusted_folder(folder, home), guard.signalled)
    endings.install()
    leftovers.adopt()
    shielded = shield.up()
    shielded.on_start = endings.started
    state = _State(shielded, leftovers.end, Scratch(scratch))
    links = LinksIntoProc(text)

    def start() -> None:
        ready()
        guard.install()
        links.install()

    run = run_plainly if request["plain"] else run_with_pytest
    try:
        status = run(tests, text, scratch, state, start)
        state.clean_up(last=True)
    except (MemoryError, RecursionError, TimeoutError) as error:
        # By what the agent left: nothing else here is large, deep, or refuses to end.
        return FAILED, f"{type(error).__name__}: {error}"
    return judge(status, state, guard, endings, links, tests, text)


def load(tests: str, text: str, state: _State) -> ModuleType:
    """The tests' module, made of the text that came with the request and not of a file."""
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


def run_plainly(tests: str, text: str, scratch: str, state: _State, start: Callable[[], None]) -> int:
    """Call one test after the other; the exit status pytest would have. Only for what ``plain_tests`` says is plain."""
    start()
    try:
        module = load(tests, text, state)
    except Exception:  # noqa: BLE001 - the module's own, kept in the state
        return 2
    functions = [
        (name, value) for name, value in vars(module).items() if name.startswith("test") and type(value) is FunctionType
    ]
    for name, function in functions:
        try:
            function()
            state.passed += 1
        except BaseException as error:  # noqa: BLE001 - a test fails by whatever it raises, SystemExit too
            state.failed[name] = describe(error, tests)
        state.clean_up()
    return 5 if not functions else 1 if state.failed else 0


def describe(error: BaseException, tests: str) -> str:
    """Where in the tests an exception came from, and what it says."""
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


def run_with_pytest(tests: str, text: str, scratch: str, state: _State, start: Callable[[], None]) -> int:
    """Have pytest collect and run the tests; its exit status."""
    import pathlib

    import pytest

    class Tests(pytest.Module):
        """What pytest takes for the module at ``tests``."""

        def _getobj(self) -> ModuleType:
            return load(tests, text, state)

    class Plugin:
        """What pytest tells of each test, and where it makes temporary folders."""

        @pytest.hookimpl(trylast=True)
        def pytest_configure(self, config: Any) -> None:
            # Its own folder for them would be the tests' user's, and so open to whoever is handed a descriptor of it.
            config._tmp_path_factory._basetemp = pathlib.Path(scratch)

        def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> pytest.Module:
            return cast("Any", Tests).from_parent(parent, path=module_path)

        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any) -> Generator[Any, Any, Any]:
            with contextlib.nullcontext() if fixturedef.scope == "function" else state.keeping():
                return (yield)

        def pytest_runtest_logfinish(self) -> None:
            state.clean_up()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                state.failed[report.nodeid.rpartition("::")[2]] = report.longreprtext
            elif report.when == "call" and report.passed:
                state.passed += 1

    arguments = [
        *("-q", "-c", os.devnull, "--rootdir", scratch, "--noconftest", "--import-mode=importlib"),
        *("--assert=plain", "--capture=no", "--tb=short"),
        *(word for name in _UNNEEDED for word in ("-p", f"no:{name}")),
        tests,
    ]
    start()
    return int(pytest.main(arguments, plugins=[Plugin()]))


class _State:
    """What was seen of a run, and what it has started and written."""

    def __init__(self, shielded: Shield, end: Callable[[set[int]], None], scratch: Scratch) -> None:
        self._shield = shielded
        self._end = end
        self._scratch = scratch
        self._started = shielded.started
        self.passed = 0
        self.failed: dict[str, str] = {}
        #: The tests' module, and what it raised when it was executed.
        self.module: ModuleType | None = None
        self.error: Exception | None = None

    @property
    def started(self) -> int:
        """How many programs the tests have started."""
        return self._shield.started - 1

    @property
    def exhausted(self) -> bool:
        """Whether they wanted to start more than can be kept apart."""
        return self._shield.exhausted

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Keep the programs and files of this block: those of the module, and of fixtures for several tests."""
        with self._shield.keeping(), self._scratch.keeping():
            yield

    def clean_up(self, *, last: bool = False) -> None:
        """End what a test has started, and remove its temporary files. ``last``: end all there is."""
        if self._started != self._shield.started:
            kept = set[int]()
            if not last:
                halves = self._shield.halves
                kept = self._shield.kept | {halves[pid] for pid in processes_of(self.module) if pid in halves}
            self._end(kept)
            if not kept:
                self._started = self._shield.started
        self._scratch.clean(self.module)


def judge(
    status: int, state: _State, guard: Guard, endings: Endings, links: LinksIntoProc, tests: str, text: str
) -> tuple[str, str]:
    """The outcome and its detail, from pytest's exit status and what was seen on the way."""
    if guard.refused:
        return REFUSED, guard.refused
    if guard.planted:
        return FAILED, f"{guard.planted} would have run inside the grader"
    if state.exhausted:
        return FAILED, "the tests were led to start more programs than can be kept apart"
    if guard.remote and status != 0:
        return NETWORK, guard.remote
    if status == 0 and endings.killed:
        return KILLED, endings.killed
    if status == 0 and links.found:
        return FAILED, f"{links.found}, which a program of the tests was given, leads into /proc"
    if status == 0:
        # All skipped is no proof of anything.
        return (PASSED, "") if state.passed else (FAILED, "every test was skipped")
    if status == 1:
        return FAILED, "\n".join(f"{name}: {said}" for name, said in state.failed.items())
    if status == 2:
        # A module that cannot be imported is the task's fault; one that trips over the state of things is the agent's.
        error = state.error
        # The agent's too, where the tests read Python that it wrote.
        own = isinstance(error, ImportError) or (isinstance(error, SyntaxError) and error.filename == tests)
        return (BROKEN if own else FAILED), f"{type(error).__name__}: {error}"
    if status == 5:
        # Where the state decides which tests there are, an agent that leaves nothing to test has not done the task.
        return (FAILED if has_conditional_tests(text) else EMPTY), "there is no test"
    # A program of the agent's that the tests have started may have spoilt anything that its user can write.
    return (FAILED if state.started else INTERNAL), f"pytest ended with {status}"


def has_conditional_tests(text: str) -> bool:
    """Whether a module makes tests in branches, loops or by name, so that there may be none."""
    import ast  # seldom needed

    module = ast.parse(text)
    for statement in module.body:
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try, ast.With)) and any(
            isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.lower().startswith("test")
            for node in ast.walk(statement)
        ):
            return True
    names = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    return bool(names & {"globals", "vars", "setattr", "locals"}) or "pytest_generate_tests" in defined


if __name__ == "__main__":
    # Threads that a test left running must not keep the grader from ending.
    os._exit(main())
