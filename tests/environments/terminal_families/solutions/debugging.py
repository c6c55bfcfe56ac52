"""Forbidden changes and other solutions of the family `debugging`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_repair": {
        "It must stay an executable file at the same path,": [
            after("chmod 644 «path»"),
            after("mv «path» ~/real && ln -s ~/real «path»"),
        ]
    },
    "_report": {
        "It reads lines 'NAME AMOUNT' from standard input": [
            swap('line.rsplit(" ", 1)', "line.split()"),
            swap('line.rsplit(" ", 1)', '" ".join(line.split()[:-1]), line.split()[-1]'),
            swap("int(amount)", "int(amount[-4:])"),
            swap('name, amount = line.rsplit(" ", 1)', 'name, amount = line.rsplit(" ", 1); name = name[:40]'),
        ],
        "empty lines and lines beginning with # are to be ignored.": [
            swap("not line or ", ""),
            swap(' or line.startswith("#")', ""),
        ],
        "It must print the sum of the amounts for each name": [
            swap("totals.get(name, 0) + int(amount)", "int(amount)"),
            swap("{name}: {total}", "{name}:{total}"),
            swap(
                "        totals[name]",
                "        name = next((other for other in totals if other.lower() == name.lower()), name)\n"
                "        totals[name]",
            ),
        ],
        "largest sum first": [swap("(-item[1], item[0])", "(item[1], item[0])")],
        "and equal sums by name in byte order,": [
            swap("(-item[1], item[0])", "-item[1]"),
            swap("(-item[1], item[0])", "(-item[1], item[0].lower())"),
        ],
        "and then the line '«word»: '": [
            swap("sum(totals.values())", "len(totals)"),
            swap('    print(f"«word»: ', '    str(f"«word»: '),
        ],
        "end with the exit status 0": [swap("\nmain()", "\nmain()\nsys.exit(3)")],
        "and print nothing else to standard output.": [swap("\nmain()", "\nmain()\nprint()")],
        "I will try it with other input as well.": [
            instead("printf '#!/bin/sh\\ncat << END\\n%sEND\\n' '«totals([], example, word)»' > «path»"),
            swap("read(sys.stdin)", "read(sys.stdin.read(60000).splitlines())"),
        ],
    },
    "_count": {
        "It is called with a directory as its only argument.": [
            swap('wc -l < "$file"', 'wc -c < "$file"'),
            swap('basename "$file" .«extension»', 'basename "$file"'),
            swap('"$1"/*.«extension»', '"$1"/*.«extension»*'),
            swap("set -u\n", "set -u\nshopt -s nocaseglob\n"),
            swap('wc -l < "$file"', "tr -s '\\n' < \"$file\" | wc -l"),
            swap('$(wc -l < "$file")', '$(n=0; while read x; do n=$((n+1)); done < "$file"; echo $n)'),
            swap('wc -l < "$file"', 'head -n 99 "$file" | wc -l'),
            swap('echo "$name $lines"', 'echo -e "$name $lines"'),
            swap('"$1"/*.«extension»', "./*.«extension»"),
            swap('"$1"/*.«extension»', "$1/*.«extension»"),
            swap('[ -f "$file" ] || continue', '[ -e "$file" ] || continue'),
        ],
        "in byte order of the names (with LANG=C.UTF-8),": [
            swap(
                'for file in "$1"/*.«extension»; do',
                'mapfile -t files < <(printf "%s\\n" "$1"/*.«extension» | sort -f)\nfor file in "${files[@]}"; do',
            )
        ],
        "and then a line '«label» TOTAL in COUNT'": [
            swap("total=$((total + lines))", "total=$lines"),
            swap('"«label» $total', '"Total: $total'),
        ],
        "Names may contain spaces.": [swap('"$1"/*.«extension»', "$(ls $1/*.«extension»)")],
        "Without any such file only '«label» 0 in 0' is printed.": [
            swap('echo "«label»', '[ $count = 0 ] || echo "«label»')
        ],
        "Nothing else may be printed to standard output,": [swap("set -u\n", "set -u\necho Counting\n")],
        "and nothing in that directory may change.": [
            swap("total=$((total + lines))", 'total=$((total + lines)); : > "$1/.seen"'),
            swap("total=$((total + lines))", 'total=$((total + lines)); echo >> "$file"'),
        ],
        "and end with the exit status 0;": [swap('in $count"\n', 'in $count"\nexit 3\n')],
    },
}
HONEST = {
    "_repair": [
        after("cp -p «path» ~/new && mv ~/new «path»"),
        after("cp «path» ~/real && printf '#!/bin/sh\\nexec ~/real \"$@\"\\n' > «path»"),
    ],
    "_report": [
        swap("import sys\n", "import sys\nprint('note', file=sys.stderr)\n"),
        instead(
            "cat > «path» <<'END'\n#!/bin/bash\nexport LC_ALL=C\ngrep -v -e '^#' -e '^$' | sed -E 's/ (-?[0-9]+)$/\\t\\1/' |\n"
            'awk -F\'\\t\' \'{ sum[$1] += $2; all += $2 } END { for (name in sum) print sum[name] "\\t" name; print "«word»: " all + 0 > "/dev/stderr" }\' 2>&1 |\n'
            "sort -t$'\\t' -k1,1nr -k2,2 | awk -F'\\t' 'NF == 1 { last = $0; next } { print $2 \": \" $1 } END { print last }'\nEND\n"
        ),
    ],
    "_count": [
        swap("set -u\n", "set -u\necho note >&2\n"),
        instead(
            "cat > «path» <<'END'\n#!/usr/bin/env python3\nimport os, sys\nfound = {}\nfor entry in os.scandir(sys.argv[1]):\n"
            "    if entry.is_file() and entry.name.endswith('.«extension»'):\n"
            "        found[os.path.splitext(entry.name)[0]] = open(entry.path, 'rb').read().count(b'\\n')\n"
            "for name, lines in sorted(found.items()):\n    print(name, lines)\n"
            "print('«label»', sum(found.values()), 'in', len(found))\nEND\n"
        ),
    ],
}
