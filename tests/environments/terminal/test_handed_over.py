"""Programs of the agent that a test starts: what they reach of the examination, and archives that a test unpacks."""

from __future__ import annotations

import pytest
from ors_containers import Limits

from tests.support.sampling import sample

from .conftest import Service
from .parts import grading

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HEAD = """
import os, pathlib, secrets, shutil, subprocess, tarfile, tempfile, time

T = "TOKEN-" + secrets.token_hex(8)


def known():
    try:
        return T in open("/home/user/token").read()
    except OSError:
        return False
"""
#: Looks for the token where it may be, until it is ended.
_SPY = r"""#!/usr/bin/python3 -IS
import os, sys, time
end = time.monotonic() + 0.8


def keep(content):
    if b"TOKEN-" in content:
        open("/home/user/token", "ab").write(content)


while time.monotonic() < end:
    for name in os.listdir("/proc"):
        for kind in ("cmdline", "environ"):
            try:
                keep(open(f"/proc/{name}/{kind}", "rb").read())
            except OSError:
                pass
    for folder in ("/.examination", "/proc/self/cwd", "/tmp", os.environ.get("TMPDIR", "/")):
        for place, folders, names in os.walk(folder):
            if place.count("/") > 6:
                folders.clear()
            for file in names:
                try:
                    keep(open(f"{place}/{file}", "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)).read(4096))
                except OSError:
                    pass
        if folder == "/":
            break
"""
_PROGRAM = f"cat > /home/user/program <<'END'\n{_SPY}\nEND\nchmod 755 /home/user/program\n"

#: Each starts the agent's program beside or before something that has the token.
SECRETS = {
    "an argument of a reader beside it": """
def test_a():
    with subprocess.Popen(["/home/user/program"]):
        reader, writer = os.pipe()
        with subprocess.Popen(["grep", "-c", T], stdin=reader, stdout=subprocess.DEVNULL):
            time.sleep(0.5)
            os.close(writer)
    assert known()
""",
    "an argument of a shell beside it": """
def test_a():
    with subprocess.Popen(["python3", "/home/user/program"]):
        subprocess.run(["sh", "-c", f"sleep 0.5; grep -q {T} /home/user/answer"])
    assert known()
""",
    "a variable of a reader beside it": """
def test_a():
    with subprocess.Popen(["/home/user/program"]):
        subprocess.run(["sleep", "0.6"], env={**os.environ, "EXPECTED": T})
    assert known()
""",
    "a temporary file of the same test": """
def test_a():
    file = tempfile.NamedTemporaryFile("w")
    file.write(T); file.flush()
    subprocess.run(["/home/user/program"])
    assert known()
""",
    "a temporary folder of the same test, with another handed over": """
def test_a():
    secret, handed = tempfile.mkdtemp(), tempfile.mkdtemp()
    pathlib.Path(secret, "expected").write_text(T)
    subprocess.run(["/home/user/program", handed], cwd=handed)
    assert known()
""",
    "pytest's folder of a fixture, with another handed over": """
import pytest


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret")
    (folder / "expected").write_text(T)
    return folder


def test_a(secret, tmp_path):
    subprocess.run(["/home/user/program", str(tmp_path)], cwd=tmp_path)
    assert known()
""",
    "through os.system": """
def test_a():
    pathlib.Path(tempfile.mkdtemp(), "expected").write_text(T)
    os.system("/home/user/program")
    assert known()
""",
    "through os.posix_spawn": """
def test_a():
    pathlib.Path(tempfile.mkdtemp(), "expected").write_text(T)
    os.waitpid(os.posix_spawn("/home/user/program", ["program"], os.environ), 0)
    assert known()
""",
    "through os.fork": """
def test_a():
    pathlib.Path(tempfile.mkdtemp(), "expected").write_text(T)
    child = os.fork()
    if child == 0:
        os.execv("/home/user/program", ["program"])
    os.waitpid(child, 0)
    assert known()
""",
    "through make": """
def test_a():
    pathlib.Path(tempfile.mkdtemp(), "expected").write_text(T)
    subprocess.run(["make", "-s", "-C", "/home/user/made"])
    assert known()
""",
    "through find, xargs, env and timeout": """
def test_a():
    pathlib.Path(tempfile.mkdtemp(), "expected").write_text(T)
    subprocess.run(["find", "/home/user", "-maxdepth", "1", "-name", "program", "-exec", "{}", ";"])
    subprocess.run(["xargs", "-n1", "timeout", "5"], input="/home/user/program", text=True)
    subprocess.run(["env", "A=b", "timeout", "5", "/home/user/program"])
    assert known()
""",
    "through a shell that computes its name": """
def test_a():
    pathlib.Path(tempfile.mkdtemp(), "expected").write_text(T)
    subprocess.run("cd; for p in prog*; do ./$p; done; p=./program; eval $p", shell=True)
    assert known()
""",
}


async def _graded(service: Service, tests: str, left: str, *, live: bool = False) -> grading.Verdict:
    tools = await service.toolset()
    sandbox = await service.open(service.image(tools), Limits(memory=256 * 2**20, disk=64 * 2**20, pids=64))
    try:
        result = await sandbox.run(left, timeout=20)
        assert result.exit_status == 0, result
        return await grading.run_tests(sandbox, tools, _HEAD + tests, live=live, timeout=60)
    finally:
        await sandbox.stop()


@pytest.mark.parametrize("live", [False, pytest.param(True, marks=pytest.mark.long)], ids=["frozen", "live"])
@pytest.mark.parametrize("what", sample(SECRETS, len(SECRETS)))
async def test_a_program_of_the_agent_learns_nothing_but_what_it_is_given(
    service: Service, what: str, live: bool
) -> None:
    made = f"{_PROGRAM}mkdir made; printf 'all:\\n\\t/home/user/program\\n' > made/Makefile"
    verdict = await _graded(service, SECRETS[what], made, live=live)
    assert verdict.how == "failed" and "assert known()" in verdict.detail, verdict
    tests = SECRETS[what].replace("assert known()", "assert not known()")
    verdict = await _graded(service, tests, made, live=live)
    assert verdict.passed, verdict


HANDED = {
    "a file": """
def test_a(tmp_path):
    (tmp_path / "in").write_text("one\\n")
    done = subprocess.run(["/home/user/copy.sh", tmp_path / "in", tmp_path / "out"], capture_output=True, text=True)
    assert (tmp_path / "out").read_text() == "one\\n", done
""",
    "a working folder": """
def test_a():
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "in").write_text("one\\n")
        subprocess.run(["bash", "/home/user/copy.sh", "in", "out"], cwd=folder, check=True)
        assert pathlib.Path(folder, "out").read_text() == "one\\n"
        assert subprocess.run("cat in out", shell=True, cwd=folder, capture_output=True).stdout == b"one\\none\\n"
""",
    "its own modules": """
def test_a():
    assert subprocess.check_output(["python3", "/home/user/app/app.py"]) == b"42\\n"
    assert subprocess.check_output(["python3", "app.py"], cwd="/home/user/app") == b"42\\n"
    assert subprocess.check_output("cd ~/app && python3 app.py", shell=True) == b"42\\n"
    assert subprocess.check_output(["python3", "-c", "import utils; print(utils.N)"], cwd="/home/user/app") == b"42\\n"
    assert subprocess.check_output(["python3", "-m", "app"], cwd="/home/user/app") == b"42\\n"
    program = "import sys; sys.path.insert(0, '/home/user/app'); import utils; print(utils.N)"
    assert subprocess.check_output(["python3", "-c", program]) == b"42\\n"
""",
    "the packages of its user": """
def test_a():
    assert subprocess.check_output(["python3", "-c", "import own; print(own.N)"]) == b"42\\n"
    assert subprocess.check_output(["python3", "/home/user/mine.py"]) == b"42\\n"
""",
    "a compressed archive": """
def test_a():
    assert subprocess.check_output(["tar", "-tzf", "/home/user/app.tgz", "app/app.py"]) == b"app/app.py\\n"
    assert subprocess.check_output("tar tf /home/user/app.tgz | grep -c utils", shell=True) == b"1\\n"
""",
    "a variable that leads to it": """
def test_a():
    given = {**os.environ, "PLACE": "/home/user/app"}
    assert subprocess.check_output("cat $PLACE/utils.py", shell=True, env=given) == b"N = 42\\n"
""",
    "its checks of a commit": """
def test_a():
    command = "cd /home/user/app && git add . && git -c user.name=a -c user.email=b commit -m x"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no\\n"), done
""",
    "its home": """
def test_a():
    assert subprocess.check_output(["bash", "/home/user/home.sh"]) == b"/home/user\\n"
    assert subprocess.check_output("ls ~ | grep home", shell=True) == b"home.sh\\n"
    assert subprocess.check_output(["bash", "-c", "cd $HOME; cat home.sh"]) == b"echo $HOME\\n"
    assert subprocess.check_output(["cat", "home.sh"]) == b"echo $HOME\\n"
    assert b"home.sh" in subprocess.check_output(["ls"])
    assert subprocess.check_output("find . -name 'home*' | wc -l", shell=True).strip() == b"1"
    assert subprocess.check_output("x=$(cat ~/home.sh | wc -l); echo $x", shell=True).strip() == b"1"
""",
}


@pytest.mark.parametrize("what", sample(HANDED, 4))
async def test_a_program_of_the_agent_has_what_it_is_given(service: Service, what: str) -> None:
    left = """
mkdir app; echo 'N = 42' > app/utils.py; printf 'import utils\\nprint(utils.N)\\n' > app/app.py; tar czf app.tgz app
site=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $site; cp app/utils.py $site/own.py
printf 'import own\\nprint(own.N)\\n' > mine.py
git init -q app; cd app/.git/hooks; printf '#!/bin/sh\\necho no >&2; exit 1\\n' > pre-commit; chmod 755 pre-commit; cd ~
printf '#!/bin/sh\\ncat "$1" > "$2"\\n' > copy.sh; chmod 755 copy.sh; echo 'echo $HOME' > home.sh
"""
    verdict = await _graded(service, HANDED[what], left)
    assert verdict.passed, verdict


#: Ways to unpack ``archive.tar``, whose members lead to a file outside of the target.
_UNPACKS = (
    "tarfile.open('/home/user/archive.tar').extractall(target)",
    "shutil.unpack_archive('/home/user/archive.tar', target)",
    "[a.extract(m, target) for a in [tarfile.open('/home/user/archive.tar')] for m in a]",
    "subprocess.run(['tar', '-xf', '/home/user/archive.tar', '-C', target])",
    "subprocess.run('tar xf /home/user/archive.tar -C ' + target, shell=True)",
)
_ARCHIVES = {
    "a link": "d = tarfile.TarInfo('d'); d.type = tarfile.SYMTYPE; d.linkname = '/.examination'; a.addfile(d);"
    " f = tarfile.TarInfo('d/expected')",
    "a link upwards": "d = tarfile.TarInfo('d'); d.type = tarfile.SYMTYPE; d.linkname = '..'; a.addfile(d);"
    " f = tarfile.TarInfo('d/expected')",
    "a path upwards": "f = tarfile.TarInfo('../expected')",
    "an absolute path": "f = tarfile.TarInfo('/.examination/expected')",
}


@pytest.mark.parametrize("member", sample(_ARCHIVES, 4))
async def test_no_archive_is_unpacked_outside_of_its_target(service: Service, member: str) -> None:
    made = f"""
python3 - <<'END'
import io, tarfile
with tarfile.open("/home/user/archive.tar", "w") as a:
    {_ARCHIVES[member]}; f.size = 7
    a.addfile(f, io.BytesIO(b"FORGED\\n"))
END"""
    tests = "".join(
        f"""
def test_{number}():
    target = os.path.join(tempfile.mkdtemp(), "target")
    os.mkdir(target)
    expected = [pathlib.Path("/.examination/expected"), pathlib.Path(target, "../expected")]
    for path in expected:
        path.write_text("honest\\n")
    try:
        {unpack}
    except Exception as error:
        print(error)
    assert [path.read_text() for path in expected] == ["honest\\n"] * 2
"""
        for number, unpack in enumerate(_UNPACKS)
    )
    verdict = await _graded(service, tests, made)
    assert verdict.passed, verdict


@pytest.mark.parametrize(
    "asked", ['["ls", "/home/user/made"]', '["find", "/home/user"]', '["sh", "-c", "ls ~/made"]', '["ls"]']
)
async def test_a_name_with_a_line_break_earns_nothing(service: Service, asked: str) -> None:
    tests = f"""
def test_a():
    where = "/home/user/made" if {asked} == ["ls"] else None
    assert "report.txt" in subprocess.check_output({asked}, text=True, cwd=where)
"""
    verdict = await _graded(service, tests, "mkdir made; touch made/report.txt")
    assert verdict.passed, verdict
    verdict = await _graded(service, tests, 'mkdir made; touch "made/a\nreport.txt"')
    assert verdict.how == "failed" and "line break" in verdict.detail, verdict
