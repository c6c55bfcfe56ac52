"""Forbidden changes and other solutions of the family `file_layout`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_create": {
        "\n«listing»": [
            after("sed -i 's/^[a-z]*: //' «tree»/«next(iter(files))»"),
            after("mv «tree»/«next(iter(files))» «tree»/«next(iter(files)).replace('txt', 'text')»"),
        ],
        "Also create the empty directory «empty» in it.": [
            after("rmdir «tree»/«empty»"),
            after("touch «tree»/«empty»/.keep"),
        ],
        "Each line ends with a newline.": [
            after("truncate -s -1 «tree»/«next(iter(files))»"),
            swap("echo '", "printf '"),
        ],
    },
    "_by_extension": {
        "Move every file in it into a subdirectory": [
            swap('mv "$file"', 'cp -p "$file"'),
            swap("${file##*.}", "${file#*.}"),
        ],
        "Files whose name has no dot go to «root»/other.": [
            swap("*) folder=other ;;", "*) continue ;;"),
            swap("    *.*) ", "    [A-Z]*) folder=Other ;;\n    *.*) "),
        ],
        "The files keep their names,": [swap('mv "$file" "$folder/"', 'mv "$file" "$folder/${file,,}"')],
        "their contents and their permissions;": [
            swap('mv "$file" "$folder/"', 'install "$file" "$folder/" && rm "$file"'),
            after("chmod 666 */*"),
        ],
    },
    "_by_date": {
        "Move each such file to": [swap('mv "$file"', 'cp -p "$file"'), swap("/${file:5:2}", "")],
        "the date and the underscore after it": [swap("/${file:11}", "/"), swap("${file:11}", "${file:10}")],
        "Files whose name does not begin with a full date": [swap("«dated»", "[0-9][0-9]*_*")],
        "All files keep their contents and permissions;": [
            swap('mv "$file" "$folder/${file:11}"', 'install "$file" "$folder/${file:11}" && rm "$file"'),
            after("find «target» -type f -exec chmod 600 {} +"),
        ],
    },
}
HONEST = {
    "_create": [
        instead("""python3 - <<'END'
import os
for path, text in «files».items():
    os.makedirs(os.path.dirname(os.path.join("«tree»", path)), exist_ok=True)
    with open(os.path.join("«tree»", path), "w") as file:
        file.write(text)
os.mkdir("«tree»/«empty»")
END"""),
        after("cp -r «tree» ~/elsewhere && rm -r «tree» && mv ~/elsewhere «tree» && chmod -R go-rwx «tree»"),
    ],
    "_by_extension": [
        instead("""python3 - <<'END'
import os, shutil
for name in os.listdir("«root»"):
    folder = os.path.join("«root»", name.rpartition(".")[2] if "." in name else "other")
    os.makedirs(folder, exist_ok=True)
    shutil.move(os.path.join("«root»", name), folder)
END"""),
        swap('mv "$file" "$folder/"', 'cp -p "$file" "$folder/" && rm "$file"'),
        after("chmod 700 */"),
    ],
    "_by_date": [
        instead("""python3 - <<'END'
import os, re
for name in os.listdir("«root»/«source»"):
    if found := re.match(r"([0-9]{4})-([0-9]{2})-[0-9]{2}_(.*)", name):
        folder = os.path.join("«root»/«target»", found[1], found[2])
        os.makedirs(folder, exist_ok=True)
        os.rename(os.path.join("«root»/«source»", name), os.path.join(folder, found[3]))
END"""),
        swap('mv "$file" "$folder/${file:11}"', 'cp -p "$file" "$folder/${file:11}" && rm "$file"'),
        after("find «target» -type d -exec chmod 700 {} +"),
    ],
}
