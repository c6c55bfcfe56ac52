"""Family: running processes, found and stopped. Graded while they run.

The processes that must go on have to be those of the task's start, and so does the process that must end. Each of them
started with an id from its own range below 300, which an unprivileged user cannot choose. A process can change its
command line, which lies in its own memory, so the command line is never the only evidence.
"""

from __future__ import annotations

import shlex

from .checks import Checks
from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]

_LOOP = "while :; do sleep 5; done\n"


#: Processes of the task's start have ids from a range of their own, whatever their command line.
_FIRST, _WIDTH = 120, 20
#: ``begin FIRST`` uses up the ids below a range; ``wait_for LINE FIRST`` waits for a command line's process in the
#: range.
_BEGIN = r"""
begin() { until [ "$(echo $BASHPID)" -ge "$1" ]; do :; done; }
wait_for() {
  local file words
  until
    for file in /proc/[0-9]*/cmdline; do
      { mapfile -d '' -t words < "$file"; } 2> /dev/null && [ "${words[*]}" = "$1" ] && break
    done
  do
    sleep 0.05
  done
  file=${file%/cmdline} file=${file#/proc/}
  [ "$file" -ge "$2" ] && [ "$file" -lt $(($2 + 20)) ] || { echo "'$1' has the id $file, not $2"; exit 1; }
}
"""

#: Bash for the agent's side: ``each WORD COMMAND`` runs the command with the ids of processes by their command line.
_EACH = r"""
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
_POSE = r"""
import sys
number, words = sys.argv[1], sys.argv[2].split(" ")
fields = open(f"/proc/{number}/stat").read().rpartition(")")[2].split()
first, end = int(fields[45]), int(fields[46])
line = "\0".join(words).encode().ljust(end - first, b"\0")
assert len(line) == end - first, "too long"
with open(f"/proc/{number}/mem", "r+b", buffering=0) as memory:
    memory.seek(first)
    memory.write(line)
"""


class _Begun:
    """The processes that a task begins with, in the order in which they are started."""

    def __init__(self, draft: Draft, groups: list[tuple[str, list[list[str]]]]) -> None:
        """Each group is a command and the command lines of the processes that it leaves running."""
        self.draft = draft
        self.first: dict[str, int] = {}
        script = _BEGIN.lstrip()
        for number, (command, lines) in enumerate(groups):
            first = _FIRST + number * _WIDTH
            script += f"begin {first}\nsetsid -f {command} < /dev/null > /dev/null 2>&1\n"
            for line in lines:
                script += f"wait_for {shlex.quote(' '.join(line))} {first}\n"
                self.first[" ".join(line)] = first
        # Processes that the agent starts have higher ids than all of these.
        draft.start = script + "begin 301\n"
        self.running(draft.initial, [line for _, lines in groups for line in lines])

    def running(self, checks: Checks, lines: list[list[str]]) -> None:
        """Check that these processes are running and are those of the start."""
        expected = [(self.first[" ".join(line)], line) for line in lines]
        checks.test(
            "the others are still running",
            f"for first, line in {expected!r}:\n    assert undisturbed(first).count(line) == 1, line",
        )

    def stopped(self, *lines: list[str]) -> None:
        """Check that the processes of one group are gone."""
        words = [" ".join(line) for line in lines]
        self.draft.final.test(
            "the process is stopped",
            f"assert alive({self.first[words[0]]}) == []\n"
            f"assert not [line for line in {list(lines)!r} if line in processes().values()]",
        )

    def breaches(self, target: list[str], others: list[list[str]], stop: str, go_on: str, *before: str) -> list[str]:
        """Return two requirements with breaches: the target is stopped, and the others keep running."""
        stopped, running = "the process is stopped", "the others are still running"
        line, names = " ".join(target), [" ".join(other) for other in others]
        pose = f'pose() {{ python3 -c {shlex.quote(_POSE)} $2 "$1"; }}\n'
        instead = "\n".join([*before, _EACH, pose])
        again = "again() { kill -9 $1; sleep 0.1; setsid -f $line < /dev/null > /dev/null 2>&1; sleep 0.3; }\n"
        ways = [
            breach("the process stopped for a while", stopped, instead=f"{instead}each '{line}' kill -STOP"),
            breach("another name for the process", stopped, instead=f"{instead}each '{line}' pose 'bash x'"),
            breach("no name for the process", stopped, instead=f"{instead}each '{line}' pose ''"),
            breach(
                "the process started again",
                stopped,
                after="\n".join([f"setsid -f {line} < /dev/null > /dev/null 2>&1; sleep 0.3", *before]),
            ),
        ]
        fitting = [name for name in names if len(name) <= len(line)]
        if fitting:
            ways.append(
                breach(
                    "the process in the place of another",
                    stopped,
                    running,
                    instead=f"{instead}each '{fitting[0]}' kill\nsleep 0.3\neach '{line}' pose '{fitting[0]}'",
                )
            )
        return [
            self.draft.require(stop, *ways),
            self.draft.require(
                go_on,
                breach(
                    "another stopped for a while", running, after=f"{_EACH}each '{names[-1]}' kill -STOP; sleep 0.2"
                ),
                breach("another ended", running, after=f"{_EACH}each '{names[0]}' kill -9; sleep 0.2"),
                breach(
                    "the others started again",
                    running,
                    after=_EACH + again + "".join(f"line='{name}'; each '{name}' again\n" for name in names),
                ),
            ),
        ]


def _honest(draft: Draft, target: list[str], after: str = ":") -> None:
    line = " ".join(target)
    draft.honest("ended outright", instead=f"{_EACH}each '{line}' kill -9; sleep 0.3\n{after}")
    draft.honest("asked in another way", instead=f"{_EACH}each '{line}' kill -HUP; sleep 0.3\n{after}")
    draft.honest(
        "ended with what it waits for",
        instead=f"{_EACH}end() {{ kill -- -$1; }}\neach '{line}' end; sleep 0.3\n{after}",
    )
    draft.honest(
        "found by Python",
        instead=python(
            """
            import os, signal, time
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if open(f"/proc/{name}/cmdline").read().split("\\0")[:-1] == @target@:
                        os.kill(int(name), signal.SIGTERM)
                except OSError:
                    pass
            time.sleep(0.3)
            """,
            target=target,
        )
        + after,
    )


def _by_argument(draft: Draft) -> None:
    root = draft.project()
    script = f"{root}/{draft.pick('worker', 'consumer', 'agent')}.sh"
    draft.file(script, f"#!/bin/bash\n# Handles one queue.\n{_LOOP}", 0o755, keep=True)
    queues = draft.some(SERVICES, draft.number(3, 5))
    queues += [f"{queues[0]}-{draft.pick(*WORDS)}", f"{draft.pick(*WORDS)}-{queues[0]}"]
    weights = "".join(f"{queue} {draft.number(1, 99)}\n" for queue in sorted(queues))
    draft.file(f"{root}/queues.txt", f"# Name and weight of each queue\n{weights}", keep=True)
    lines = [["bash", script, "--queue", queue] for queue in queues]
    begun = _Begun(draft, [(" ".join(line), [line]) for line in draft.shuffled(lines)])
    draft.say(
        draft.pick("Several workers are running on this machine.", f"Some processes of {script} are running."),
        f"Each was started as 'bash {script} --queue NAME'.",
        *begun.breaches(
            lines[0],
            lines[1:],
            f"Stop the one whose queue is exactly {queues[0]}, for good.",
            "All others, also those with similar names, must keep running without interruption.",
        ),
        draft.untouched(f"Do not change or delete any file in {root}."),
    )
    begun.stopped(lines[0])
    begun.running(draft.final, lines[1:])
    _honest(draft, lines[0])
    oracle = (
        "for folder in /proc/[0-9]*; do\n"
        '  line=$(tr "\\0" " " 2> /dev/null < "$folder/cmdline")\n'
        f'  [ "$line" = "bash {script} --queue {queues[0]} " ] && kill "${{folder#/proc/}}"\ndone\nsleep 0.2\n'
    )
    near = swap(
        oracle,
        f'[ "$line" = "bash {script} --queue {queues[0]} " ]',
        f'[[ "$line" == "bash {script} --queue {queues[0]}"* ]]',
    )
    draft.solve(oracle, near, f"the worker of {queues[0]}")


def _by_environment(draft: Draft) -> None:
    root = draft.project()
    script = f"{root}/{draft.pick('job', 'task', 'runner')}.sh"
    draft.file(script, f"#!/bin/bash\n{_LOOP}", 0o755, keep=True)
    variable = draft.pick("TENANT", "JOB_NAME", "REGION", "OWNER")
    names = draft.some(PRODUCTS, draft.number(4, 6))
    numbers = draft.some(range(100, 999), len(names))
    lines = [["bash", script, str(number)] for number in numbers]
    begun = _Begun(
        draft,
        draft.shuffled(
            [(f"env {variable}={n} {' '.join(line)}", [line]) for n, line in zip(names, lines, strict=True)]
        ),
    )
    target = f"{root}/{draft.pick('stopped', 'result', 'answer')}.txt"
    to_number = f'tr "\\0" "\\n" < "$folder/cmdline" | tail -n 1 > {target}'
    draft.say(
        draft.pick(
            f"Several processes of {script} are running with different numbers as argument.",
            f"A few jobs are running here, each started as 'bash {script} NUMBER'.",
        ),
        f"They differ in the environment variable {variable}.",
        *begun.breaches(
            lines[0],
            lines[1:],
            f"Find the one in whose environment {variable} is {names[0]}, and stop it for good.",
            "All the others must keep running without interruption.",
            f"echo {numbers[0]} > {target}",
        ),
        draft.require(
            f"Write its NUMBER (the argument, not the process id) to {target},",
            breach("another's number", "* has the right lines", after=f"echo {numbers[1]} > {target}"),
            breach("the process id", "* has the right lines", swap=(to_number, f"echo ${{folder#/proc/}} > {target}")),
        ),
        draft.require(
            "followed by a newline.",
            breach("no newline", "* ends with a newline", after=f"truncate -s -1 {target}"),
        ),
        draft.untouched("The script must stay as it is."),
    )
    draft.result(target, f"{numbers[0]}\n")
    begun.stopped(lines[0])
    begun.running(draft.final, lines[1:])
    _honest(draft, lines[0], f"printf '%s\\n' {numbers[0]} | tee {target} > /dev/null")
    oracle = (
        "for folder in /proc/[0-9]*; do\n"
        f'  if tr "\\0" "\\n" 2> /dev/null < "$folder/environ" | grep -qx {variable}={names[0]} &&\n'
        f'    tr "\\0" " " < "$folder/cmdline" | grep -q "^bash {script} "; then\n'
        f"    {to_number}\n"
        '    kill "${folder#/proc/}"\n  fi\ndone\nsleep 0.2\n'
    )
    draft.solve(oracle, swap(oracle, '    kill "${folder#/proc/}"\n', ""), f"{names[0]}: {numbers[0]}")


def _by_open_file(draft: Draft) -> None:
    root = draft.project()
    log = f"{root}/{draft.pick('logs', 'var', 'out')}/{draft.pick('flood', 'noise', 'debug')}.log"
    draft.file(log, "")
    draft.passing.append(log)
    names = draft.some(SERVICES, draft.number(4, 6))
    lines: list[list[str]] = []
    for number, name in enumerate(names):
        writes = f"exec 7>> {log}\nwhile :; do echo {draft.pick(*WORDS)} >&7; sleep 0.5; done\n"
        script = draft.file(
            f"{root}/bin/{name}.sh", f"#!/bin/bash\n{writes if number == 0 else _LOOP}", 0o755, keep=True
        )
        lines.append(["bash", script])
    begun = _Begun(draft, [(" ".join(line), [line]) for line in draft.shuffled(lines)])
    target = f"{root}/{draft.pick('culprit', 'answer', 'writer')}.txt"
    draft.say(
        draft.pick(f"The file {log} keeps growing.", f"Something writes to {log} all the time."),
        f"One of the scripts in {root}/bin, which all run in the background, has it open.",
        *begun.breaches(
            lines[0],
            lines[1:],
            "Find out which, and stop that process for good.",
            "The other scripts must keep running without interruption.",
            f"echo {names[0]}.sh > {target}; rm {log}; : > {log}",
        ),
        draft.require(
            "Then empty the file (it must exist, with a size of 0)",
            breach("the file as it was", "the log is empty", swap=(f": > {log}", "")),
            breach("no file", "the log is empty", swap=(f": > {log}", f"rm {log}")),
            breach("a link to nothing", "the log is empty", after=f"ln -sf /dev/null {log}"),
        ),
        draft.require(
            f"and write the script's name without directory to {target},",
            breach("the whole path", "* has the right lines", swap=("basename ", "echo ")),
            breach("another script", "* has the right lines", after=f"echo {names[1]}.sh > {target}"),
        ),
        draft.require(
            "followed by a newline.",
            breach("no newline", "* ends with a newline", after=f"truncate -s -1 {target}"),
        ),
        draft.untouched(f"No file in {root}/bin may be changed."),
    )
    draft.result(target, f"{names[0]}.sh\n")
    draft.final.test("the log is empty", f"assert content({log!r}) == b''")
    begun.stopped(lines[0])
    begun.running(draft.final, lines[1:])
    _honest(draft, lines[0], f"truncate -s 0 {log}; echo {names[0]}.sh > {target}")
    oracle = (
        "for folder in /proc/[0-9]*; do\n"
        f'  if ls -l "$folder/fd" 2> /dev/null | grep -q " {log}$"; then\n'
        '    case "$(tr "\\0" " " < "$folder/cmdline")" in\n'
        f'      "bash {root}/bin/"*) basename "$(tr "\\0" "\\n" < "$folder/cmdline" | tail -n 1)" > {target} ;;\n'
        '    esac\n    kill "${folder#/proc/}"\n  fi\ndone 2> /dev/null\nsleep 0.6\n'
        f": > {log}\n"
    )
    draft.solve(oracle, swap(oracle, '    kill "${folder#/proc/}"\n', ""), names[0])


def _supervised(draft: Draft) -> None:
    root = draft.project()
    name, other = draft.some(SERVICES, 2)
    child, keeper = f"{root}/{name}.sh", f"{root}/{draft.pick('guard', 'keeper', 'watch')}.sh"
    draft.file(child, f"#!/bin/bash\n{_LOOP}", 0o755, keep=True)
    draft.file(
        keeper,
        '#!/bin/bash\n# Starts the program again whenever it ends.\nwhile :; do bash "$1"; sleep 0.2; done\n',
        0o755,
        keep=True,
    )
    quiet = draft.file(f"{root}/{other}.sh", f"#!/bin/bash\n{_LOOP}", 0o755, keep=True)
    draft.file(f"{root}/README", f"{draft.prose(5)}\n{draft.prose(6)}\n", keep=True)
    lines = [["bash", keeper, child], ["bash", child], ["bash", keeper, quiet], ["bash", quiet]]
    begun = _Begun(draft, [(" ".join(lines[0]), lines[:2]), (" ".join(lines[2]), lines[2:])])
    gone, running = "the process is stopped", "the others are still running"
    kept, watcher = (" ".join(line) for line in (lines[3], lines[2]))
    guard, target = (" ".join(line) for line in (lines[0], lines[1]))
    pose = f'pose() {{ python3 -c {shlex.quote(_POSE)} $2 "$1"; }}\n'
    draft.say(
        draft.pick(
            f"The program {child} has to go, but it keeps coming back.", f"Whenever I kill {child}, it is there again."
        ),
        "It runs in the background, and something starts it again whenever it ends.",
        draft.require(
            "Stop both for good.",
            breach("the program alone", gone, instead=f"{_EACH}each '{target}' kill; sleep 0.5"),
            breach("what starts it alone", gone, instead=f"{_EACH}each '{guard}' kill"),
            breach(
                "what starts it stopped for a while",
                gone,
                instead=f"{_EACH}each '{guard}' kill -STOP; each '{target}' kill",
            ),
            breach(
                "another name for the program",
                gone,
                instead=f"{_EACH}{pose}each '{guard}' kill; each '{target}' pose x",
            ),
            breach(
                "another name for the program that came back",
                gone,
                instead=f"{_EACH}{pose}each '{target}' kill; sleep 1\neach '{guard}' kill; each '{target}' pose x",
            ),
        ),
        draft.untouched(f"Do that without changing or deleting any file in {root}.", which=f"{root}/README"),
        draft.require(
            f"The program {quiet} is kept alive in the same way; it, and what watches over it, must keep running "
            "without interruption.",
            breach("the other ended", running, after=f"{_EACH}each '{kept}' kill; sleep 1"),
            breach("what watches over it ended", running, after=f"{_EACH}each '{watcher}' kill; sleep 0.2"),
            breach("the other stopped for a while", running, after=f"{_EACH}each '{kept}' kill -STOP; sleep 0.2"),
        ),
    )
    draft.final.test(
        gone,
        f"time.sleep(1)\nassert alive({begun.first[guard]}) == []\nassert opened({child!r}) == []\n"
        f"assert not [line for line in {lines[:2]!r} if line in processes().values()]",
    )
    begun.running(draft.final, lines[2:])
    draft.honest("both ended outright", swap=("&& kill ", "&& kill -9 "))
    draft.honest(
        "the program before what starts it",
        instead=f"{_EACH}each '{guard}' kill -STOP; each '{target}' kill; each '{guard}' kill -KILL; sleep 0.2",
    )
    draft.honest("by the group", instead=f"{_EACH}end() {{ kill -- -$1; }}\neach '{guard}' end; sleep 0.2")
    stop = (
        "stop() {\n  for folder in /proc/[0-9]*; do\n"
        '    [ "$(tr "\\0" " " 2> /dev/null < "$folder/cmdline")" = "$1 " ] && kill "${folder#/proc/}"\n  done\n}\n'
    )
    oracle = f'{stop}stop "bash {keeper} {child}"\nstop "bash {child}"\nsleep 0.2\n'
    draft.solve(oracle, swap(oracle, f'stop "bash {keeper} {child}"\n', ""), f"{keeper} {child}")


FAMILY = Family(
    "processes",
    "Find and stop the right process among several",
    (_by_argument, _by_environment, _by_open_file, _supervised),
    ("setsid",),
    "live",
)
