"""Running processes: found and stopped. Graded while they run.

Those that must go on have to be the ones that the task began with: a process that the agent starts in the place of one
has a higher id, which nobody without privileges can choose.
"""

from __future__ import annotations

import shlex

from .checks import Checks
from .draft import Draft, swap
from .family import Family
from .vocabulary import PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]

_LOOP = "while :; do sleep 5; done\n"


#: Returns when a process of this command line is there, which must have one of the first ids: ``undisturbed`` says why.
_WAIT = r"""
wait_for() {
  local file words
  until
    for file in /proc/[0-9]*/cmdline; do
      { mapfile -d '' -t words < "$file"; } 2> /dev/null && [ "${words[*]}" = "$1" ] && break
    done
  do
    sleep 0.1
  done
  file=${file%/cmdline}
  [ "${file#/proc/}" -lt 300 ] || { echo "'$1' has too high an id: ${file#/proc/}"; exit 1; }
}
"""


def _started(draft: Draft, commands: list[str], running: list[list[str]]) -> None:
    """Each command runs on its own, whatever becomes of the shell that started it; ``running`` runs then.

    All ids below 300 have been given when the agent comes: what it starts has a higher one.
    """
    draft.start = (
        "".join(f"setsid -f {command} < /dev/null > /dev/null 2>&1\n" for command in commands)
        + _WAIT.lstrip()
        + "".join(f"wait_for {shlex.quote(' '.join(line))}\n" for line in running)
        + 'until [ "$(echo $BASHPID)" -gt 300 ]; do :; done\n'
    )
    _running(draft.initial, running)


def _running(checks: Checks, lines: list[list[str]]) -> None:
    checks.test(
        "the others are still running",
        f"lines = undisturbed()\nfor expected in {lines!r}:\n    assert lines.count(expected) == 1, expected",
    )


def _stopped(draft: Draft, line: list[str]) -> None:
    draft.final.test("the process is stopped", f"assert {line!r} not in processes().values()")


def _by_argument(draft: Draft) -> None:
    root = draft.project()
    script = f"{root}/{draft.pick('worker', 'consumer', 'agent')}.sh"
    draft.file(script, f"#!/bin/bash\n# Handles one queue.\n{_LOOP}", 0o755, keep=True)
    queues = draft.some(SERVICES, draft.number(3, 5))
    queues += [f"{queues[0]}-{draft.pick(*WORDS)}", f"{draft.pick(*WORDS)}-{queues[0]}"]
    weights = "".join(f"{queue} {draft.number(1, 99)}\n" for queue in sorted(queues))
    draft.file(f"{root}/queues.txt", f"# Name and weight of each queue\n{weights}", keep=True)
    lines = [["bash", script, "--queue", queue] for queue in queues]
    _started(draft, [" ".join(line) for line in draft.shuffled(lines)], lines)
    draft.say(
        draft.pick("Several workers are running on this machine.", f"Some processes of {script} are running."),
        f"Each was started as 'bash {script} --queue NAME'. Stop the one whose queue is exactly {queues[0]}, for "
        "good. All others, also those with similar names, must keep running without interruption.",
        f"Do not change or delete any file in {root}.",
    )
    _stopped(draft, lines[0])
    _running(draft.final, lines[1:])
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
    _started(
        draft,
        draft.shuffled([f"env {variable}={n} {' '.join(line)}" for n, line in zip(names, lines, strict=True)]),
        lines,
    )
    target = f"{root}/{draft.pick('stopped', 'result', 'answer')}.txt"
    draft.say(
        draft.pick(
            f"Several processes of {script} are running with different numbers as argument.",
            f"A few jobs are running here, each started as 'bash {script} NUMBER'.",
        ),
        f"They differ in the environment variable {variable}. Find the one in whose environment {variable} is "
        f"{names[0]}, stop it for good, and write its NUMBER (the argument, not the process id) to {target}, followed "
        "by a newline.",
        "All the others must keep running without interruption, and the script must stay as it is.",
    )
    draft.initial.absent(target)
    draft.final.text(target, f"{numbers[0]}\n")
    _stopped(draft, lines[0])
    _running(draft.final, lines[1:])
    oracle = (
        "for folder in /proc/[0-9]*; do\n"
        f'  if tr "\\0" "\\n" 2> /dev/null < "$folder/environ" | grep -qx {variable}={names[0]} &&\n'
        f'    tr "\\0" " " < "$folder/cmdline" | grep -q "^bash {script} "; then\n'
        f'    tr "\\0" "\\n" < "$folder/cmdline" | tail -n 1 > {target}\n'
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
    _started(draft, [" ".join(line) for line in draft.shuffled(lines)], lines)
    target = f"{root}/{draft.pick('culprit', 'answer', 'writer')}.txt"
    draft.say(
        draft.pick(f"The file {log} keeps growing.", f"Something writes to {log} all the time."),
        f"One of the scripts in {root}/bin, which all run in the background, has it open. Find out which and stop "
        "that process for good; then empty the file (it must exist, with a size of 0) and write the script's name "
        f"without directory to {target}, followed by a newline.",
        f"The other scripts must keep running without interruption, and no file in {root}/bin may be changed.",
    )
    draft.initial.absent(target)
    draft.final.text(target, f"{names[0]}.sh\n")
    draft.final.test("the log is empty", f"assert content({log!r}) == b''")
    draft.final.test("the log stays empty", f"time.sleep(1)\nassert content({log!r}) == b''")
    _stopped(draft, lines[0])
    _running(draft.final, lines[1:])
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
    _started(draft, [" ".join(lines[0]), " ".join(lines[2])], lines)
    draft.say(
        draft.pick(
            f"The program {child} has to go, but it keeps coming back.", f"Whenever I kill {child}, it is there again."
        ),
        "It runs in the background, and something starts it again whenever it ends. Stop it for good, without "
        f"changing or deleting any file in {root}.",
        f"The program {quiet} is kept alive in the same way; it, and what watches over it, must keep running without "
        "interruption.",
    )
    draft.final.test(
        "the program stays away",
        f"time.sleep(1.5)\nassert {lines[1]!r} not in processes().values()\nassert {lines[0]!r} not in "
        f"processes().values()",
    )
    _running(draft.final, lines[2:])
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
