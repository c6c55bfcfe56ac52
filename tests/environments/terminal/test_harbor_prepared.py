"""Harbor tasks from their folder to a reward: prepared, served, solved, left alone and cheated."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Service
from .folders import run_tasks
from .harbor_folders import write_harbor_folder
from .harbor_playing import ON_HOST, TESTS, played, prepared
from .parts import (
    harbor_record,
    harbor_reports,
    harbor_source,
    settings,
    task_folders,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("docker_like")]


async def test_a_task_is_prepared_once_and_played(service: Service, tmp_path: Path) -> None:
    folder = write_harbor_folder(tmp_path, "hello", ON_HOST)
    ((record,), run) = await prepared(service, folder)
    assert record.ready, record.problem
    assert run == [f"{stage} holds" for stage in harbor_record.STAGES]
    assert (await prepared(service, folder))[1] == []
    solved = await played(service, folder, "cd /app", "echo 42 >answer.txt")
    assert (solved.reward, solved.finished) == (1.0, True)
    assert (await played(service, folder, "true")).reward == 0.0


async def test_verify_shows_what_preparing_has_found(service: Service, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    unsolved = write_harbor_folder(tasks, "unsolved", {**ON_HOST, "solution/solve.sh": "#!/bin/sh\n"})
    ((record, other), _) = await prepared(service, write_harbor_folder(tasks, "hello", ON_HOST), unsolved)
    done = run_tasks(service.store.root, "verify", tasks, "--json")
    listed = json.loads(done.stdout)
    assert (done.returncode, listed["sound"], listed["checked"], listed["left_out"]) == (1, 1, 2, [])
    found = [{name: check["outcome"] for name, check in task["checks"].items()} for task in listed["tasks"]]
    assert found[0] == dict.fromkeys(("nothing", "solution", "cheat"), "holds")
    assert found[1] == {"nothing": "holds", "solution": "fails", "cheat": "error"}
    assert listed["tasks"][1]["checks"]["solution"]["detail"] == other.stages["oracle"].detail

    def again() -> list[Any]:
        source = task_folders.FolderSource([tasks], settings.TerminalSettings())
        return list(harbor_reports.harbor_reports(source, service.store))

    # A folder that was changed is another task, and a record whose image is gone is of no use.
    (unsolved / "solution" / "solve.sh").write_text("#!/bin/sh\n# other\n")
    dataclasses.replace(record, image="gone").save(harbor_record.records_folder(service.store.root))
    gone, changed = again()
    assert "'hello'" in gone.cause and "its image or a layer is no longer in the store" in gone.cause
    assert changed.text.endswith(f"is not prepared. Prepare it: ors-server tasks prepare {unsolved}")
    dataclasses.replace(record, mark="words").save(harbor_record.records_folder(service.store.root))
    assert "words" in again()[0].cause


LOOP = "setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; sleep 0.05; done' >/dev/null 2>&1 &"
OWN_SCRIPT = "mkdir -p /tests && printf '#!/bin/sh\\necho 1 >/logs/verifier/reward.txt\\n' >/tests/test.sh"
OTHER_FILE = "echo '{\"reward\": 1}' >/logs/verifier/reward.json"
LINK = "rm -rf /logs; ln -s /tmp /logs; mkdir -p /tmp/verifier; echo 1 >/tmp/verifier/reward.json"


@pytest.mark.parametrize(
    "cheat", [LOOP, *(pytest.param(other, marks=pytest.mark.long) for other in (OWN_SCRIPT, OTHER_FILE, LINK))]
)
async def test_a_verdict_is_not_written_by_the_agent(service: Service, tmp_path: Path, cheat: str) -> None:
    folder = write_harbor_folder(tmp_path, "cheated", ON_HOST)
    await prepared(service, folder)
    assert (await played(service, folder, "mkdir -p /logs/verifier", cheat, "sleep 0.2")).reward == 0.0


async def test_a_verifier_that_differs_without_a_network_is_refused(service: Service, tmp_path: Path) -> None:
    # A build sandbox has the machine's own name server.
    script = TESTS.replace("reward=0", "grep -q 127.0.0.11 /etc/resolv.conf && exit 3; reward=0")
    folder = write_harbor_folder(tmp_path, "online", {**ON_HOST, "tests/test.sh": script})
    ((record,), _) = await prepared(service, folder)
    assert not record.ready
    assert record.problem.startswith("seal: with a network exit status 0, reward 0; without, exit status 3")
    with pytest.raises(harbor_source.NotPrepared, match="seal: with a network"):
        await played(service, folder)


@pytest.mark.long
async def test_a_host_that_the_verifier_does_without_is_not_wanted(service: Service, tmp_path: Path) -> None:
    script = TESTS.replace("reward=0", "echo Could not resolve host: often.example; cat /app/said; reward=0")
    solve = "#!/bin/sh\necho Could not resolve host: api.example >/app/said\n"
    files = {**ON_HOST, "tests/test.sh": script, "solution/solve.sh": solve}
    ((record,), _) = await prepared(service, write_harbor_folder(tmp_path, "hosts", files))
    assert "reward 0; hosts that were not found: api.example\n" in record.problem
    assert harbor_record.Record.load(harbor_record.records_folder(service.store.root), record.key) == record


@pytest.mark.long
async def test_a_solution_gets_the_answers_of_the_operators_table(service: Service, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("42\n")
    table = tmp_path / "addresses.toml"
    table.write_text('[addresses]\n"https://a.example/answer" = { file = "answer" }\n')
    # The machine's own curl lies over the layer's here.
    solve = "#!/bin/sh\n: https://a.example/answer\ncat /opt/ors-addresses/0.answer >/app/answer.txt\n"
    files = {**ON_HOST, "solution/solve.sh": solve}
    ((record,), _) = await prepared(service, write_harbor_folder(tmp_path, "asking", files), addresses=table)
    assert record.ready, record.problem


@pytest.mark.long
async def test_bash_runs_scripts_that_name_no_interpreter(service: Service, tmp_path: Path) -> None:
    script, solve = TESTS.replace("#!/bin/bash\n", "\n[[ 1 ]] || exit 3\n"), "\n[[ 1 ]] && echo 42 >/app/answer.txt\n"
    files = {**ON_HOST, "tests/test.sh": script, "solution/solve.sh": solve}
    ((record,), _) = await prepared(service, write_harbor_folder(tmp_path, "bare", files))
    assert record.ready, record.problem


@pytest.mark.long
async def test_a_folder_that_was_changed_is_another_task(service: Service, tmp_path: Path) -> None:
    folder = write_harbor_folder(tmp_path, "changed", ON_HOST)
    await prepared(service, folder)
    (folder / "tests" / "more.txt").write_text("x")
    with pytest.raises(harbor_source.NotPrepared, match="is not prepared"):
        await played(service, folder)


@pytest.mark.long
async def test_a_verdict_that_needs_the_agents_programs_is_refused_or_marked(service: Service, tmp_path: Path) -> None:
    script = TESTS.replace("grep -qx 42 /app/answer.txt", "(. /etc/agent.sh)")
    files = {**ON_HOST, "tests/test.sh": script, "solution/solve.sh": "#!/bin/sh\necho true >/etc/agent.sh\n"}
    folder = write_harbor_folder(tmp_path, "own", files)
    ((record,), _) = await prepared(service, folder)
    assert record.problem.startswith("oracle: the verdict needs files of the agent")
    ((record,), run) = await prepared(service, folder, flag=True)
    assert run == ["oracle holds", "cheat holds"]
    assert record.ready and record.mark
    with pytest.raises(harbor_source.NotPrepared, match="needs files of the agent"):
        await played(service, folder)
    done = await played(service, folder, "echo true >/etc/agent.sh", tests_import_code="flag")
    assert (done.reward, done.metadata["verdict_mark"]) == (1.0, record.mark)


@pytest.mark.long
@pytest.mark.parametrize(
    "runs",
    [
        "/app/own",
        "cd /app && /usr/bin/python3 -c 'import own; exit(own.status)'",
        "cd / && bash app/own",
        "cd /app && env X=1 /usr/bin/python3 -u own.py",
    ],
)
async def test_a_verifier_that_runs_the_agents_programs_is_refused_or_marked(
    service: Service, tmp_path: Path, runs: str
) -> None:
    script = TESTS.replace("grep -qx 42 /app/answer.txt", f"({runs})")
    solve = "#!/bin/sh\nprintf '#!/bin/sh\\n' >/app/own; chmod 755 /app/own; echo status = 0 >/app/own.py\n"
    folder = write_harbor_folder(tmp_path, "running", {**ON_HOST, "tests/test.sh": script, "solution/solve.sh": solve})
    ((record,), _) = await prepared(service, folder)
    assert record.problem.startswith("oracle: the verifier runs programs of the agent: /app/own")
    ((record,), _) = await prepared(service, folder, flag=True)
    assert record.ready and "/app/own" in record.mark


@pytest.mark.long
async def test_a_reward_that_is_missing_only_for_the_agent_is_0(service: Service, tmp_path: Path) -> None:
    script = TESTS.replace("reward=0", "[ -e /app/block ] && exit 0; reward=0")
    folder = write_harbor_folder(tmp_path, "missing", {**ON_HOST, "tests/test.sh": script})
    await prepared(service, folder)
    assert (await played(service, folder, "touch /app/block")).reward == 0.0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('artifacts = ["/app/out", {source = "/app/x"}]', "artifacts (/app/out, /app/x)"),
        ('[[verifier.collect]]\ncommand = "dump"', "collect hooks ([[verifier.collect]])"),
        ("[verifier.environment]\n[environment.healthcheck]\ncommand = 'true'", "a separate verifier"),
    ],
)
async def test_what_a_preparation_does_not_do_is_refused(
    service: Service, tmp_path: Path, config: str, words: str
) -> None:
    ((record,), _) = await prepared(service, write_harbor_folder(tmp_path, "asks", ON_HOST, config))
    assert record.problem.startswith("image: not prepared here: ")
    assert words in record.problem


async def test_a_task_without_a_solution_is_taken_only_by_the_operators_word(service: Service, tmp_path: Path) -> None:
    # It writes 0 without the program that it wants, with a network and without one.
    script = TESTS.replace("grep", "missing-program")
    folder = write_harbor_folder(tmp_path, "unsolved", {**ON_HOST, "tests/test.sh": script, "solution/solve.sh": None})
    ((record,), run) = await prepared(service, folder)
    assert run[-2:] == ["nothing holds", "oracle fails"]
    assert "nothing shows that its verifier can give 1 here" in record.problem
    with pytest.raises(harbor_source.NotPrepared, match="take the task with --without-solution"):
        await played(service, folder)
    ((record,), run) = await prepared(service, folder, without_solution=True)
    assert run == ["oracle absent", "cheat holds"]
    assert record.ready and "can give 1 here" in record.not_shown
    assert (await played(service, folder, "true")).reward == 0.0


async def test_a_verifier_without_a_reward_is_not_prepared(service: Service, tmp_path: Path) -> None:
    folder = write_harbor_folder(tmp_path, "none", {**ON_HOST, "tests/test.sh": "#!/bin/sh\necho words; exit 4\n"})
    ((record,), _) = await prepared(service, folder)
    assert "fetch: with a network, exit status 4: the verifier has written neither" in record.problem
    assert "words" in record.problem
