"""Family: running processes, found and stopped. Graded while they run.

The processes that must go on have to be those of the task's start, and so does the process that must end. Each of them
started with an id from its own range below 300, which an unprivileged user cannot choose. A process can change its
command line, which lies in its own memory, so the command line is never the only evidence.
"""

import shlex

from .draft import Draft, swap
from .family import Family
from .vocabulary import PRODUCTS, SERVICES, WORDS

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

#: Values: ``kept`` are the scripts of each group that goes on, by its first id, ``gone`` is the first id of the other.
_JUDGE = """
time.sleep(seconds)
found = held({content(path) for path in scripts})
for first, paths in kept.items():
    for path in paths:
        same = [number for number, links in found.items() if first <= number < first + 20 and path in links]
        assert same and set(same) <= set(alive(first)), f"{path} {first}: {found}"
assert alive(gone, stopped=True) == [], gone
assert not [number for number in found if number >= 300], found
"""


def _begin(
    draft: Draft, groups: list[tuple[str, list[list[str]]]], gone: list[str], stop: str, go_on: str
) -> list[str]:
    """Start groups of processes, one of which has to be stopped. Return the two requirements.

    Each group is a command and the command lines of the processes that it leaves running; ``gone`` is the first line of
    the group that has to be stopped.
    """
    script = _BEGIN.lstrip()
    kept: dict[int, list[str]] = {}
    for number, (command, lines) in enumerate(groups):
        first = _FIRST + number * _WIDTH
        script += f"begin {first}\nsetsid -f {command} < /dev/null > /dev/null 2>&1\n"
        script += "".join(f"wait_for {shlex.quote(' '.join(line))} {first}\n" for line in lines)
        kept[first] = [line[1] for line in lines]
    # Processes that the agent starts have higher ids than all of these.
    draft.start = script + "begin 301\n"
    scripts = sorted({path for paths in kept.values() for path in paths})
    draft.initial.judged("they are running", _JUDGE, kept=dict(kept), gone=100, scripts=scripts, seconds=0)
    stopped = next(_FIRST + number * _WIDTH for number, (_, lines) in enumerate(groups) if lines[0] == gone)
    del kept[stopped]
    # Longer than what watches over a program takes to start it again.
    draft.final.judged("the right ones are running", _JUDGE, kept=kept, gone=stopped, scripts=scripts, seconds=0.6)
    return [f"! {stop}", f"! {go_on}"]


def _by_argument(draft: Draft) -> None:
    root = draft.project()
    script = f"{root}/{draft.pick('worker', 'consumer', 'agent')}.sh"
    draft.file(script, f"#!/bin/bash\n# Handles one queue.\n{_LOOP}", 0o755)
    queues = draft.some(SERVICES, draft.number(3, 5))
    queues += [f"{queues[0]}-{draft.pick(*WORDS)}", f"{draft.pick(*WORDS)}-{queues[0]}"]
    weights = "".join(f"{queue} {draft.number(1, 99)}\n" for queue in sorted(queues))
    draft.file(f"{root}/queues.txt", f"# Name and weight of each queue\n{weights}")
    lines = [["bash", script, "--queue", queue] for queue in queues]
    groups = [(" ".join(line), [line]) for line in draft.shuffled(lines)]
    draft.say(
        draft.pick("Several workers are running on this machine.", f"Some processes of {script} are running."),
        f"Each was started as 'bash {script} --queue NAME'.",
        *_begin(
            draft,
            groups,
            lines[0],
            f"Stop the one whose queue is exactly {queues[0]}, for good.",
            "All others, also those with similar names, must keep running without interruption.",
        ),
    )
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
    draft.solve(oracle, near)


def _by_environment(draft: Draft) -> None:
    root = draft.project()
    script = f"{root}/{draft.pick('job', 'task', 'runner')}.sh"
    draft.file(script, f"#!/bin/bash\n{_LOOP}", 0o755)
    variable = draft.pick("TENANT", "JOB_NAME", "REGION", "OWNER")
    names = draft.some(PRODUCTS, draft.number(4, 6))
    numbers = draft.some(range(100, 999), len(names))
    lines = [["bash", script, str(number)] for number in numbers]
    groups = [(f"env {variable}={n} {' '.join(line)}", [line]) for n, line in zip(names, lines, strict=True)]
    groups = draft.shuffled(groups)
    target = f"{root}/{draft.pick('stopped', 'result', 'answer')}.txt"
    to_number = f'tr "\\0" "\\n" < "$folder/cmdline" | tail -n 1 > {target}'
    draft.say(
        draft.pick(
            f"Several processes of {script} are running with different numbers as argument.",
            f"A few jobs are running here, each started as 'bash {script} NUMBER'.",
        ),
        f"They differ in the environment variable {variable}.",
        *_begin(
            draft,
            groups,
            lines[0],
            f"Find the one in whose environment {variable} is {names[0]}, and stop it for good.",
            "All the others must keep running without interruption.",
        ),
        f"! Write its NUMBER (the argument, not the process id) to {target},",
        "! followed by a newline.",
    )
    oracle = (
        "for folder in /proc/[0-9]*; do\n"
        f'  if tr "\\0" "\\n" 2> /dev/null < "$folder/environ" | grep -qx {variable}={names[0]} &&\n'
        f'    tr "\\0" " " < "$folder/cmdline" | grep -q "^bash {script} "; then\n'
        f"    {to_number}\n"
        '    kill "${folder#/proc/}"\n  fi\ndone\nsleep 0.2\n'
    )
    draft.solve(oracle, swap(oracle, '    kill "${folder#/proc/}"\n', ""))


def _by_open_file(draft: Draft) -> None:
    root = draft.project()
    log = f"{root}/{draft.pick('logs', 'var', 'out')}/{draft.pick('flood', 'noise', 'debug')}.log"
    draft.file(log, "")
    draft.passing.append(log)
    names = draft.some(SERVICES, draft.number(4, 6))
    lines: list[list[str]] = []
    for number, name in enumerate(names):
        writes = f"exec 7>> {log}\nwhile :; do echo {draft.pick(*WORDS)} >&7; sleep 0.5; done\n"
        script = draft.file(f"{root}/bin/{name}.sh", f"#!/bin/bash\n{writes if number == 0 else _LOOP}", 0o755)
        lines.append(["bash", script])
    groups = [(" ".join(line), [line]) for line in draft.shuffled(lines)]
    target = f"{root}/{draft.pick('culprit', 'answer', 'writer')}.txt"
    draft.say(
        draft.pick(f"The file {log} keeps growing.", f"Something writes to {log} all the time."),
        f"One of the scripts in {root}/bin, which all run in the background, has it open.",
        *_begin(
            draft,
            groups,
            lines[0],
            "Find out which, and stop that process for good.",
            "The other scripts must keep running without interruption.",
        ),
        "! Then empty the file (it must exist, with a size of 0)",
        f"! and write the script's name without directory to {target},",
        "! followed by a newline.",
    )
    draft.final.test("the log is open nowhere", f"assert opened({log!r}) == []")
    oracle = (
        "for folder in /proc/[0-9]*; do\n"
        f'  if ls -l "$folder/fd" 2> /dev/null | grep -q " {log}$"; then\n'
        '    case "$(tr "\\0" " " < "$folder/cmdline")" in\n'
        f'      "bash {root}/bin/"*) basename "$(tr "\\0" "\\n" < "$folder/cmdline" | tail -n 1)" > {target} ;;\n'
        '    esac\n    kill "${folder#/proc/}"\n  fi\ndone 2> /dev/null\nsleep 0.6\n'
        f": > {log}\n"
    )
    draft.solve(oracle, swap(oracle, '    kill "${folder#/proc/}"\n', ""))


def _supervised(draft: Draft) -> None:
    root = draft.project()
    name, other = draft.some(SERVICES, 2)
    child, keeper = f"{root}/{name}.sh", f"{root}/{draft.pick('guard', 'keeper', 'watch')}.sh"
    draft.file(child, f"#!/bin/bash\n{_LOOP}", 0o755)
    draft.file(
        keeper,
        '#!/bin/bash\n# Starts the program again whenever it ends.\nwhile :; do bash "$1"; sleep 0.2; done\n',
        0o755,
    )
    quiet = draft.file(f"{root}/{other}.sh", f"#!/bin/bash\n{_LOOP}", 0o755)
    draft.file(f"{root}/README", f"{draft.prose(5)}\n{draft.prose(6)}\n")
    lines = [["bash", keeper, child], ["bash", child], ["bash", keeper, quiet], ["bash", quiet]]
    groups = draft.shuffled([(" ".join(lines[0]), lines[:2]), (" ".join(lines[2]), lines[2:])])
    draft.say(
        draft.pick(
            f"The program {child} has to go, but it keeps coming back.", f"Whenever I kill {child}, it is there again."
        ),
        "It runs in the background, and something starts it again whenever it ends.",
        *_begin(
            draft,
            groups,
            lines[0],
            "Stop both for good.",
            f"The program {quiet} is kept alive in the same way; it, and what watches over it, must keep running "
            "without interruption.",
        ),
    )
    stop = (
        "stop() {\n  for folder in /proc/[0-9]*; do\n"
        '    [ "$(tr "\\0" " " 2> /dev/null < "$folder/cmdline")" = "$1 " ] && kill "${folder#/proc/}"\n  done\n}\n'
    )
    oracle = f'{stop}stop "bash {keeper} {child}"\nstop "bash {child}"\nsleep 0.2\n'
    draft.solve(oracle, swap(oracle, f'stop "bash {keeper} {child}"\n', ""))


FAMILY = Family(
    "processes",
    "Find and stop the right process among several",
    (_by_argument, _by_environment, _by_open_file, _supervised),
    ("setsid",),
    "live",
)
