"""Variables that a reader may have: none by which the agent could lead it to code.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset
(``import reader_variables``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_containers.graders import unchanged_places
else:
    import unchanged_places

__all__ = ["lead_python", "may_have"]

#: Variables by which a loader, a shell or an interpreter takes code, and a program options or a configuration.
_TAKING_CODE = tuple(
    """
    LD_ PYTHON PERL RUBY NODE LUA BASH GCONV MAGIC TAR_ GREP_ LESS MORE GZIP BZIP XZ_ ZSTD_ UNZIP ZIPINFO CURL_ WGET JQ_
    GIT_SSH GIT_TRACE TERMINFO XDG_ GIT_EXEC_PATH GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND GIT_TEMPLATE_DIR OPENSSL_
    """.split()  # noqa: SIM905 - longer and less clear as a list, here and below
)
_TAKING_CODE_TOO = frozenset(
    "ENV SHELLOPTS PS4 IFS CDPATH GLOBIGNORE POSIXLY_CORRECT LOCPATH NLSPATH HOSTALIASES SHELL".split()  # noqa: SIM905
)
_PROGRAMS = ("PAGER", "EDITOR", "VISUAL", "BROWSER", "ASKPASS")
#: Variables that may lead to the agent's places: the test gives them for that.
_LEADING = r"HOME|PWD|OLDPWD|TMPDIR|PATH|GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|COMMON_DIR)"


def may_have(name: str, value: str, temporary: str) -> bool:
    """Return whether a reader may have a variable; ``temporary`` is the tests' own folder, empty for none."""
    if re.fullmatch(_LEADING, name):
        return True
    if name.startswith(_TAKING_CODE) or name.endswith(_PROGRAMS) or name in _TAKING_CODE_TOO:
        return False
    places = [place for place in value.split(":") if place.startswith("/") and os.path.exists(place)]  # noqa: PTH110
    return all(place.startswith(temporary or "/dev/") or unchanged_places.is_unchanged(place) for place in places)


def lead_python(environment: Mapping[str, str]) -> bool:
    """Return whether variables tell a Python what to import or to execute."""
    return any(name in environment for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT"))
