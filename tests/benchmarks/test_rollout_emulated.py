"""The emulated engine of the rollout benchmark: its profile, its schedule, its tokens, and a run with it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ors_benchmarks.rollout.engines.base import EngineFailed, ModelFiles
from ors_benchmarks.rollout.engines.emulated.core import Core, PrefixCache, Request
from ors_benchmarks.rollout.engines.emulated.front_end import EmulatedEngine
from ors_benchmarks.rollout.engines.emulated.profile import FIRST, Profile, profile_names
from ors_benchmarks.rollout.engines.emulated.vocabulary import Drawn, Vocabulary
from ors_benchmarks.rollout.opening import load_tokenizer
from ors_benchmarks.rollout.reports.profile_derivation import derive
from ors_benchmarks.rollout.reports.report import RolloutReport
from ors_benchmarks.rollout.steering import Turn
from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import SamplingParameters

from tests.benchmarks.rollout_command import bench, run_bench
from tests.support.paths import ROOT

CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "hello"}}\n</tool_call>'
#: A profile that is fast, for the machine it is read on.
FAST: dict[str, Any] = {
    "title": "made up",
    "model": "tiny",
    "cores": len(os.sched_getaffinity(0)),
    "concurrency": 2,
    "loads": {"echo": {"turns": 2, "tasks": 2, "waves": 2}},
    "steps": [[1, 0.001], [3, 0.003]],
    "prefill_token_seconds": 1e-6,
    "step_tokens": 64,
    "block_tokens": 4,
    "front_end": {"request_seconds": 0.0, "token_seconds": 0.0},
    "derivation": [],
}


def profile(**changed: Any) -> Profile:
    return Profile.model_validate(FAST | changed)


def core(**changed: Any) -> Core:
    made = profile(**changed)
    return Core(made, 1.0, PrefixCache(made.block_tokens))


def request(core: Core, number: int, ids: list[int], tokens: int, came: float = 0.0) -> None:
    core.running[number] = Request(number, ids, Drawn([7] * tokens, [0.0] * tokens), came)


def test_the_shipped_profile_follows_from_the_recorded_runs() -> None:
    """No figure of it was chosen: the command that its derivation names makes it again."""
    reports = [
        RolloutReport.model_validate_json(path.read_bytes())
        for path in sorted(ROOT.glob("benchmarks/results/rollout-gpu-*.json"))
    ]
    shipped = Profile.load(FIRST)
    again = derive(reports, title=shipped.title, parameters=0.596e9, client_seconds=0.0021, request_share=0.45)
    assert again == shipped
    assert {name: (load.turns, load.waves) for name, load in shipped.loads.items()} == {
        "echo": (3, 4),
        "terminal": (4, 2),
    }
    assert shipped.at_once(2) == 32
    assert shipped.at_once(16) == 256
    assert shipped.tasks(shipped.loads["terminal"], 2) == 8
    # The model and its load filled a step with what makes the recorded rates.
    assert 0.025 < shipped.step_seconds(230, 0) < 0.050


def test_a_step_takes_what_the_profile_says() -> None:
    made = profile()
    assert [made.step_seconds(count, 0) for count in (0, 1, 2, 3, 99)] == [0.001, 0.001, 0.002, 0.003, 0.003]
    assert made.step_seconds(1, 1000) == pytest.approx(0.002)


def test_requests_share_steps_and_a_long_prompt_takes_several() -> None:
    made = core()
    request(made, 1, list(range(10)), 2)
    seconds, sampling = made.begin(1.0)
    assert seconds == pytest.approx(0.001 + 10e-6)
    assert [found.number for found in sampling] == [1]
    assert made.end(sampling, 1.1) == [{"request": 1}]
    request(made, 2, list(range(100, 200)), 1, came=1.05)
    # 64 tokens of the prompt fit into a step: the second request has no token before the next one.
    _, sampling = made.begin(1.1)
    [done] = made.end(sampling, 1.2)
    assert (done["request"], done["queue"], round(done["engine"], 3), done["cached"]) == (1, 1.0, 0.2, 0)
    seconds, sampling = made.begin(1.2)
    assert seconds == pytest.approx(0.001 + 36e-6)
    [done] = made.end(sampling, 1.3)
    assert (done["request"], round(done["queue"], 3), round(done["engine"], 3)) == (2, 0.05, 0.2)
    assert not made.running


def test_a_request_takes_part_in_no_step_that_began_before_it_came() -> None:
    made = core()
    request(made, 1, [1], 5)
    request(made, 2, [2], 5, came=2.0)
    assert [found.number for found in made.begin(1.0)[1]] == [1]
    assert [found.number for found in made.begin(2.0)[1]] == [1, 2]


def test_whole_blocks_of_a_prefix_are_computed_once() -> None:
    cache = PrefixCache(4)
    cache.add(list(range(10)))
    assert cache.cached(list(range(10))) == 8
    # The last token of a prompt is computed in any case.
    assert cache.cached(list(range(8))) == 4
    assert cache.cached([0, 1, 2, 3, 99, 5, 6, 7, 8]) == 4
    assert cache.cached([9, 1, 2, 3, 4, 5]) == 0
    cache.clear()
    assert cache.cached(list(range(10))) == 0


def test_tokens_spell_the_text_and_differ(tiny_files: ModelFiles) -> None:
    tokenizer = load_tokenizer(tiny_files)
    vocabulary = Vocabulary(tiny_files.folder)
    spelt = [vocabulary.spell(f"{CALL} äöü") for _ in range(8)]
    for drawn in spelt:
        assert tokenizer.decode(drawn.ids[:-1], skip_special_tokens=False) == f"{CALL} äöü"
        assert drawn.ids[-1] == tokenizer.eos_token_id
        assert len(drawn.ids) == len(drawn.logprobs)
        assert all(logprob <= 0 for logprob in drawn.logprobs)
    assert len({tuple(drawn.ids) for drawn in spelt}) > 1
    babbled = vocabulary.babble(20)
    assert len(babbled.ids) == 20
    assert tokenizer.decode(babbled.ids).islower()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("{", "is not a profile"),
        ("[]", "is not a profile: the file"),
        (b"\xff", "is not a profile"),
        ("[" * 100_000, "is not a profile"),
        ({**FAST, "steps": []}, "is not a profile: steps"),
        ({**FAST, "steps": [[2, 0.1], [1, 0.2]]}, "do not rise"),
        ({**FAST, "steps": [[1, 0.0]]}, "no step takes any time"),
        ({**FAST, "steps": [[1, -0.1]]}, "is not a profile: steps"),
        ({**FAST, "steps": [[1, float("nan")]]}, "is not a profile: steps"),
        ({**FAST, "front_end": {"request_seconds": 0.1}}, "front_end.token_seconds"),
        ({**FAST, "cores": 0}, "is not a profile: cores"),
        ({**FAST, "stepz": 1}, "is not a profile: stepz"),
        ({key: value for key, value in FAST.items() if key != "title"}, "is not a profile: title"),
    ],
)
def test_a_profile_that_is_not_one_is_refused(content: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(EngineFailed, match=reason) as refused:
        Profile.load(str(path))
    assert FIRST in refused.value.remedy


def test_profiles_are_known_by_name() -> None:
    assert FIRST in profile_names()
    with pytest.raises(EngineFailed, match="There is no profile 'h200'") as refused:
        Profile.load("h200")
    assert FIRST in refused.value.remedy


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--engine", "url", "--engine-url", "http://x", "--profile", FIRST], "--profile is of --engine emulated"),
        (["--engine", "emulated", "--free"], "what its profile says"),
        (["--engine", "emulated", "--model", "tiny"], "what its profile says"),
        (["--engine", "emulated", "--engine-option", "a=1"], "what its profile says"),
        (["--engine", "emulated", "--no-prefix-caching"], "what its profile says"),
    ],
)
def test_options_of_other_engines_are_refused(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench(tmp_path, *arguments) == 2
    assert reason in " ".join(capsys.readouterr().err.replace("│", " ").split())


async def test_generations_take_their_steps_and_their_processor_time(tiny_files: ModelFiles) -> None:
    costs = {"request_seconds": 0.05, "token_seconds": 0.002}
    engine = await EmulatedEngine.open(profile(front_end=costs), tiny_files, cores=len(os.sched_getaffinity(0)))
    try:
        steered = engine.steered(SamplingParameters(), Turn("", CALL))
        begun, used = time.monotonic(), time.process_time()
        made = await engine.sampler.generate([1, 2, 3], steered, rollout_id="a")
        assert time.monotonic() - begun >= 0.001 * len(made.ids)
        assert time.process_time() - used >= 0.05 + 0.002 * len(made.ids)
        exact = engine.exact(steered, [0] * 9, steered=True)
        again = await engine.sampler.generate([1, 2, 3], exact, rollout_id="a")
        assert (len(again.ids), again.finish) == (9, "stop")
        cut = await engine.sampler.generate([1], engine.steered(SamplingParameters(3), Turn("", CALL)), rollout_id="b")
        assert (len(cut.ids), cut.finish) == (3, "length")
        with pytest.raises(SamplerFailed, match="no weights"):
            await engine.sampler.generate([1], SamplingParameters(), rollout_id="c")
        assert await engine.forget()
        os.kill(engine.processes()["engine core"], signal.SIGKILL)
        with pytest.raises(SamplerFailed, match="has ended"):
            await engine.sampler.generate([1, 2, 3], steered, rollout_id="d")
        with pytest.raises(EngineFailed, match="has ended"):
            await engine.forget()
    finally:
        await engine.close()


async def test_a_model_without_a_byte_level_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="no tokenizer that can be read"):
        await EmulatedEngine.open(profile(), ModelFiles("none", tmp_path, weights=False), cores=1)
    written: dict[str, Any] = {"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(EngineFailed, match="no byte-level tokenizer"):
        Vocabulary(tmp_path)


@pytest.mark.long
def test_a_run_is_loaded_as_its_profile_was(
    tmp_path: Path, tiny_files: ModelFiles, rollout_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(rollout_cache))
    path = tmp_path / "fast.json"
    path.write_text(json.dumps(FAST))
    code, report = bench(tmp_path / "out", "--engine", "emulated", "--profile", str(path), "--no-charts")
    assert code == 0, report
    [written] = (tmp_path / "out").glob("*.json")
    assert written.name.startswith("rollout-emulated-echo-")
    [cell] = report.cells
    assert cell.concurrency == 2
    assert cell.outcomes == {"finished": 4}
    assert cell.latencies["generation"].count == 8
    assert set(cell.breakdown) >= {"engine", "queue", "handover", "environment", "client"}
    assert cell.ratio is not None
    assert "engine core" in cell.memory_mib
    # The prompts of an episode's turns go on with one another, and all episodes have one system prompt.
    assert cell.figures["prefix_hits"].median > 0.5
    assert cell.figures["replayed_prefix_hits"].median > 0.5
    assert report.options["profile"] == "fast.json"
    assert str(tmp_path) not in written.read_text()
