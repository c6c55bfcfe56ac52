"""Honest ways that apply to every family: files that an agent may leave anywhere, and ways that no prompt mentions."""

from __future__ import annotations

from .requirements import Way

__all__ = ["everywhere"]

_EVERYWHERE = (
    Way(
        "leftovers in the home",
        after="""
cd ~ && mkdir -p .cache/tool 'scratch place/empty' && echo 'print(1)' > solve.py && echo ls >> .bash_history
ln -s /nowhere broken && echo x > .cache/tool/entry && chmod 700 .cache
""",
    ),
    Way("a process left running", after="nohup sleep 300 > /dev/null 2>&1 < /dev/null & setsid -f sleep 300"),
    Way("other times of files", after="find . -exec touch -h -d '2001-02-03 04:05:06' {} +"),
    Way(
        "files written anew",
        after="""
find . -name .git -prune -o -type f -links 1 -perm -600 -print0 | while IFS= read -r -d '' file; do
  cp -p "$file" ~/anew && mv ~/anew "$file"
done
true
""",
    ),
)


def everywhere(oracle: str) -> tuple[Way, ...]:
    """Return the ways for a task with this oracle."""
    return (*_EVERYWHERE, Way("what is made closed to others", instead=f"umask 077\n{oracle}"))
