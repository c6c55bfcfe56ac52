"""The tests' own ``git`` runs no program of the agent when it reads, and works when a test is about programs."""

from __future__ import annotations

import shutil

import pytest

from .conftest import Service
from .test_grading import grade

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

_REPOSITORY = """
printf '#!/bin/sh\\ntouch /home/user/ran\\nexit 1\\n' > evil; chmod 755 evil
git init -q repository 2>/dev/null; cd repository
git config user.name A; git config user.email a@example.org
echo one > file; git add file; git commit -qm first; touch -d '1 hour ago' file
"""
_MISSING = """
blob=$(git rev-parse HEAD:file); rm -f .git/objects/${blob%${blob#??}}/${blob#??}
git config remote.o.promisor true; git config extensions.partialClone o; git config core.repositoryFormatVersion 1
"""

#: Settings left in the repository, and a query of git that a test makes.
RUN_BY_LOOKING = {
    "a promisor remote that is a program": (
        f"{_MISSING}git config remote.o.url 'ext::/home/user/evil'; git config protocol.ext.allow always",
        'git("show", "HEAD:file")',
    ),
    "a promisor remote with a program of its own": (
        f"{_MISSING}git config remote.o.url /home/user/repository; git config remote.o.uploadpack /home/user/evil",
        'git("cat-file", "-p", "HEAD:file"), git("fsck")',
    ),
    "and tests that transfer something": (
        f"{_MISSING}git config remote.o.url 'ext::/home/user/evil'; git config protocol.ext.allow always",
        'git("show", "HEAD:file"), git("ls-remote", "o")',
    ),
    "a monitor of files": ("git config core.fsmonitor /home/user/evil", 'git("status"), git("diff")'),
    "a hook after the index has changed": (
        "cp ../evil .git/hooks/post-index-change; git config core.hooksPath .git/hooks",
        'git("status", "--porcelain")',
    ),
    "a program for signatures": (
        "git config log.showSignature true; git config gpg.program /home/user/evil; "
        "{ git cat-file commit HEAD | sed '/^committer/q'; echo 'gpgsig -----BEGIN PGP SIGNATURE-----'; echo ' x'; "
        "echo ' -----END PGP SIGNATURE-----'; echo; echo second; } > ../c; "
        "git update-ref HEAD $(git hash-object -t commit -w ../c)",
        'git("log", "-1")',
    ),
    "a pager": ("git config core.pager /home/user/evil; git config pager.log /home/user/evil", 'git("log")'),
}


@pytest.mark.parametrize("what", RUN_BY_LOOKING)
async def test_read_only_commands_of_git_run_no_programs(service: Service, what: str) -> None:
    left, asked = RUN_BY_LOOKING[what]
    tests = f"""
import os, subprocess


def git(*words):
    return subprocess.run(["git", "-C", "/home/user/repository", *words], capture_output=True, timeout=20)


def test_a():
    {asked}
    assert os.path.exists("/home/user/evil") and not os.path.exists("/home/user/ran")
"""
    verdict = await grade(service, tests, f"{_REPOSITORY}{left}; rm -f /home/user/ran")
    assert verdict.passed, verdict


HONEST = {
    "a clone of a local repository": """
    subprocess.run(["git", "clone", "-q", "/home/user/repository", "/home/user/copy"], check=True)
    assert open("/home/user/copy/file").read() == "one\\n"
    subprocess.run(["git", "clone", "-q", "--no-local", "/home/user/repository", "/home/user/other"], check=True)
    git("push", "/home/user/repository", "HEAD:refs/heads/pushed")
    assert "pushed" in git("branch", "-a").stdout
""",
    "a hook that the task was about": """
    assert git("config", "core.hooksPath").stdout == "/home/user/hooks\\n"
    assert git("commit", "--allow-empty", "-m", "refused").returncode == 1
    assert os.path.exists("/home/user/ran")
""",
    "a commit that is to be refused": """
    assert git("commit", "--allow-empty", "-m", "refused").returncode == 1
""",
    "what it shows": """
    assert git("log", "--format=%s").stdout == "first\\n"
    assert git("status", "--porcelain").stdout == ""
    assert git("config", "user.name").stdout == "A\\n"
    assert git("show", "HEAD:file").stdout == "one\\n"
    assert git("fsck", "--strict").returncode == 0
""",
}


@pytest.mark.parametrize("what", HONEST)
async def test_honest_repositories_are_graded_as_before(service: Service, what: str) -> None:
    tests = f"""
import os, subprocess


def git(*words):
    return subprocess.run(["git", "-C", "/home/user/repository", *words], capture_output=True, text=True, timeout=20)


def test_a():
{HONEST[what]}"""
    hook = "mkdir ../hooks; cp ../evil ../hooks/pre-commit; git config core.hooksPath /home/user/hooks"
    verdict = await grade(service, tests, _REPOSITORY + (hook if "hook" in what or "refused" in what else ""))
    assert verdict.passed, verdict
