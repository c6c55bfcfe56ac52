"""git repositories, whose history is made when the image is prepared."""

from __future__ import annotations

from .draft import Draft, swap
from .family import Family
from .vocabulary import FIRST_NAMES, LAST_NAMES, SERVICES, WORDS

__all__ = ["FAMILY"]


class _History:
    """Writes the script that makes a repository."""

    def __init__(self, draft: Draft, root: str) -> None:
        self.draft = draft
        self.root = root
        self._time = 1_600_000_000 + draft.number(0, 100_000_000)
        self.names = [f"{a} {b}" for a, b in zip(draft.some(FIRST_NAMES, 3), draft.some(LAST_NAMES, 3), strict=True)]
        self.subjects: list[str] = []
        draft.file(f"{root}/README.md", f"# {draft.prose(3)}\n\n{draft.prose(8)}\n")
        self.lines = [
            f"cd {root} || exit 1",
            "git init -q -b main .",
            "git config user.name User && git config user.email user@example.com && git config commit.gpgsign false",
        ]
        self.commit("Start")

    def write(self, path: str, text: str) -> None:
        folder = path.rpartition("/")[0]
        if folder:
            self.lines.append(f"mkdir -p {folder}")
        self.lines.append(f"cat > {path} <<'TEXT'\n{text}TEXT")

    def command(self, line: str) -> None:
        self.lines.append(line)

    def commit(self, subject: str) -> None:
        self._time += self.draft.number(1000, 100_000)
        name = self.draft.pick(*self.names)
        mail = name.lower().replace(" ", ".") + "@example.com"
        self.lines += [
            f"export GIT_AUTHOR_NAME='{name}' GIT_AUTHOR_EMAIL={mail} GIT_AUTHOR_DATE='{self._time} +0000'",
            f"export GIT_COMMITTER_NAME='{name}' GIT_COMMITTER_EMAIL={mail} GIT_COMMITTER_DATE='{self._time} +0000'",
            f"git add -A && git commit -q -m '{subject}'",
        ]
        self.subjects.append(subject)

    def finish(self) -> None:
        self.draft.setup = "set -e\n" + "\n".join(self.lines) + "\n"
        self.draft.initial.test("history is there", self.log("HEAD", self.subjects))

    def log(self, reference: str, subjects: list[str]) -> str:
        """Code of a test: these commits lead to ``reference``, the newest last."""
        return (
            f"found = git('log', '--format=%s', '--reverse', '--first-parent', {reference!r}, folder={self.root!r})\n"
            f"assert found.splitlines() == {subjects!r}"
        )


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
    wanted = ""
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
            wanted = subject
    history.finish()
    target = f"/home/user/{draft.pick('answer', 'commit', 'culprit')}.txt"
    draft.say(
        draft.pick(f"{root} is a git repository.", f"I need help with the history of the git repository {root}."),
        f"The file {path} in it once had a setting {key}, which was added in one commit of the branch main and "
        f"removed in a later one. Find the commit that {'removed' if removed else 'added'} it.",
        f"Write its full hash (40 hexadecimal digits) and its subject line to {target}, as one line with one space in "
        "between, ending with a newline.",
        "Leave the repository as it is.",
    )
    draft.initial.absent(target)
    draft.final.test("history is unchanged", history.log("main", history.subjects))
    draft.final.test(
        "the right commit is named",
        f"log = git('log', '--format=%H %s', 'main', folder={root!r}).splitlines(keepends=True)\n"
        f"right = [line for line in log if line[41:-1] == {wanted!r}]\n"
        f"assert len(right) == 1\nassert content({target!r}).decode('utf-8') == right[0]",
    )
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
    history.command(f"git rm -q {path}")
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
    draft.final.test("there is one new commit", history.log("main", [*history.subjects, message]))
    draft.final.test(
        "the commit has the right content",
        f"assert git('show', {f'main:{path}'!r}, folder={root!r}) == {versions[-1]!r}",
    )
    draft.final.test(
        "the commit changes nothing else",
        f"assert git('diff', '--name-status', 'main~1', 'main', folder={root!r}) == {f'A{chr(9)}{path}{chr(10)}'!r}",
    )
    draft.final.test(
        "the working tree is clean",
        f"assert content({f'{root}/{path}'!r}).decode('utf-8') == {versions[-1]!r}\n"
        f"assert git('rev-parse', '--abbrev-ref', 'HEAD', folder={root!r}) == 'main\\n'\n"
        f"assert git('status', '--porcelain', folder={root!r}) == ''",
    )
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
    history.command(f"git checkout -q -b {branch}")
    history.write(path, "".join(f"{line}\n" for line in [*lines[:place], theirs, *lines[place:]]))
    extra = f"{draft.prose(6)}\n"
    history.write("extra.txt", extra)
    history.commit(_subject(draft))
    history.subjects.pop()
    history.command("git checkout -q main")
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
        f"\nLeave the branch {branch} where it is and the working tree clean, on main.",
    )
    draft.final.test("main has one new commit", history.log("main", [*history.subjects, message]))
    draft.final.test(
        "it is a merge of the branch",
        f"assert git('rev-parse', 'main^2', folder={root!r}) == git('rev-parse', {branch!r}, folder={root!r}) != ''\n"
        f"assert len(git('rev-list', 'main~1..' + {branch!r}, folder={root!r}).split()) == 1",
    )
    draft.final.test("both lines are kept", f"assert git('show', {f'main:{path}'!r}, folder={root!r}) == {expected!r}")
    draft.final.test("the rest is merged", f"assert git('show', 'main:extra.txt', folder={root!r}) == {extra!r}")
    draft.final.test(
        "the working tree is clean",
        f"assert git('rev-parse', '--abbrev-ref', 'HEAD', folder={root!r}) == 'main\\n'\n"
        f"assert git('status', '--porcelain', folder={root!r}) == ''\n"
        f"assert content({f'{root}/{path}'!r}).decode('utf-8') == {expected!r}",
    )
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
    contents: dict[str, str] = {}
    at_tag: list[str] = []
    tagged = draft.number(2, 4)
    for number, name in enumerate(names):
        text = "".join(_settings(draft, 4))
        history.write(name, text)
        history.commit(_subject(draft))
        contents[name] = text
        if number == tagged - 1:
            history.command(f"git tag {tag}")
            at_tag = list(history.subjects)
    fixed = contents[names[0]] + f"fixed = {draft.number(1000, 9999)}\n"
    history.write(names[0], fixed)
    fix = f"Fix {draft.pick(*SERVICES)} {draft.pick('crash', 'leak', 'overflow', 'deadlock')}"
    history.commit(fix)
    history.write(names[-1], draft.prose(5) + "\n")
    history.commit(_subject(draft))
    history.finish()
    draft.say(
        draft.pick(
            f"We need a hotfix branch in the git repository {root}.", f"Prepare a hotfix in the git repository {root}."
        ),
        f"Create the branch {branch} starting at the tag {tag}. On top of it, apply the one commit of main whose "
        f"subject is {fix!r} (as git cherry-pick does), keeping its message. The branch must have just this one "
        "commit more than the tag.",
        f"Leave main and the tag where they are. At the end {branch} must be checked out and the working tree clean.",
    )
    draft.final.test("the branch has the right history", history.log(branch, [*at_tag, fix]))
    draft.final.test("main is unchanged", history.log("main", history.subjects))
    draft.final.test("the tag is unchanged", history.log(tag, at_tag))
    draft.final.test(
        "the fix is there", f"assert git('show', {f'{branch}:{names[0]}'!r}, folder={root!r}) == {fixed!r}"
    )
    files = sorted(["README.md", *names[:tagged]])
    draft.final.test(
        "nothing else is there",
        f"assert sorted(git('ls-tree', '--name-only', {branch!r}, folder={root!r}).splitlines()) == {files!r}",
    )
    draft.final.test(
        "the branch is checked out",
        f"assert git('rev-parse', '--abbrev-ref', 'HEAD', folder={root!r}) == {branch + chr(10)!r}\n"
        f"assert git('status', '--porcelain', folder={root!r}) == ''",
    )
    oracle = (
        f"cd {root} || exit 1\ngit checkout -q -b {branch} {tag}\n"
        f"git cherry-pick $(git log --format=%H --grep='^{fix}$' main) > /dev/null\n"
    )
    draft.solve(oracle, swap(oracle, f"-b {branch} {tag}", f"-b {branch} main~2"), fix)


FAMILY = Family("git", "Search, repair and merge git histories", (_find, _restore, _pick_commit, _merge), ("git",))
