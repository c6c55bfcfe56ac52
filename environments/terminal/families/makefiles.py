"""Makefiles: written and repaired. They are run on a copy of the project, with other sources as well."""

from __future__ import annotations

from .checks import digest
from .draft import Draft, swap
from .family import Family
from .vocabulary import SERVICES, WORDS

__all__ = ["FAMILY"]


def _made(draft: Draft, name: str, root: str, steps: str) -> None:
    """A test that runs ``steps`` in a copy of the project, in which ``make(…)`` and ``text(…)`` are known."""
    lines = "\n".join(f"    {line}" for line in steps.strip("\n").splitlines())
    draft.final.test(
        name,
        f"here = os.path.dirname(os.path.abspath(__file__))\n"
        "with tempfile.TemporaryDirectory(dir=here) as place:\n"
        '    folder = os.path.join(place, "project")\n'
        f"    shutil.copytree({root!r}, folder, symlinks=True)\n"
        "    def make(*targets):\n"
        '        status, _ = run("make", "-s", *targets, folder=folder)\n'
        '        assert status == 0, f"make {targets} ended with {status}"\n'
        "    def at(path):\n"
        "        return os.path.join(folder, path)\n"
        f"{lines}",
    )


def _write(draft: Draft) -> None:
    root = draft.project()
    source, target, output = draft.pick(("txt", "up", "build"), ("in", "out", "dist"), ("raw", "done", "result"))
    all_name = draft.pick("all.txt", "everything.txt", "bundle.txt")
    texts = {name: draft.text(draft.number(30, 80)).decode() for name in draft.some(WORDS, draft.number(3, 5))}
    for name, text in texts.items():
        draft.file(f"{root}/src/{name}.{source}", text, keep=True)
    new = draft.text(40).decode()
    draft.say(
        draft.pick(f"Write a Makefile for the project {root}.", f"{root} needs a Makefile (GNU make)."),
        f"\n- `make` without arguments, and `make all`, must make {output}/NAME.{target} for every "
        f"src/NAME.{source}: the same text with all small letters a-z turned into capitals. They must also make "
        f"{output}/{all_name}, which is all the .{target} files one after the other, in byte order of their names."
        f"\n- A source file that is added later must be picked up without a change of the Makefile, and when a source "
        "file has changed, the next make must bring what depends on it up to date. (Files are never removed from src.)"
        f"\n- `make clean` must remove the directory {output} with everything in it.",
        f"\nThe file is {root}/Makefile; the project may be copied elsewhere before make is run in it, so use "
        f"relative paths. The directory {output} does not exist at first. Only standard tools may be needed.",
        draft.leave(),
    )
    up = {name: text.upper() for name, text in texts.items()}
    together = "".join(up[name] for name in sorted(up))
    extra = f"zz{draft.pick(*WORDS)}"
    draft.initial.absent(f"{root}/Makefile")
    draft.final.test("makefile is a file", f"content({f'{root}/Makefile'!r})")
    every = "\n".join(
        f"assert digest(content(at('{output}/{n}.{target}'))) == {digest(t.encode())!r}" for n, t in up.items()
    )
    _made(draft, "make makes every file", root, f"make()\n{every}")
    joined = f"assert digest(content(at('{output}/{all_name}'))) == "
    _made(draft, "make all joins the files", root, f"make('all')\n{joined}{digest(together.encode())!r}")
    first = sorted(texts)[0]
    changed = "".join({**up, first: new.upper()}[name] for name in sorted(up))
    _made(
        draft, "make follows changes", root,
        f"make()\nwith open(at('src/{first}.{source}'), 'w') as file:\n    file.write({new!r})\n"
        f"os.utime(at('src/{first}.{source}'), (time.time() + 60, time.time() + 60))\nmake()\n"
        f"{joined}{digest(changed.encode())!r}",
    )  # fmt: skip
    _made(
        draft, "make finds new sources", root,
        f"with open(at('src/{extra}.{source}'), 'w') as file:\n    file.write({new!r})\nmake()\n"
        f"{joined}{digest((together + new.upper()).encode())!r}",
    )  # fmt: skip
    _made(
        draft,
        "make clean removes the output",
        root,
        f"make()\nmake('clean')\nassert missing(at({output!r}))",
    )
    oracle = (
        f"cat > {root}/Makefile <<'END'\nexport LC_ALL = C\nTARGETS := $(patsubst "
        f"src/%.{source},{output}/%.{target},$(sort $(wildcard src/*.{source})))\n\n"
        f".PHONY: all clean\nall: $(TARGETS) {output}/{all_name}\n\n{output}/%.{target}: src/%.{source}\n"
        f"\t@mkdir -p {output}\n\ttr a-z A-Z < $< > $@\n\n{output}/{all_name}: $(TARGETS)\n\tcat $^ > $@\n\n"
        f"clean:\n\trm -rf {output}\nEND\n"
    )
    near = swap(oracle, f"$(sort $(wildcard src/*.{source}))", " ".join(f"src/{n}.{source}" for n in sorted(texts)))
    draft.solve(oracle, near, together)


def _repair(draft: Draft) -> None:
    root = draft.project()
    program, part = draft.some(SERVICES, 2)
    header = draft.text(30).decode()
    texts = {name: draft.text(draft.number(30, 60)).decode() for name in (program, part)}
    draft.file(f"{root}/header.txt", header)
    for name, text in texts.items():
        draft.file(f"{root}/{name}.txt", text)
    good = (
        f"PARTS = {program}.out {part}.out\n\nall: bundle.out\n\n"
        f"%.out: %.txt header.txt\n\tcat header.txt $< > $@\n\n"
        f"bundle.out: $(PARTS)\n\tcat $(PARTS) > $@\n\n.PHONY: all clean\nclean:\n\trm -f *.out\n"
    )
    faults = [
        (f"{program}.out {part}.out", f"{program}.out"),
        ("%.out: %.txt header.txt", "%.out: %.txt"),
        ("\tcat header.txt", "        cat header.txt"),
    ]
    if draft.chance(0.5):
        faults.append(("\trm -f *.out", "\trm -f bundle.out"))
    bad = good
    for right, wrong in faults:
        bad = swap(bad, right, wrong)
    draft.file(f"{root}/Makefile", bad)
    draft.kept += [f"{root}/header.txt", f"{root}/{program}.txt", f"{root}/{part}.txt"]
    draft.say(
        draft.pick(
            f"`make` does not work in {root}. Repair the Makefile.", f"Please repair {root}/Makefile (GNU make)."
        ),
        f"\n- `make` must make {program}.out and {part}.out, each of which is header.txt followed by the .txt file "
        f"of the same name, and bundle.out, which is {program}.out followed by {part}.out."
        "\n- When header.txt or one of the .txt files has changed, the next make must bring everything that depends "
        "on it up to date."
        "\n- `make clean` must remove all .out files.",
        "\nThe project may be copied elsewhere before make is run in it. Do not change the .txt files, and leave no "
        ".out files behind.",
    )
    right = {name: header + text for name, text in texts.items()}
    bundle = right[program] + right[part]
    new = draft.text(35).decode()
    check = "assert digest(content(at('{}'))) == {!r}\n"
    _made(
        draft, "make makes every file", root,
        "make()\n" + "".join(check.format(f"{name}.out", digest(text.encode())) for name, text in right.items())
        + check.format("bundle.out", digest(bundle.encode())),
    )  # fmt: skip
    later = "os.utime(at('{0}'), (time.time() + 60, time.time() + 60))\nmake()\n"
    _made(
        draft, "make follows the header", root,
        f"make()\nwith open(at('header.txt'), 'w') as file:\n    file.write({new!r})\n" + later.format("header.txt")
        + check.format("bundle.out", digest((new + texts[program] + new + texts[part]).encode())),
    )  # fmt: skip
    _made(
        draft, "make follows a part", root,
        f"make()\nwith open(at('{part}.txt'), 'w') as file:\n    file.write({new!r})\n" + later.format(f"{part}.txt")
        + check.format("bundle.out", digest((right[program] + header + new).encode())),
    )  # fmt: skip
    _made(
        draft, "make clean removes the output", root,
        "make()\nmake('clean')\nassert not [name for name in os.listdir(folder) if name.endswith('.out')]",
    )  # fmt: skip
    draft.final.test(
        "no output is left", f"assert not [name for name in os.listdir({root!r}) if name.endswith('.out')]"
    )
    oracle = f"cat > {root}/Makefile <<'END'\n{good}END\n"
    draft.solve(oracle, swap(oracle, "%.out: %.txt header.txt", "%.out: %.txt"), bundle)


FAMILY = Family("makefiles", "Write and repair Makefiles", (_repair, _write), ("make",))
