"""Family: git repositories. Their history is made when the image is prepared.

Names of objects follow from their content, so a task knows the names of the commits that it begins with. The comparison
of repositories takes these by name, and what the agent commits by tree, parents and message.
"""

import hashlib
from collections.abc import Mapping

from .draft import Draft, swap
from .family import Family
from .vocabulary import FIRST_NAMES, LAST_NAMES, SERVICES, WORDS


class _History:
    """Writer of the script that makes a repository, and of the object names that git will compute."""

    def __init__(self, draft: Draft, root: str) -> None:
        self.draft = draft
        self.root = root
        self._main: tuple[dict[str, str], list[str]] = {}, []
        self._time = 1_600_000_000 + draft.number(0, 100_000_000)
        self.names = [f"{a} {b}" for a, b in zip(draft.some(FIRST_NAMES, 3), draft.some(LAST_NAMES, 3), strict=True)]
        readme = f"# {draft.prose(3)}\n\n{draft.prose(8)}\n"
        draft.file(f"{root}/README.md", readme)
        #: Content of the working tree.
        self.files = {"README.md": readme}
        #: Names of the commits that lead to the current branch, the newest last, and of all commits.
        self.commits: list[str] = []
        self.known: list[str] = []
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
        self._main = dict(self.files), list(self.commits)
        self.lines.append(f"git checkout -q -b {name}")

    def main(self) -> None:
        self.files, self.commits = self._main
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
        self.known.append(self.commits[-1])

    def finish(self, branch: str, *references: str, authors: str = "") -> list[str]:
        """Add set-up and comparison. Return requirements: a branch is checked out and clean, and what else is there."""
        draft, root, head = self.draft, self.root, f"{self.commits[-1]}\n"
        draft.setup = "set -e\n" + "\n".join(self.lines) + "\n"
        draft.initial.test("history is there", f"assert git('rev-parse', 'HEAD', folder={root!r}) == {head!r}")
        draft.form(
            f"{root}/.git",
            "git",
            " ".join(self.known),
            authors,
            sentence=f"How git stores its objects and references, unreachable objects, reflogs, {_PEOPLE[authors]} "
            "and aliases are up to you; other settings, hooks and files in .git are not.",
        )
        listed = " and ".join((branch, *references))
        return [
            f"! At the end {branch} must be checked out.",
            "! The working tree must be clean (nothing uncommitted, no untracked files).",
            f"! There must be no branches, tags or stashes but {listed}.",
            "! Nothing may be left in progress (a merge, a cherry-pick, a rebase).",
            "! The repository must be sound, with all of its history in it: git fsck finds no error.",
        ]


#: Free beside the repository's storage, by the arguments of the comparison.
_PEOPLE = {"": "the author and the time of new commits", "authors": "the committer and the time of committing"}


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
    for number in range(total):
        place = draft.number(0, len(lines) - 1)
        if number == first:
            lines.insert(place, f"{key} = {draft.number(1, 99)}\n")
        elif number == last:
            lines = [line for line in lines if not line.startswith(key)]
        else:
            while lines[place].startswith(key) and number < last:
                place = draft.number(0, len(lines) - 1)
            lines[place] = f"{draft.pick(*WORDS)}_{number} = {draft.number(100, 999)}\n"
        history.write(path, "".join(lines))
        history.commit(_subject(draft))
    target = draft.result(f"/home/user/{draft.pick('answer', 'commit', 'culprit')}.txt")
    end, other = ("head -n 1", "tail -n 1") if removed else ("tail -n 1", "head -n 1")
    draft.say(
        draft.pick(f"{root} is a git repository.", f"I need help with the history of the git repository {root}."),
        f"The file {path} in it once had a setting {key}, which was added in one commit of the branch main and "
        f"removed in a later one. Find the commit that {'removed' if removed else 'added'} it.",
        f"! Write its full hash (40 hexadecimal digits) and its subject line to {target}, as one line with one space "
        "in between.",
        "! The line ends with a newline.",
    )
    draft.say("! Leave the history as it is: main must stay at its commit.", *history.finish("main"))
    oracle = f"cd {root} && git log --format='%H %s' -S '{key} =' -- {path} | {end} > {target}\n"
    draft.solve(oracle, swap(oracle, end, other))


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
    message = f"Bring back {path.rpartition('/')[2]}"
    newest, oldest = '"$last^"', f'"$(git rev-list HEAD -- {path} | tail -n 1)"'
    draft.say(
        draft.pick(
            f"In the git repository {root} somebody deleted {path} some commits ago.",
            f"The file {path} of the git repository {root} was deleted by mistake.",
        ),
        "! Bring it back at the same path with the content it had just before it was deleted.",
        f"! Commit that on the branch main with exactly the message: {message}",
        "! \nThe commit must be the only new one, on top of what is there,",
        "! and change nothing else.",
        *history.finish("main"),
    )
    oracle = (
        f"cd {root} || exit 1\nlast=$(git rev-list -n 1 HEAD -- {path})\n"
        f"git checkout -q \"$last^\" -- {path}\ngit commit -q -m '{message}'\n"
    )
    draft.solve(oracle, swap(oracle, newest, oldest))


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
    history.write("extra.txt", f"{draft.prose(6)}\n")
    history.commit(_subject(draft))
    history.main()
    history.write(path, "".join(f"{line}\n" for line in [*lines[:place], ours, *lines[place:]]))
    history.commit(_subject(draft))
    message = f"Merge {branch}"
    first, second = draft.pick((ours, theirs), (theirs, ours))
    expected = "".join(f"{line}\n" for line in [*lines[:place], first, second, *lines[place:]])
    resolved = f"printf '{expected.replace(chr(10), chr(92) + 'n')}' > {path}"
    draft.say(
        draft.pick(
            f"Merge the branch {branch} into main in the git repository {root}.",
            f"In the git repository {root}, the branch {branch} is ready to be merged into main.",
        ),
        f"There will be a conflict in {path}: both branches added a line at the same place.",
        f"! Keep both lines, {first} before {second}, and no conflict markers.",
        f"! The result must be a merge commit on main (first parent: the present main, second parent: {branch})",
        f"! with exactly the message: {message}",
        "! \nChange nothing else.",
        f"! Leave the branch {branch} where it is.",
        *history.finish("main", branch),
    )
    oracle = (
        # git writes files again, with the permissions that the umask leaves.
        f"umask 022\ncd {root} || exit 1\ngit merge -q {branch} > /dev/null 2>&1\n{resolved}\n"
        f"git add {path}\ngit commit -q -m '{message}'\n"
    )
    draft.solve(oracle, swap(oracle, resolved, f"git checkout -q --ours {path} 2> /dev/null"))


def _pick_commit(draft: Draft) -> None:
    root = draft.project()
    history = _History(draft, root)
    tag = f"v{draft.number(1, 9)}.{draft.number(0, 9)}"
    branch = f"hotfix-{draft.pick(*SERVICES)}"
    names = [f"{word}.txt" for word in draft.some(WORDS, 6)]
    tagged = draft.number(2, 4)
    for number, name in enumerate(names):
        text = "".join(_settings(draft, 4))
        history.write(name, text)
        history.commit(_subject(draft))
        if number == tagged - 1:
            history.command(f"git tag {tag}")
    history.write(names[0], history.files[names[0]] + f"fixed = {draft.number(1000, 9999)}\n")
    fix = f"Fix {draft.pick(*SERVICES)} {draft.pick('crash', 'leak', 'overflow', 'deadlock')}"
    history.commit(fix)
    history.write(names[-1], draft.prose(5) + "\n")
    history.commit(_subject(draft))
    draft.say(
        draft.pick(
            f"We need a hotfix branch in the git repository {root}.", f"Prepare a hotfix in the git repository {root}."
        ),
        f"! Create the branch {branch} starting at the tag {tag}.",
        f"! On top of it, apply the one commit of main whose subject is {fix!r} (as git cherry-pick does), and no "
        "other change,",
        "! keeping its message",
        "! and its author.",
        "! The branch must have just this one commit more than the tag.",
        "! Leave main and the tag where they are.",
        *history.finish(branch, "main", tag, authors="authors"),
    )
    oracle = (
        f"umask 022\ncd {root} || exit 1\ngit checkout -q -b {branch} {tag}\n"
        f"git cherry-pick $(git log --format=%H --grep='^{fix}$' main) > /dev/null\n"
    )
    draft.solve(oracle, swap(oracle, f"-b {branch} {tag}", f"-b {branch} main~2"))


FAMILY = Family("git", "Search, repair and merge git histories", (_find, _restore, _pick_commit, _merge), ("git",))
