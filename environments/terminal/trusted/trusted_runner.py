"""The grader's program: runs trusted tests in an interpreter that the agent cannot reach, and reports the outcome.

``Sandbox.examine`` runs it with the toolset's Python and ``-I -S -B``. It is two processes. The first reads the request
from its standard input, which has the tests' text and a nonce, so neither is ever in a file. Its copy, made before,
gets the text alone, runs the tests, and reports each result over a pipe. When the copy and everything that it has
started have ended, the first process decides (``judge``) and writes the verdict with the nonce. So no process that runs
a test can write the verdict, nor can programs that a test starts (the agent's script, or ``git`` with the agent's
configuration): these read neither the tests nor the nonce. They can kill the grader, which earns nothing.

With which rights a program of the tests runs is decided where it is started (``program_rights``).

A test that runs the agent's Python code *inside* this process would give the agent control of the grader. An audit hook
refuses such code, and the verdict is 0. Where the operator allows it (``import_code``), such code runs: it is reported
before it begins, and the server knows a test that must fail.

A task whose tests certainly need a network is reported as one that cannot be graded. Where an agent's service or file
led the tests to a remote host, the tests are not at fault: they fail, as on any other state.

Invariant: unless ``import_code`` is set, code runs in this process only if it comes from the toolset or is the tests'
own text. Only the standard library and pytest are imported; no configuration, plugin or conftest is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import linecache
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trusted_endings import Endings
    from .trusted_guard import Guard
    from .trusted_links import LinksIntoProc
    from .trusted_programs import Programs
    from .trusted_reports import DETAIL_LIMIT, FAILED, INTERNAL, PASSED, STATUS, Reports, doubt_about, judge
    from .trusted_running import TESTS, State, run_plainly, run_with_pytest
    from .trusted_surroundings import (
        ProgramVariables,
        Scratch,
        is_trusted_folder,
        prepare_environment,
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
    from trusted_reports import DETAIL_LIMIT, FAILED, INTERNAL, PASSED, STATUS, Reports, doubt_about, judge
    from trusted_running import TESTS, State, run_plainly, run_with_pytest
    from trusted_surroundings import (
        ProgramVariables,
        Scratch,
        is_trusted_folder,
        prepare_environment,
        restrict_archives,
    )

    del sys.path[0]

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
    say(tests=said.listed(), in_all={PASSED: said.passed, FAILED: len(said.failed)})
    if request["import_code"]:
        # One test fails on every state, so these were not judged.
        doubt = doubt_about(said.findings or {})
        say(failed=[name[:200] for name in list(said.failed)[:50]], passed=said.passed, found=doubt)
    say(outcome=outcome, detail=detail[:DETAIL_LIMIT])
    return STATUS[outcome]


def end_orphans(packages: str) -> None:
    """Kill what the other process has left running, and wait for it. Raises ``TimeoutError``."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return  # every orphan below would be this process's child
    sys.path.append(packages)
    if TYPE_CHECKING:
        from ors_containers.graders import stray_processes
    else:
        import stray_processes
    stray_processes.end()


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


def protect() -> bool:
    """Deny processes of the same user access to this process: its memory and descriptors in /proc, and ptrace.

    Return whether that worked. Its arguments are blanked: a test that looks for a ``python3`` would find them.
    """
    library = ctypes.CDLL(None)
    with open("/proc/self/stat") as file:  # noqa: PTH123 - pathlib is one import more before the guard
        start, end = (int(word) for word in file.read().rpartition(")")[2].split()[45:47])
    if start:
        ctypes.memset(start, 0, end - start)
    library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return library.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


def run_tests(request: dict[str, Any], report: Callable[..., None]) -> dict[str, Any]:
    """Run the request's tests and report the result of each. Return what was found besides."""
    sys.path.append(request["packages"])
    if TYPE_CHECKING:
        from ors_containers.graders import process_isolation, stray_processes
    else:
        import process_isolation
        import stray_processes

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
    stray_processes.adopt()
    shielded = process_isolation.up()
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
            from ors_containers.graders import program_rights, sealed_programs
        else:
            import program_rights
            import sealed_programs

            if "python" in text or "sys.executable" in text:
                import python_commands  # noqa: F401 - for `admission`, which imports it later
        sys.path[:] = path
        room = sealed_programs.SealedPrograms(scratch, kept.keep)
        places = program_rights.Places(room, home, began, scratch)
        decision = program_rights.ProgramRights(places, text, ProgramVariables(text), can_leave=shielded.can_leave)
        shielded.admit = decision.admit
        return decision.admit(arguments)

    shielded.admit = admit
    state = State(shielded, stray_processes.end, kept, programs, report)
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


if __name__ == "__main__":
    # Threads that a test left running must not keep the grader from ending.
    os._exit(main())
