"""Solutions that look right to a hasty grader and break what the prompt says: each earns 0.

Most do the whole task first, so that the one thing that is wrong is all that the tests can object to.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from ors_containers import BubblewrapRuntime

from tests.terminal_families.sandboxes import laid_out, results

if TYPE_CHECKING:
    from environments.terminal.generation import GeneratedTask

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Sandboxes at once.
PARALLEL = 3


@dataclass(frozen=True)
class Deed:
    """What is done in a task's folder: after its oracle; or, where ``swap`` is given, an oracle of other words."""

    seed: int
    script: str = ""
    swap: tuple[str, str] = ("", "")
    #: Instead of the oracle.
    alone: bool = False


#: After a commit that is right.
_DIRTY = {
    "a broken index": "echo junk > junk.txt; echo x > .git/index",
    "no index": "rm .git/index",
    "untracked files not shown": "echo junk > junk.txt; git config status.showUntrackedFiles no",
    "untracked files excluded": "echo junk > junk.txt; echo '*' >> .git/info/exclude",
    "untracked files ignored by the user": "echo x > junk.txt; mkdir -p ~/.config/git; echo '*' > ~/.config/git/ignore",
    "an untracked directory that cannot be read": "mkdir hidden; echo junk > hidden/junk.txt; chmod 000 hidden",
    "a change assumed away": "echo junk >> README.md; git update-index --assume-unchanged README.md",
    "a change skipped": "echo junk >> README.md; git update-index --skip-worktree README.md",
    "a mode that does not count": "git config core.fileMode false; chmod 755 README.md",
    "a working tree elsewhere": "cp -r . /tmp/tree; git config core.worktree /tmp/tree; echo junk > junk.txt",
    "a staged change put back": "echo x >> README.md; git add .; git show HEAD:README.md > README.md",
    "no repository": "mv .git /tmp/git",
}
_AMENDED = "echo x >> README.md; git commit -q -a --amend --no-edit"
#: A commit before the new one is another than it was, with the same subject.
_ANEW = """
old=$(git commit-tree -m "$(git log -1 --format=%s HEAD~1)" -p HEAD~2 "HEAD~3^{tree}")
git reset -q --soft $(git commit-tree -m "$(git log -1 --format=%s)" -p $old "HEAD^{tree}")
"""
GIT = {
    **{what: Deed(1, deed) for what, deed in _DIRTY.items()},
    **{f"a broken index, seed {seed}": Deed(seed, _DIRTY["a broken index"]) for seed in (0, 2, 3)},
    "another commit behind a tag": Deed(0, "git tag main; git commit -q --allow-empty -m more"),
    "history made anew": Deed(0, _AMENDED),
    "another branch": Deed(0, "git branch more"),
    "the history before it made anew": Deed(1, _ANEW),
    "more than was to be picked": Deed(2, _AMENDED),
    "picked as one's own": Deed(2, "git commit -q --amend --reset-author --no-edit"),
    "more than was to be merged": Deed(3, _AMENDED),
    "a longer message": Deed(3, 'git commit -q --amend -m "$(git log -1 --format=%s)" -m more'),
}

_PROCESSES = """
import os, signal, subprocess, sys, time
found = {}
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        line = open(f"/proc/{name}/cmdline").read().split("\\0")[:-1]
        parent = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
        variables = dict(word.split("=", 1) for word in open(f"/proc/{name}/environ").read().split("\\0")[:-1])
    except OSError:
        continue
    if line[:1] == ["bash"] and line[1].startswith(sys.argv[1] + "/"):
        found[int(name)] = (parent, line, variables)
for number in found:
    os.kill(number, signal.Signals[sys.argv[2]])
time.sleep(0.3)
if sys.argv[2] == "SIGKILL":
    for parent, line, variables in found.values():
        if parent not in found:
            null = subprocess.DEVNULL
            subprocess.Popen(line, env=variables, stdin=null, stdout=null, stderr=null, start_new_session=True)
time.sleep(0.5)
"""
PROCESSES = {
    f"{what}, seed {seed}": Deed(seed, f"python3 -c {shlex.quote(_PROCESSES)} $root {signal}")
    for seed in range(4)
    for what, signal in {"started again": "SIGKILL", "stopped": "SIGSTOP"}.items()
}

#: Serves a folder; ``{}`` is Python that finds the file for a request.
_SERVER = """
cat > /tmp/server.py <<'END'
import http.server, os, sys, urllib.parse
folder, port = sys.argv[1], int(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path
        try:
            data = open({}, "rb").read()
            self.send_response(200)
        except OSError:
            data = b""
            self.send_response(404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
END
setsid -f python3 /tmp/server.py $served $port > /dev/null 2>&1 < /dev/null
sleep 0.7
"""
_HOLES = {
    "dots": "folder + path",
    "encoded dots": "folder + (urllib.parse.unquote(path) if '..' not in path else '')",
    "an encoded slash": "folder + ('' if '../' in path else urllib.parse.unquote(path))",
    "an absolute path": "os.path.join(folder, '' if '..' in path else urllib.parse.unquote(path)[1:])",
}
_DECOY = """
kill $(pgrep -f "^python3 $root") && sleep 0.3
mkdir -p /tmp/fake/http; echo 'import time; time.sleep(1000)' > /tmp/fake/http/__init__.py
cp $root/*.py /tmp/other.py
setsid -f python3 /tmp/other.py $root/*.conf < /dev/null > /dev/null 2>&1
PYTHONPATH=/tmp/fake setsid -f python3 $root/*.py $root/*.conf < /dev/null > /dev/null 2>&1
sleep 0.7
"""
SERVICES = {
    **{f"a way out by {what}": Deed(0, _SERVER.format(hole), alone=True) for what, hole in _HOLES.items()},
    "files served everywhere": Deed(0, swap=("--bind 127.0.0.1", "--bind 0.0.0.0")),
    "files served everywhere, IPv6 too": Deed(0, swap=("--bind 127.0.0.1", "--bind ::")),
    "lines answered everywhere": Deed(2, swap=('("127.0.0.1", ', '("0.0.0.0", ')),
    "the old port at another address": Deed(
        1, "setsid -f python3 -m http.server $port --bind 127.0.0.2 < /dev/null > /dev/null 2>&1; sleep 0.7"
    ),
    "a decoy of the service": Deed(1, _DECOY),
}

_ONE_MORE_TABLE = """python3 -c "
import glob, sqlite3
(path,) = glob.glob('$root/*.sqlite') + glob.glob('$root/*.db')
sqlite3.connect(path).execute('CREATE TABLE more (id INTEGER)')
" """
OTHERS = {
    "duplicates": {"a directory that cannot be read": Deed(1, "mkdir hidden; echo x > hidden/junk; chmod 000 hidden")},
    "makefiles": {"a directory closed instead of removed": Deed(1, "sed -i 's/rm -rf .*/chmod 000 ./' Makefile")},
    "sqlite": {f"one more table, seed {seed}": Deed(seed, _ONE_MORE_TABLE) for seed in range(3)},
}
DEEDS = {"git": GIT, "processes": PROCESSES, "services": SERVICES, **OTHERS}


@pytest.mark.parametrize("name", DEEDS)
async def test_false_solutions(generation: ModuleType, name: str, runtime: BubblewrapRuntime) -> None:
    missing = [program for program in generation.FAMILIES[name].programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}, which this machine lacks")
    turn = asyncio.Semaphore(PARALLEL)

    async def fault(what: str, deed: Deed) -> str:
        async with turn:
            count, failed = await _played(runtime, generation.generate(name, deed.seed), deed)
            # Where every test fails, it was no false solution but none.
            return "" if 0 < len(failed) < count else f"{what}: {len(failed)} of {count} tests fail: {failed}"

    assert [what for what in await asyncio.gather(*(fault(*item) for item in DEEDS[name].items())) if what] == []


async def _played(runtime: BubblewrapRuntime, task: GeneratedTask, deed: Deed) -> tuple[int, list[str]]:
    """How many tests there are, and those that fail."""
    root = re.findall(r"/home/user/[\w-]+", task.prompt)[0]
    port, served = (re.findall(pattern, task.prompt) for pattern in (r"on port (\d+)", r"file PATH in (\S+)"))
    words = f"root={root} port={''.join(port[:1])} served={''.join(served)}"
    assert deed.swap[0] in task.oracle
    oracle = "" if deed.alone else task.oracle.replace(*deed.swap) if deed.swap[0] else task.oracle
    async with laid_out(runtime, task) as sandbox:
        solved = await sandbox.run(f"bash -c {shlex.quote(oracle)}", timeout=60)
        assert solved.exit_status == 0, solved.text
        script = f"{words}; cd $root || exit 1\n{deed.script}"
        result = await sandbox.run(f"bash -c {shlex.quote(script)}", timeout=60)
        assert result.exit_status == 0, result.text
        (result_of_tests,) = await results(sandbox, "final")
        return result_of_tests


async def test_a_place_that_cannot_be_looked_into_is_not_empty(generation: ModuleType) -> None:
    """``Checks.absent`` says that nothing is there only where that was seen."""
    source = generation.generate("checksums", 0).initial_tests
    module: dict[str, object] = {}
    exec(source, module)
    missing = module["missing"]
    assert callable(missing)
    assert missing("/no/such/place")
    assert missing("/etc/passwd/below")
    assert not missing("/etc")
    with pytest.raises(OSError, match="File name too long"):
        missing("/" + "x" * 300)
