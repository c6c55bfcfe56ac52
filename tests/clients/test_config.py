"""Training configurations: common files unchanged, and invalid files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ors_clients.api_keys import server_key
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.training.config import EnvironmentConfiguration, TrainingConfiguration, resolve_secrets

from tests.clients.trainer_setup import sent_key
from tests.support.paths import RECIPES

# The file in the READMEs of openreward-cookbook's slime and Miles integrations, unchanged.
DOCUMENTED = """\
environments:
  GeneralReasoning/WhoDunit:  # Browse at https://openreward.ai/environments
    splits: [train]
    nonterminal_reward: 0.0
    reward_reduction: sum
    max_turns: 20

secrets:
  openai_api_key: null  # null = read from OPENAI_API_KEY env var

system_prompt_template: |
  You are an agent that takes actions in a stateful environment to achieve a goal.

  # Tools
  ...
  {tools}
  ...

thinking: false
openreward_run_name: %s
"""
SEVERAL = """\
environments:
  GeneralReasoning/WhoDunit:
    splits: [train]
    reward_reduction: sum
    max_turns: 20

  MATH/GSM8K:
    splits: [train]
    reward_reduction: mean
    max_turns: 10
"""


def load(tmp_path: Path, text: str) -> TrainingConfiguration:
    file = tmp_path / "train_config.yaml"
    file.write_text(text)
    return TrainingConfiguration.load(file)


@pytest.mark.parametrize("run_name", ["slime-rl-test-openreward", "miles-rl-openreward"])
def test_the_documented_file_is_accepted_unchanged(tmp_path: Path, run_name: str) -> None:
    configuration = load(tmp_path, DOCUMENTED % run_name)
    environment = configuration.environment("GeneralReasoning/WhoDunit")
    assert environment.splits == ["train"]
    assert environment.num_samples is None
    assert environment.max_turns == 20
    assert environment.reward_rule == RewardRule(nonterminal_reward=0.0)
    assert configuration.secrets == {"openai_api_key": None}
    assert configuration.thinking is False
    assert configuration.run_name == run_name
    assert configuration.system_prompt == configuration.system_prompt_template
    assert "# Tools\n...\n{tools}\n...\n" in (configuration.system_prompt or "")


def test_several_environments_and_every_option_of_one(tmp_path: Path) -> None:
    configuration = load(tmp_path, SEVERAL)
    assert list(configuration.environments) == ["GeneralReasoning/WhoDunit", "MATH/GSM8K"]
    assert configuration.environment("MATH/GSM8K").reward_rule.reduction == "mean"
    assert configuration.environment("MATH/GSM8K").max_turns == 10

    configuration = load(
        tmp_path,
        "environments: {a: {splits: [train, test], num_samples: 5, nonterminal_reward: -1, reward_reduction: max,"
        " min_reward: -0.5, max_reward: 2, max_turns: 3, secrets: {key: value}}}",
    )
    environment = configuration.environment("a")
    assert (environment.splits, environment.num_samples, environment.max_turns) == (["train", "test"], 5, 3)
    assert environment.reward_rule == RewardRule("max", -1.0, -0.5, 2.0)


def test_the_documented_defaults(tmp_path: Path) -> None:
    environment = load(tmp_path, "environments: {a: }").environment("a")
    assert environment.model_dump(exclude={"base_url"}) == {
        "splits": ["train"],
        "num_samples": None,
        "nonterminal_reward": None,
        "reward_reduction": "sum",
        "min_reward": None,
        "max_reward": None,
        "max_turns": 20,
        "secrets": {},
    }


@pytest.mark.parametrize("trainer", ["slime", "miles"])
def test_the_recipes_file_loads(trainer: str) -> None:
    configuration = TrainingConfiguration.load(RECIPES / trainer / "train_config.yaml")
    prompt = configuration.system_prompt or ""
    assert '{"name": "the tool\'s name", "arguments": {"an argument": "its value"}}' in prompt
    assert prompt.count("{tools}") == 1
    assert configuration.run_name == {"slime": "slime-rl-test-openreward", "miles": "miles-rl-openreward"}[trainer]


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "last", "terminal"])
def test_every_reduction_has_a_name(tmp_path: Path, reduction: str) -> None:
    environment = load(tmp_path, f"environments: {{a: {{reward_reduction: {reduction}}}}}").environment("a")
    assert environment.reward_rule.reduction == reduction


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a mapping"),
        ("- a", "not a mapping"),
        ("environments: [a]", "environments"),
        ("environments: {}", "environments"),
        ("thinking: true", "environments: Field required"),
        ("environments: {a: {max_turn: 3}}", "environments.a.max_turn"),
        ("environments: {a: {max_turns: 0}}", "environments.a.max_turns"),
        ("environments: {a: {splits: []}}", "environments.a.splits"),
        ("environments: {a: {num_samples: 0}}", "environments.a.num_samples"),
        ("environments: {a: {reward_reduction: median}}", "environments.a.reward_reduction"),
        ("environments: {a: {min_reward: 2, max_reward: 1}}", "environment a: min_reward 2.0 is over max_reward 1.0"),
        ("environments: {a: {nonterminal_reward: .nan}}", "environment a: nonterminal_reward is nan"),
        ("environments: {a: }\ntool_call_format: xml", "No tool-call format 'xml'"),
        ("environments: {a: }\nrun_name: b", "run_name"),
        ("environments: {a: {", "is not YAML: "),
    ],
)
def test_invalid_entries_are_refused_with_their_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load(tmp_path, text)
    assert said in str(refusal.value)


def test_a_missing_file_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="TRAIN_CONFIG"):
        TrainingConfiguration.load(tmp_path / "none.yaml")


def test_bytes_that_are_not_text_are_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "train_config.yaml").write_bytes(b"environments: \xff\xfe")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        TrainingConfiguration.load(tmp_path / "train_config.yaml")


def test_the_file_is_found_by_variable_and_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train_config.yaml").write_text("environments: {here: }")
    (tmp_path / "other.yaml").write_text("environments: {there: }")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAIN_CONFIG", raising=False)
    assert list(TrainingConfiguration.load().environments) == ["here"]
    monkeypatch.setenv("TRAIN_CONFIG", str(tmp_path / "other.yaml"))
    assert list(TrainingConfiguration.load().environments) == ["there"]


def test_the_run_name_of_the_environment_goes_before_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = load(tmp_path, DOCUMENTED % "of-the-file")
    assert configuration.run_name == "of-the-file"
    monkeypatch.setenv("OPENREWARD_RUN_NAME", "of-the-launch")
    assert configuration.run_name == "of-the-launch"


def test_an_unknown_environment_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="GeneralReasoning/WhoDunit, MATH/GSM8K"):
        load(tmp_path, SEVERAL).environment("echo")


# --- secrets -------------------------------------------------------------------------------------


def secrets(
    run: dict[str, str | None], environment: dict[str, str | None] | None = None, **variables: str
) -> dict[str, str]:
    return resolve_secrets(EnvironmentConfiguration(secrets=environment or {}), run, variables)


def test_a_null_secret_is_the_variable_of_its_name_or_of_its_capitals() -> None:
    # The cookbook reads `openai_api_key`, while its README sets OPENAI_API_KEY.
    assert secrets({"openai_api_key": None}, OPENAI_API_KEY="k") == {"openai_api_key": "k"}
    assert secrets({"openai_api_key": None}, openai_api_key="exact", OPENAI_API_KEY="k") == {"openai_api_key": "exact"}
    assert secrets({"openai_api_key": None}) == {}
    assert secrets({"openai_api_key": "of the file"}, OPENAI_API_KEY="k") == {"openai_api_key": "of the file"}


def test_an_empty_secret_is_not_looked_up_in_variables() -> None:
    """The configuration says that there is none: the machine's key must not be sent to every environment instead."""
    assert secrets({"openai_api_key": ""}, OPENAI_API_KEY="k", openai_api_key="k") == {}
    assert secrets({"openai_api_key": None}, {"openai_api_key": ""}, OPENAI_API_KEY="k") == {}
    assert secrets({"openai_api_key": ""}, {"openai_api_key": None}, OPENAI_API_KEY="k") == {"openai_api_key": "k"}


def test_an_empty_key_holds_no_secrets(tmp_path: Path) -> None:
    """As when every entry below it is commented out."""
    configuration = load(tmp_path, "environments:\n  a:\n    secrets:\nsecrets:\n")
    assert configuration.secrets == configuration.environment("a").secrets == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secrets: {token: *hunter2}", "an alias or anchor cannot be read in line 2, column 18"),
        ("secrets: {token: !hunter2 x}", "a tag or value cannot be read in line 2, column 18"),
        ('secrets: {token: "hun\\qter2"}', "a character cannot be read in line 2, column 23"),
        ("secrets: {token: hunter2]", "its structure cannot be read in line 2, column 25"),
        ("secrets: {token: hun\x01ter2}", "it holds what cannot be decoded"),
        ("secrets: {token: 2024-13-45}", "it holds what cannot be decoded"),
    ],
)
def test_an_error_of_yaml_says_its_kind_and_place_only(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load(tmp_path, f"environments: {{a: }}\n{text}\n")
    assert str(refusal.value).endswith(f"train_config.yaml is not YAML: {said}")


def set_keys(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Set these variables, and remove all others that name servers and keys."""
    for name in ("OPENREWARD_API_KEY", "OPENREWARD_SESSION_URL", "OPENREWARD_API_URL", "ORS_API_KEY", "ORS_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"OPENREWARD_API_KEY": "platform"}, ""),
        ({"OPENREWARD_API_KEY": "platform", "ORS_API_KEY": "own"}, "own"),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "http://other"}, ""),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "http://server/"}, "platform"),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "http://server", "ORS_API_KEY": ""}, ""),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_API_URL": "http://server"}, "platform"),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "http://server:1"}, ""),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "http://server.org"}, ""),
        ({"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "", "OPENREWARD_API_URL": ""}, ""),
        ({"OPENREWARD_API_KEY": "platform", "ORS_URL": "http://server"}, ""),
        ({"OPENREWARD_SESSION_URL": "http://server", "ORS_API_KEY": "own"}, "own"),
        (
            {"OPENREWARD_API_KEY": "platform", "OPENREWARD_SESSION_URL": "http://server", "ORS_API_KEY": "own"},
            "platform",
        ),
    ],
)
def test_the_key_of_a_server(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], key: str) -> None:
    set_keys(monkeypatch, **variables)
    assert server_key("http://server") == key
    # A client of the same server sends the same key, however the server was named.
    assert sent_key(AsyncClient("http://server")) == key
    assert sent_key(AsyncClient("http://server/")) == key
    if "ORS_URL" not in variables:
        monkeypatch.setenv("ORS_URL", "http://server")
    assert sent_key(AsyncClient()) == key


def test_the_platforms_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = ("https://api.openreward.ai", "https://sessions.openreward.ai/")
    set_keys(monkeypatch, OPENREWARD_API_KEY="platform", ORS_API_KEY="own")
    for url in platform:
        assert server_key(url) == sent_key(AsyncClient(url)) == "platform"
    for url in ("http://api.openreward.ai", "https://api.openreward.ai.evil.org", "https://openreward.ai", "http://x"):
        assert server_key(url) == sent_key(AsyncClient(url)) == "own"
    monkeypatch.delenv("OPENREWARD_API_KEY")
    assert [server_key(url) for url in platform] == ["", ""]  # and your own key is not sent to the platform


def test_an_environments_own_secrets_override_the_runs() -> None:
    run: dict[str, str | None] = {"a": "1", "b": "2", "c": "3", "d": "4"}
    own: dict[str, str | None] = {"a": "own", "b": "", "c": None, "d": None, "e": "new"}
    assert secrets(run, own, C="of the variable") == {"a": "own", "c": "of the variable", "e": "new"}


def test_no_secret_is_in_a_repr_or_an_error(tmp_path: Path) -> None:
    text = "environments: {a: {secrets: {key: hunter2}}}\nsecrets: {token: hunter2}\n"
    assert "hunter2" not in repr(load(tmp_path, text))
    for wrong in ("secrets: {token: [hunter2]}", "sekrets: {token: hunter2}", "secrets: {token: 'hunter2"):
        with pytest.raises(ConfigurationError) as refusal:
            load(tmp_path, f"environments: {{a: }}\n{wrong}\n")
        assert "hunter2" not in str(refusal.value)


# --- system prompts ------------------------------------------------------------------------------


def prompt(template: str | None) -> str | None:
    data: Any = {"environments": {"a": {}}, "system_prompt_template": template}
    return TrainingConfiguration.parse(data).system_prompt


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, None),
        ("Be brief.", "Be brief."),
        ("{tools}", "{tools}"),
        ('{tools}\n{{"name": 1}}', '{tools}\n{"name": 1}'),
        ('{{\\"name\\": 1}} {tools}', '{\\"name\\": 1} {tools}'),  # the cookbook's own file
        ('{tools} {"name": {"a": 1}}', '{tools} {"name": {"a": 1}}'),  # not a format string: used unchanged
        ("{tools} {other}", "{tools} {other}"),
        ("{tools} }", "{tools} }"),
    ],
)
def test_only_the_tools_are_filled_in(template: str | None, expected: str | None) -> None:
    assert prompt(template) == expected
