"""The grader's program: runs trusted tests in an interpreter that the agent cannot reach, and reports the outcome.

``Sandbox.examine`` runs it with the toolset's Python and ``-I -S -B``. The request comes through its standard input and
has the tests' text and a nonce, so neither is ever in a file. The verdict is written with the nonce, by the process
that has read the request: a copy of it that a test makes and lets go on writes none. Programs that a test starts (the
agent's script, or ``git`` with the agent's configuration) read neither the tests nor the nonce, and the examination
ends them before its result is read. They can kill the grader, which earns nothing.

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

import ctypes
import linecache
import os
import signal
import sys
from json import dumps, loads  # by name: a test may replace what the module has
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trusted_endings import Endings
    from .trusted_guard import Guard
    from .trusted_links import LinksIntoProc
    from .trusted_programs import Programs
    from .trusted_reports import DETAIL_LIMIT, INTERNAL, STATUS, Reports, doubt_about, judge
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
    from trusted_reports import DETAIL_LIMIT, INTERNAL, STATUS, Reports, doubt_about, judge
    from trusted_running import TESTS, State, run_plainly, run_with_pytest
    from trusted_surroundings import (
        ProgramVariables,
        Scratch,
        is_trusted_folder,
        prepare_environment,
        restrict_archives,
    )

    del sys.path[0]

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


def main() -> int:
    """Run the tests of the request, decide, and write the verdict. Return the exit status."""
    if not (sys.flags.isolated and sys.flags.no_site and sys.flags.dont_write_bytecode):
        return STATUS[INTERNAL]
    # SIGINT ends this process: as a KeyboardInterrupt it would look like a fault of the grader.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not protect():
        return STATUS[INTERNAL]
    with open(0, "rb", closefd=False) as file:
        request = loads(file.read())
    nonce = request.pop("nonce")
    verdict = os.dup(1)  # not inheritable, like every descriptor that Python creates
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)

    own = os.getpid()

    def say(**words: Any) -> None:
        if os.getpid() != own and "ran" not in words:
            os._exit(STATUS[INTERNAL])  # a copy, by a test that forks, has run to the end
        line = dumps({"nonce": nonce, **words}).encode() + b"\n"
        while line:
            line = line[os.write(verdict, line) :]

    said = Reports(say)
    try:
        found = run_tests(request, said)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault of the grader and has to be told
        found = {"internal": f"{type(error).__name__}: {error}"}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # an alarm that a test has set
    outcome, detail = judge(said, found, request["tests"])
    said.list()
    if request["import_code"]:
        # One test fails on every state, so these were not judged.
        say(failed=[name[:200] for name in list(said.failed)[:50]], passed=said.passed, found=doubt_about(found))
    say(outcome=outcome, detail=detail[:DETAIL_LIMIT])
    return STATUS[outcome]


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


def run_tests(request: dict[str, Any], said: Reports) -> dict[str, Any]:
    """Run the request's tests and report the result of each to ``said``. Return what was found besides."""
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
    guard = Guard(trusted, tests, text, (lambda what: said.say(ran=what[:200])) if request["import_code"] else None)
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
    state = State(shielded, stray_processes.end, kept, programs, said)
    links = LinksIntoProc(text)

    def start() -> None:
        if request["import_code"]:
            sys.path.append(home)  # at the end: it replaces no module of the standard library
        said.say(ready=True)
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
        said.say(programs=programs.rows())
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
