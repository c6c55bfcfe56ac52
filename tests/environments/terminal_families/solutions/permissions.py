"""Forbidden changes and other solutions of the family `permissions`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_table": {
        "«'\\n' + '\\n'.join(lines)»": [
            after("chmod «format(modes[[*modes][-1]] ^ 0o40, '04o')» «[*modes][-1]»"),
            after("chmod «format(modes[[*modes][-1]] ^ 0o100, '04o')» «[*modes][-1]»"),
        ],
        "No other permission bits may be set on these files.": [
            after("chmod «format(modes[[*modes][-1]] ^ 4, '04o')» «[*modes][-1]»"),
            after("chmod u+s «[*modes][-1]»"),
        ],
    },
    "_repair": {
        "«tree» itself and every directory below it:": [swap("find «tree» -type d", "find «tree» -mindepth 1 -type d")],
        "Files whose name ends in .«script»:": [
            swap("-name '*.«script»' -exec chmod «format(script_mode, '04o')»", "-name '*.«script»' -exec chmod u+x"),
            after("find «tree» -type f -exec chmod «format(file_mode, 'o')» {} +"),
        ],
        "All other files: «format(file_mode, '04o')».": [
            swap("-name '*.«script»'", "-name '*.«script»*'"),
            swap(" ! -name '*.«script»'", " -name '*.html'"),
        ],
    },
    "_audit": {
        "Find every regular file below it that «who» may write to.": [
            swap("-type f ", ""),
            swap("-perm -«letter»+w", "-perm /022"),
        ],
        "Write the absolute paths of these files to «report», one per line,": [
            after("sed -i 's!^«tree»/!!' «report»"),
            after("sed -i 's!.*/!!' «report»"),
        ],
        "sorted in byte order (LC_ALL=C).": [swap("sort >", "sort -r >")],
        "Then take that one write permission of «who» away from them.": [
            swap("xargs -d '\\n' chmod", ": chmod"),
            after("tail -n 1 «report» | xargs chmod «letter»+w"),
        ],
        "Their other permission bits stay,": [
            swap("chmod «letter»-w", "chmod a-w"),
            swap("chmod «letter»-w <", "chmod 644 <"),
        ],
    },
}
HONEST = {
    "_table": [
        after("chmod u=rwx «[*modes][-1]»; chmod «format(modes[[*modes][-1]], 'o')» «[*modes][-1]»"),
        instead("""python3 - <<'END'
import os
for path, mode in «modes».items():
    os.chmod(path, mode)
END"""),
    ],
    "_repair": [
        instead("""python3 - <<'END'
import os
os.chmod("«tree»", «folder_mode»)
for place, folders, names in os.walk("«tree»"):
    for name in folders:
        os.chmod(os.path.join(place, name), «folder_mode»)
    for name in names:
        os.chmod(os.path.join(place, name), «script_mode» if name.endswith(".«script»") else «file_mode»)
END"""),
        instead("""chmod -R u=rwX,go= «tree»; chmod -R «format(file_mode, 'o')» $(find «tree» -type f)
find «tree» -type d -print0 | xargs -0 chmod «format(folder_mode, 'o')»
find «tree» -type f | grep '[.]«script»$' | xargs chmod «format(script_mode, 'o')»"""),
    ],
    "_audit": [
        instead("""find «tree» -type f | LC_ALL=C sort | while read -r file; do
  case $(stat -c %A "$file") in «"????????w?" if bit == 2 else "?????w????"») echo "$file"; chmod «letter»-w "$file" ;; esac
done > «report»"""),
        after("while read -r line; do echo $line; done < «report» > ~/r; mv ~/r «report»; chmod 600 «report»"),
    ],
}
