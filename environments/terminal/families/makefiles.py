"""Family: makefiles, written and repaired. The tests run them on a copy of the project, also with other sources."""

from __future__ import annotations

from .checks import digest
from .draft import Draft, breach, swap
from .family import Family
from .vocabulary import SERVICES, WORDS

__all__ = ["FAMILY"]


def _made(draft: Draft, name: str, root: str, steps: str) -> None:
    """Add a test that runs ``steps`` in a copy of the project; the steps may call ``make(…)`` and ``text(…)``."""
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
    draft.file(f"{root}/README", draft.text(60), keep=True)
    new = draft.text(40).decode()
    names = sorted(texts)
    joining = ("make all *", "make follows *", "make finds *")
    made = ("make makes *", *joining)
    fixed = (f"$(sort $(wildcard src/*.{source}))", " ".join(f"src/{name}.{source}" for name in names))
    draft.say(
        draft.pick(f"Write a Makefile for the project {root}.", f"{root} needs a Makefile (GNU make)."),
        draft.require(
            f"\n- `make` without arguments, and `make all`, must make {output}/NAME.{target} for every "
            f"src/NAME.{source}: the same text with all small letters a-z turned into capitals.",
            breach("a letter left small", *made, swap=("tr a-z A-Z", "tr a-df-z A-DF-Z")),
            breach(
                "no target of this name", "make all joins the files", swap=("all clean\nall:", "clean\neverything:")
            ),
            breach(
                "another target by default",
                "make makes *",
                "make finds *",
                "make follows *",
                "make clean *",
                swap=(".PHONY: all", "first: ; @echo Say make all\n.PHONY: all"),
            ),
            breach(
                "the files with another suffix",
                "make makes *",
                "make follows *",
                swap=(f"/%.{target}", f"/%.{target}0"),
            ),
        ),
        draft.require(
            f"They must also make {output}/{all_name}, which is all the .{target} files one after the other, in byte "
            "order of their names.",
            breach("the last file only", *joining, swap=("cat $^", "cat $(lastword $^)")),
            breach("the files in another order", *joining, swap=("cat $^", "cat $(shell ls -r $^)")),
        ),
        draft.require(
            "\n- A source file that is added later must be picked up without a change of the Makefile,",
            breach("a list of the files that are there", "make finds new sources", swap=fixed),
        ),
        draft.require(
            "and when a source file has changed, the next make must bring what depends on it up to date.",
            breach(
                "one file that does not depend on its source",
                "make follows changes",
                swap=(
                    "\nclean:",
                    f"\n{output}/{names[-1]}.{target}:\n\t@mkdir -p {output}\n"
                    f"\ttr a-z A-Z < src/{names[-1]}.{source} > $@\n\nclean:",
                ),
            ),
            breach(
                "the joined file made once",
                "make follows changes",
                "make finds new sources",
                after=f"sed -i 's!^{output}/{all_name}: !&| !; s!cat [$]^!cat $(TARGETS)!' Makefile",
            ),
        ),
        "(No file of src is ever removed.)",
        draft.require(
            f"\n- `make clean` must remove the directory {output} with everything in it.",
            breach("the directory left", "make clean *", swap=(f"rm -rf {output}", f"rm -rf {output}/*")),
            breach("the directory closed", "make clean *", swap=(f"rm -rf {output}", f"chmod 000 {output}")),
            breach(
                "files left that make has not made",
                "make clean *",
                swap=(f"rm -rf {output}", f"rm -f {output}/*.{target} {output}/{all_name}; rmdir {output} || true"),
            ),
        ),
        draft.require(
            f"\nThe file is {root}/Makefile;",
            breach("another name", "makefile is a file", after="mv Makefile GNUmakefile"),
        ),
        draft.require(
            "the project may be copied elsewhere before make is run in it, so use relative paths.",
            breach("absolute paths", "make follows *", "make finds *", after=f"sed -i 's!src/!{root}/src/!g' Makefile"),
        ),
        f"The directory {output} does not exist at first.",
        draft.leave(which=f"{root}/README"),
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
    steps, now = "make()\n", dict(up)
    for number, name in enumerate(names):
        now[name] = f"{number} {new}".upper()
        steps += (
            f"with open(at('src/{name}.{source}'), 'w') as file:\n    file.write({f'{number} {new}'!r})\n"
            f"os.utime(at('src/{name}.{source}'), (time.time() + {60 + number}, time.time() + {60 + number}))\nmake()\n"
            f"os.utime(at('{output}/{name}.{target}'), (time.time() + {60 + number}, time.time() + {60 + number}))\n"
            f"{joined}{digest(''.join(now[one] for one in names).encode())!r}\n"
        )
    _made(draft, "make follows changes", root, steps)
    _made(
        draft, "make finds new sources", root,
        f"make()\nfor name in {[extra, extra.upper()]!r}:\n    with open(at(f'src/{{name}}.{source}'), 'w') as file:\n"
        f"        file.write({new!r})\nmake()\n"
        f"{joined}{digest((new.upper() + together + new.upper()).encode())!r}",
    )  # fmt: skip
    _made(
        draft,
        "make clean removes the output",
        root,
        f"make()\nwith open(at('{output}/more'), 'w') as file:\n    file.write('more')\n"
        f"make('clean')\nassert missing(at({output!r}))",
    )
    shell = "for file in src/*.{0}; do name=$$(basename $$file .{0}); tr a-z A-Z < $$file > {1}/$$name.{2}; done"
    draft.honest(
        "everything made anew each time",
        instead=f"cat > {root}/Makefile <<'END'\nexport LC_ALL = C\n.PHONY: all clean\nall:\n\tmkdir -p {output}\n"
        f"\t{shell.format(source, output, target)}\n\tcat {output}/*.{target} > {output}/{all_name}\nclean:\n"
        f"\trm -rf {output}\nEND\n",
    )
    draft.honest("what make has made left there", after="make -s")
    draft.honest("tried and cleaned", after="make -s; make -s clean; make -s all; make -s clean")
    draft.honest("awk in place of tr", swap=("tr a-z A-Z < $< > $@", "awk '{ print toupper($$0) }' $< > $@"))
    oracle = (
        f"cat > {root}/Makefile <<'END'\nexport LC_ALL = C\nTARGETS := $(patsubst "
        f"src/%.{source},{output}/%.{target},$(sort $(wildcard src/*.{source})))\n\n"
        f".PHONY: all clean\nall: $(TARGETS) {output}/{all_name}\n\n{output}/%.{target}: src/%.{source}\n"
        f"\t@mkdir -p {output}\n\ttr a-z A-Z < $< > $@\n\n{output}/{all_name}: $(TARGETS)\n\tcat $^ > $@\n\n"
        f"clean:\n\trm -rf {output}\nEND\n"
    )
    draft.solve(oracle, swap(oracle, *fixed), together)


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
    draft.file(f"{root}/notes.txt", draft.text(50))
    draft.kept += [f"{root}/notes.txt", f"{root}/header.txt", f"{root}/{program}.txt", f"{root}/{part}.txt"]
    made = ("make makes *", "make follows *")

    def apart(name: str) -> tuple[str, str]:
        rule = f"{name}.out: header.txt\n\tcat header.txt {name}.txt > $@\n\n"
        return ".PHONY: all clean", f"{rule}.PHONY: all clean"

    draft.say(
        draft.pick(
            f"`make` does not work in {root}. Repair the Makefile.", f"Please repair {root}/Makefile (GNU make)."
        ),
        draft.require(
            f"\n- `make` must make {program}.out and {part}.out, each of which is header.txt followed by the .txt file "
            f"of the same name, and bundle.out, which is {program}.out followed by {part}.out.",
            breach("a part left out", *made, swap=(f"{program}.out {part}.out", f"{program}.out")),
            breach(
                "the parts in another order", *made, swap=(f"{program}.out {part}.out", f"{part}.out {program}.out")
            ),
            breach("no header", *made, swap=("cat header.txt $<", "cat $<")),
            breach("spaces for a tab", *made, "make clean *", swap=("\tcat header.txt", "        cat header.txt")),
        ),
        draft.require(
            "\n- When header.txt or one of the .txt files has changed, the next make must bring everything that "
            "depends on it up to date.",
            breach(
                "nothing depends on the header",
                "make follows the header",
                swap=("%.out: %.txt header.txt", "%.out: %.txt"),
            ),
            breach("a part that does not depend on its text", "make follows the first text", swap=apart(program)),
            breach("the other does not", "make follows the second text", swap=apart(part)),
            breach(
                "the bundle depends on nothing",
                "make follows *",
                swap=("bundle.out: $(PARTS)", "bundle.out: | $(PARTS)"),
            ),
        ),
        draft.require(
            "\n- `make clean` must remove all .out files.",
            breach("the bundle only", "make clean *", swap=("\trm -f *.out", "\trm -f bundle.out")),
            breach("those that it makes only", "make clean *", swap=("\trm -f *.out", "\trm -f bundle.out $(PARTS)")),
        ),
        draft.require(
            "\nThe project may be copied elsewhere before make is run in it.",
            breach(
                "absolute paths",
                "make follows the header",
                swap=("\tcat header.txt $<", f"\tcat {root}/header.txt $<"),
            ),
        ),
        draft.untouched("Do not change the .txt files,", which=f"{root}/notes.txt"),
        draft.require(
            "and leave no .out files behind.", breach("what make has made", "no output is left", after="make -s")
        ),
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
    for which, name in (("first", program), ("second", part)):
        changed = {**right, name: header + new}
        _made(
            draft, f"make follows the {which} text", root,
            f"make()\nwith open(at('{name}.txt'), 'w') as file:\n    file.write({new!r})\n"
            + later.format(f"{name}.txt")
            + check.format("bundle.out", digest((changed[program] + changed[part]).encode())),
        )  # fmt: skip
    _made(
        draft, "make clean removes the output", root,
        "make()\nwith open(at('more.out'), 'w') as file:\n    file.write('more')\nmake('clean')\n"
        "assert not [name for name in os.listdir(folder) if name.endswith('.out')]",
    )  # fmt: skip
    draft.honest("tried and cleaned", after="make -s && make -s clean && make -s clean")
    draft.honest(
        "every rule written out",
        instead=f"cat > {root}/Makefile <<'END'\nbundle.out: {program}.out {part}.out\n\tcat $^ > bundle.out\n"
        f"{program}.out: header.txt {program}.txt\n\tcat $^ > $@\n{part}.out: header.txt {part}.txt\n\tcat $^ > $@\n"
        "clean:\n\trm -f -- *.out\nEND\n",
    )
    draft.honest(
        "everything made anew each time",
        instead=f"printf 'all:\\n\\tcat header.txt {program}.txt > {program}.out\\n"
        f"\\tcat header.txt {part}.txt > {part}.out\\n"
        f"\\tcat {program}.out {part}.out > bundle.out\\nclean:\\n\\trm -f *.out\\n' > {root}/Makefile",
    )
    draft.final.test(
        "no output is left", f"assert not [name for name in os.listdir({root!r}) if name.endswith('.out')]"
    )
    oracle = f"cat > {root}/Makefile <<'END'\n{good}END\n"
    draft.solve(oracle, swap(oracle, "%.out: %.txt header.txt", "%.out: %.txt"), bundle)


FAMILY = Family("makefiles", "Write and repair Makefiles", (_repair, _write), ("make",))
