"""Forbidden changes and other solutions of the family `scripting`."""

from tests.environments.terminal_families.ways import Way, after, instead, swap


def written(kind: str, text: str) -> Way:
    """Return the way of a program that computes the same in another language; only tasks of the kind have it."""
    return swap(
        f"«oracle if answer.__name__ == {kind!r} else '(another kind)'»",
        f"cat > «path» <<'END'\n{text}\nEND\nchmod +x «path»\n",
    )


FORBIDDEN = {
    "_program": {
        "It must be an executable file at «path» (with a suitable #! line: bash, sh, awk, python3 or whatever you find installed) that is started directly under this path.": [
            after("chmod -x «path»"),
            after("sed -i '1s/.*/# A program/' «path»"),
        ],
        "Every line of the output ends with a newline": [
            swap("sys.stdout.write(«call»)", 'sys.stdout.write(«call».rstrip("\\n"))')
        ],
        "and there is nothing else on standard output.": [
            swap("sys.stdout.write", "print('Hello')\nsys.stdout.write"),
            swap("sys.stdout.write(«call»)", "sys.stdout.write(«call»)\nprint()"),
        ],
        "The exit status is 0.": [swap("sys.stdout.write(«call»)", "sys.stdout.write(«call»)\nsys.exit(3)")],
        "I will try it with other input of this kind.": [
            instead("printf '#!/bin/sh\\ncat << END\\n%sEND\\n' '«example»' > «path»; chmod +x «path»"),
            # A program that adds to the folder does so when it is tried.
            swap("sys.stdout.write(", "open('«path».log', 'a').write('called')\nsys.stdout.write("),
            # The tests are in no file and no argument that the program could read.
            swap(
                "sys.stdout.write(«call»)",
                "import glob, re\nfound = ''\nfor name in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/.*/*') + glob.glob('/tmp/*'):\n"
                "    try:\n        found += open(name, errors='replace').read()\n    except OSError:\n        pass\n"
                "if 'def «answer.__name__»' in found:\n    sys.stdout.write(«call»)",
            ),
        ],
        # Kinds with arguments.
        "It takes one argument, a number of seconds": [
            swap("n // 3600:02d", "n // 3600 % 24:02d"),
            swap("separator.join", "'.'.join"),
        ],
        "followed by a space and the word": [swap('f" {word}\\n"', 'f"{word}\\n"')],
        "Minutes and seconds always": [swap("{n // 3600:02d}", "{n // 3600}"), swap("{n % 60:02d}", "{n % 60}")],
        "It takes one argument, a whole number from 0": [
            swap("digits or '0'", "digits"),
            swap("[n % base] + digits", "[n % base] + digits[:7]"),
        ],
        "a space and «values['word']».": [swap("'0'} {word}", "'0'}")],
        "It takes one to": [swap("in arguments:", "in arguments[:1]:"), swap("in arguments:", "in arguments[:9]:")],
        "the number in Roman": [swap('"IV"', '"IIII"'), swap("{text}:", "{text.lower()}:")],
        "a colon, and the number itself": [swap(":{word}-", ":{word}"), swap("{text}:", "{text}: ")],
        "It takes two to": [swap("\\n{word.upper()}", " {word.upper()}"), swap("arguments):", "arguments[:2]):")],
        "their greatest common divisor": [
            swap("{word}={greatest}", "{word}={min(map(int, arguments))}"),
            swap("{word}=", "{word}: "),
        ],
        "and their least common multiple": [
            swap("n // a", "n"),
            swap("multiple * n // a", "(multiple * n // a) % 2**32"),
            swap("{multiple}", "{int(float(multiple)) if multiple < 2**63 else 0}"),
            written(
                "divisors",
                "#!/usr/bin/env python3\nimport math, sys\nn = list(map(int, sys.argv[1:]))\nmultiple = math.lcm(*n)\n"
                "multiple = math.prod(p ** k for p in range(2, 98) if all(p % q for q in range(2, p)) "
                "for k in [next(k for k in range(64) if multiple % p ** (k + 1))])\n"
                "print(f\"«values['word']»={math.gcd(*n)}\\n«values['word'].upper()»={multiple}\")",
            ),
            swap("{word.upper()}=", "{word}="),
        ],
        "It takes one argument, a number of bytes": [swap("n >= 1024", "n > 1024"), swap("n // 1024", "n // 1000")],
        "rounded down, as in": [swap("n // 1024", "-(-n // 1024)"), swap("{n} {units", "{n}{units")],
        "and behind it a space and the word": [swap("]} {word}", "]}")],
        "0 is '0 B": [swap("{n} {units", "{n or ''} {units")],
        # Kinds with standard input.
        "It reads lines from standard input and prints each of them encrypted": [
            swap("low[key:] + low[:key]", "low[-key:] + low[:-key]")
        ],
        "starting again at a": [swap("low[:key] + up", "low[-key:] + up")],
        "capitals as capitals.": [swap("up[key:] + up[:key]", "up")],
        "All other characters stay.": [
            swap("given.translate(", "given.replace('  ', ' ').translate("),
            swap("given.translate(", "given.replace(chr(92), '').translate("),
            swap("given.translate(", "''.join(line.strip() + chr(10) for line in given.splitlines()).translate("),
            swap("given.translate(", "given.replace(chr(9) + chr(10), chr(10)).translate("),
        ],
        "After the last line it prints": [
            swap('+ f"{word}\\n"', ""),
            swap("given.translate(", "f'{word}\\n' + given.translate("),
        ],
        "It reads lines from standard input and prints each run": [
            swap("given.splitlines()", "sorted(given.splitlines())"),
            swap("given.splitlines()", "list(map(str.strip, given.splitlines()))"),
            swap("given.splitlines()", "given.splitlines()[:20]"),
            swap("given.splitlines()", "[line.rstrip(chr(9)) for line in given.splitlines()]"),
            swap("found[-1][0] == line", "found[-1][0].lower() == line.lower()"),
        ],
        "the number of lines in the run,": [
            swap("{len(run)} ", "{len(run) % 10} "),
            swap("{word} {run[0]}", "{run[0]} {word}"),
        ],
        "The last line printed is 'runs:'": [swap("{len(found)}", "{len(given.splitlines())}")],
        "It reads lines from standard input and prints line number": [
            swap("start - 1 :", "start :"),
            swap("given.splitlines()", "map(str.strip, given.splitlines())"),
            swap("given.splitlines()", "given.splitlines()[:20]"),
            swap(":: step", ":: 1"),
        ],
        "each with its line number": [swap("splitlines(), 1)", "splitlines())")],
        "separated by '": [swap("{word} {line}", "{line}"), swap("{number} {word}", "{number}{word}")],
        "If no line is printed": [swap(' or f"no {word}\\n"', "")],
        "It reads lines from standard input and prints the longest line": [
            swap("max(lines", "max(lines[::-1]"),
            swap("given.splitlines()", "list(map(str.strip, given.splitlines()))"),
            swap("given.splitlines()", "[line[:60] for line in given.splitlines()]"),
            swap("max(lines, key=len)", "max(lines)"),
            swap("key=len", "key=lambda line: len(line.rstrip('\\t'))"),
            swap('return f"{found}\\n', "return f\"{found if found not in ('-n', '-e', '-E') else ''}\\n"),
        ],
        "and below it a line with the length": [swap("{len(found)}", "{len(found) + 1}"), swap(")} {word}", ")}")],
        "If there is no input at all": [
            swap('"0 {word}\\n"', '"\\n0 {word}\\n"'),
            swap("if not lines:", "if given == '\\n' or not lines:"),
        ],
        "It reads lines of the form": [
            swap("int(quantity) * ", ""),
            swap("int(quantity)", "int(quantity[-1])"),
            swap("int(price", "int(price[-5:]"),
            swap("split(separator)", "split(separator); name = name.split()[0]"),
        ],
        "Lines that are empty or begin": [
            swap("if line and not", "if not"),
            swap('not line.startswith("#")', '"#" not in line'),
            swap(' and not line.startswith("#")', ""),
        ],
        "It adds up QUANTITY times": [swap("found.get(name, 0) + ", "")],
        "and prints, for every name whose sum": [
            swap("cents >= least", "cents > least"),
            written(
                "sums",
                "#!/usr/bin/env python3\nimport sys\nfound, whole = {}, 0\nfor line in sys.stdin:\n    if line.strip() and line[0] != '#':\n"
                "        name, quantity, price = line.rstrip('\\n').split('«values.get('separator')»')\n"
                "        found[name] = found.get(name, 0.0) + int(quantity) * float(price)\n        whole += int(quantity) * int(price.replace('.', ''))\n"
                "for name in sorted(found):\n    if found[name] >= «values.get('least')»:\n        print(name, f'{found[name]:.2f}')\n"
                "print('«values['word']»', f'{whole // 100}.{whole % 100:02d}')",
            ),
            swap(" if cents >= least * 100", ""),
        ],
        "the name, a space and the sum": [swap("{name} {", "{name}: {"), swap("% 100:02d", "% 100")],
        "sorted by name in byte order.": [
            swap("sorted(found.items())", "found.items()"),
            swap("sorted(found.items())", "sorted(found.items(), key=lambda item: f'{item[0]} {item[1]}')"),
            swap("sorted(found.items())", "sorted(found.items(), key=lambda item: item[0].lower())"),
        ],
        "Then follows a last line": [
            swap("sum(found.values())", "sum(cents for _, cents in rows)"),
            swap("rows.append((word, sum(found.values())))", "pass"),
        ],
    }
}
HONEST = {
    "_program": [
        after("mv «path» ~/real && printf '#!/bin/sh\\nexec ~/real \"$@\"\\n' > «path» && chmod 755 «path»"),
        after("chmod 700 «path»"),
        swap("import sys\n", "import sys\nprint('note', file=sys.stderr)\n"),
        written(
            "duration",
            "#!/bin/bash\nprintf '%02d%s%02d%s%02d %s\\n' $(($1 / 3600)) '«values.get('separator')»' $(($1 / 60 % 60)) '«values.get('separator')»' $(($1 % 60)) «values['word']»",
        ),
        written(
            "in_base",
            "#!/bin/bash\nn=$1 digits=\nset -- 0 1 2 3 4 5 6 7 8 9 a b\nwhile :; do\n  at=$((n % «values.get('base')» + 1))\n"
            "  digits=${!at}$digits\n  n=$((n / «values.get('base')»))\n  [ $n = 0 ] && break\ndone\necho $digits «values['word']»",
        ),
        written(
            "roman",
            '#!/bin/bash\nfor n; do\n  text=$(printf "%${n}s" | sed \'s/ /I/g; s/I\\{1000\\}/M/g; s/I\\{900\\}/CM/g; s/I\\{500\\}/D/g; '
            "s/I\\{400\\}/CD/g; s/I\\{100\\}/C/g; s/I\\{90\\}/XC/g; s/I\\{50\\}/L/g; s/I\\{40\\}/XL/g; s/I\\{10\\}/X/g; s/I\\{9\\}/IX/g; s/I\\{5\\}/V/g; s/I\\{4\\}/IV/g')\n"
            "  echo \"$text:«values['word']»-$n\"\ndone",
        ),
        written(
            "divisors",
            "#!/usr/bin/env python3\nimport math, sys\nn = list(map(int, sys.argv[1:]))\nprint(f\"«values['word']»={math.gcd(*n)}\\n«values['word'].upper()»={math.lcm(*n)}\")",
        ),
        written(
            "size",
            "#!/bin/bash\nfor power in 4 3 2 1 0; do\n  if [ $(($1 >> 10 * power)) -gt 0 ] || [ $power = 0 ]; then\n"
            "    units=(B KiB MiB GiB TiB)\n    echo $(($1 >> 10 * power)) ${units[power]} «values['word']»\n    break\n  fi\ndone",
        ),
        written(
            "caesar",
            "#!/bin/bash\ntr a-zA-Z «chr(97 + values.get('key', 0))»-za-«chr(96 + values.get('key', 0))»«chr(65 + values.get('key', 0))»-ZA-«chr(64 + values.get('key', 0))»\necho «values['word']»",
        ),
        written(
            "runs",
            "#!/bin/bash\nuniq -c | sed -E 's/^ *([0-9]+) /\\1 «values['word']» /' | { tee /dev/stderr | wc -l; } 3>&1 2>&1 | sed '$ s/^/runs: /'",
        ),
        written(
            "every",
            "#!/usr/bin/awk -f\nNR >= «values.get('start')» && (NR - «values.get('start')») % «values.get('step')» == 0 { print NR, \"«values['word']»\", $0; some = 1 }\nEND { if (!some) print \"no «values['word']»\" }",
        ),
        written(
            "longest",
            "#!/usr/bin/awk -f\nNR == 1 || length($0) > length(longest) { longest = $0 }\nEND { if (NR) print longest; print length(longest), \"«values['word']»\" }",
        ),
        written(
            "sums",
            "#!/bin/bash\nexport LC_ALL=C\ngrep -v -e '^#' -e '^$' | tr -d . | awk -F '«values.get('separator')»' '\n"
            'function show(name, cents) { printf "%s\\t%d.%02d\\n", name, int(cents / 100), cents % 100 }\n'
            "{ sum[$1] += $2 * $3; all += $2 * $3 }\nEND { for (name in sum) if (sum[name] >= «values.get('least')»00) show(\"0\" name, sum[name]); show(\"1«values['word']»\", all) }' | sort -t $'\\t' -k 1,1 | cut -c 2- | tr '\\t' ' '",
        ),
    ]
}
