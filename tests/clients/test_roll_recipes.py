"""The recipes for ROLL and Atropos: configurations that ROLL can read, and the commands of launch scripts.

These tests repeat ROLL's own checks of a configuration (alibaba/ROLL, ``roll/pipeline/agentic/agentic_config.py``);
composing them with Hydra is part of ``tests/long``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.clients import atropos_stand_in, roll_stand_in
from tests.support.paths import RECIPES

roll_stand_in.install()
atropos_stand_in.install()

from ors_clients.api_keys import server_key  # noqa: E402
from ors_clients.client.async_client import AsyncClient  # noqa: E402
from ors_clients.trainers.atropos import OrsAtroposConfig  # noqa: E402 - needs the stand-ins
from ors_clients.trainers.roll import OpenRewardEnv  # noqa: E402
from ors_clients.trainers.roll.atropos_env import AtroposEnv  # noqa: E402
from ors_clients.trainers.roll.env_manager import OrsStepEnvManager  # noqa: E402
from ors_clients.trainers.roll.group_filter import LostGroupFilter  # noqa: E402

from tests.clients.trainer_setup import sent_key  # noqa: E402

TERMINALS = RECIPES / "roll" / "openreward_endless_terminals_reinforce_qwen35_2b.yaml"
GSM8K = RECIPES / "roll-atropos" / "atropos_gsm8k_grpo_qwen25_0.5b.yaml"
CONFIGURATIONS = pytest.mark.parametrize("file", [TERMINALS, GSM8K], ids=["terminals", "gsm8k"])


def load(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text())


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from strings(item)
    elif isinstance(value, str):
        yield value


# --- configurations ------------------------------------------------------------------------------


@CONFIGURATIONS
def test_every_reference_has_a_target(file: Path) -> None:
    document = load(file)
    references = [name for text in strings(document) for name in re.findall(r"\$\{([\w.]+)\}", text)]
    assert references
    for name in references:
        found: Any = document
        for part in name.split("."):
            found = found[part]


@CONFIGURATIONS
def test_rolls_assertions_on_groups_and_batches_hold(file: Path) -> None:
    document = load(file)
    for name, batch in (("train", "rollout_batch_size"), ("val", "val_batch_size")):
        manager = document[f"{name}_env_manager"]
        assert sum(manager["num_groups_partition"]) == manager["num_env_groups"]
        assert len(manager["tags"]) == len(manager["num_groups_partition"])
        assert document[batch] % (manager["num_env_groups"] * manager["group_size"]) == 0
        assert set(manager["tags"]) <= set(document["custom_envs"])


@CONFIGURATIONS
def test_environments_take_every_option(file: Path) -> None:
    document = load(file)
    classes: dict[str, Any] = {"openreward_env": OpenRewardEnv, "atropos_env": AtroposEnv}
    module, _, name = document["env_manager_cls"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is OrsStepEnvManager
    for environment in document["custom_envs"].values():
        assert {"max_steps", "max_tokens_per_step", "agent_system_template", "agent_template"} <= set(environment)
        inspect.signature(classes[environment["env_type"]]).bind(**environment["env_config"])


@CONFIGURATIONS
def test_roll_knows_every_strategy_and_the_estimator_fits_the_turns(file: Path) -> None:
    document = load(file)
    for worker in ("actor_train", "actor_infer", "reference"):
        if worker in document:
            assert document[worker]["strategy_args"]["strategy_name"] in roll_stand_in.STRATEGIES
    for environment in document["custom_envs"].values():
        assert environment["max_steps"] == "${max_actions_per_traj}"
    assert document["adv_estimator"] == "step_reinforce" or document["max_actions_per_traj"] == 1


@CONFIGURATIONS
def test_groups_with_a_lost_episode_are_filtered(file: Path) -> None:
    document = load(file)
    module, _, name = document["group_filter_cls"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is LostGroupFilter
    for manager in ("train_env_manager", "val_env_manager"):
        assert document[manager]["group_filter_cls"] == "${group_filter_cls}"


def test_the_atropos_configuration_has_known_keys_only() -> None:
    document = load(RECIPES / "atropos" / "ors_environment.yaml")
    assert set(document) == {"env", "openai"}
    own = set(vars(OrsAtroposConfig)["__annotations__"])
    # Fields of atroposlib.envs.base.BaseEnvConfig.
    theirs = {"tokenizer_name", "group_size", "max_token_length", "rollout_server_url", "wandb_name", "use_wandb"}
    theirs |= {"include_messages", "steps_per_eval", "worker_timeout"}
    assert set(document["env"]) <= own | theirs
    assert document["env"]["wandb_name"]


# --- launch scripts ------------------------------------------------------------------------------


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """Set variables under which ``python`` records its arguments; create checkouts of ROLL and Atropos."""
    (tmp_path / "ROLL/roll/pipeline/agentic").mkdir(parents=True)
    (tmp_path / "atropos/environments").mkdir(parents=True)
    (tmp_path / "atropos/environments/gsm8k_server.py").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    recorder = programs / "python"
    recorder.write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$PWD" "$@" > "{tmp_path}/call"\nenv -0 > "{tmp_path}/environment"\n'
    )
    recorder.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "RECORDED": str(tmp_path)}


def run(script: Path, surroundings: dict[str, str], *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Run the script. Return its call of ``python``, the folder first, and the call's variables."""
    finished = subprocess.run(
        ["bash", str(script), *arguments], env=surroundings, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr
    recorded = Path(surroundings["RECORDED"])
    variables = dict(
        line.split("=", 1) for line in (recorded / "environment").read_bytes().decode().split("\0") if "=" in line
    )
    return (recorded / "call").read_text().splitlines(), variables


SCRIPTS = pytest.mark.parametrize(
    ("script", "configuration"),
    [
        (RECIPES / "roll/run_openreward_endless_terminals.sh", TERMINALS),
        (RECIPES / "roll-atropos/run_atropos_gsm8k.sh", GSM8K),
    ],
    ids=["terminals", "gsm8k"],
)


@SCRIPTS
def test_overrides_are_passed_on(script: Path, configuration: Path, surroundings: dict[str, str]) -> None:
    folder = Path(surroundings["RECORDED"])
    checkouts = {"ROLL_DIR": str(folder / "ROLL"), "ATROPOS_DIR": str(folder / "atropos")}
    overrides = ["max_steps=100", "rollout_batch_size=64", "tracker_kwargs.name=a b"]
    called, variables = run(script, surroundings | checkouts, *overrides)
    assert called == [
        str(folder / "ROLL"),
        "-m",
        "ors_clients.roll.start",
        "--config_path",
        str(configuration.parent),
        "--config_name",
        configuration.stem,
        *overrides,
    ]
    assert variables["PYTHONPATH"].split(":")[0] == str(folder / "ROLL")
    assert variables["WANDB_MODE"] == "offline"


def test_nccl_and_the_server_are_set_and_may_be_set_otherwise(surroundings: dict[str, str]) -> None:
    script = RECIPES / "roll/run_openreward_endless_terminals.sh"
    checkout = {"ROLL_DIR": f"{surroundings['RECORDED']}/ROLL"}
    _, variables = run(script, surroundings | checkout | {"OPENREWARD_API_KEY": "key", "WANDB_API_KEY": "w"})
    assert variables["NCCL_NET"] == "Socket"
    assert variables["NCCL_NET_PLUGIN"] == ""
    assert variables["NCCL_TUNER_PLUGIN"] == ""
    assert variables["ORS_URL"] == "http://127.0.0.1:8080"
    assert "ORS_API_KEY" not in variables
    assert "WANDB_MODE" not in variables
    own = {"NCCL_NET": "IB", "ORS_URL": "http://other:1", "CONFIG_NAME": "other"}
    called, variables = run(script, surroundings | checkout | own)
    assert (variables["NCCL_NET"], variables["ORS_URL"]) == ("IB", "http://other:1")
    assert "other" in called


def test_the_platforms_key_goes_to_the_platform_only(
    surroundings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the variables that the script exports, and the key that a worker's client then sends."""
    script = RECIPES / "roll/run_openreward_endless_terminals.sh"
    platform = {"OPENREWARD_API_KEY": "platform-key", "OPENREWARD_SESSION_URL": "http://127.0.0.1:9/platform"}
    checkout = {"ROLL_DIR": f"{surroundings['RECORDED']}/ROLL"}
    for own, key in (
        ({}, "platform-key"),
        ({"ORS_URL": "http://127.0.0.1:9"}, ""),
        ({"ORS_URL": "http://127.0.0.1:9", "ORS_API_KEY": "own-key"}, "own-key"),
    ):
        _, variables = run(script, surroundings | checkout | platform | own)
        for name in ("ORS_URL", "ORS_API_KEY", "OPENREWARD_SESSION_URL", "OPENREWARD_API_KEY"):
            if name in variables:
                monkeypatch.setenv(name, variables[name])
            else:
                monkeypatch.delenv(name, raising=False)
        assert variables["ORS_URL"] == {**platform, **own}.get("ORS_URL", platform["OPENREWARD_SESSION_URL"])
        assert server_key(variables["ORS_URL"]) == key
        assert sent_key(AsyncClient(variables["ORS_URL"])) == key


@CONFIGURATIONS
def test_no_key_is_in_what_roll_logs(file: Path) -> None:
    """ROLL logs its configuration and sends it to the tracker, so it must not contain keys."""
    document = load(file)
    named = [name for text in strings(document) for name in re.findall(r"\$\{oc\.env:(\w+)", text)]
    assert set(named) <= {"ORS_URL"}
    assert "api_key" not in document["tracker_kwargs"]
    assert document["track_with"] == "wandb"


@SCRIPTS
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_the_head_of_the_script(
    script: Path, configuration: Path, surroundings: dict[str, str], flag: str
) -> None:
    asked = subprocess.run(
        ["bash", str(script), flag], env=surroundings, capture_output=True, text=True, timeout=60, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    head = re.split(r"^(?!#)", script.read_text().split("\n", 1)[1], maxsplit=1, flags=re.M)[0]
    assert asked.stdout.split() == re.sub(r"^# ?", "", head, flags=re.M).split() != []


@SCRIPTS
def test_a_missing_checkout_is_reported(script: Path, configuration: Path, surroundings: dict[str, str]) -> None:
    missing = surroundings | {"ROLL_DIR": surroundings["RECORDED"]}
    refused = subprocess.run(
        ["bash", str(script)], env=missing, capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 2
    assert "ROLL_DIR" in refused.stderr


def test_gsm8k_needs_atroposs_environments(surroundings: dict[str, str]) -> None:
    variables = surroundings | {"ROLL_DIR": f"{surroundings['RECORDED']}/ROLL"}
    script = RECIPES / "roll-atropos/run_atropos_gsm8k.sh"
    refused = subprocess.run(
        ["bash", str(script)], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 2
    assert "ATROPOS_DIR" in refused.stderr


def test_the_atropos_script_uses_a_trajectory_api_that_runs(surroundings: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as api:
        port = api.getsockname()[1]
        variables = surroundings | {"API_PORT": str(port)}
        called, _ = run(RECIPES / "atropos/run.sh", variables, "--env.group_size", "16")
    assert called[1:] == [
        "-m",
        "ors_clients.atropos",
        "serve",
        "--config",
        str(RECIPES / "atropos/ors_environment.yaml"),
        "--env.rollout_server_url",
        f"http://127.0.0.1:{port}",
        "--env.group_size",
        "16",
    ]


def test_the_atropos_script_starts_a_trajectory_api_where_none_runs(surroundings: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(surroundings["RECORDED"])
    api = folder / "bin/run-api"
    listen = "import socket, sys, time; kept = socket.create_server(('127.0.0.1', int(sys.argv[4]))); time.sleep(60)"
    api.write_text(
        f'#!/bin/bash\necho "$@" > "{folder}/api"\nexec {json.dumps(sys.executable)} -c {json.dumps(listen)} "$@"\n'
    )
    api.chmod(0o755)
    called, _ = run(RECIPES / "atropos/run.sh", surroundings | {"API_PORT": str(port)})
    assert (folder / "api").read_text().split() == ["--host", "127.0.0.1", "--port", str(port)]
    assert f"http://127.0.0.1:{port}" in called
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)  # it ended with the script
