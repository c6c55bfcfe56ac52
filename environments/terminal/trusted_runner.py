"""The grader's program: runs trusted tests in an interpreter that the agent cannot reach, and reports the outcome.

``Sandbox.examine`` runs it with the toolset's Python and ``-I -S -B``. It is two processes. The first reads the request
from its standard input, which has the tests' text and a nonce, so neither is ever in a file. Its copy, made before,
gets the text alone, runs the tests, and reports each result over a pipe. When the copy and everything that it has
started have ended, the first process decides (``judge``) and writes the verdict with the nonce. So no process that runs
a test can write the verdict, nor can programs that a test starts (the agent's script, or ``git`` with the agent's
configuration): these read neither the tests nor the nonce. They can kill the grader, which earns nothing.

With which rights a program of the tests runs is decided where it is started (``admission``).

A test that runs the agent's Python code *inside* this process would give the agent control of the grader. An audit hook
refuses such code, and the verdict is 0. Where the operator allows it (``import_code``), such code runs: it is reported
before it begins, and the server knows a test that must fail.

A task whose tests certainly need a network is reported as one that cannot be graded. Where an agent's service or file
led the tests to a remote host, the tests are not at fault: they fail, as on any other state.

Invariant: unless ``import_code`` is set, code runs in this process only if it comes from the toolset or is the tests'
own text. Only the standard
library and pytest are imported; no configuration, plugin or conftest is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import linecache
import os
import select
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
    from .trusted_programs import Programs
    from .trusted_surroundings import (
        ProgramVariables,
        Scratch,
        is_trusted_folder,
        prepare_environment,
        processes_of,
        restrict_archives,
    )
else:
    # The other parts of this program lie in its folder, which contains nothing else yet. The folder is taken off the
    # path again, and nothing is imported from it later.
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 - pathlib is one import more before the guard
    from trusted_endings import Endings
    from trusted_guard import Guard
    from trusted_links import LinksIntoProc
    from trusted_programs import Programs
    from trusted_surroundings import (
        ProgramVariables,
        Scratch,
        is_trusted_folder,
        prepare_environment,
        processes_of,
        restrict_archives,
    )

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
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 3, 4, 36


def main() -> int:
    """Have a copy of this process run the tests, decide when all of it has ended, and write the verdict."""
    if not (sys.flags.isolated and sys.flags.no_site and sys.flags.dont_write_bytecode):
        return STATUS[INTERNAL]
    # SIGINT ends this process: as a KeyboardInterrupt it would look like a fault of the grader.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not protect():
        return STATUS[INTERNAL]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    requests, sending = os.pipe()
    reports, reporting = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sending)
        os.close(reports)
        os._exit(run_reporting(requests, reporting))
    os.close(requests)
    os.close(reporting)
    # The copy was made before: it has neither the nonce nor the descriptor of the verdict.
    request = json.loads(sys.stdin.buffer.read())
    nonce = request.pop("nonce")
    verdict = os.dup(1)  # not inheritable, like every descriptor that Python creates
    with os.fdopen(sending, "wb") as file, contextlib.suppress(BrokenPipeError):
        file.write(json.dumps(request).encode())

    def say(**words: Any) -> None:
        line = json.dumps({"nonce": nonce, **words}).encode() + b"\n"
        while line:
            line = line[os.write(verdict, line) :]

    said = Reports(say)
    ended = said.collect(reports, child)
    try:
        end_orphans(request["packages"])
    except TimeoutError as error:
        said.findings = {"failed": str(error)}
    if ended != 0 and said.findings is None:
        if ended < 0:
            os.kill(os.getpid(), -ended)
        return STATUS[INTERNAL]
    outcome, detail = judge(said, request["tests"])
    if request["import_code"]:
        # One test fails on every state, so these were not judged.
        doubt = doubt_about(said.findings or {})
        say(failed=[name[:200] for name in list(said.failed)[:50]], passed=said.passed, found=doubt)
    say(outcome=outcome, detail=detail[:_DETAIL_LIMIT])
    return STATUS[outcome]


def end_orphans(packages: str) -> None:
    """Kill what the other process has left running, and wait for it. Raises ``TimeoutError``."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return  # every orphan below would be this process's child
    sys.path.append(packages)
    if TYPE_CHECKING:
        from ors_containers.graders import leftovers
    else:
        import leftovers
    leftovers.end()


def run_reporting(requests: int, reporting: int) -> int:
    """Read the request, run the tests, and report each result and then what was found. Return the exit status."""
    with os.fdopen(requests, "rb") as file:
        content = file.read()
    if not content:
        return STATUS[INTERNAL]  # the other process has ended
    request = json.loads(content)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    def report(**words: Any) -> None:
        line = json.dumps(words).encode() + b"\n"
        while line:
            line = line[os.write(reporting, line) :]

    try:
        findings = run_tests(request, report)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault of the grader and has to be told
        findings = {"internal": f"{type(error).__name__}: {error}"}
    report(findings=findings)
    return 0


class Reports:
    """Reports of the process that runs the tests."""

    def __init__(self, say: Callable[..., None]) -> None:
        """``say`` passes on what the server has to know before the verdict."""
        self._say = say
        self.passed = 0
        #: Descriptions of failures, by the name of the test.
        self.failed: dict[str, str] = {}
        #: The last report; None if there was none.
        self.findings: dict[str, Any] | None = None

    def collect(self, reports: int, child: int) -> int:
        """Read until the process has ended. Return its exit status; a signal's number is negative."""
        os.set_blocking(reports, False)
        ended = os.pidfd_open(child)
        poll = select.poll()
        poll.register(reports, select.POLLIN)
        poll.register(ended, select.POLLIN)
        rest, last = b"", False
        while not last:
            # What it has written is read once more after its end. A copy of it may still have the pipe open.
            last = any(descriptor == ended for descriptor, _ in poll.poll())
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(reports, 1 << 16):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._take(line)
                else:
                    poll.unregister(reports) if not last else None
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _take(self, line: bytes) -> None:
        if self.findings is not None:
            return  # nothing counts after the end of the tests
        try:
            words = json.loads(line)
            if "ready" in words:
                self._say(ready=True)
            elif "ran" in words:
                self._say(ran=str(words["ran"])[:200])
            elif "programs" in words:
                self._say(programs=words["programs"])
            elif "passed" in words:
                self.passed += 1
            elif "failed" in words:
                self.failed[words["failed"]] = words["detail"]
            else:
                self.findings = words["findings"]
        except (ValueError, KeyError, TypeError) as error:
            # This process wrote something else to the pipe, which sound code of the grader does not.
            self.findings = {"failed": f"a report that is none: {error}"}


def protect() -> bool:
    """Deny processes of the same user access to this process: its memory and descriptors in /proc, and ptrace.

    Return whether that worked.
    """
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return library.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


def run_tests(request: dict[str, Any], report: Callable[..., None]) -> dict[str, Any]:
    """Run the request's tests and report the result of each. Return what was found besides."""
    sys.path.append(request["packages"])
    if TYPE_CHECKING:
        from ors_containers.graders import leftovers, shield
    else:
        import leftovers
        import shield

    scratch: str = request["scratch"]
    text: str = request["tests"]
    prepare_environment(scratch, text)
    restrict_archives(text)
    tests = f"{scratch}/{TESTS}"
    with open(tests, "w", encoding="utf-8"):  # noqa: PTH123 - pathlib is one import more before the guard
        pass
    linecache.cache[tests] = (len(text), None, text.splitlines(keepends=True), tests)
    trusted = tuple(f"{folder.rstrip('/')}/" for folder in request["trusted"])
    guard = Guard(trusted, tests, text, (lambda what: report(ran=what[:200])) if request["import_code"] else None)
    home = os.environ.get("HOME", "/")
    endings = Endings(text, lambda folder: is_trusted_folder(folder, home), guard.signalled)
    endings.install()
    leftovers.adopt()
    shielded = shield.up()
    programs = Programs(scratch, lambda folder: is_trusted_folder(folder, home))
    shielded.on_start = endings.started
    if request["record"]:
        shielded.on_start = lambda process, arguments: (
            endings.started(process, arguments),
            programs.started(arguments),
        )[0]
    kept = Scratch(scratch)
    began = os.getcwd()  # noqa: PTH109 - as above

    def admit(arguments: tuple[Any, ...]) -> Any:
        """Decide on the first program; many tests start none."""
        path = list(sys.path)
        sys.path.insert(0, request["packages"])  # a test may have put a folder of the agent there
        if TYPE_CHECKING:
            from ors_containers.graders import admission, reading_room
        else:
            import admission
            import reading_room

            if "python" in text or "sys.executable" in text:
                import python_commands  # noqa: F401 - for `admission`, which imports it later
        sys.path[:] = path
        room = reading_room.ReadingRoom(scratch, kept.keep)
        places = admission.Places(room, home, began, scratch)
        decision = admission.Admission(places, text, ProgramVariables(text), can_leave=shielded.can_leave)
        shielded.admit = decision.admit
        return decision.admit(arguments)

    shielded.admit = admit
    state = _State(shielded, leftovers.end, kept, programs, report)
    links = LinksIntoProc(text)

    def start() -> None:
        if request["import_code"]:
            sys.path.append(home)  # at the end: it replaces no module of the standard library
        report(ready=True)
        guard.install()
        links.install()

    run = run_plainly if request["plain"] else run_with_pytest
    try:
        status = run(tests, text, scratch, state, start)
        state.clean_up(last=True)
    except (MemoryError, RecursionError, TimeoutError) as error:
        # Caused by what the agent left: nothing else here is large, deeply nested, or refuses to end.
        return {"failed": f"{type(error).__name__}: {error}"}
    if request["record"]:
        report(programs=programs.rows())
    return {
        "status": status,
        "refused": guard.refused,
        "planted": guard.planted,
        "remote": guard.remote,
        "exhausted": state.exhausted,
        "started": state.started,
        "killed": endings.killed,
        "misled": links.found,
        **state.fault(tests, guard),
    }


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
        state.programs.test = name
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - a test fails by whatever it raises, SystemExit too
            state.note_failure(name, describe(error, tests))
        else:
            state.note_success(name)
        state.clean_up()
    return 5 if not functions else 1 if state.failures else 0


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


class _State:
    """State of a run: results, and the programs and files that the tests have created."""

    def __init__(
        self,
        shielded: Shield,
        end: Callable[[set[int]], None],
        scratch: Scratch,
        programs: Programs,
        report: Callable[..., None],
    ) -> None:
        self.programs = programs
        self._shield = shielded
        self._end = end
        self._scratch = scratch
        self._started = shielded.started
        self._report = report
        self.failures = 0
        #: The tests' module, and the exception that its execution raised.
        self.module: ModuleType | None = None
        self.error: Exception | None = None

    def note_success(self, name: str) -> None:
        """Report a test that passed."""
        self._report(passed=name)

    def note_failure(self, name: str, detail: str) -> None:
        """Report a test that failed."""
        self.failures += 1
        self._report(failed=name, detail=detail[:_DETAIL_LIMIT])

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


def judge(said: Reports, text: str) -> tuple[str, str]:
    """Return the outcome and its detail, from the reports of the process that ran the tests."""
    found = said.findings
    if found is None:
        return INTERNAL, "the tests ended without a report"
    if "internal" in found:
        return INTERNAL, found["internal"]
    if "failed" in found:
        return FAILED, found["failed"]
    status = found["status"]
    if found["refused"]:
        return REFUSED, found["refused"]
    if found["planted"]:
        return FAILED, f"{found['planted']} would have run inside the grader"
    if found["exhausted"]:
        return FAILED, "the tests were led to start more programs than can be kept apart"
    if found["remote"] and status != 0:
        return NETWORK, found["remote"]
    if status == 0 and found["killed"]:
        return KILLED, found["killed"]
    if status == 0 and found["misled"]:
        return FAILED, found["misled"]
    if status == 0 and not said.failed:
        # Skipped tests prove nothing.
        return (PASSED, "") if said.passed else (FAILED, "every test was skipped")
    if status in (0, 1):
        return FAILED, "\n".join(f"{name}: {detail}" for name, detail in said.failed.items())
    if status == 2:
        return (BROKEN if found.get("own") else FAILED), found.get("error", "pytest ended with 2")
    if status == 5:
        # Where the state decides which tests exist, an agent that leaves nothing to test has not done the task.
        return (FAILED if has_conditional_tests(text) else EMPTY), "there is no test"
    # A program of the agent that the tests have started may have damaged anything that its user can write.
    return (FAILED if found["started"] else INTERNAL), f"pytest ended with {status}"


def doubt_about(found: dict[str, Any]) -> str:
    """Return the finding for which tests have not passed although none but the one that must fail has failed."""
    if "failed" in found:
        return found["failed"]
    if found.get("planted"):
        return f"{found['planted']} would have run inside the grader"
    if found.get("exhausted"):
        return "too many programs"
    if found.get("status", 1) != 1:
        return f"the tests ended with {found['status']}, not with a test that failed"  # some may not have run
    return found.get("killed") or found.get("misled") or ""


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
