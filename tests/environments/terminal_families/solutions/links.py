"""Forbidden changes and other solutions of the family `links`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_releases": {
        "Make it lead to the newest release.": [
            swap("$(ls releases | sort -V | tail -n 1) current", "$(ls releases | sort -V | head -n 1) current"),
            swap(
                "ln -sfn releases/$(ls releases | sort -V | tail -n 1)",
                "ln -sf releases/$(ls releases | sort -V | tail -n 1)",
            ),
        ],
        "Also create a symbolic link «root»/previous to the second newest.": [
            after("ln -sfn $(readlink current) previous"),
            swap("tail -n 2", "tail -n 3"),
        ],
        "Versions compare number by number, so 2.10.0 is newer than 2.9.3.": [swap("sort -V", "sort")],
        "Both links must have exactly the form releases/VERSION,": [
            after("ln -sfn $PWD/$(readlink current) current"),
            after("ln -sfn ./$(readlink previous) previous"),
        ],
    },
    "_broken": {
        "Write a report of all broken links": [
            swap("find «tree»", "find «tree» -lname '*missing*'"),
            swap("-xtype l", "-xtype l ! -name alias.lnk"),
        ],
        "\n    LINK -> TARGET": [swap("%p -> %l", "%p => %l")],
        "\nwhere LINK is the absolute path": [swap("%p -> %l", "%f -> %l")],
        "Sort the lines in byte order (LC_ALL=C).": [after("LC_ALL=C sort -r -o «report» «report»")],
        "Then delete the broken links.": [swap("-xtype l -delete", "-false")],
    },
    "_hard_links": {
        "For every file below «root»/«mirror»": [
            swap("ln -f", "cmp -s"),
            swap("find . -type f", "find . -type f ! -name '«paths[0].split('/')[-1]»'"),
        ],
        "All other files stay separate files,": [
            after("ln -f «master»/«paths[3]» «mirror»/«paths[2]»"),
            after("ln -f «master»/«paths[0]» «master»/«paths[4]»; ln -f «master»/«paths[0]» «mirror»/«paths[4]»"),
        ],
        "In the end both trees must have the same paths and contents as now.": [
            swap('cmp -s "$file" "«root»/«master»/$file"', '[ -f "«root»/«master»/$file" ]'),
            after("mkdir -p $(dirname «mirror»/«paths[3]»); ln «master»/«paths[3]» «mirror»/«paths[3]»"),
        ],
    },
    "_copy_links": {
        "Change every symbolic link below": [
            after("link=$(find . -type l ! -lname '/*' | head -n 1); ln -sfn $(realpath $link) $link"),
            swap("(os.readlink(path), place)", "(os.readlink(path), root)"),
        ],
        "Use the shortest relative path": [
            swap(
                "(os.readlink(path), place)",
                "(os.readlink(path), place)\n            target = os.path.relpath(root, place) + '/../' + os.path.relpath(os.readlink(path), os.path.dirname(root))",
            )
        ],
        "and no ./ in front.": [swap("os.symlink(target", 'os.symlink("./" + target')],
        "Links that lead outside of «root» stay absolute, unchanged.": [
            swap(' and os.readlink(path).startswith(root + "/")', ""),
            swap('startswith(root + "/")', "startswith(root)"),
        ],
    },
}
HONEST = {
    "_releases": [
        after("ln -s $(readlink current) next && mv -T next current"),
        instead("""python3 - <<'END'
import os
os.chdir("«root»")
names = sorted(os.listdir("releases"), key=lambda name: list(map(int, name.split("."))))
os.remove("current")
os.symlink("releases/" + names[-1], "current")
os.symlink("releases/" + names[-2], "previous")
END"""),
    ],
    "_broken": [
        instead("""find «tree» -type l | LC_ALL=C sort | while read -r link; do
  if [ ! -e "$link" ]; then echo "$link -> $(readlink "$link")"; rm "$link"; fi
done > «report»"""),
        instead("""python3 - <<'END'
import os
paths = [os.path.join(place, name) for place, folders, names in os.walk("«tree»") for name in names + folders]
dead = sorted(path for path in paths if os.path.islink(path) and not os.path.exists(path))
with open("«report»", "w") as report:
    for path in dead:
        print(path, "->", os.readlink(path), file=report)
for path in dead:
    os.remove(path)
END"""),
    ],
    "_hard_links": [
        instead("""python3 - <<'END'
import os
for place, _, names in os.walk("«root»/«mirror»"):
    for name in names:
        copy = os.path.join(place, name)
        main = os.path.join("«root»/«master»", os.path.relpath(copy, "«root»/«mirror»"))
        if os.path.isfile(main) and open(main, "rb").read() == open(copy, "rb").read():
            os.link(main, copy + ".new")
            os.replace(copy + ".new", copy)
END"""),
        swap('ln -f "«root»/«master»/$file" "$file"', 'ln -f "$file" "«root»/«master»/$file"'),
    ],
    "_copy_links": [
        instead(
            'find «root» -lname \'«root»/*\' | while read -r link; do ln -sfrn "$(readlink "$link")" "$link"; done'
        ),
        swap(
            "os.unlink(path)\n            os.symlink(target, path)",
            'os.symlink(target, path + ".new")\n            os.replace(path + ".new", path)',
        ),
    ],
}
