"""git repositories, whose history is made when the image is prepared.

Names of objects follow from what is in them, so the tests know those of every commit and file, and compare them with
what git records and with the files themselves. Nothing that a repository's settings can change is asked for: not
``git status``, not ``git diff``, and no name that a tag could take from a branch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from .draft import Draft, swap
from .family import Family
from .vocabulary import FIRST_NAMES, LAST_NAMES, SERVICES, WORDS

__all__ = ["FAMILY"]


class _History:
    """Writes the script that makes a repository, and knows what git will call everything in it."""

    def __init__(self, draft: Draft, root: str) -> None:
        self.draft = draft
        self.root = root
        self._main: tuple[dict[str, str], list[str], list[str]] = {}, [], []
        self._time = 1_600_000_000 + draft.number(0, 100_000_000)
        self.names = [f"{a} {b}" for a, b in zip(draft.some(FIRST_NAMES, 3), draft.some(LAST_NAMES, 3), strict=True)]
        readme = f"# {draft.prose(3)}\n\n{draft.prose(8)}\n"
        draft.file(f"{root}/README.md", readme)
        #: What is in the working tree.
        self.files = {"README.md": readme}
        #: The commits that lead to the branch in work, the newest last: their ids and their authors.
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
        """Begin a branch here; ``main`` goes back to what was there before the branch."""
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

    # --- what is right -------------------------------------------------------------------------

    def points(self, reference: str, commit: str) -> str:
        """Code of a test: a reference, by its full name, leads to this commit and so to everything before it."""
        return f"assert git('rev-parse', '--verify', {reference!r}, folder={self.root!r}) == {commit + chr(10)!r}"

    def new_commit(self, branch: str, parents: list[str], message: str, files: Mapping[str, str]) -> None:
        """The newest commit of a branch follows these, says this and has these files."""
        reads = f"headers, message = commit('refs/heads/{branch}', folder={self.root!r})\n"
        what = f"{branch} has one new commit"
        self.draft.final.test(what, f"{reads}assert headers['parent'] == {parents!r}")
        self.draft.final.test("its message is right", f"{reads}assert message == {message!r}")
        self.draft.final.test("its files are right", f"{reads}assert headers['tree'] == [{_tree(files)!r}]")

    def clean(self, branch: str, files: Mapping[str, str]) -> None:
        """A branch is checked out, and neither the index nor the working tree has anything but its files."""
        recorded = {path: f"100644 {_object('blob', text.encode())}" for path, text in sorted(files.items())}
        staged = [f"{record} 0\t{path}" for path, record in recorded.items()]
        self.draft.final.test(
            f"{branch} is checked out",
            f"assert git('symbolic-ref', 'HEAD', folder={self.root!r}) == {f'refs/heads/{branch}{chr(10)}'!r}",
        )
        self.draft.final.test(
            "nothing is staged",
            f"found = git('ls-files', '--stage', '-z', folder={self.root!r}).split('\\0')[:-1]\n"
            f"assert sorted(found) == {sorted(staged)!r}",
        )
        self.draft.final.test("the working tree is clean", f"assert blobs({self.root!r}) == {recorded!r}")


def _object(kind: str, data: bytes) -> str:
    """What git calls an object."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _tree(files: Mapping[str, str]) -> str:
    """What git calls a tree of these files."""
    folders: dict[str, dict[str, str]] = {}
    entries: list[tuple[str, str, str]] = []
    for path, text in files.items():
        first, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(first, {})[rest] = text
        else:
            entries.append((first, f"100644 {first}", _object("blob", text.encode())))
    # A directory is sorted as if its name ended with a slash.
    entries += [(f"{name}/", f"40000 {name}", _tree(below)) for name, below in folders.items()]
    return _object("tree", b"".join(f"{name}\0".encode() + bytes.fromhex(ident) for _, name, ident in sorted(entries)))


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
    draft.say(
        draft.pick(f"{root} is a git repository.", f"I need help with the history of the git repository {root}."),
        f"The file {path} in it once had a setting {key}, which was added in one commit of the branch main and "
        f"removed in a later one. Find the commit that {'removed' if removed else 'added'} it.",
        f"Write its full hash (40 hexadecimal digits) and its subject line to {target}, as one line with one space in "
        "between, ending with a newline.",
        "Leave the repository as it is: no other commits, branches or tags, main checked out, nothing changed.",
    )
    draft.initial.absent(target)
    draft.final.test(
        "history is unchanged",
        f"found = git('for-each-ref', '--format=%(objectname) %(refname)', folder={root!r})\n"
        f"assert found == {f'{history.commits[-1]} refs/heads/main{chr(10)}'!r}",
    )
    history.clean("main", history.files)
    draft.final.text(target, f"{wanted_id} {wanted}\n")
    end = "head -n 1" if removed else "tail -n 1"
    oracle = f"cd {root} && git log --format='%H %s' -S '{key} =' -- {path} | {end} > {target}\n"
    near = swap(oracle, end, "tail -n 1" if removed else "head -n 1")
    draft.solve(oracle, near, wanted)


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
    draft.say(
        draft.pick(
            f"In the git repository {root} somebody deleted {path} some commits ago.",
            f"The file {path} of the git repository {root} was deleted by mistake.",
        ),
        "Bring it back at the same path with the content it had just before it was deleted, and commit that on the "
        f"branch main with exactly the message: {message}",
        "\nThe commit must be the only new one and change nothing else, and the working tree must be clean "
        "afterwards (nothing uncommitted, no untracked files).",
    )
    files = {**history.files, path: versions[-1]}
    history.new_commit("main", history.commits[-1:], message, files)
    history.clean("main", files)
    oracle = (
        f"cd {root} || exit 1\nlast=$(git rev-list -n 1 HEAD -- {path})\n"
        f"git checkout -q \"$last^\" -- {path}\ngit commit -q -m '{message}'\n"
    )
    near = swap(
        oracle,
        f'git checkout -q "$last^" -- {path}',
        f'git checkout -q "$(git rev-list HEAD -- {path} | tail -n 1)" -- {path}',
    )
    draft.solve(oracle, near, versions[-1])


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
    draft.say(
        draft.pick(
            f"Merge the branch {branch} into main in the git repository {root}.",
            f"In the git repository {root}, the branch {branch} is ready to be merged into main.",
        ),
        f"There will be a conflict in {path}: both branches added a line at the same place. Keep both lines, {first} "
        f"before {second}, and no conflict markers.",
        f"The result must be a merge commit on main (first parent: the present main, second parent: {branch}) with "
        f"exactly the message: {message}",
        f"\nChange nothing else. Leave the branch {branch} where it is and the working tree clean (nothing "
        "uncommitted, no untracked files), on main.",
    )
    files = {**history.files, path: expected, "extra.txt": extra}
    history.new_commit("main", [history.commits[-1], there], message, files)
    history.clean("main", files)
    draft.final.test("the branch is unchanged", history.points(f"refs/heads/{branch}", there))
    written = expected.replace("\n", "\\n")
    oracle = (
        f"cd {root} || exit 1\ngit merge -q {branch} > /dev/null 2>&1\nprintf '{written}' > {path}\n"
        f"git add {path}\ngit commit -q -m '{message}'\n"
    )
    near = swap(oracle, f"printf '{written}' > {path}", f"git checkout -q --ours {path} 2> /dev/null")
    draft.solve(oracle, near, expected)


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
    history.write(names[-1], draft.prose(5) + "\n")
    history.commit(_subject(draft))
    history.finish()
    draft.say(
        draft.pick(
            f"We need a hotfix branch in the git repository {root}.", f"Prepare a hotfix in the git repository {root}."
        ),
        f"Create the branch {branch} starting at the tag {tag}. On top of it, apply the one commit of main whose "
        f"subject is {fix!r} (as git cherry-pick does), keeping its message and its author. The branch must have "
        "just this one commit more than the tag.",
        f"Leave main and the tag where they are. At the end {branch} must be checked out and the working tree clean "
        "(nothing uncommitted, no untracked files).",
    )
    files = {**at_tag, names[0]: fixed}
    history.new_commit(branch, [tagged_commit], fix, files)
    draft.final.test(
        "its author is right",
        f"headers, message = commit('refs/heads/{branch}', folder={root!r})\nassert headers['author'] == [{author!r}]",
    )
    draft.final.test("main is unchanged", history.points("refs/heads/main", history.commits[-1]))
    draft.final.test("the tag is unchanged", history.points(f"refs/tags/{tag}", tagged_commit))
    history.clean(branch, files)
    oracle = (
        f"cd {root} || exit 1\ngit checkout -q -b {branch} {tag}\n"
        f"git cherry-pick $(git log --format=%H --grep='^{fix}$' main) > /dev/null\n"
    )
    draft.solve(oracle, swap(oracle, f"-b {branch} {tag}", f"-b {branch} main~2"), fix)


FAMILY = Family("git", "Search, repair and merge git histories", (_find, _restore, _pick_commit, _merge), ("git",))
