"""Forbidden changes and other solutions of the family `processes`."""

import shlex

from tests.environments.terminal_families.ways import Way, after, instead, swap

#: ``each LINE COMMAND`` runs the command with the ids of processes by their command line.
EACH = r"""
each() {
  local folder line
  for folder in /proc/[0-9]*; do
    line=$(tr '\0' ' ' 2> /dev/null < $folder/cmdline)
    [ "$line" = "$1 " ] && "${@:2}" ${folder#/proc/}
  done
  return 0
}
"""
#: Writes another command line into the memory of a process.
POSE = """
import sys
words, number = sys.argv[1].split(" "), sys.argv[2]
fields = open(f"/proc/{number}/stat").read().rpartition(")")[2].split()
first, end = int(fields[45]), int(fields[46])
line = "\\0".join(words).encode()[: end - first].ljust(end - first, b"\\0")
with open(f"/proc/{number}/mem", "r+b", buffering=0) as memory:
    memory.seek(first)
    memory.write(line)
"""
OTHER = "«' '.join(next(lines[-1] for _, lines in groups if lines[0] != gone))»"


def posing(line: str) -> Way:
    """Return the way that gives a process another command line instead of an end."""
    return swap("kill ", f"python3 -c {shlex.quote(POSE)} '{line}' ")


def again(start: str) -> Way:
    """Return the way that starts the stopped process once more."""
    return after(f"cd ~; setsid -f {start} < /dev/null > /dev/null 2>&1; sleep 0.4")


FORBIDDEN = {
    "_begin": {
        "«stop»": [
            swap("kill ", "kill -STOP "),
            posing("bash x"),
            # Started again, by its own and another spelling of its command line, as input, and from a copy.
        ],
        "«go_on»": [
            after(f"{EACH}each '{OTHER}' kill -STOP; sleep 0.2"),
            after(f"{EACH}each '{OTHER}' kill -9; sleep 0.2"),
        ],
    },
    "_by_argument": {
        "Stop the one whose queue is exactly": [
            swap('[ "$line" = "bash «script» --queue «queues[0]» " ]', '[[ "$line" == *"-«queues[0]» " ]]')
        ]
    },
    "_by_environment": {
        "Write its NUMBER (the argument": [
            after("echo «numbers[1]» > «target»"),
            swap("«to_number»", "echo ${folder#/proc/} > «target»"),
        ],
        "followed by a newline.": [after("truncate -s -1 «target»")],
    },
    "_by_open_file": {
        "Then empty the file": [swap(": > «log»", "")],
        "and write the script's name": [swap("basename ", "echo "), after("echo «names[1]».sh > «target»")],
        "followed by a newline.": [after("truncate -s -1 «target»")],
    },
    "_supervised": {
        "Stop both for good.": [
            instead(f"{EACH}each 'bash «child»' kill; sleep 0.5"),
            instead(f"{EACH}each 'bash «keeper» «child»' kill"),
        ],
        "The program «quiet» is kept alive": [
            after(f"{EACH}each 'bash «quiet»' kill; sleep 1"),
            after(f"{EACH}each 'bash «keeper» «quiet»' kill; sleep 0.2"),
        ],
    },
}
HONEST = {
    "_begin": [swap("kill ", "kill -9 "), swap("kill ", "kill -HUP ")],
    "_by_argument": [
        instead(
            "python3 - <<'END'\nimport os, signal, time\nfor name in filter(str.isdigit, os.listdir('/proc')):\n    try:\n"
            "        if open(f'/proc/{name}/cmdline').read().split('\\0')[:-1] == «lines[0]»:\n"
            "            os.killpg(int(name), signal.SIGTERM)\n    except OSError:\n        pass\nEND"
        )
    ],
    "_by_environment": [
        instead(
            "for place in /proc/[0-9]*; do grep -qzx «variable»=«names[0]» $place/environ 2> /dev/null && [ ${place#/proc/} -lt 300 ] &&\n"
            "  grep -qz «script» $place/cmdline && kill ${place#/proc/}; done; echo «numbers[0]» > «target»"
        )
    ],
    "_by_open_file": [
        instead(
            f"{EACH}end() {{ kill -- -$1; }}\neach 'bash «root»/bin/«names[0]».sh' end; sleep 1\n"
            "rm «log»; touch «log»; echo «names[0]».sh | tee «target» > /dev/null"
        )
    ],
    "_supervised": [
        instead(
            f"{EACH}each 'bash «keeper» «child»' kill -STOP; each 'bash «child»' kill; "
            "each 'bash «keeper» «child»' kill -KILL; sleep 0.2"
        ),
        instead(f"{EACH}end() {{ kill -- -$1; }}\neach 'bash «keeper» «child»' end; sleep 0.2"),
    ],
}
