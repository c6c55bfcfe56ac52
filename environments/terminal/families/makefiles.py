"""Family: makefiles, written and repaired, judged beside the solution's on drawn changes of copies of the project.

The solution's Makefile is played first, alone: no process of the agent runs while the right files exist.
"""

import pathlib
import random
from collections.abc import Iterator

from .checks import DRAWN
from .draft import Draft, swap
from .family import Family
from .vocabulary import SERVICES, WORDS

#: Files to write (None removes one), and the targets of ``make`` after that.
_Step = tuple[dict[str, str | None], list[str]]


def files_of(folder: str) -> dict[str, str]:
    """Return everything below a folder except for the Makefile: files with their content, and folders."""
    found: dict[str, str] = {}
    for path in pathlib.Path(folder).rglob("*"):
        name = str(path.relative_to(folder))
        assert not path.is_symlink() and (path.is_dir() or path.is_file()), f"{name} is neither a file nor a folder"
        if path.is_dir():
            found[f"{name}/"] = ""
        elif name != "Makefile":
            with path.open(encoding="latin-1") as file:
                found[name] = file.read(100_000)
    return found


def steps_of(
    numbers: random.Random,
    folder: str,
    words: list[str],
    more: str,
    leftover: str,
    targets: list[list[str]],
    count: int,
) -> Iterator[_Step]:
    """Yield changes of a project; each is played before the next is drawn.

    Every file changes once by itself, and three are added like ``more``, unless that is empty. ``leftover`` is a file
    that ``make clean`` must remove.
    """
    sources = sorted(name for name in files_of(folder) if not name.endswith("/"))
    new = [more.format(prefix + numbers.choice(words)) for prefix in ("Z", "zz_", "7")] if more else []
    turns = numbers.sample(sources + new, len(sources + new))
    yield {}, targets[0]
    for number in range(count):
        # Empty lines, spaces at the ends of lines, and backslashes.
        lines = [f"{numbers.choice(words)} {numbers.randrange(99)}\n" for _ in range(numbers.randrange(4))]
        text = "".join(numbers.choice((line, line, f" {line}\n", f"\\{line}")) for line in lines)
        text += numbers.choice(("", "", "\n"))
        made = sorted(name for name in files_of(folder) if not name.endswith("/") and name not in sources)
        kind = numbers.choice(("write", "remove", "clean"))
        if number < len(turns) or not made or (kind == "write" and number < count - 1):
            name = turns[number] if number < len(turns) else numbers.choice(sources)
            sources = sorted({*sources, name})
            yield {name: f"{number}\n{text}"}, targets[number % len(targets)]
        elif kind == "clean" or number == count - 1:
            yield {leftover.format(numbers.choice(("Z", "zz_", "7-", ""))): text}, ["clean"]
        else:
            yield {numbers.choice(made): None}, numbers.choice(targets)


_JUDGE = """
def played(folder, step):
    changes, targets = step
    for place, folders, names in os.walk(folder):
        for path in [os.path.join(place, name) for name in (".", *names)]:
            status = os.lstat(path)
            times = (status.st_atime_ns - 10**10, status.st_mtime_ns - 10**10)
            os.utime(path, ns=times, follow_symlinks=False)
    for path, text in changes.items():
        if text is None:
            os.unlink(os.path.join(folder, path))
        else:
            with open(os.path.join(folder, path), "w") as file:
                file.write(text)
    status, _ = run("make", "-s", *targets, folder=folder)
    assert status == 0, f"make {targets} ended with {status}"
    return files_of(folder)

def beside(place):
    return [sorted(os.listdir(folder)) for folder in (place, "/home/user", "/tmp")]

def begun(place, makefile):
    with open(os.path.join(place, "README"), "w") as file:
        file.write("of another project")
    folder = os.path.join(place, "project")
    for path, data in {**files, "Makefile": makefile}.items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "wb") as file:
            file.write(data)
    return folder

steps, right = [], []
with tempfile.TemporaryDirectory() as place:
    folder = begun(place, solution)
    for step in steps_of(random.Random(SEED), folder, *material):
        steps.append(step)
        right.append(played(folder, step))
with tempfile.TemporaryDirectory() as place:
    folder = begun(place, content(makefile))
    before = beside(place)
    for step, expected in zip(steps, right):
        found = played(folder, step)
        assert found == expected, f"{step}: {found}"
        assert beside(place) == before, f"{step}: {beside(place)}"
"""


def _solve(draft: Draft, good: str, near_miss: tuple[str, str], *material: object) -> None:
    """Judge the Makefile beside ``good``; ``material`` are the last arguments of ``steps_of``."""
    path = f"{draft.root}/Makefile"
    before = {name.removeprefix(f"{draft.root}/"): file.content for name, file in draft.files.items()}
    before.pop("Makefile", None)
    draft.form(path, "any", sentence="How the Makefile is written is up to you.")
    draft.final.judged(
        "drawn changes", _JUDGE, files_of, steps_of,
        makefile=path, solution=good.encode(), files=before, material=[list(WORDS[:60]), *material, DRAWN + 4],
    )  # fmt: skip
    oracle = f"cat > {path} <<'END'\n{good}END\n"
    draft.solve(oracle, swap(oracle, *near_miss))


def _write(draft: Draft) -> None:
    root = draft.project()
    source, target, output = draft.pick(("txt", "up", "build"), ("in", "out", "dist"), ("raw", "done", "result"))
    all_name = draft.pick("all.txt", "everything.txt", "bundle.txt")
    names = sorted(draft.some(WORDS, draft.number(3, 5)))
    for name in names:
        draft.file(f"{root}/src/{name}.{source}", draft.text(draft.number(30, 80)))
    draft.file(f"{root}/README", draft.text(60))
    draft.say(
        draft.pick(f"Write a Makefile for the project {root}.", f"{root} needs a Makefile (GNU make)."),
        f"! \n- `make` without arguments, and `make all`, must make {output}/NAME.{target} for every "
        f"src/NAME.{source}: the same text with all small letters a-z turned into capitals.",
        f"! They must also make {output}/{all_name}, which is all the .{target} files one after the other, in byte "
        "order of their names.",
        "! They make no other files, here or elsewhere.",
        "! \n- A source file that is added later must be picked up without a change of the Makefile,",
        "! and when a source file has changed or a file that make has made is gone, the next make must bring "
        "everything up to date.",
        "(No file of src is ever removed. A NAME consists of letters, digits and underscores.)",
        f"! \n- `make clean` must remove the directory {output} with everything in it.",
        f"! \nThe file is {root}/Makefile;",
        "! the project may be copied elsewhere before make is run in it, so use relative paths.",
        f"The directory {output} does not exist at first.",
    )
    draft.may_appear(f"{root}/{output}", f"{output} may be there or not when you are done.")
    good = (
        f"export LC_ALL = C\nTARGETS := $(patsubst src/%.{source},{output}/%.{target},"
        f"$(sort $(wildcard src/*.{source})))\n\n"
        f".PHONY: all clean\nall: $(TARGETS) {output}/{all_name}\n\n{output}/%.{target}: src/%.{source}\n"
        f"\t@mkdir -p {output}\n\ttr a-z A-Z < $< > $@\n\n{output}/{all_name}: $(TARGETS)\n\tcat $^ > $@\n\n"
        f"clean:\n\trm -rf {output}\n"
    )
    listed = " ".join(f"src/{name}.{source}" for name in names)
    found = f"$(sort $(wildcard src/*.{source}))"
    _solve(draft, good, (found, listed), f"src/{{}}.{source}", f"{output}/more", [[], ["all"]])


def _repair(draft: Draft) -> None:
    root = draft.project()
    program, part = draft.some(SERVICES, 2)
    for name in ("header", program, part):
        draft.file(f"{root}/{name}.txt", draft.text(draft.number(30, 60)))
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
    draft.say(
        draft.pick(
            f"`make` does not work in {root}. Repair the Makefile.", f"Please repair {root}/Makefile (GNU make)."
        ),
        f"! \n- `make` must make {program}.out and {part}.out, each of which is header.txt followed by the .txt file "
        f"of the same name, and bundle.out, which is {program}.out followed by {part}.out.",
        "! It makes no other files, here or elsewhere.",
        "! \n- When header.txt or one of the .txt files has changed, or a file that make has made is gone, the next "
        "make must bring everything that depends on it up to date.",
        "! \n- `make clean` must remove all .out files.",
        "! \nThe project may be copied elsewhere before make is run in it.",
        "! Leave no .out files behind.",
    )
    targets: list[list[str]] = [[]]
    _solve(draft, good, faults[1], "", "{}more.out", targets)


FAMILY = Family("makefiles", "Write and repair Makefiles", (_repair, _write), ("make",))
