"""Solutions that look right to a hasty grader and break what the prompt says: each earns 0.

Most do the whole task first, so the one thing that is wrong is all that the tests can object to.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from ors_containers import BubblewrapRuntime

from tests.terminal_families.sandboxes import laid_out, results

if TYPE_CHECKING:
    from environments.terminal.generation import GeneratedTask

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: ``$root`` is the task's folder; what is done there after the oracle.
DIRTY = {
    "a broken index": "echo junk > junk.txt; echo x > .git/index",
    "no index": "rm .git/index",
    "untracked files not shown": "echo junk > junk.txt; git config status.showUntrackedFiles no",
    "untracked files excluded": "echo junk > junk.txt; echo '*' >> .git/info/exclude",
    "untracked files ignored by the user": "echo junk > junk.txt; mkdir -p ~/.config/git; echo '*' > ~/.config/git/ignore",
    "an untracked directory that cannot be read": "mkdir hidden; echo junk > hidden/junk.txt; chmod 000 hidden",
    "a repository in it": "git init -q inner; echo junk > inner/junk.txt; echo inner > .git/info/exclude",
    "a change assumed away": "echo junk >> README.md; git update-index --assume-unchanged README.md",
    "a change skipped": "echo junk >> README.md; git update-index --skip-worktree README.md",
    "a mode that does not count": "git config core.fileMode false; chmod 755 README.md",
    "a working tree elsewhere": "cp -r . /tmp/tree; git config core.worktree /tmp/tree; echo junk > junk.txt",
    "a staged change put back": "echo x >> README.md; git add .; git show HEAD:README.md > README.md",
    "no repository": "mv .git /tmp/git",
}
GIT = {
    **{f"{what}, seed {seed}": ("git", seed, deed) for what, deed in DIRTY.items() for seed in (1,)},
    **{f"a broken index, seed {seed}": ("git", seed, DIRTY["a broken index"]) for seed in (0, 2, 3)},
    "another commit behind a tag": ("git", 0, "git tag main; git commit -q --allow-empty -m more"),
    "history made anew": ("git", 0, "echo x >> README.md; git commit -q -a --amend --no-edit"),
    "another branch": ("git", 0, "git branch more"),
    "history of the parent made anew": (
        "git",
        1,
        "git commit-tree -m \"$(git log -1 --format=%s HEAD~1)\" -p HEAD~2 HEAD~1^{tree} > /tmp/old\n"
        "git reset -q --hard $(git commit-tree -m \"$(git log -1 --format=%s)\" -p $(cat /tmp/old) HEAD^{tree})",
    ),
    "more than was to be picked": ("git", 2, "echo x >> README.md; git commit -q -a --amend --no-edit"),
    "picked as one's own": ("git", 2, "git commit -q --amend --reset-author --no-edit"),
    "more than was to be merged": ("git", 3, "echo x >> README.md; git commit -q -a --amend --no-edit"),
    "a longer message": ("git", 3, "git commit -q --amend -m \"$(git log -1 --format=%s)\" -m more"),
}
_START_AGAIN = """
for process in $(others); do kill -9 $process; done
sleep 0.3
again
sleep 0.5
"""
PROCESSES = {
    f"{what}, seed {seed}": ("processes", seed, deed)
    for seed in range(4)
    for what, deed in {
        "started again": _START_AGAIN,
        "stopped": "for process in $(others); do kill -STOP $process; done",
    }.items()
}
_HOLE = """
cat > /tmp/server.py <<'END'
import http.server, os, urllib.parse
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            data = open(@path@, "rb").read()
            self.send_response(200)
        except OSError:
            data = b""
            self.send_response(404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", @port@), Handler).serve_forever()
END
setsid -f python3 /tmp/server.py > /dev/null 2>&1 < /dev/null; sleep 0.5
"""
#: Python that finds the file for a request.
HOLES = {
    "dots": "@folder@ + self.path",
    "encoded dots": "@folder@ + urllib.parse.unquote(self.path) if '..' not in self.path else ''",
    "an encoded slash": "@folder@ + urllib.parse.unquote(self.path) if '../' not in self.path else ''",
    "an absolute path": "os.path.join(@folder@, self.path[1:]) if '..' not in self.path else ''",
}


@pytest.fixture(params=[*GIT, *PROCESSES])
def after_the_oracle(request: pytest.FixtureRequest, generation: ModuleType) -> tuple[GeneratedTask, str]:
    """A task, and what is done when it is solved."""
    family, seed, deed = (GIT | PROCESSES)[request.param]
    return generation.generate(family, seed), deed


def _needs(task: GeneratedTask) -> None:
    missing = [program for program in task.programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"this needs {', '.join(missing)}, which this machine lacks")


async def _failed(runtime: BubblewrapRuntime, task: GeneratedTask, script: str) -> list[str]:
    """The tests that fail after a script."""
    _needs(task)
    async with laid_out(runtime, task) as sandbox:
        result = await sandbox.run(f"bash -c {_quoted(script)}", timeout=60)
        assert result.exit_status == 0, result.text
        ((_, failed),) = await results(sandbox, "final")
        return failed


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
