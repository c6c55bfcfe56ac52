"""Verdicts of the trusted tests, for every kind of tests and states."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest
from ors_containers import (
    CommandResult,
    ExaminationFailed,
    Image,
    Limits,
    ProcessesRemain,
    Runtime,
    Sandbox,
    SandboxDied,
)
from ors_containers.graders.portable_python import Toolset

from .conftest import Service
from .parts import grading

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL = Limits(memory=256 * 2**20, disk=32 * 2**20, pids=64)


async def opened(service: Service) -> Sandbox:
    tools = await service.toolset()
    image = service.runtime.host_image()
    return await service.open(dataclasses.replace(image, binds=(*image.binds, tools.bind)), SMALL)


async def grade(
    service: Service, tests: str, *commands: str, live: bool = False, timeout: float = 60
) -> grading.Verdict:
    """Return the verdict on the state that the commands leave."""
    sandbox = await opened(service)
    try:
        for command in commands:
            await sandbox.run(command, timeout=10)
        return await grading.run_tests(sandbox, await service.toolset(), tests, live=live, timeout=timeout)
    finally:
        await sandbox.stop()


async def test_processes_that_do_not_end_earn_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the agent can cause this, so it is not an infrastructure failure."""
    sandbox = await opened(service)

    async def remaining(*_: object, **__: object) -> CommandResult:
        raise ProcessesRemain("its processes do not end")

    monkeypatch.setattr(sandbox, "examine", remaining)
    try:
        verdict = await grading.run_tests(sandbox, await service.toolset(), "def test_a(): pass", live=False, timeout=9)
    finally:
        await sandbox.stop()
    assert (verdict.passed, verdict.how) == (False, "killed")


VERDICTS = {
    "passes": ("def test_a(): pass", "passed"),
    "looks at the home": (
        "import os\ndef test_a(): assert os.getcwd() == os.environ['HOME'] == '/home/user'",
        "passed",
    ),
    "fixtures and parameters": (
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_a(n, tmp_path, capsys, monkeypatch): (tmp_path / 'x').write_text('x'); assert n",
        "passed",
    ),
    "a class of unittest": (
        "import unittest\nclass TestA(unittest.TestCase):\n  def test_a(self): self.assertTrue(1)",
        "passed",
    ),
    "much of the standard library": (
        "import csv, dataclasses, enum, gzip, hashlib, json, sqlite3, tarfile, tempfile, typing, zipfile, zoneinfo\n"
        "from collections import namedtuple\nfrom xml.etree import ElementTree\nPair = namedtuple('Pair', 'a b')\n"
        "@dataclasses.dataclass\nclass Both:\n  a: int = 1\n"
        "def test_a():\n  assert Pair(1, 2).a == Both().a == 1\n"
        "  assert hashlib.sha256(b'').hexdigest()[:4] == 'e3b0'\n"
        "  assert hashlib.md5(b'').hexdigest()[:4] == 'd41d'\n"
        "  assert sqlite3.connect(':memory:').execute('select 1').fetchone() == (1,)",
        "passed",
    ),
    "starts programs": (
        "import subprocess, sys\ndef test_a():\n"
        "  assert subprocess.run(['ls', '/'], capture_output=True).stdout\n"
        "  assert subprocess.check_output([sys.executable, '-c', 'print(1)']) == b'1\\n'",
        "passed",
    ),
    "floods its output": (
        "import os, sys\ndef test_a():\n  print('x' * 10**7)\n"
        "  os.write(1, b'x' * 10**7)\n  sys.stderr.write('x' * 10**6)",
        "passed",
    ),
    "leaves a thread and a process behind": (
        "import subprocess, threading, time\ndef test_a():\n  subprocess.Popen(['sleep', '1000'])\n"
        "  threading.Thread(target=time.sleep, args=(1000,)).start()",
        "passed",
    ),
    "fails": ("def test_a(): assert 0", "failed"),
    "one of two fails": ("def test_a(): pass\ndef test_b(): assert 0", "failed"),
    "fails at length": ("def test_a(): assert 0, chr(0x1F600) * 9000", "failed"),
    "raises": ("def test_a(): open('/nothing')", "failed"),
    "times a function": ("import timeit\ndef test_a(): assert timeit.timeit(lambda: 1, number=9) < 9", "passed"),
    "raises in a fixture": (
        "import pytest\n@pytest.fixture\ndef thing(): raise OSError\ndef test_a(thing): pass",
        "failed",
    ),
    "exits": ("import sys\ndef test_a(): sys.exit(0)", "failed"),
    "all skipped": ("import pytest\ndef test_a(): pytest.skip('no reason')", "failed"),
    "trips over the state": ("TEXT = open('/home/user/result').read()\ndef test_a(): pass", "failed"),
    "reads Python that is none": ("import ast\nTREE = ast.parse('def')\ndef test_a(): pass", "failed"),
    "asserts on import": ("assert 0\ndef test_a(): pass", "failed"),
    "hangs": ("import time\ndef test_a(): time.sleep(1000)", "timed out"),
    "hangs in another process": ("import os\ndef test_a(): os.system('sleep 1000')", "timed out"),
    "a program of it dies": (
        "import subprocess\ndef test_a(): subprocess.run(['sh', '-c', 'ulimit -f 0; echo x > x'])",
        "killed",
    ),
    "kills itself": ("import os\ndef test_a(): os.kill(os.getpid(), 9)", "killed"),
    "crashes": ("import ctypes\ndef test_a(): ctypes.string_at(0)", "killed"),
    "eats the memory": ("def test_a(): [bytearray(10**8) for _ in range(100)]", "killed or failed"),
}


@pytest.mark.parametrize("what", VERDICTS)
async def test_verdicts(service: Service, what: str) -> None:
    tests, expected = VERDICTS[what]
    started = time.monotonic()
    verdict = await grade(service, tests, timeout=3 if "hangs" in what else 60)
    assert verdict.how in expected, verdict
    assert verdict.passed == (expected == "passed")
    assert time.monotonic() - started < 60


async def test_a_copy_that_a_test_lets_go_on_has_no_say(service: Service) -> None:
    tests = "import os\ndef test_a():\n    copy = os.fork()\n    assert copy != 0\n    os.waitpid(copy, 0)\n"
    verdict = await grade(service, tests)
    assert (verdict.passed, [test[:2] for test in verdict.tests]) == (True, [("test_a", "passed")]), verdict


UNFIT = {
    "imports what is not there": ("import requests\ndef test_a(): pass", "cannot be imported"),
    "imports it late": ("def test_a(): pass\nfrom numpy import array", "cannot be imported"),
    "has no test": ("x = 1", "test nothing"),
    "is no Python": ("def test_a(:", "cannot be imported"),
    "needs the network": (
        "import urllib.request\ndef test_a(): urllib.request.urlopen('http://example.org')",
        "need the network: example.org",
    ),
    "connects to an address": (
        "import socket\ndef test_a(): socket.create_connection(('192.0.2.1', 80), timeout=1)",
        "need the network: 192.0.2.1",
    ),
}

#: Tests that would run the agent's code in the grader, and words of the verdict.
KEPT_OUT = {
    "imports the agent's module": (
        "import sys\ndef test_a():\n  sys.path.insert(0, '/home/user')\n  import answer",
        "inside the grader: /home/user/answer.py",
    ),
    "and forgives it": (
        "import sys\nsys.path.insert(0, '/home/user')\ntry:\n  import answer\nexcept Exception: pass\n"
        "def test_a(): pass",
        "inside the grader",
    ),
    "imports the agent's compiled module": (
        "import sys\ndef test_a():\n  sys.path.insert(0, '/home/user/compiled')\n  import answer",
        "inside the grader",
    ),
    "loads it by hand": (
        "import importlib.util\ndef test_a():\n"
        "  spec = importlib.util.spec_from_file_location('answer', '/home/user/answer.py')\n"
        "  spec.loader.exec_module(importlib.util.module_from_spec(spec))",
        "inside the grader",
    ),
    "runs it": ("import runpy\ndef test_a(): runpy.run_path('/home/user/answer.py')", "inside the grader"),
    "executes its text": ("def test_a(): exec(open('/home/user/answer.py').read())", "inside the grader"),
    "evaluates its text": ("def test_a(): assert eval(open('/home/user/text').read())", "inside the grader"),
    "evaluates a configuration of logging": (
        "import logging.config\ndef test_a(): logging.config.fileConfig('/home/user/logging.ini')",
        "inside the grader",
    ),
    "runs the examples of a text": (
        "import doctest\ndef test_a(): assert not doctest.testfile('/home/user/examples', False).failed",
        "inside the grader: text given to doctest",
    ),
    "times its text": (
        "import timeit\ndef test_a(): timeit.timeit(open('/home/user/text').read(), number=1)",
        "inside the grader: text given to timeit",
    ),
    "interprets its text": (
        "import code\ndef test_a(): code.InteractiveInterpreter().runsource(open('/home/user/text').read())",
        "inside the grader: text given to code",
    ),
    "profiles its text": (
        "import cProfile\ndef test_a(): cProfile.run(open('/home/user/text').read())",
        "inside the grader: text given to",
    ),
    "loads a library": (
        "import ctypes\ndef test_a(): ctypes.CDLL('/home/user/library.so')",
        "inside the grader",
    ),
}
#: Code that would end the grader with a verdict of its own.
AGENTS_CODE = """
cat > answer.py <<'END'
import os
open('/home/user/ran', 'w').close()
os._exit(0)
END
printf 'open("/home/user/ran", "w") and 1' > text
printf '>>> _ = open("/home/user/ran", "w")\\n' > examples
printf '[loggers]\nkeys=root\n[handlers]\nkeys=h\n[formatters]\nkeys=\n[logger_root]\nhandlers=h\n' > logging.ini
printf '[handler_h]\nclass=open("/home/user/ran", "w") and FileHandler\nargs=("x",)\n' >> logging.ini
printf 'cposix\\nsystem\\n(S"touch /home/user/ran"\\ntR.' > pickle
cp /usr/lib/x86_64-linux-gnu/libc.so.6 library.so || touch library.so
mkdir compiled
"""
COMPILED = """
import marshal, importlib.util
code = compile(open('/home/user/answer.py').read(), '/.grader/lib/python3.11/json/__init__.py', 'exec')
open('/home/user/compiled/answer.pyc', 'wb').write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""


@pytest.mark.parametrize("what", UNFIT)
async def test_tests_that_cannot_grade_are_no_reward(service: Service, what: str) -> None:
    await see_unfit(service, *UNFIT[what])


async def see_unfit(service: Service, tests: str, expected: str) -> None:
    """Check that tests get no verdict."""
    with pytest.raises(grading.TestsUnfit, match=expected):
        await grade(service, tests)


@pytest.mark.parametrize("what", KEPT_OUT)
async def test_the_agents_code_in_the_grader_earns_nothing(service: Service, what: str) -> None:
    """An agent can cause this, so it is not an infrastructure failure, and none of the code runs."""
    await see_kept_out(service, *KEPT_OUT[what])


async def see_kept_out(service: Service, tests: str, expected: str) -> None:
    """Check that tests fail, and run none of the agent's code."""
    sandbox = await opened(service)
    tools = await service.toolset()
    try:
        await sandbox.run(AGENTS_CODE, timeout=10)
        # By the grader's own Python: a module compiled for another version would not be loaded at all.
        await sandbox.run(f"{tools.python} -I -S -c '{COMPILED.replace(chr(39), chr(34))}'", timeout=10)
        verdict = await grading.run_tests(sandbox, tools, tests, live=False, timeout=60)
        assert (verdict.passed, verdict.how, verdict.mark) == (False, "failed", "")
        assert re.search(expected, verdict.detail), verdict
        assert verdict.kept_out
        assert (await sandbox.run("ls ran", timeout=10)).exit_status == 2, "the agent's code ran in the grader"
    finally:
        await sandbox.stop()


#: The agent's interference with sound tests: it earns 0.
PLANTED = {
    "a pickle that runs something": (
        "import pickle\ndef test_a(): pickle.load(open('/home/user/pickle', 'rb'))",
        "a pickle that names posix.system",
    ),
    "and tests that forgive it": (
        "import pickle\ndef test_a():\n  try: pickle.load(open('/home/user/pickle', 'rb'))\n  except Exception: pass",
        "a pickle that names posix.system",
    ),
    "a pickle when the tests are imported": (
        "import pickle\nDATA = pickle.load(open('/home/user/pickle', 'rb'))\ndef test_a(): pass",
        "a pickle that names posix.system",
    ),
    "a module of the standard library": (
        "import sys\ndef test_a():\n  sys.path.insert(0, '/home/user/shadows')\n  import colorsys",
        "/home/user/shadows/colorsys.py",
    ),
    "nothing that could be tested": (
        "import glob\nfor name in glob.glob('/home/user/*.report'):\n  def test_a(): pass",
        "there is no test",
    ),
    "nothing that could be tested, by name": (
        "import glob\nfor n, name in enumerate(glob.glob('/home/user/*.report')):\n"
        "  globals()[f'test_{n}'] = lambda: None",
        "there is no test",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
async def test_outcomes_that_only_the_agent_can_cause_earn_nothing(service: Service, what: str) -> None:
    tests, expected = PLANTED[what]
    verdict = await grade(service, tests, AGENTS_CODE, "mkdir shadows; cp answer.py shadows/colorsys.py")
    assert (verdict.how, expected in verdict.detail) == ("failed", True), verdict


#: Programs of tests that would each find the expected text in their own arguments.
SEARCHES = {
    "a program": "subprocess.run(['grep', '-q', 'result: 4711', '/home/user/out']).returncode",
    "a program elsewhere": "subprocess.run(['grep', '-q', 'result: 4711', 'out'], cwd='/home/user').returncode",
    "a shell": "subprocess.run('grep -q \"result: 4711\" ~/out', shell=True).returncode",
    "a shell elsewhere": "subprocess.run('cd /home/user && grep -q \"result: 4711\" out', shell=True).returncode",
    "the system": "os.system('grep -q \"result: 4711\" /home/user/out')",
    "a variable": "subprocess.run('grep -q \"result: 4711\" $HOME/out', shell=True).returncode",
    "a folder in a variable": "os.system('cd ${HOME}/. && grep -q \"result: 4711\" out')",
    "a variable of the shell": "os.system('d=/home/user; for f in out; do grep -q \"result: 4711\" $d/$f; done')",
    "a wildcard": "os.system('grep -q \"result: 4711\" /home/user/ou*')",
}


@pytest.mark.combinations
@pytest.mark.parametrize("link", ["/proc/self/cmdline", "/home/user/self/cmdline"])
@pytest.mark.parametrize("what", SEARCHES)
async def test_a_file_that_leads_to_the_arguments_of_its_reader_earns_nothing(
    service: Service, what: str, link: str
) -> None:
    tests = f"import os, subprocess\ndef test_a(): assert {SEARCHES[what]} == 0"
    verdict = await grade(service, tests, f"ln -s /proc/self self; ln -s {link} out")
    assert (verdict.how, "/proc" in verdict.detail) == ("failed", True), verdict
    assert (await grade(service, tests, "echo result: 4711 > out")).how == "passed"


#: Programs of tests that compare a file of the agent with their own input or a file in their working folder. The input
#: is whole before they start: `diff` takes a pipe for two files if its time of change differs between two looks.
COMPARISONS = {
    "its input": ("subprocess.run(['diff', '-', '/home/user/out'], stdin=filled()).returncode", "/dev/stdin"),
    "its descriptor": ("subprocess.run(['cmp', '-', '/home/user/out'], stdin=filled()).returncode", "/proc/self/fd/0"),
    "a here-document": ("os.system('diff - /home/user/out <<E\\n42\\nE\\n')", "/dev/stdin"),
    "its folder": (
        "subprocess.run(['diff', 'expected', '/home/user/out'], cwd=tmp_path).returncode",
        "/proc/self/cwd/expected",
    ),
    "a folder of links": (
        "subprocess.run(['diff', 'expected', '/home/user/out'], cwd=tmp_path).returncode",
        "/home/user/self/cwd/expected",
    ),
}


@pytest.mark.parametrize("what", COMPARISONS)
async def test_a_file_that_leads_to_what_it_is_compared_with_earns_nothing(service: Service, what: str) -> None:
    compared, link = COMPARISONS[what]
    written = "(tmp_path / 'expected').write_text('42\\n')"
    filled = "def filled():\n  ends = os.pipe()\n  os.write(ends[1], b'42\\n')\n  os.close(ends[1])\n  return ends[0]"
    tests = f"import os, subprocess\n{filled}\ndef test_a(tmp_path):\n  {written}\n  assert {compared} == 0"
    verdict = await grade(service, tests, f"ln -s /proc/self self; ln -s {link} out")
    assert verdict.how == "failed", verdict  # if a program notices by itself, "/proc" is not in the detail
    assert (await grade(service, tests, "echo 42 > out")).how == "passed"


#: A program of the agent that interrupts its parent process for as long as it can.
INTERRUPTING = """
cat > program <<'END'
#!/bin/sh
setsid python3 -c '
import os, sys, time
while True:
    os.kill(int(sys.argv[1]), 2)
    time.sleep(0.003)
' $PPID > /dev/null 2>&1 < /dev/null &
END
chmod 755 program
"""


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "pytest"])
async def test_an_interrupted_grader_is_not_an_infrastructure_failure(service: Service, plain: bool) -> None:
    tests = f"""
import subprocess, time

def test_a({"" if plain else "tmp_path"}):
    subprocess.run(["/home/user/program"])
    time.sleep(1)
    assert 0
"""
    assert (await grade(service, tests, INTERRUPTING)).how == "killed"


async def test_pickles_of_data_are_read(service: Service) -> None:
    program = (
        "import collections, datetime, decimal, pickle, uuid\n"
        "data = [1, {'a': (2, None)}, {3}, frozenset('b'), 1j, bytearray(b'c'), collections.OrderedDict(a=1),"
        " collections.Counter('aa'), collections.defaultdict(list), datetime.datetime.now(), datetime.timedelta(1),"
        " decimal.Decimal('1.5'), uuid.UUID(int=1)]\n"
        "[pickle.dump(data, open(f'data{n}', 'wb'), n) for n in range(5)]\n"
    )
    tests = (
        "import pickle\ndef test_a():\n  for n in range(5):\n"
        "    data = pickle.load(open(f'/home/user/data{n}', 'rb'))\n    assert data[:2] == [1, {'a': (2, None)}]"
    )
    verdict = await grade(service, tests, f"cat > program.py <<'END'\n{program}END\npython3 program.py")
    assert verdict.passed, verdict


async def test_live_tests_see_services_and_frozen_ones_do_not(service: Service) -> None:
    tests = (
        "import pathlib\ndef test_a():\n"
        "  assert 'sleep\\n' in [path.read_text() for path in pathlib.Path('/proc').glob('[0-9]*/comm')]"
    )
    assert (await grade(service, tests, "sleep 1000 &", live=True)).passed
    assert (await grade(service, tests, "sleep 1000 &", live=False)).how == "failed"


#: Redirects every request to a remote host.
REDIRECTS = """
cat > service.py <<'END'
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", "http://example.org/")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
END
setsid -f python3 service.py > /dev/null 2>&1 < /dev/null
until (: < /dev/tcp/127.0.0.1/8000) 2> /dev/null; do sleep 0.1; done
echo http://example.org/ > address; echo example.org > host
"""
LED = {
    "by a service": "urllib.request.urlopen('http://127.0.0.1:8000/', timeout=5)",
    "by a service to a host that the tests know": (
        "urllib.request.urlopen('http://127.0.0.1:8000/?not=example.org', timeout=5)"
    ),
    "by a file": "urllib.request.urlopen(open('/home/user/address').read().strip(), timeout=5)",
    "by a file to a part of a name": "socket.gethostbyname(open('/home/user/host').read().strip()), 'www.example.org'",
}


@pytest.mark.parametrize("how", LED)
async def test_tests_that_the_agent_leads_outside_fail(service: Service, how: str) -> None:
    """The agent chose the host, so neither the tests nor the infrastructure failed."""
    tests = f"import socket, urllib.request\ndef test_a():\n  assert {LED[how]}"
    verdict = await grade(service, tests, REDIRECTS, live=True)
    assert (verdict.passed, verdict.how) == (False, "failed"), verdict


async def test_the_detail_says_which_test_failed_and_why(service: Service) -> None:
    verdict = await grade(service, "def test_right(): pass\ndef test_wrong():\n  assert 'one' == 'two', 'not two'")
    assert "test_wrong" in verdict.detail
    assert "not two" in verdict.detail
    assert "test_right" not in verdict.detail


class Stub:
    """A sandbox whose examinations end as the test says."""

    def __init__(self, result: CommandResult | Exception) -> None:
        self.result = result

    async def examine(self, program: object, **_: object) -> CommandResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (0, b""),
        (0, b"1 passed\n"),
        (0, b'{"nonce": "guessed", "outcome": "passed", "detail": ""}\n'),
        (0, b'{"outcome": "passed"}\n[]\n"x"\n{\n'),
        (1, b""),
        (127, b"/.grader/lib/ld.so: No such file or directory\n"),
        (126, b""),
        (3, b'{"nonce": 3}\n'),
        (137, b""),
    ],
)
async def test_an_examination_that_says_nothing_is_no_reward(toolset: Toolset, status: int, output: bytes) -> None:
    stub: object = Stub(CommandResult(status, output, 0.1))
    with pytest.raises(grading.GradingFailed):
        await grading.run_tests(stub, toolset, "def test_a(): pass", live=False, timeout=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        ("passed", 0, "passed"),
        ("passed", 137, "killed"),  # between its verdict and its exit
        ("failed", 137, "failed"),
        ("failed", 1, "failed"),
        ("killed", 7, "killed"),
        ("killed", 137, "killed"),
    ],
)
async def test_a_runner_that_is_killed_after_its_verdict(
    toolset: Toolset, monkeypatch: pytest.MonkeyPatch, said: str, status: int, expected: str
) -> None:
    monkeypatch.setattr(grading.secrets, "token_hex", lambda size: "n")  # type: ignore[attr-defined]
    output = b'{"nonce": "n", "ready": true}\n{"nonce": "n", "outcome": "%s", "detail": ""}\n' % said.encode()
    stub: object = Stub(CommandResult(status, output, 0.1))
    verdict = await grading.run_tests(stub, toolset, "def test_a(): pass", live=True, timeout=1)  # type: ignore[arg-type]
    assert (verdict.how, verdict.passed) == (expected, expected == "passed")


async def test_a_grader_that_never_began_is_no_reward_unless_the_agent_could_have_stopped_it(toolset: Toolset) -> None:
    stub: object = Stub(CommandResult(124, b"", 60.0, timed_out=True))
    with pytest.raises(grading.GradingFailed, match="did not begin"):
        await grading.run_tests(stub, toolset, "def test_a(): pass", live=False, timeout=60)  # type: ignore[arg-type]
    verdict = await grading.run_tests(stub, toolset, "def test_a(): pass", live=True, timeout=60)  # type: ignore[arg-type]
    assert (verdict.passed, verdict.how) == (False, "timed out")


class Crowded:
    """A sandbox in which live examinations fail, and frozen ones end as the test says."""

    def __init__(self, frozen: CommandResult | Exception) -> None:
        self.frozen = frozen

    async def examine(self, program: object, *, keep_processes: bool = False, **_: object) -> CommandResult:
        if keep_processes:
            raise ExaminationFailed("no process is left")
        if isinstance(self.frozen, Exception):
            raise self.frozen
        return self.frozen


async def test_an_agent_that_leaves_no_room_for_a_live_examination_earns_nothing(toolset: Toolset) -> None:
    crowded: object = Crowded(CommandResult(0, b"", 0.1))
    verdict = await grading.run_tests(crowded, toolset, "def test_a(): pass", live=True, timeout=1)  # type: ignore[arg-type]
    assert (verdict.passed, verdict.how) == (False, "killed")
    for frozen in (CommandResult(127, b"", 0.1), ExaminationFailed("nor without the agent's")):
        broken: object = Crowded(frozen)
        with pytest.raises(ExaminationFailed):
            await grading.run_tests(broken, toolset, "def test_a(): pass", live=True, timeout=1)  # type: ignore[arg-type]


async def test_a_sandbox_that_died_is_no_reward(toolset: Toolset) -> None:
    stub: object = Stub(SandboxDied("1"))
    with pytest.raises(SandboxDied):
        await grading.run_tests(stub, toolset, "def test_a(): pass", live=False, timeout=1)  # type: ignore[arg-type]


async def test_without_the_toolset_there_is_no_reward(runtime: Runtime, toolset: Toolset) -> None:
    image: Image = runtime.host_image()
    async with runtime.sandbox(image, SMALL) as sandbox:
        with pytest.raises(grading.GradingFailed, match="did not run"):
            await grading.run_tests(sandbox, toolset, "def test_a(): pass", live=False, timeout=10)


async def test_a_verdict_lists_its_tests(service: Service) -> None:
    tests = "def test_a(): pass\ndef test_b():\n  assert 'hidden' == 'x'\ndef test_c(): pass\n"
    verdict = await grade(service, tests)
    assert [(name, outcome) for name, outcome, _ in verdict.tests] == [
        ("test_b", "failed"), ("test_a", "passed"), ("test_c", "passed"),
    ]  # fmt: skip
    assert "assert 'hidden' == 'x'" in verdict.tests[0][2]
    assert (verdict.data["output"], verdict.data["left_out"]) == ("", {})
    broken = await grade(service, "raise ValueError('no such state')\ndef test_a(): pass\n")
    assert (broken.tests, "no such state" in str(broken.data["output"])) == ((), True)


async def test_a_list_of_tests_is_bounded_and_the_verdict_stands(service: Service) -> None:
    names = "\n".join(f"def test_{'n' * 150}{number}(): assert '\U0001f600' * 4000 == 5" for number in range(300))
    verdict = await grade(service, names + "\n" + "\n".join(f"def test_p{number}(): pass" for number in range(700)))
    assert verdict.how == "failed"
    assert 0 < len(verdict.tests) < 300
    assert verdict.left_out == {"failed": 300 - len(verdict.tests), "passed": 700}
