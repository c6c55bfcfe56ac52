"""Forbidden changes and other solutions of the family `rename`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_extension": {
        "Rename every file below": [swap("-type f", "-maxdepth 1 -type f"), swap("%.«old»}.«new»", "}.«new»")],
        "Our tools only accept": [swap("-type f", "-maxdepth 2 -type f"), swap("mv", "ln -s")],
        "Files with any other name": [swap("*.«old»'", "*.«old»*'"), swap("-name", "-iname")],
        "Directories keep their names, too,": [
            swap("-type f", "-depth"),
            swap("«renamed»", '«renamed»; chmod 600 "${file%.«old»}.«new»"'),
        ],
    },
    "_clean": {
        "Rename each file so that every space becomes an underscore": [
            swap("«spaces»", "tr A-Z a-z"),
            swap('|| mv "$file"', '|| cp "$file"'),
        ],
        "and every capital letter (A-Z), including those of the extension,": [
            swap("«spaces»", "tr ' ' _"),
            swap("«spaces»)", '«spaces»); new="${new%.*}.${file##*.}"'),
        ],
        "The names must not change in any other way": [
            after("find . -type f -exec chmod u=rwx {} +"),
            after('for file in *_*; do chmod 755 "$file"; done'),
            swap("«spaces»", "«spaces» | tr -d '()'"),
        ],
    },
    "_pad": {
        "Pad the number in names of the form": [swap("«wide»", "%0«width - 1»d"), swap("([0-9]+)", "([0-9])")],
        "Files whose names have another form keep them,": [
            swap("«extension»$ ]]", "«extension» ]]"),
            swap("=~ ^«stem»", "=~ «stem»"),
        ],
        "and all files keep their contents and permissions.": [
            swap('|| mv "$file" "$new"', '|| install "$file" "$new" && rm "$file"'),
            after("sed -i 's/^/0/' «stem»«separator»0*"),
        ],
    },
}
HONEST = {
    "_extension": [
        instead("""python3 - <<'END'
import os
for place, _, names in os.walk("«root»"):
    for name in names:
        if name.endswith(".«old»"):
            os.rename(os.path.join(place, name), os.path.join(place, name[:-«len(old)»] + "«new»"))
END"""),
        swap("«renamed»", "«renamed.replace('mv', 'cp') + ' && rm \"$file\"'»"),
    ],
    "_clean": [
        instead("""python3 - <<'END'
import os
for name in os.listdir("«root»"):
    os.rename(os.path.join("«root»", name), os.path.join("«root»", name.lower().replace(" ", "_")))
END"""),
        swap("«every»«spaces»)", 'for file in *; do\n  new="${file// /_}"\n  new="${new,,}"'),
    ],
    "_pad": [
        instead("""python3 - <<'END'
import os, re
os.chdir("«root»")
for name in os.listdir():
    if found := re.fullmatch(r"«pattern.strip('^$')»", name):
        os.replace(name, name[: found.start(1)] + found[1].zfill(«width») + name[found.end(1) :])
END"""),
        swap('|| mv "$file" "$new"', '|| { cp "$file" "$new"; rm "$file"; }'),
    ],
}
