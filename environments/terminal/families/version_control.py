"""Family: git repositories. Their history is made when the image is prepared.

Names of objects follow from their content, so the tests know the name of every commit and file, and compare these with
git's records and with the files themselves. The tests use nothing that a repository's settings can change: no ``git
status``, no ``git diff``, and no name that could be a tag instead of a branch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from .draft import Draft, breach, swap
from .family import Family
from .vocabulary import FIRST_NAMES, LAST_NAMES, SERVICES, WORDS

__all__ = ["FAMILY"]


class _History:
    """Writer of the script that makes a repository, and of the object names that git will compute."""

    def __init__(self, draft: Draft, root: str) -> None:
        self.draft = draft
        self.root = root
        self._main: tuple[dict[str, str], list[str], list[str]] = {}, [], []
        self._time = 1_600_000_000 + draft.number(0, 100_000_000)
        self.names = [f"{a} {b}" for a, b in zip(draft.some(FIRST_NAMES, 3), draft.some(LAST_NAMES, 3), strict=True)]
        readme = f"# {draft.prose(3)}\n\n{draft.prose(8)}\n"
        draft.file(f"{root}/README.md", readme)
        #: Content of the working tree.
        self.files = {"README.md": readme}
        #: Ids and authors of the commits that lead to the current branch, the newest last.
        self.commits: list[str] = []
        self.authors: list[str] = []
        self.lines = [
            f"cd {root} || exit 1",
            "git init -q -b main --object-format=sha1 .",
            "git config user.name User && git config user.email user@example.com && git config commit.gpgsign false",
        ]
        self.commit("Start")

    def write(self, path: str, text: str) -> None:
        folder = path.rpartition("/")[0]
        if folder:
            self.lines.append(f"mkdir -p {folder}")
        self.lines.append(f"cat > {path} <<'TEXT'\n{text}TEXT")
        self.files[path] = text

    def remove(self, path: str) -> None:
        self.lines.append(f"git rm -q {path}")
        del self.files[path]

    def command(self, line: str) -> None:
        self.lines.append(line)

    def branch(self, name: str) -> None:
        """Begin a branch here; ``main`` restores the state before the branch."""
        self._main = dict(self.files), list(self.commits), list(self.authors)
        self.lines.append(f"git checkout -q -b {name}")

    def main(self) -> None:
        self.files, self.commits, self.authors = self._main
        self.lines.append("git checkout -q main")

    def commit(self, subject: str) -> None:
        self._time += self.draft.number(1000, 100_000)
        name = self.draft.pick(*self.names)
        mail = name.lower().replace(" ", ".") + "@example.com"
        self.lines += [
            f"export GIT_AUTHOR_NAME='{name}' GIT_AUTHOR_EMAIL={mail} GIT_AUTHOR_DATE='{self._time} +0000'",
            f"export GIT_COMMITTER_NAME='{name}' GIT_COMMITTER_EMAIL={mail} GIT_COMMITTER_DATE='{self._time} +0000'",
            f"git add -A && git commit -q -m '{subject}'",
        ]
        person = f"{name} <{mail}> {self._time} +0000"
        parents = "".join(f"parent {commit}\n" for commit in self.commits[-1:])
        text = f"tree {_tree(self.files)}\n{parents}author {person}\ncommitter {person}\n\n{subject}\n"
        self.commits.append(_object("commit", text.encode()))
        self.authors.append(person)

    def finish(self) -> None:
        self.draft.setup = "set -e\n" + "\n".join(self.lines) + "\n"
        self.draft.initial.test("history is there", self.points("HEAD", self.commits[-1]))

    # --- checks ------------------------------------------------------------------------------------

    def points(self, reference: str, commit: str) -> str:
        """Return the code of a test: a reference, by its full name, points to this commit and so to its history."""
        return f"assert git('rev-parse', '--verify', {reference!r}, folder={self.root!r}) == {commit + chr(10)!r}"

    def new_commit(self, branch: str, parents: list[str], message: str, files: Mapping[str, str]) -> None:
        """Check the newest commit of a branch: its parents, message and files."""
        reads = f"headers, message = commit('refs/heads/{branch}', folder={self.root!r})\n"
        what = f"{branch} has one new commit"
        self.draft.final.test(what, f"{reads}assert headers['parent'] == {parents!r}")
        self.draft.final.test("its message is right", f"{reads}assert message == {message!r}")
        self.draft.final.test("its files are right", f"{reads}assert headers['tree'] == [{_tree(files)!r}]")

    def tidy(self, branch: str, *references: str) -> list[str]:
        """Return requirements: a branch is checked out and clean, no reference is added, the repository is sound."""
        root, at = self.root, f"refs/heads/{branch}"
        names = sorted([at, *references])
        listed = " and ".join(name.rpartition("/")[2] for name in (at, *references))
        final = self.draft.final
        recorded = (
            f"recorded = git('ls-tree', '-r', '-z', '--full-tree', {at!r}, folder={root!r}).split('\\0')[:-1]\n"
            "recorded = dict(reversed(entry.split('\\t')) for entry in recorded)\n"
        )
        checked_out, staged, clean = f"{branch} is checked out", "nothing is staged", "the working tree is clean"
        known, idle, sound = "there are no other references", "nothing is in progress", "the repository is sound"
        final.test(checked_out, f"assert git('symbolic-ref', 'HEAD', folder={root!r}) == {at + chr(10)!r}")
        final.test(
            staged,
            f"{recorded}found = git('ls-files', '--stage', '-z', folder={root!r}).split('\\0')[:-1]\n"
            "expected = [f'{what} 0\\t{path}'.replace(' blob', '') for path, what in recorded.items()]\n"
            "assert sorted(found) == sorted(expected)",
        )
        final.test(
            clean,
            f"{recorded}expected = {{path: what.replace('blob ', '') for path, what in recorded.items()}}\n"
            f"assert blobs({root!r}) == expected",
        )
        final.test(
            known, f"assert git('for-each-ref', '--format=%(refname)', folder={root!r}).split('\\n')[:-1] == {names!r}"
        )
        final.test(
            idle, f"left = [name for name in os.listdir({f'{root}/.git'!r}) if name in {_PROGRESS}]\nassert left == []"
        )
        # With the commits named, fsck does not read the index, which has a test of its own.
        final.test(
            sound,
            f"git('fsck', '--full', '--no-reflogs', '--no-dangling', *{names!r}, folder={root!r})\n"
            f"for name in ('shallow', 'info/grafts', 'objects/info/alternates', 'commondir'):\n"
            f"    assert missing(os.path.join({root!r}, '.git', name)), name\n"
            f"assert not [name for name in below({f'{root}/.git/objects'!r}) if name.endswith('.promisor')]",
        )
        self.draft.honest("objects packed and pruned", after="git gc --quiet --prune=now")
        self.draft.honest("references packed", after="git pack-refs --all")
        self.draft.honest(
            "no record of where branches were", after="git reflog expire --expire=now --all && rm -r .git/logs"
        )
        self.draft.honest("settings of one's own", after="git config user.name Me; git config alias.st status")
        self.draft.honest("an index of another version", after="git update-index --index-version 4")
        self.draft.honest("names of earlier commits", after="git update-ref ORIG_HEAD HEAD~1 && git commit-graph write")
        return [
            self.draft.require(
                f"At the end {branch} must be checked out.",
                breach("no branch checked out", checked_out, after="git checkout -q --detach"),
                breach(
                    "a branch that is not there checked out", checked_out, after="git symbolic-ref HEAD refs/heads/new"
                ),
            ),
            self.draft.require(
                "The working tree must be clean (nothing uncommitted, no untracked files).",
                *(breach(what, staged, after=script) for what, script in _STAGED.items()),
                *(breach(what, clean, after=script) for what, script in _DIRTY.items()),
            ),
            self.draft.require(
                f"There must be no branches, tags or stashes but {listed}.",
                breach("another branch", known, after="git branch more"),
                breach("another tag", known, after="git tag more"),
                breach("another tag of a branch's name", known, after=f"git tag {branch}"),
                breach("a stash", known, after="echo x >> README.md; git stash -q"),
            ),
            self.draft.require(
                "Nothing may be left in progress (a merge, a cherry-pick, a rebase).",
                breach("a cherry-pick in progress", idle, after="git rev-parse HEAD > .git/CHERRY_PICK_HEAD"),
                breach("a merge in progress", idle, after="git rev-parse HEAD > .git/MERGE_HEAD"),
                breach("a search in progress", idle, after="git bisect start"),
            ),
            self.draft.require(
                "The repository must be sound, with all of its history in it: git fsck finds no error.",
                breach("an object missing", sound, after=f"{_OLD_TREE}rm -f $object"),
                breach(
                    "a history cut off", sound, after=f"{_OLD_TREE}rm -f $object; git rev-parse HEAD > .git/shallow"
                ),
                breach(
                    "an object that lies elsewhere",
                    sound,
                    after="cp -r .git/objects ~/objects && echo ~/objects > .git/objects/info/alternates"
                    f"{_OLD_TREE}rm -f $object",
                ),
                breach(
                    "an object that was promised",
                    sound,
                    after=f"{_OLD_TREE}git repack -adq --keep-unreachable; git prune-packed\n"
                    "for pack in .git/objects/pack/*.pack; do touch ${pack%.pack}.promisor; done\n"
                    "git config core.repositoryFormatVersion 1; git config extensions.partialClone origin",
                ),
                breach("an object broken", sound, after=f"{_OLD_TREE}chmod u+w $object; echo x > $object"),
            ),
        ]


#: Files in which git records an operation in progress.
_PROGRESS = (
    "('CHERRY_PICK_HEAD', 'MERGE_HEAD', 'REVERT_HEAD', 'BISECT_LOG', 'BISECT_START', 'rebase-merge', 'rebase-apply', "
    "'sequencer')"
)
#: The file of an object that only the first commit needs.
_OLD_TREE = """
object=$(git rev-parse $(git rev-list --max-parents=0 HEAD)^{tree} | sed 's!^..!.git/objects/&/!')
test -f $object || exit 1
"""
_STAGED = {
    "a broken index": "echo junk > .git/index",
    "no index": "rm .git/index",
    "a staged change put back": "echo x >> README.md; git add .; git show HEAD:README.md > README.md",
    "a file staged and removed": "echo x > junk.txt; git add junk.txt; rm junk.txt",
}
_DIRTY = {
    "an untracked file": "echo junk > junk.txt",
    "untracked files not shown": "echo junk > junk.txt; git config status.showUntrackedFiles no",
    "untracked files excluded": "echo junk > junk.txt; echo '*' >> .git/info/exclude",
    "untracked files ignored by the user": "echo x > junk.txt; mkdir -p ~/.config/git; echo '*' > ~/.config/git/ignore",
    "an untracked directory that cannot be read": "mkdir hidden; echo junk > hidden/junk.txt; chmod 000 hidden",
    "a change assumed away": "echo junk >> README.md; git update-index --assume-unchanged README.md",
    "a change skipped": "echo junk >> README.md; git update-index --skip-worktree README.md",
    "a mode that does not count": "git config core.fileMode false; chmod 755 README.md",
    "a working tree elsewhere": "cp -r . /tmp/tree; git config core.worktree /tmp/tree; echo junk > junk.txt",
}
_AMENDED = "echo x >> README.md; git commit -q -a --amend --no-edit"
_LONGER = 'git commit -q --amend -m "$(git log -1 --format=%s)" -m more'
_EMPTY = "git commit -q --allow-empty -C HEAD"
#: Replaces the commit before the new one by another with the same subject.
_ANEW = """
old=$(git commit-tree -m "$(git log -1 --format=%s HEAD~1)" -p HEAD~2 "HEAD~3^{tree}")
git reset -q --soft $(git commit-tree -m "$(git log -1 --format=%s)" -p $old "HEAD^{tree}")
"""


def _object(kind: str, data: bytes) -> str:
    """Return git's name for an object."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _tree(files: Mapping[str, str]) -> str:
    """Return git's name for a tree of these files."""
    folders: dict[str, dict[str, str]] = {}
    entries: list[tuple[str, str, str]] = []
    for path, text in files.items():
        first, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(first, {})[rest] = text
        else:
            entries.append((first, f"100644 {first}", _object("blob", text.encode())))
    # git sorts a directory as if its name ended with a slash.
    entries += [(f"{name}/", f"40000 {name}", _tree(below)) for name, below in folders.items()]
    return _object("tree", b"".join(f"{name}\0".encode() + bytes.fromhex(ident) for _, name, ident in sorted(entries)))


def _parents(options: str) -> str:
    """Return Bash that gives the newest commit other parents."""
    return f'git reset -q --soft $(git commit-tree -m "$(git log -1 --format=%s)" {options} HEAD^{{tree}})'


def _settings(draft: Draft, count: int) -> list[str]:
    return [f"{word} = {draft.number(1, 99)}\n" for word in draft.some(WORDS, count)]


def _subject(draft: Draft) -> str:
    verb = draft.pick("Adjust", "Tune", "Rework", "Extend", "Simplify", "Correct", "Review")
    return f"{verb} {draft.pick(*SERVICES)} {draft.pick(*WORDS)} {draft.number(100, 999)}"


def _find(draft: Draft) -> None:
    root = draft.project()
    history = _History(draft, root)
    path = f"{draft.pick('conf', 'etc', 'src')}/{draft.pick(*SERVICES)}.conf"
    lines = _settings(draft, 8)
    removed = draft.chance(0.5)
    key = f"{draft.pick('max', 'min', 'default')}_{draft.pick(*SERVICES)}"
    total = draft.number(8, 14)
    first = draft.number(1, 3)
    last = draft.number(first + 2, total - 2)
    wanted, wanted_id = "", ""
    for number in range(total):
        place = draft.number(0, len(lines) - 1)
        if number == first:
            lines.insert(place, f"{key} = {draft.number(1, 99)}\n")
            action = "introduced"
        elif number == last:
            lines = [line for line in lines if not line.startswith(key)]
            action = "removed"
        else:
            while lines[place].startswith(key) and number < last:
                place = draft.number(0, len(lines) - 1)
            lines[place] = f"{draft.pick(*WORDS)}_{number} = {draft.number(100, 999)}\n"
            action = ""
        subject = _subject(draft)
        history.write(path, "".join(lines))
        history.commit(subject)
        if action == ("removed" if removed else "introduced"):
            wanted, wanted_id = subject, history.commits[-1]
    history.finish()
    target = f"/home/user/{draft.pick('answer', 'commit', 'culprit')}.txt"
    right = "* has the right lines"
    end, other = ("head -n 1", "tail -n 1") if removed else ("tail -n 1", "head -n 1")
    draft.say(
        draft.pick(f"{root} is a git repository.", f"I need help with the history of the git repository {root}."),
        f"The file {path} in it once had a setting {key}, which was added in one commit of the branch main and "
        f"removed in a later one. Find the commit that {'removed' if removed else 'added'} it.",
        draft.require(
            f"Write its full hash (40 hexadecimal digits) and its subject line to {target}, as one line with one space "
            "in between.",
            breach("the commit that did the opposite", right, swap=(end, other)),
            breach("a short hash", right, swap=("%H", "%h")),
            breach("a tab in between", right, swap=("%H ", "%H%x09")),
            breach("two lines", right, swap=("%H ", "%H%n")),
            breach("one line more", right, after=f"echo done >> {target}"),
        ),
        draft.require(
            "The line ends with a newline.",
            breach("no newline", "* ends with a newline", after=f"truncate -s -1 {target}"),
        ),
    )
    draft.say(
        draft.require(
            "Leave the history as it is: main must stay at its commit.",
            breach("a commit more", "main is unchanged", after=_EMPTY),
            breach("a commit less", "main is unchanged", after="git reset -q --hard HEAD~1"),
        ),
        *history.tidy("main"),
    )
    draft.initial.absent(target)
    draft.final.test("main is unchanged", history.points("refs/heads/main", history.commits[-1]))
    draft.final.text(target, f"{wanted_id} {wanted}\n")
    draft.honest(
        "every commit looked at",
        instead=f"""cd {root}
for commit in $(git rev-list --reverse main); do
  if git show $commit:{path} 2> /dev/null | grep -q '^{key} '; then now=1; else now=0; fi
  if [ "$now" != "${{before:-0}}" ] && [ $now = {int(not removed)} ]; then
    printf '%s %s\\n' $commit "$(git log -1 --format=%s $commit)" > {target}
  fi
  before=$now
done
""",
    )
    oracle = f"cd {root} && git log --format='%H %s' -S '{key} =' -- {path} | {end} > {target}\n"
    draft.solve(oracle, swap(oracle, end, other), wanted)


def _restore(draft: Draft) -> None:
    root = draft.project()
    history = _History(draft, root)
    path = f"{draft.pick('docs', 'scripts', 'data')}/{draft.pick(*WORDS)}.txt"
    versions = ["".join(_settings(draft, draft.number(4, 8))) for _ in range(draft.number(2, 3))]
    history.write("notes.txt", draft.prose(5) + "\n")
    for text in versions:
        history.write(path, text)
        history.commit(_subject(draft))
        history.write("notes.txt", draft.prose(6) + "\n")
        history.commit(_subject(draft))
    history.remove(path)
    history.commit("Clean up")
    for _ in range(draft.number(1, 4)):
        history.write("notes.txt", draft.prose(6) + "\n")
        history.commit(_subject(draft))
    history.finish()
    message = f"Bring back {path.rpartition('/')[2]}"
    newest, oldest = '"$last^"', f'"$(git rev-list HEAD -- {path} | tail -n 1)"'
    draft.say(
        draft.pick(
            f"In the git repository {root} somebody deleted {path} some commits ago.",
            f"The file {path} of the git repository {root} was deleted by mistake.",
        ),
        draft.require(
            "Bring it back at the same path with the content it had just before it was deleted.",
            breach("its first content", "its files are right", swap=(newest, oldest)),
            breach(
                "another path",
                "its files are right",
                after=f"git mv {path} back.txt && git commit -q --amend --no-edit",
            ),
        ),
        draft.require(
            f"Commit that on the branch main with exactly the message: {message}",
            breach("a longer message", "its message is right", after=_LONGER),
            breach("another message", "its message is right", swap=("-m 'Bring back", "-m 'Restore")),
        ),
        draft.require(
            "\nThe commit must be the only new one, on top of what is there,",
            breach("two commits", "main has one new commit", after=_EMPTY),
            breach("the history before it made anew", "main has one new commit", after=_ANEW),
        ),
        draft.require("and change nothing else.", breach("a change more", "its files are right", after=_AMENDED)),
        *history.tidy("main"),
    )
    history.new_commit("main", history.commits[-1:], message, {**history.files, path: versions[-1]})
    draft.honest(
        "the content written by hand",
        instead=f"""cd {root} && mkdir -p $(dirname {path})
for commit in $(git rev-list --reverse HEAD); do
  git show $commit:{path} > /tmp/seen 2> /dev/null && cp /tmp/seen {path}
done
git add {path} && git commit -q -m '{message}'
""",
    )
    oracle = (
        f"cd {root} || exit 1\nlast=$(git rev-list -n 1 HEAD -- {path})\n"
        f"git checkout -q \"$last^\" -- {path}\ngit commit -q -m '{message}'\n"
    )
    draft.solve(oracle, swap(oracle, newest, oldest), versions[-1])


def _merge(draft: Draft) -> None:
    root = draft.project()
    history = _History(draft, root)
    branch = f"feature-{draft.pick(*SERVICES)}"
    path = f"{draft.pick('list', 'hosts', 'modules')}.txt"
    lines = draft.some(WORDS, 7)
    place = draft.number(1, 5)
    ours, theirs = f"{draft.pick(*SERVICES)}-{draft.number(1, 9)}", f"{draft.pick(*SERVICES)}-{draft.number(10, 99)}"
    history.write(path, "".join(f"{line}\n" for line in lines))
    history.commit(_subject(draft))
    history.branch(branch)
    history.write(path, "".join(f"{line}\n" for line in [*lines[:place], theirs, *lines[place:]]))
    extra = f"{draft.prose(6)}\n"
    history.write("extra.txt", extra)
    history.commit(_subject(draft))
    there = history.commits[-1]
    history.main()
    history.write(path, "".join(f"{line}\n" for line in [*lines[:place], ours, *lines[place:]]))
    history.commit(_subject(draft))
    history.finish()
    message = f"Merge {branch}"
    first, second = draft.pick((ours, theirs), (theirs, ours))
    expected = "".join(f"{line}\n" for line in [*lines[:place], first, second, *lines[place:]])
    files_right = "its files are right"
    resolved = f"printf '{expected.replace(chr(10), chr(92) + 'n')}' > {path}"
    draft.say(
        draft.pick(
            f"Merge the branch {branch} into main in the git repository {root}.",
            f"In the git repository {root}, the branch {branch} is ready to be merged into main.",
        ),
        f"There will be a conflict in {path}: both branches added a line at the same place.",
        draft.require(
            f"Keep both lines, {first} before {second}, and no conflict markers.",
            breach("one line only", files_right, swap=(resolved, f"git checkout -q --ours {path} 2> /dev/null")),
            breach(
                "the lines in another order", files_right, swap=(f"{first}\\n{second}\\n", f"{second}\\n{first}\\n")
            ),
            breach("conflict markers", files_right, swap=(f"{resolved}\n", "")),
        ),
        draft.require(
            f"The result must be a merge commit on main (first parent: the present main, second parent: {branch})",
            breach(
                "one parent",
                "main has one new commit",
                after=_parents("-p HEAD^1"),
            ),
            breach(
                "the parents in another order",
                "main has one new commit",
                after=_parents("-p HEAD^2 -p HEAD^1"),
            ),
            breach("a commit more", "main has one new commit", after=_EMPTY),
        ),
        draft.require(
            f"with exactly the message: {message}", breach("a longer message", "its message is right", after=_LONGER)
        ),
        draft.require(
            "\nChange nothing else.",
            breach("a change more", files_right, after=_AMENDED),
            breach(
                "a file of the branch left out",
                files_right,
                after="git rm -q extra.txt; git commit -q --amend --no-edit",
            ),
        ),
        draft.require(
            f"Leave the branch {branch} where it is.",
            breach("the branch moved", "the branch is unchanged", after=f"git branch -q -f {branch} main"),
        ),
        *history.tidy("main", f"refs/heads/{branch}"),
    )
    history.new_commit(
        "main", [history.commits[-1], there], message, {**history.files, path: expected, "extra.txt": extra}
    )
    draft.final.test("the branch is unchanged", history.points(f"refs/heads/{branch}", there))
    draft.honest(
        "the commit put together by hand",
        instead=f"""cd {root} || exit 1
git checkout -q {branch} -- extra.txt && {resolved} && git add {path} && tree=$(git write-tree)
git reset -q --hard $(git commit-tree -m '{message}' -p main -p {branch} $tree)
""",
    )
    oracle = (
        f"cd {root} || exit 1\ngit merge -q {branch} > /dev/null 2>&1\n{resolved}\n"
        f"git add {path}\ngit commit -q -m '{message}'\n"
    )
    draft.solve(oracle, swap(oracle, resolved, f"git checkout -q --ours {path} 2> /dev/null"), expected)


def _pick_commit(draft: Draft) -> None:
    root = draft.project()
    history = _History(draft, root)
    tag = f"v{draft.number(1, 9)}.{draft.number(0, 9)}"
    branch = f"hotfix-{draft.pick(*SERVICES)}"
    names = [f"{word}.txt" for word in draft.some(WORDS, 6)]
    at_tag: dict[str, str] = {}
    tagged_commit = ""
    tagged = draft.number(2, 4)
    for number, name in enumerate(names):
        text = "".join(_settings(draft, 4))
        history.write(name, text)
        history.commit(_subject(draft))
        if number == tagged - 1:
            history.command(f"git tag {tag}")
            at_tag, tagged_commit = dict(history.files), history.commits[-1]
    fixed = history.files[names[0]] + f"fixed = {draft.number(1000, 9999)}\n"
    history.write(names[0], fixed)
    fix = f"Fix {draft.pick(*SERVICES)} {draft.pick('crash', 'leak', 'overflow', 'deadlock')}"
    history.commit(fix)
    author = history.authors[-1]
    begun = f"{branch} has one new commit"
    history.write(names[-1], draft.prose(5) + "\n")
    history.commit(_subject(draft))
    history.finish()
    draft.say(
        draft.pick(
            f"We need a hotfix branch in the git repository {root}.", f"Prepare a hotfix in the git repository {root}."
        ),
        draft.require(
            f"Create the branch {branch} starting at the tag {tag}.",
            breach(
                "a branch that starts at main",
                begun,
                "its files are right",
                swap=(f"-b {branch} {tag}", f"-b {branch} main~2"),
            ),
        ),
        draft.require(
            f"On top of it, apply the one commit of main whose subject is {fix!r} (as git cherry-pick does), and no "
            "other change,",
            breach("a change more", "its files are right", after=_AMENDED),
            breach(
                "another commit's change",
                "its files are right",
                after=f"git checkout -q main -- {names[-1]}; git commit -q --amend --no-edit",
            ),
        ),
        draft.require(
            "keeping its message",
            breach("a longer message", "its message is right", after=_LONGER),
            breach(
                "a message that says where it is from", "its message is right", swap=("cherry-pick ", "cherry-pick -x ")
            ),
        ),
        draft.require(
            "and its author.",
            breach(
                "picked as one's own", "its author is right", after="git commit -q --amend --reset-author --no-edit"
            ),
        ),
        draft.require(
            "The branch must have just this one commit more than the tag.", breach("a commit more", begun, after=_EMPTY)
        ),
        draft.require(
            "Leave main and the tag where they are.",
            breach("main moved", "main is unchanged", after=f"git branch -q -f main {branch}"),
            breach("the tag moved", "the tag is unchanged", after=f"git tag -f {tag} {branch} > /dev/null"),
        ),
        *history.tidy(branch, "refs/heads/main", f"refs/tags/{tag}"),
    )
    history.new_commit(branch, [tagged_commit], fix, {**at_tag, names[0]: fixed})
    draft.final.test(
        "its author is right",
        f"headers, message = commit('refs/heads/{branch}', folder={root!r})\nassert headers['author'] == [{author!r}]",
    )
    draft.final.test("main is unchanged", history.points("refs/heads/main", history.commits[-1]))
    draft.final.test("the tag is unchanged", history.points(f"refs/tags/{tag}", tagged_commit))
    draft.honest(
        "a patch applied",
        instead=f"""cd {root} && git checkout -q -b {branch} {tag} || exit 1
git format-patch -q --stdout -1 $(git log --format=%H --grep='^{fix}$' main) > /tmp/patch && git am -q --keep /tmp/patch
git commit -q --amend -m '{fix}'
""",
    )
    oracle = (
        f"cd {root} || exit 1\ngit checkout -q -b {branch} {tag}\n"
        f"git cherry-pick $(git log --format=%H --grep='^{fix}$' main) > /dev/null\n"
    )
    draft.solve(oracle, swap(oracle, f"-b {branch} {tag}", f"-b {branch} main~2"), fix)


FAMILY = Family("git", "Search, repair and merge git histories", (_find, _restore, _pick_commit, _merge), ("git",))
