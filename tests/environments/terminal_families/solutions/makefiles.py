"""Forbidden changes and other solutions of the family `makefiles`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_write": {
        "\n- `make` without arguments, and `make all`, must make": [
            swap("tr a-z A-Z", "tr a-df-z A-DF-Z"),
            swap("tr a-z A-Z < $< > $@", "grep . $< | tr a-z A-Z > $@"),
            swap("all clean\nall:", "clean\neverything:"),
        ],
        "They must also make «output»/«all_name»": [
            swap("cat $^", "cat $(lastword $^)"),
            swap("all: $(TARGETS) «output»/«all_name»", "all: $(TARGETS)"),
        ],
        "They make no other files, here or elsewhere.": [
            swap("cat $^ > $@", "cat $^ > $@; touch «output»/done"),
            swap("cat $^ > $@", "cat $^ > $@; touch /tmp/done"),
        ],
        "\n- A source file that is added later": [swap("«found»", "«listed»")],
        "and when a source file has changed or": [
            swap(
                "\nclean:",
                "\n«output»/«names[-1]».«target»:\n\t@mkdir -p «output»\n\ttr a-z A-Z < src/«names[-1]».«source» > $@\n\nclean:",
            ),
            swap("«output»/«all_name»: $(TARGETS)\n\tcat $^", "«output»/«all_name»: | $(TARGETS)\n\tcat $(TARGETS)"),
        ],
        "\n- `make clean` must remove the directory": [swap("rm -rf «output»", "rm -rf «output»/*")],
        "\nThe file is «root»/Makefile;": [after("mv Makefile GNUmakefile")],
        "the project may be copied elsewhere": [after("sed -i 's!src/!«root»/src/!g' Makefile")],
    },
    "_repair": {
        "\n- `make` must make «program».out and «part».out": [
            swap("«program».out «part».out", "«program».out"),
            swap("cat header.txt $<", "cat $<"),
            swap("cat header.txt $<", "grep -h . header.txt $<"),
        ],
        "It makes no other files, here or elsewhere.": [
            swap("all: bundle.out", "all: bundle.out notes.out"),
            swap("\tcat $(PARTS)", "\t@touch ../made $(HOME)/made\n\tcat $(PARTS)"),
        ],
        "\n- When header.txt or one of the .txt files": [
            swap("%.out: %.txt header.txt", "%.out: %.txt"),
            swap(
                ".PHONY: all clean",
                "«program».out: header.txt\n\tcat header.txt «program».txt > $@\n\n.PHONY: all clean",
            ),
        ],
        "\n- `make clean` must remove all .out files.": [swap("\trm -f *.out", "\trm -f bundle.out")],
        "\nThe project may be copied elsewhere": [swap("\tcat header.txt $<", "\tcat «root»/header.txt $<")],
        "Leave no .out files behind.": [after("make -s")],
    },
}
HONEST = {
    "_write": [
        instead(
            "cat > «root»/Makefile <<'END'\nexport LC_ALL = C\n.PHONY: all clean\nall:\n\tmkdir -p «output»\n"
            "\tfor file in src/*.«source»; do name=$$(basename $$file .«source»); tr a-z A-Z < $$file > «output»/$$name.«target»; done\n"
            "\tcat «output»/*.«target» > «output»/«all_name»\nclean:\n\trm -rf «output»\nEND\n"
        ),
        instead(
            "cat > «root»/Makefile <<'END'\nall:\n\tpython3 -c 'import glob, os; os.makedirs(\"«output»\", exist_ok=True); "
            'found = {os.path.basename(path)[:-«len(source) + 1»]: open(path).read().upper() for path in sorted(glob.glob("src/*.«source»"))}; '
            '[open(f"«output»/{name}.«target»", "w").write(text) for name, text in found.items()]; '
            'open("«output»/«all_name»", "w").write("".join(found.values()))\'\nclean:\n\trm -rf «output»\n.PHONY: all clean\nEND\n'
        ),
        after("make -s"),
        after("make -s; make -s clean; make -s all; make -s clean"),
        swap("tr a-z A-Z < $< > $@", "awk '{ print toupper($$0) }' $< > $@"),
    ],
    "_repair": [
        after("make -s && make -s clean && make -s clean"),
        instead(
            "cat > «root»/Makefile <<'END'\nbundle.out: «program».out «part».out\n\tcat $^ > bundle.out\n"
            "«program».out: header.txt «program».txt\n\tcat $^ > $@\n«part».out: header.txt «part».txt\n\tcat $^ > $@\n"
            "clean:\n\trm -f -- *.out\nEND\n"
        ),
        instead(
            "printf 'all:\\n\\tcat header.txt «program».txt > «program».out\\n\\tcat header.txt «part».txt > «part».out\\n"
            "\\tcat «program».out «part».out > bundle.out\\nclean:\\n\\trm -f *.out\\n' > «root»/Makefile"
        ),
    ],
}
