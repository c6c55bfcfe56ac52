"""Settings of a repository do not change what a git that reads prints: random draws over all settings that git knows.

``trusted_surroundings`` has a list of the settings that do. Only a list is possible: git has no option by which it
ignores a repository's settings for its output, and some (``core.bare``) say what the repository is.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from .parts import trusted_surroundings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

_REPOSITORY = r"""
git init -q -b main; git config user.name A; git config user.email a@example.org
printf 'one\ntwo\n\nthree\n' > file; mkdir d; echo x > d/é; printf '\tt \n' > ws; printf 'ig\n' > .gitignore
printf 'A <a@example.org> B <b@example.org>\n' > .mailmap
git add .; git commit -qm "first  #x"; git tag -a v1 -m tag; git mv file moved; git commit -qm second
git checkout -q -b side HEAD~1; echo s > s; git add s; git commit -qm side; git checkout -q main
git merge -q --no-ff -m merge side; git tag v10; git tag v2; echo y >> moved; git stash -q; echo z >> moved
echo u > untracked; mkdir ud; echo q > ud/a; echo i > ig; git branch -q up side
git config branch.main.remote .; git config branch.main.merge refs/heads/up; git status -s
"""
_COMMANDS = """
status|status --porcelain|status -s|log|log --oneline|log -p|log --stat|show|show --stat|show HEAD:moved|diff
diff --cached|diff HEAD~1|diff --name-status v1|diff --stat v1 HEAD|diff-tree -p HEAD~1|diff --check|ls-files
ls-files -o --exclude-standard|ls-tree -r HEAD|branch|branch -a -v|tag|tag -l -n|for-each-ref|stash list
rev-parse HEAD|rev-list --all|describe|blame HEAD -- moved|grep one|grep -n t|shortlog -s HEAD|reflog
cat-file -p HEAD|show-ref|name-rev HEAD|count-objects|check-ignore ig|merge-base main side|whatchanged -1|cherry up
symbolic-ref HEAD|diff --quiet|grep -q nothing|check-ignore moved|merge-base --is-ancestor HEAD v1|fsck
"""
_VALUES = (
    *(
        "true",
        "false",
        "0",
        "1",
        "5",
        "-1",
        "never",
        "always",
        "none",
        "all",
        "short",
        "full",
        "default",
        "auto",
        "raw",
    ),
    *("log", "%s", "latin1", "reverse", "-refname", "rebase", "diff", "sub", "ignore", "histogram", "evil", "!evil"),
    *("raw", "/nowhere"),
)
#: Settings that say what the repository is, and not how it is shown.
_STATE = re.compile(r"branch\.|core\.sparseCheckout|core\.bare|core\.worktree|extensions\.|remote\.", re.IGNORECASE)


@dataclass(frozen=True)
class Repository:
    """A repository, the variables of a git that reads it, and what its commands print."""

    folder: Path
    variables: dict[str, str]

    def printed(self) -> list[tuple[str, int, bytes]]:
        """Return the status and the output of each command."""
        index = self.folder / ".git" / "index"
        before, found = index.read_bytes(), list[tuple[str, int, bytes]]()
        for command in re.split(r"[|\n]", _COMMANDS.strip()):
            arguments = ["git", *command.split()]
            done = subprocess.run(
                arguments, cwd=self.folder, env=self.variables, capture_output=True, timeout=60, check=False
            )
            found.append((command, done.returncode, done.stdout))
            index.write_bytes(before)
        return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("repository")
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "LC_ALL": "C.UTF-8"}
    variables |= {f"GIT_{name}_DATE": "2020-01-01T00:00:00Z" for name in ("AUTHOR", "COMMITTER")}
    subprocess.run(["bash", "-ec", _REPOSITORY], cwd=folder, env=variables, check=True, capture_output=True)
    # As in an examination, it finds no program but git (`read_only_git`).
    alone, git = tmp_path_factory.mktemp("alone"), shutil.which("git")
    assert git is not None
    (alone / "git").symlink_to(git)
    found = {**variables, **trusted_surroundings.ProgramVariables("")("git", {}), "PATH": str(alone)}
    return Repository(folder, found)


@pytest.mark.parametrize(
    ("draws", "seed"), [(12, 0), pytest.param(1500, random.randrange(10**6), marks=pytest.mark.long, id="many")]
)
def test_no_setting_changes_what_is_printed(repository: Repository, draws: int, seed: int) -> None:
    known = subprocess.run(["git", "help", "-c"], env=repository.variables, capture_output=True, text=True, check=True)
    names = [re.sub(r"<[^>]+>|\*", "main", name) for name in known.stdout.split() if re.match(r"\w+\.", name)]
    config = repository.folder / ".git" / "config"
    text, expected = config.read_text(), repository.printed()
    draw = random.Random(seed)
    for _ in range(draws):
        name, value = draw.choice([name for name in names if not _STATE.match(name)]), draw.choice(_VALUES)
        section, _, last = name.rpartition(".")
        first, _, rest = section.partition(".")
        head = f'[{first} "{rest}"]' if rest else f"[{first}]"
        config.write_text(f'{text}{head}\n\t{last} = "{value}"\n')
        try:
            printed = repository.printed()
        finally:
            config.write_text(text)
        for (command, status, output), (_, now, shown) in zip(expected, printed, strict=True):
            # A git that refuses the setting fails, and so does the test that calls it.
            refused = now not in (0, status)
            assert refused or (now, shown) == (status, output), f"{name}={value} changes {command} (seed {seed})"
