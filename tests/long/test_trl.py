"""TRL, unmodified from its package, uses and trains against servers in processes of their own.

TRL and PyTorch live in the virtual environment that scripts/trl-venv makes. The scripts of tests/long/trl run there and
write reports, and the tests here check these. A relay between client and server records the bytes on the wire, so that
the evidence for "the server ran the tool" comes from neither side.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.servers import served
from tests.support.virtualenvs import made_by

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).resolve().parent / "trl"
#: Paths of this checkout's packages, for the scripts.
PYTHONPATH = os.pathsep.join(map(str, [ROOT / "clients", ROOT / "containers", ROOT]))
PROBE = f"{Path(__file__).resolve().parent / 'probe_environment.py'}:ProbeEnvironment"
KEY = "key-of-these-tests"
TARGETS = ["hello", "world", "trl", "openreward"]


# --- helpers that run the parts -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trl_python() -> Path:
    """Return the Python that has TRL. The first run of a machine downloads it."""
    return made_by("trl-venv")


def run_script(trl_python: Path, report: Path, script: str, *urls: str) -> dict[str, Any]:
    """Run a script of tests/long/trl against servers. Return its report."""
    variables = {
        # Without these two variables the client uses https://api.HOST and https://sessions.HOST.
        "OPENREWARD_API_URL": urls[0],
        "OPENREWARD_SESSION_URL": urls[0],
        "OPENREWARD_API_KEY": KEY,
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": PYTHONPATH,
    }
    finished = subprocess.run(
        [trl_python, SCRIPTS / script, *urls, report],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(report.read_text())


class Relay(socketserver.ThreadingTCPServer):
    """Forwards connections to a server and records every byte in both directions."""

    request_queue_size = 128

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), RelayedConnection)
        self.server_port = int(url.rsplit(":", 1)[1])
        self.requests: list[bytearray] = []
        self.responses: list[bytearray] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, path: str) -> int:
        """Return the number of POST requests to a path, with or without an environment's name before it."""
        pattern = rb"POST (?:/[^ /]+)?" + path.encode() + rb" HTTP/1\.1\r\n"
        return sum(len(re.findall(pattern, requests)) for requests in self.requests)

    def rewards(self) -> list[float]:
        """Every reward that the server sent."""
        return [
            float(reward) for responses in self.responses for reward in re.findall(rb'"reward": ?([0-9.]+)', responses)
        ]


class RelayedConnection(socketserver.BaseRequestHandler):
    """One connection of a `Relay`, with a thread for each direction."""

    def handle(self) -> None:
        relay = cast("Relay", self.server)
        client = cast("socket.socket", self.request)
        requests, responses = bytearray(), bytearray()
        relay.requests.append(requests)
        relay.responses.append(responses)
        with socket.create_connection(("127.0.0.1", relay.server_port)) as upstream:
            for connection in (client, upstream):  # otherwise the second of two pieces is delayed by 40 ms
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=pass_on, args=(upstream, client, responses))
            back.start()
            pass_on(client, upstream, requests)
            back.join()


def pass_on(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    """Copy one direction until it ends."""
    with contextlib.suppress(OSError):  # either end may close at any time, and the other end is then closed
        while data := source.recv(65536):
            kept += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relayed(url: str) -> Generator[Relay, None, None]:
    with Relay(url) as relay:
        thread = threading.Thread(target=relay.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join()


# --- training ------------------------------------------------------------------------------------


def test_grpo_trains_two_steps(trl_python: Path, tmp_path: Path) -> None:
    """Two steps of `GRPOTrainer`, dataset, environments and rewards from `OpenRewardSpec`, tools run by the server."""
    with served(tmp_path / "server", "echo") as url, relayed(url) as relay:
        report = run_script(trl_python, tmp_path / "report.json", "train.py", relay.url)

    assert report["columns"] == ["prompt", "task_index", "id", "target"]
    assert [row["target"] for row in report["rows"]] == TARGETS
    assert report["tools"] == ["echo", "hint"]

    assert report["steps"] == 2
    assert report["weights_finite"]
    assert report["largest_weight_change"] > 0
    assert len(report["log"]) == len(report["rewards_of_steps"]) == 2
    for logged, rewards_of_rollouts in zip(report["log"], report["rewards_of_steps"], strict=True):
        assert math.isfinite(logged["loss"])
        assert math.isfinite(logged["grad_norm"])
        assert logged["grad_norm"] > 0  # some rollouts of a group earned more than others
        assert logged["tools/call_frequency"] > 0.5
        last_rewards = [scored[-1] for rewards in rewards_of_rollouts if (scored := without_none(rewards))]
        assert logged["reward"] == pytest.approx(fmean(last_rewards), abs=1e-5)
        assert 0 < logged["reward"] < 1

    # Every call that the trainer counts went over the wire once, and every reward it got came from the server.
    in_training = [rewards for step in report["rewards_of_steps"] for rewards in step]
    assert relay.count("/call") == report["recorded_calls"] + sum(len(rewards) for rewards in in_training)
    right_and_wrong_while_recording = [1.0] * len(TARGETS) + [0.0] * len(TARGETS) * (len(TARGETS) - 1)
    in_training_scored = [reward for rewards in in_training for reward in without_none(rewards)]
    assert sorted(relay.rewards()) == sorted(right_and_wrong_while_recording + in_training_scored)


def without_none(rewards: list[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


# --- the adapter ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter_report(trl_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run use_adapter.py once for all the tests below, with a key that both servers want. Return its report."""
    directory = tmp_path_factory.mktemp("adapter")
    with (
        served(directory / "echo", "echo", ORS_SERVER_KEY=KEY) as echo_url,
        served(directory / "probe", "echo", PROBE, ORS_SERVER_KEY=KEY) as probe_url,
    ):
        for url in (echo_url, probe_url):
            assert httpx.get(f"{url}/tools", trust_env=False).status_code == 401
        return run_script(trl_python, directory / "report.json", "use_adapter.py", echo_url, probe_url)


@pytest.fixture
def echo(adapter_report: dict[str, Any]) -> dict[str, Any]:
    return adapter_report["echo"]


@pytest.fixture
def probe(adapter_report: dict[str, Any]) -> dict[str, Any]:
    return adapter_report["probe"]


def echo_rows(*indices: int) -> list[dict[str, Any]]:
    prompt = [{"role": "user", "content": ""}]
    return [
        {"prompt": prompt, "task_index": index, "id": f"echo-{index}", "target": TARGETS[index]} for index in indices
    ]


def test_dataset_holds_every_task(echo: dict[str, Any]) -> None:
    assert echo["dataset"] == {"columns": ["prompt", "task_index", "id", "target"], "rows": echo_rows(0, 1, 2, 3)}


def test_dataset_by_number_by_index_and_by_split(echo: dict[str, Any]) -> None:
    assert echo["by_number"]["rows"] == echo_rows(0, 1)
    assert echo["by_index"]["rows"] == echo_rows(3, 1)
    test_targets = {row["target"] for row in echo["test_split"]["rows"]}
    assert test_targets
    assert test_targets.isdisjoint(TARGETS)


def test_tools_are_bound_with_their_schemas(echo: dict[str, Any]) -> None:
    assert sorted(echo["tools"]) == ["echo", "hint"]
    parameters = echo["tools"]["echo"]["parameters"]
    assert parameters["properties"]["text"]["type"] == "string"
    assert parameters["required"] == ["text"]
    assert echo["tools"]["echo"]["description"]
    assert echo["tools"]["hint"]["description"]


def test_prompt_names_the_target(echo: dict[str, Any]) -> None:
    assert ["text='trl'" in prompt for prompt in echo["prompts"]] == [True, True, False]
    assert "text='openreward'" in echo["prompts"][2]


def test_hint_gives_no_reward(echo: dict[str, Any]) -> None:
    assert echo["hint"]
    assert not echo["hint"].startswith("Error")
    assert echo["after_hint"]["reward"] is None
    assert not echo["after_hint"]["finished"]


def test_right_and_wrong_echo_in_sessions_of_their_own(echo: dict[str, Any]) -> None:
    assert echo["winner"]["reward"] == 1.0
    assert echo["winner"]["rewards"] == [None, 1.0]
    assert echo["winner"]["finished"]
    assert echo["loser"]["reward"] == 0.0
    assert not echo["loser"]["finished"]
    assert [echo["winner"]["last_output"], echo["loser"]["last_output"]] == echo["answers"]
    assert echo["answers"][0] != echo["answers"][1]
    assert echo["rewards_for_the_trainer"] == [1.0, 0.0, None]


def test_call_after_the_end_keeps_the_reward(echo: dict[str, Any]) -> None:
    assert "finished" in echo["call_after_the_end"]
    assert echo["winner_after_the_end"]["reward"] == 1.0
    assert echo["winner_after_the_end"]["rewards"] == [None, 1.0, None]


def test_a_wrong_type_is_an_error_and_the_episode_goes_on(echo: dict[str, Any]) -> None:
    assert echo["wrong_type"].startswith("Error")
    assert "text" in echo["wrong_type"]
    assert echo["loser_after_wrong_type"]["rewards"] == [0.0, None]


def test_reset_opens_a_new_episode(echo: dict[str, Any]) -> None:
    assert "text='hello'" in echo["prompt_after_reset"]
    assert echo["after_reset"] == {"reward": None, "rewards": [], "metadata": [], "finished": False, "last_output": ""}
    assert echo["answer_after_reset"] == echo["answers"][0]


def test_one_environment_needs_no_name(echo: dict[str, Any]) -> None:
    nameless = echo["nameless"]
    assert nameless["dataset"] == echo["dataset"]
    assert nameless["tools"] == ["echo", "hint"]
    assert "text='world'" in nameless["prompt"]
    assert nameless["state"]["reward"] == 1.0
    assert nameless["state"]["finished"]


def test_one_of_several_environments_is_chosen_by_name(probe: dict[str, Any]) -> None:
    assert sorted(probe["tools"]) == ["answer"]
    assert probe["tools_without_name"] == ["echo", "hint"]  # the first environment is the default


def test_tasks_by_index_out_of_many(probe: dict[str, Any]) -> None:
    assert [row["number"] for row in probe["dataset"]["rows"]] == [0, 7, 99_999]
    assert [row["number"] for row in probe["first_three"]["rows"]] == [0, 1, 2]
    assert probe["prompt"].startswith("Answer 99999.\n")


def test_secrets_reach_the_episode_and_only_where_given(probe: dict[str, Any]) -> None:
    assert "grader_key" in probe["prompt"]
    assert "openai_api_key" in probe["prompt"]
    assert probe["graded"]["reward"] == 1.0
    assert probe["graded"]["metadata"] == [{"right": True}]
    assert probe["answer_without_secret"] == "not graded, note 'kept'"
    assert probe["without_secret"]["reward"] is None


def test_optional_argument_left_out_takes_its_default(probe: dict[str, Any]) -> None:
    assert probe["tools"]["answer"]["parameters"]["required"] == ["text"]
    assert probe["answer"] == "graded, note ''"
