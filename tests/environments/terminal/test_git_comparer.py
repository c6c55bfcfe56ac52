"""The comparer of git repositories: what it leaves free, and what it finds or refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ors_server.hosting.loading.folder_imports import folder_package
from tests.environments.terminal_families.loading import ENVIRONMENT
from tests.support.sampling import sample

form_git: Callable[..., Any] = folder_package(ENVIRONMENT).load("states.repositories").form_git

START = """
git init -q -b main --object-format=sha1 . && git config user.name A && git config user.email a@example.com
mkdir docs && echo one > a.txt && echo two > docs/b.txt && echo '#!/bin/sh' > run.sh && chmod 755 run.sh
git add . && git commit -q -m Start && echo three >> a.txt && git commit -q -a -m Second
git branch side HEAD~1 && git tag v1 HEAD~1 && git checkout -q side
echo four > c.txt && git add . && git commit -q -m Third && git checkout -q main
"""
#: The solution: one more commit.
SOLVE = "echo five > d.txt && git add d.txt && git commit -q -m Fourth"

SAME = {
    "nothing": "true",
    "objects packed and pruned": "git gc -q --prune=now",
    "objects packed with bitmaps": "git repack -adbq",
    "an index of several packs": "git repack -dq; git multi-pack-index write",
    "references packed": "git pack-refs --all",
    "references packed in part": "git pack-refs --all; git branch -f side side",
    "no record of where branches were": "git reflog expire --expire=now --all; rm -r .git/logs",
    "a record of a stash that is gone": "echo x >> a.txt; git stash -q; git stash pop -q; git checkout -q a.txt",
    "the user's settings": "git config user.name B; git config alias.st status; git config color.ui never",
    "another version of the index": "git update-index --index-version 4",
    "an index made anew": "rm .git/index; git reset -q",
    "a cache of untracked files in the index": "git update-index --force-untracked-cache; git status > /dev/null",
    "where HEAD was": "git update-ref ORIG_HEAD HEAD~1",
    "a commit graph": "git commit-graph write --reachable",
    "a chain of commit graphs": "git commit-graph write --reachable --split",
    "another author and time": "git commit -q --amend --no-edit --author='B <b@c>' --date='2020-02-02 02:02'",
    "unreachable commits": "git commit -q --amend -m other; git reset -q --hard HEAD@{1}",
    "a worktree that is gone": "git worktree add -q ../tree; git worktree remove ../tree; git branch -qD tree",
    "a merge given up": "git merge -q --no-commit side > /dev/null; git merge --abort",
    "an empty line more after the message": "git commit -q --amend --cleanup=verbatim -m Fourth -m ''",
    "empty folders": "mkdir -p .git/refs/heads/old .git/objects/ab .git/branches",
    "a server's list of references": "git update-server-info",
}
OTHER = {
    "another message": "git commit -q --amend -m other",
    "a longer message": "git commit -q --amend -m Fourth -m more",
    "another file": "echo x >> d.txt; git commit -q -a --amend --no-edit",
    "another parent": "git reset -q --soft $(git commit-tree -m Fourth -p HEAD~2 HEAD^{tree})",
    "two parents": "git reset -q --soft $(git commit-tree -m Fourth -p HEAD~1 -p side HEAD^{tree})",
    "a commit more": "git commit -q --allow-empty -m more",
    "a commit less": "git reset -q --soft HEAD~1",
    "two commits in place of one": "git commit -q --amend -m x; git commit -q --allow-empty -m Fourth",
    "history written anew": "git filter-branch -f --msg-filter 'cat; echo x' > /dev/null 2>&1",
    "a commit in another encoding": "git -c i18n.commitEncoding=latin1 commit -q --amend --no-edit",
    "a branch more": "git branch more",
    "a branch less": "git branch -qD side",
    "a branch elsewhere": "git branch -qf side main",
    "a branch that is another's name": "git symbolic-ref refs/heads/side refs/heads/main",
    "a branch in a file of its own, locked": "touch .git/refs/heads/main.lock",
    "a tag more": "git tag more",
    "a tag with a message": "git tag -f v1 v1 -m message > /dev/null",
    "a tag of a file": "git tag more HEAD:a.txt",
    "HEAD without a branch": "git checkout -q --detach",
    "HEAD on another branch": "git symbolic-ref HEAD refs/heads/side",
    "HEAD on no branch": "git symbolic-ref HEAD refs/heads/new",
    "a stash": "echo x >> a.txt; git stash -q",
    "a note": "git notes add -m note",
    "a replaced commit": "git replace HEAD HEAD~1",
    "a branch of a remote": "git update-ref refs/remotes/origin/main HEAD",
    "a remote": "git remote add origin /nowhere",
    "a staged change": "echo x >> a.txt; git add a.txt",
    "a file to be added": "echo x > new; git add -N new",
    "a file staged and removed": "git rm -q --cached a.txt",
    "a file with its mode staged": "git update-index --chmod=+x a.txt",
    "an executable that is not one": "chmod 644 run.sh",
    "a file that is executable": "git config core.fileMode false; chmod 755 a.txt",
    "a file assumed unchanged": "git update-index --assume-unchanged a.txt",
    "a file skipped in the working tree": "git update-index --skip-worktree a.txt",
    "a sparse index": "git sparse-checkout set --cone --sparse-index docs",
    "a split index": "git update-index --split-index",
    "no index": "rm .git/index",
    "a broken index": "echo junk > .git/index",
    "an index with another check sum": "printf x | dd of=.git/index bs=1 conv=notrunc status=none "
    "seek=$(($(stat -c %s .git/index) - 9))",
    "a lock of the index": "touch .git/index.lock",
    "a lock of HEAD": "touch .git/HEAD.lock",
    "a lock of references": "touch .git/packed-refs.lock",
    "a hook": "mkdir -p .git/hooks; echo true > .git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit",
    "a hook that is a link": "mkdir -p .git/hooks; ln -s /bin/true .git/hooks/pre-commit",
    "a setting": "git config core.fsmonitor /bin/true",
    "a setting of another file": "git config include.path /tmp/more",
    "a setting twice": "git config --add core.bare false",
    "another hooks folder": "git config core.hooksPath /tmp",
    "a working tree elsewhere": "git config core.worktree /tmp",
    "a worktree more": "git worktree add -q --detach ../more",
    "an empty folder of worktrees": "mkdir .git/worktrees",
    "settings of a worktree": "touch .git/config.worktree",
    "a merge in progress": "git rev-parse HEAD > .git/MERGE_HEAD",
    "a merge not committed": "git merge -q --no-commit side > /dev/null",
    "a rebase in progress": "mkdir .git/rebase-merge",
    "a bisection": "git bisect start -q 2> /dev/null",
    "ignored files": "echo x >> .git/info/exclude",
    "attributes": "echo '*.txt filter=x' > .git/info/attributes",
    "grafted history": "echo $(git rev-parse HEAD) > .git/info/grafts",
    "a shallow history": "git rev-parse HEAD > .git/shallow",
    "objects elsewhere": "cp -r .git/objects ../objects; echo $PWD/../objects > .git/objects/info/alternates",
    "objects of a server": "git repack -adq; for pack in .git/objects/pack/*.pack; do touch ${pack%pack}promisor; done",
    "a pack that stays": "git repack -adq; for pack in .git/objects/pack/*.pack; do touch ${pack%pack}keep; done",
    "a submodule": "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub",
    "the folder of a submodule": "mkdir -p .git/modules/sub",
    "an object missing": "rm .git/objects/$(git rev-parse HEAD~1:a.txt | sed 's!^..!&/!')",
    "an object of another content": "cd .git/objects; a=$(git rev-parse HEAD~1:a.txt | sed 's!^..!&/!'); chmod 644 $a; "
    "cp -f $(git rev-parse HEAD~1:docs/b.txt | sed 's!^..!&/!') $a",
    "a commit graph that lies": "git commit-graph write --reachable; f=.git/objects/info/commit-graph; chmod 644 $f; "
    "printf x | dd of=$f bs=1 seek=$(($(stat -c %s $f) - 60)) conv=notrunc status=none",
    "a file in place of a record": "rm -r .git/logs; touch .git/logs",
    "leftovers among the records": "echo x > .git/logs/more",
    "a leftover": "echo x > .git/leftover",
    "references out of order": "git pack-refs --all; tail -n +2 .git/packed-refs | tac > refs; "
    "sed -i 1q .git/packed-refs; cat refs >> .git/packed-refs",
    "a repository that is a link": "mv .git ../git; ln -s ../git .git",
    "a repository that is a file": "mv .git ../git; echo 'gitdir: ../git' > .git",
    "a pipe": "mkfifo .git/info/pipe",
}


def run(script: str, folder: Path) -> None:
    """Run Bash in a repository, with times that are the same each time."""
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    times = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), **settings, **times}
    subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, check=True)


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solved") / "project"
    folder.mkdir()
    run(START, folder)
    known = subprocess.run(["git", "rev-list", "--all"], cwd=folder, check=True, capture_output=True, text=True).stdout
    folder.with_name("known").write_text(" ".join(known.split()))
    run(SOLVE, folder)
    return folder


def form(folder: Path, solved: Path, *more: str) -> Any:
    return form_git(str(folder / ".git"), solved.with_name("known").read_text(), *more)


def changed(solved: Path, tmp_path: Path, script: str) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(solved, folder, symlinks=True)
    run(script, folder)
    return folder


@pytest.mark.parametrize("what", sample(SAME, 8))
def test_what_is_free(what: str, solved: Path, tmp_path: Path) -> None:
    assert form(changed(solved, tmp_path, SAME[what]), solved) == form(solved, solved)


@pytest.mark.parametrize("what", sample(OTHER, 8))
def test_what_is_not_free(what: str, solved: Path, tmp_path: Path) -> None:
    folder = changed(solved, tmp_path, OTHER[what])
    try:
        found = form(folder, solved)
    except (AssertionError, OSError):
        return
    assert found != form(solved, solved)


def test_authors_count_where_they_are_named(solved: Path, tmp_path: Path) -> None:
    folder = changed(solved, tmp_path, SAME["another author and time"])
    assert form(folder, solved, "authors") != form(solved, solved, "authors")


def test_too_many_commits_are_refused(solved: Path, tmp_path: Path) -> None:
    folder = changed(solved, tmp_path, "for number in $(seq 120); do git commit -q --allow-empty -m more; done")
    with pytest.raises(AssertionError, match="far too many commits"):
        form(folder, solved)
