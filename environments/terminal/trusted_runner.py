"""The grader's program: runs trusted tests in an interpreter that the agent cannot reach, and reports the outcome.

``Sandbox.examine`` runs it with the toolset's Python and ``-I -S -B``. The tests' text and a nonce come on standard
input, so neither is ever in a file. The verdict is written, with the nonce, to a descriptor that no program started by
a test inherits. Therefore programs that a test starts (the agent's script, or ``git`` with the agent's configuration)
cannot read the tests or the nonce, and cannot forge a verdict. They can kill the grader, which earns nothing.

A test that runs the agent's Python code *inside* this process would give the agent control of the grader. An audit hook
refuses such code, and the task is reported as one that cannot be graded. So is a task whose tests certainly need a
network. Where an agent's service or file led the tests to a remote host, the tests are not at fault: they fail, as on
any other state.

Invariant: code runs in this process only if it comes from the toolset or is the tests' own text. Only the standard
library and pytest are imported; no configuration, plugin or conftest is read.
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
    # The other parts of this program lie in its folder, which contains nothing else yet. The folder is taken off the
    # path again, and nothing is imported from it later.
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 - pathlib is one import more before the guard
    from trusted_endings import Endings
    from trusted_guard import Guard
    from trusted_links import LinksIntoProc
    from trusted_surroundings import Scratch, is_trusted_folder, prepare_environment, processes_of

    del sys.path[0]

#: File name of the tests' text in tracebacks. pytest collects an empty file of this name.
TESTS = "test_state.py"

#: Outcomes of a run, and the exit status of each.
PASSED, FAILED, BROKEN, INTERNAL = "passed", "failed", "broken", "internal"
REFUSED, EMPTY, NETWORK, KILLED = "refused", "empty", "network", "killed"
STATUS = {PASSED: 0, FAILED: 1, BROKEN: 2, INTERNAL: 3, REFUSED: 4, EMPTY: 5, NETWORK: 6, KILLED: 7}

#: In characters. As JSON a character takes up to 12 bytes, and the grader keeps 64 KiB of the output.
_DETAIL_LIMIT = 5_000
#: pytest's own plugins that tests of a state do not need: they cost time or write files.
_UNNEEDED = ("cacheprovider", "doctest", "faulthandler", "junitxml", "pastebin", "setuponly", "setupplan", "stepwise")
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


def main() -> int:
    """Read the request, run the tests, write the verdict. Return the exit status."""
    if not (sys.flags.isolated and sys.flags.no_site and sys.flags.dont_write_bytecode):
        return STATUS[INTERNAL]
    # SIGINT ends this process: as a KeyboardInterrupt it would look like a fault of the grader.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not protect():
        return STATUS[INTERNAL]
    request = json.loads(sys.stdin.buffer.read())
    verdict = os.dup(1)  # not inheritable, like every descriptor that Python creates
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
    """Deny processes of the same user access to this process: its memory and descriptors in /proc, and ptrace.

    Return whether that worked.
    """
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return library.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


def run_tests(request: dict[str, Any], ready: Callable[[], None]) -> tuple[str, str]:
    """Run the request's tests. Return the outcome and its detail."""
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
        # Caused by what the agent left: nothing else here is large, deeply nested, or refuses to end.
        return FAILED, f"{type(error).__name__}: {error}"
    return judge(status, state, guard, endings, links, tests, text)


def load(tests: str, text: str, state: _State) -> ModuleType:
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


def run_plainly(tests: str, text: str, scratch: str, state: _State, start: Callable[[], None]) -> int:
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
        try:
            function()
            state.passed += 1
        except BaseException as error:  # noqa: BLE001 - a test fails by whatever it raises, SystemExit too
            state.failed[name] = describe(error, tests)
        state.clean_up()
    return 5 if not functions else 1 if state.failed else 0


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


def run_with_pytest(tests: str, text: str, scratch: str, state: _State, start: Callable[[], None]) -> int:
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
    """State of a run: results, and the programs and files that the tests have created."""

    def __init__(self, shielded: Shield, end: Callable[[set[int]], None], scratch: Scratch) -> None:
        self._shield = shielded
        self._end = end
        self._scratch = scratch
        self._started = shielded.started
        self.passed = 0
        self.failed: dict[str, str] = {}
        #: The tests' module, and the exception that its execution raised.
        self.module: ModuleType | None = None
        self.error: Exception | None = None

    @property
    def started(self) -> int:
        """Return the number of programs that the tests have started."""
        return self._shield.started - 1

    @property
    def exhausted(self) -> bool:
        """Return whether the tests wanted to start more programs than the shield can keep apart."""
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


def judge(
    status: int, state: _State, guard: Guard, endings: Endings, links: LinksIntoProc, tests: str, text: str
) -> tuple[str, str]:
    """Return the outcome and its detail, from pytest's exit status and the findings of the watches."""
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
        # Skipped tests prove nothing.
        return (PASSED, "") if state.passed else (FAILED, "every test was skipped")
    if status == 1:
        return FAILED, "\n".join(f"{name}: {said}" for name, said in state.failed.items())
    if status == 2:
        # A module that cannot be imported is the task's fault; a module that fails on what it finds is the agent's.
        error = state.error
        # A syntax error in another file is the agent's, too: the tests read Python that it wrote.
        own = isinstance(error, ImportError) or (isinstance(error, SyntaxError) and error.filename == tests)
        return (BROKEN if own else FAILED), f"{type(error).__name__}: {error}"
    if status == 5:
        # Where the state decides which tests exist, an agent that leaves nothing to test has not done the task.
        return (FAILED if has_conditional_tests(text) else EMPTY), "there is no test"
    # A program of the agent that the tests have started may have damaged anything that its user can write.
    return (FAILED if state.started else INTERNAL), f"pytest ended with {status}"


def has_conditional_tests(text: str) -> bool:
    """Return whether a module defines tests in branches or loops, or by name, so that there may be none."""
    import ast  # rarely needed

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
