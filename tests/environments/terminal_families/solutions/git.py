"""Forbidden changes and other solutions of the family `git`."""

from tests.environments.terminal_families.ways import after, instead, swap

#: Finds the file of an object that only the first commit needs.
_OLD_TREE = """
object=$(git rev-parse $(git rev-list --max-parents=0 HEAD)^{tree} | sed 's!^..!.git/objects/&/!')
test -f $object || exit 1
"""
_AMENDED = after("echo x >> README.md; git commit -q -a --amend --no-edit")
_LONGER = after('git commit -q --amend -m "$(git log -1 --format=%s)" -m more')
_EMPTY = after("git commit -q --allow-empty -C HEAD")
#: Replaces the commit before the new one by another with the same subject.
_ANEW = """
old=$(git commit-tree -m "$(git log -1 --format=%s HEAD~1)" -p HEAD~2 "HEAD~3^{tree}")
git reset -q --soft $(git commit-tree -m "$(git log -1 --format=%s)" -p $old "HEAD^{tree}")
"""
#: Gives the newest commit other parents.
_PARENTS = 'git reset -q --soft $(git commit-tree -m "$(git log -1 --format=%s)" {} HEAD^{{tree}})'

FORBIDDEN = {
    "finish": {
        "At the end «branch» must be checked out.": [
            after("git checkout -q --detach"),
            after("git symbolic-ref HEAD refs/heads/new"),
        ],
        "The working tree must be clean": [
            after("echo x >> README.md; git add .; git show HEAD:README.md > README.md"),
            after("echo x > junk.txt; git add junk.txt; rm junk.txt"),
            after("echo junk >> .git/info/exclude; echo x > junk"),
            after("git update-index --skip-worktree README.md"),
            after('mv .git ~/g; echo "gitdir: $HOME/g" > .git'),
        ],
        "There must be no branches, tags or stashes but «listed».": [
            after("git tag «branch»"),
            after("echo x >> README.md; git stash -q"),
        ],
        "Nothing may be left in progress (a merge, a cherry-pick, a rebase).": [
            after("git rev-parse HEAD > .git/CHERRY_PICK_HEAD"),
            after("git merge -q --no-commit --no-ff --allow-unrelated-histories -s ours HEAD~1; git bisect start"),
        ],
        "The repository must be sound, with all of its history in it: git fsck finds no error.": [
            after(f"{_OLD_TREE}rm -f $object"),
            after(f"{_OLD_TREE}rm -f $object; git rev-parse HEAD > .git/shallow"),
        ],
    },
    "_find": {
        "Write its full hash (40 hexadecimal digits)": [swap("«end»", "«other»"), swap("%H", "%h")],
        "The line ends with a newline.": [after("truncate -s -1 «target»")],
        "Leave the history as it is: main must stay at its commit.": [_EMPTY, after("git reset -q --hard HEAD~1")],
    },
    "_restore": {
        "Bring it back at the same path with the content it had just before it was deleted.": [
            swap("«newest»", "«oldest»"),
            after("git mv «path» back.txt && git commit -q --amend --no-edit"),
        ],
        "Commit that on the branch main with exactly the message: «message»": [
            swap("-m 'Bring back", "-m 'Restore"),
            swap("git commit", ": git commit"),
        ],
        "\nThe commit must be the only new one, on top of what is there,": [
            _EMPTY,
            swap("git checkout -q «newest» -- «path»\ngit commit", "git revert -n $last && git commit --amend"),
        ],
        "and change nothing else.": [_AMENDED, after("chmod 755 «path»; git commit -q -a --amend --no-edit")],
    },
    "_merge": {
        "Keep both lines, «first» before «second», and no conflict markers.": [
            swap("«resolved»", "git checkout -q --ours «path» 2> /dev/null"),
            swap("«first»\\n«second»\\n", "«second»\\n«first»\\n"),
        ],
        "The result must be a merge commit on main": [
            after(_PARENTS.format("-p HEAD^1")),
            after(_PARENTS.format("-p HEAD^2 -p HEAD^1")),
        ],
        "with exactly the message: «message»": [_LONGER],
        "\nChange nothing else.": [_AMENDED, after("git rm -q extra.txt; git commit -q --amend --no-edit")],
        "Leave the branch «branch» where it is.": [
            after("git branch -q -f «branch» main"),
            after("git branch -q -D «branch»"),
        ],
    },
    "_pick_commit": {
        "Create the branch «branch» starting at the tag «tag».": [swap("-b «branch» «tag»", "-b «branch» main~2")],
        "On top of it, apply the one commit of main whose subject is": [
            _AMENDED,
            after("git checkout -q main -- «names[-1]»; git commit -q --amend --no-edit"),
        ],
        "keeping its message": [_LONGER, swap("cherry-pick ", "cherry-pick -x ")],
        "and its author.": [
            after("git commit -q --amend --reset-author --no-edit"),
            after("git commit -q --amend --date=now --no-edit"),
        ],
        "The branch must have just this one commit more than the tag.": [_EMPTY],
        "Leave main and the tag where they are.": [
            after("git branch -q -f main «branch»"),
            after("git tag -f «tag» «branch» > /dev/null"),
        ],
    },
}
HONEST = {
    "finish": [
        after("git gc --quiet --prune=now"),
        after("git worktree add -q ~/wt -b wt 2> /dev/null; git worktree remove ~/wt; git branch -q -D wt"),
        after("git bisect start > /dev/null 2>&1; git bisect reset > /dev/null 2>&1; git fetch -q . 2> /dev/null"),
        after("rm .git/index; git reset -q; git repack -q -a -d -b"),
        after("git pack-refs --all; git reflog expire --expire=now --all && rm -r .git/logs"),
        after("git config user.name Me; git config alias.st status"),
        after("git update-index --index-version 4; git update-ref ORIG_HEAD HEAD~1 && git commit-graph write"),
        after("echo x >> README.md; git stash -q; git stash pop -q; git checkout -q README.md"),
    ],
    "_find": [
        instead("""cd «root»
for commit in $(git rev-list --reverse main); do
  if git show $commit:«path» 2> /dev/null | grep -q '^«key» '; then now=1; else now=0; fi
  if [ "$now" != "${before:-0}" ] && [ $now = «int(not removed)» ]; then
    printf '%s %s\\n' $commit "$(git log -1 --format=%s $commit)" > «target»
  fi
  before=$now
done"""),
        instead("""git clone -q «root» ~/clone && cd ~/clone
git log --format='%H %s' -G '^«key» ' -- «path» | «end» > «target»"""),
    ],
    "_restore": [
        instead("""cd «root» && mkdir -p $(dirname «path»)
for commit in $(git rev-list --reverse HEAD); do
  git show $commit:«path» > /tmp/seen 2> /dev/null && cp /tmp/seen «path»
done
git add «path» && git -c user.name=Me -c user.email=me@example.com commit -q -m '«message»'""")
    ],
    "_merge": [
        instead("""cd «root» || exit 1
git checkout -q «branch» -- extra.txt && «resolved» && git add «path» && tree=$(git write-tree)
git reset -q --hard $(git commit-tree -m '«message»' -p main -p «branch» $tree)""")
    ],
    "_pick_commit": [
        instead("""cd «root» && git checkout -q -b «branch» «tag» || exit 1
git format-patch -q --stdout -1 $(git log --format=%H --grep='^«fix»$' main) > /tmp/patch
git am -q --keep /tmp/patch && git commit -q --amend -m '«fix»'""")
    ],
}
