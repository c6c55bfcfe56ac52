"""Small root file systems of this machine's own programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["make_root_folder"]

_PROGRAMS = (
    *("bash", "dash", "cat", "chmod", "chown", "cp", "env", "grep", "id", "ln", "ls", "mkdir", "mv", "printf", "rm"),
    *("rmdir", "sed", "seq", "sleep", "stat", "touch", "dd", "find", "mkfifo"),
)


def make_root_folder(root: Path) -> Path:
    """Create an unpacked root file system, with its programs in /usr as distributions have them; return it."""
    for name in ("etc", "home", "opt", "root", "srv", "tmp", "usr/share/doc/old", "usr/bin", "usr/lib", "var/tmp"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "bin").symlink_to("usr/bin")
    for program in _PROGRAMS:
        found = shutil.which(program)
        assert found is not None, program
        shutil.copy(Path(found).resolve(), root / "usr/bin" / program)
        for library in _libraries(found):
            target = root / str(library).removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "usr/bin/sh").symlink_to("dash")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    return root


def _libraries(program: str) -> list[Path]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(word) for line in said.splitlines() for word in line.split() if word.startswith("/")]
