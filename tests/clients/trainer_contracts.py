"""The trainers' adapters as one table: each entry plays an episode and reads the trainer's result.

``CONTRACTS`` has an entry for each adapter. Its ``play`` plays a ``Scene`` of a served environment as the trainer does,
and reads the result from the trainer's object (a sample, a rollout of ROLL's, a group of Atropos's, a slot of TRL's) as
``Played``. It also checks that the parts of that object agree, so that every mark that the trainer reads shows a lost
episode. A contract lists intended differences in ``deviations``, with the reason.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clients import atropos_stand_in, miles_stand_in, roll_stand_in, slime_stand_in
from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.clients.trainer_environments import BrokenEnvironment, StepEnvironment
from tests.clients.trainer_setup import make_arguments, row_of, script, speaker, write_configuration

atropos_stand_in.install()
roll_stand_in.install()

from ors_clients.client.async_client import AsyncClient  # noqa: E402
from ors_clients.client.local_sessions import local  # noqa: E402
from ors_clients.errors import DeadlineExceeded, SamplerFailed  # noqa: E402
from ors_clients.rollouts.chat_renderer import ChatRenderer  # noqa: E402
from ors_clients.rollouts.episode import EpisodeSession, RolloutLimits, TurnEpisode  # noqa: E402
from ors_clients.rollouts.loop import rollout  # noqa: E402
from ors_clients.rollouts.messages import text_of  # noqa: E402
from ors_clients.rollouts.rewards import RewardRule  # noqa: E402
from ors_clients.samplers import CallbackSampler, Generation, SamplingParameters  # noqa: E402
from ors_clients.tool_calls import ToolCall, find_format  # noqa: E402
from ors_clients.trainers import miles, slime  # noqa: E402 - after the stand-ins
from ors_clients.trainers.atropos import OrsAtroposConfig, OrsAtroposEnv  # noqa: E402
from ors_clients.trainers.roll import OpenRewardEnv  # noqa: E402
from ors_clients.trainers.roll.atropos_env import AtroposEnv  # noqa: E402
from ors_clients.trainers.roll.base import RollEnvironment  # noqa: E402
from ors_clients.trainers.roll.env_manager import OrsStepEnvManager  # noqa: E402
from ors_clients.trainers.trl import EnvironmentMixture, EnvironmentSpec, environment_reward  # noqa: E402

__all__ = [
    "CONTRACTS",
    "MAX_TOKENS",
    "MAX_TURNS",
    "TASK",
    "Deviation",
    "Outcome",
    "Played",
    "Scene",
    "Stage",
    "TokenRecord",
    "TrainerContract",
]

MAX_TURNS = 4
#: For a whole episode. ROLL's stand-in counts characters instead.
MAX_TOKENS = 8000
TASK = 3
SAMPLING = {"temperature": 1.0, "max_new_tokens": 512}


@dataclass(frozen=True)
class Scene:
    """An episode to play: the model's turns, the environment, the rule and the limits."""

    turns: Sequence[str]
    environment: str = "stepenvironment"
    rule: RewardRule = field(default=RewardRule("sum", nonterminal_reward=-0.5))
    max_turns: int = MAX_TURNS
    max_seconds: float | None = None
    max_output: int | None = None
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Whether the engine returns only errors.
    engine_fails: bool = False


@dataclass(frozen=True)
class Outcome:
    """The end of an episode as every trainer should have it."""

    #: None for an episode that is not trained on.
    reward: float | None
    stop_reason: str
    #: Name and input of each call that the environment ran.
    trace: list[list[Any]]


@dataclass(frozen=True)
class TokenRecord:
    """An episode's tokens as the trainer keeps them. Each list has an entry for each token of prompt and response."""

    ids: list[int]
    trained: list[bool]
    logprobs: list[float]
    #: The trainer's log-probability for a token that no model generated.
    filler: float
    #: Each of the engine's prompts, and the ids sampled for it.
    sampled: list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Played:
    """The result of an episode, read from the trainer's object."""

    #: None for an episode that the trainer does not train on.
    reward: float | None
    stop_reason: str
    #: Why the episode was lost, in the trainer's record; None where the trainer has no reason.
    failure: str | None
    #: The texts that the model received, one for each of its turns. None where it was never queried.
    prompts: list[str]
    #: The trainer's record of the episode as text: metadata, metrics, messages.
    record: str = ""
    #: Valid calls, those of them that failed, and malformed calls.
    counts: tuple[int, int, int] | None = None
    #: The rewards of its calls.
    rewards: list[float] | None = None
    tokens: TokenRecord | None = None


@dataclass(frozen=True)
class Stage:
    """The surroundings of a scene: the server, and a folder and patches of the test."""

    url: str
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def configuration(self, scene: Scene, **options: Any) -> Path:
        """Write the training file of slime and Miles."""
        rule = scene.rule
        environment = {
            "max_turns": scene.max_turns,
            "reward_reduction": rule.reduction,
            "nonterminal_reward": rule.nonterminal_reward,
            "min_reward": rule.min_reward,
            "max_reward": rule.max_reward,
        }
        settings: dict[str, Any] = {
            "max_seconds": scene.max_seconds,
            "max_tool_output_characters": scene.max_output,
            "secrets": dict.fromkeys(scene.secrets),
            "rollouts_file": str(self.folder / "rollouts.jsonl"),
            **options,
        }
        return write_configuration(self.folder, self.url, {scene.environment: environment}, **settings)


@dataclass(frozen=True)
class Deviation:
    """An intended difference: another outcome than the table's, or none where the trainer lacks the feature."""

    reason: str
    outcome: Outcome | None = None


@dataclass(frozen=True)
class TrainerContract:
    """The functions and deviations of one adapter."""

    play: Callable[[Scene, Stage], Coroutine[Any, Any, Played]]
    #: By the name of the case or of the promise.
    deviations: Mapping[str, Deviation] = field(default_factory=dict[str, Deviation])


def model(scene: Scene, **options: Any) -> ScriptedEngine:
    """Return the engine that says the scene's turns, in ids that no tokenizer produces for their text."""
    failures = [400] if scene.engine_fails else []
    return speaker(*scene.turns, failures=failures, by_character=True, **options)


def _prompts(engine: ScriptedEngine) -> list[str]:
    return [engine.tokenizer.decode(ids, skip_special_tokens=False) for ids, _ in engine.turns]


# --- our own loop --------------------------------------------------------------------------------


async def _roll_out(session: EpisodeSession, scene: Scene) -> Played:
    engine = model(scene)

    async def generate(
        ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str]
    ) -> Generation:
        if scene.engine_fails:
            raise SamplerFailed("The engine answered 400")
        sampled, logprobs, text, finish = engine.generate(list(ids), parameters.max_tokens)
        return Generation(sampled, logprobs, text, "length" if finish == "length" else "stop")

    limits = RolloutLimits(
        max_turns=scene.max_turns,
        max_total_tokens=MAX_TOKENS,
        max_seconds=scene.max_seconds,
        max_tool_output_characters=scene.max_output,
    )
    renderer = ChatRenderer(engine.tokenizer)
    trajectory = await rollout(session, CallbackSampler(generate), renderer, find_format("auto"), limits=limits)
    prompt = len(trajectory.prompt_ids)
    mask = [*[0] * prompt, *trajectory.loss_mask]
    return Played(
        trajectory.reward(scene.rule),
        trajectory.stop_reason,
        str(trajectory.failure or ""),
        _prompts(engine),
        repr(trajectory),
        (trajectory.tool_calls, trajectory.failed_calls, trajectory.malformed_calls),
        [reward for reward in trajectory.step_rewards if reward is not None],
        TokenRecord(
            trajectory.ids,
            [bool(on) and trajectory.trainable for on in mask],
            [*[0.0] * prompt, *trajectory.logprobs],
            0.0,
            engine.turns,
        ),
    )


async def play_rollout(scene: Scene, stage: Stage) -> Played:
    """Play ``rollout`` over a socket."""
    async with AsyncClient(stage.url) as client:
        environment = client.environment(scene.environment)
        return await _roll_out(environment.session(split="train", index=TASK, secrets=scene.secrets or None), scene)


async def play_local(scene: Scene, stage: Stage) -> Played:
    """Play ``rollout`` without a server."""
    environment = BrokenEnvironment if scene.environment == "brokenenvironment" else StepEnvironment
    return await _roll_out(local(environment, split="train", index=TASK, secrets=scene.secrets or None), scene)


async def play_turns(scene: Scene, stage: Stage) -> Played:
    """Play ``TurnEpisode`` in a trainer's own loop, which handles texts only."""
    async with AsyncClient(stage.url) as client:
        session = client.environment(scene.environment).session(
            split="train", index=TASK, secrets=scene.secrets or None
        )
        limits = RolloutLimits(max_turns=scene.max_turns, max_tool_output_characters=scene.max_output)
        episode = TurnEpisode(session, find_format("auto"), limits, scene.rule)
        prompts: list[str] = []
        async with episode.playing():
            await episode.reset()
            for text in scene.turns:  # after the end, nothing more happens
                if episode.stop_reason is None:
                    prompts.append("\n".join(text_of(message["content"]) for message in episode.messages))
                await episode.step(text)
        end = await episode.step("")
        assert end.stop_reason is not None
        return Played(end.reward, end.stop_reason, str(end.failure or ""), prompts, repr(episode))


# --- slime and Miles -----------------------------------------------------------------------------


async def _read_sample(
    functions: Any, args: Any, sample: Any, engine: ScriptedEngine, *, cut_short: str = "TRUNCATED"
) -> Played:
    """Return the content of a sample of slime or Miles, after a check that its parts agree.

    ``cut_short``: the status of a sample whose episode reached a limit.
    """
    status, reward = sample.status.name, sample.reward
    record: dict[str, Any] = sample.metadata
    tokens: list[int] = sample.tokens
    lost = status == "ABORTED"
    for group in ([[sample], type(sample)()], [type(sample)(), [sample]]):
        kept = functions.keep_group(args, group)  # raises the error that ended the run
        assert (kept.keep, kept.reason) == ((False, "infrastructure_failure") if lost else (True, None))
    assert sample.remove_sample == lost
    assert status == {"finished": "COMPLETED", "infrastructure": "ABORTED"}.get(record["stop_reason"], cut_short)
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
    assert isinstance(tokens, list) and isinstance(record, dict)
    sample.reward = None  # with --group-rm the reward is requested
    assert await functions.reward_func(None, sample) == reward
    assert not lost or reward == 0.0
    json.dumps(record)
    prompt = [0] * (len(tokens) - sample.response_length)
    trained = list(map(bool, [*prompt, *sample.loss_mask]))
    return Played(
        None if lost else reward,
        record["stop_reason"],
        record["failure"] or "",
        _prompts(engine),
        repr(sample),
        (record["num_tool_calls"], record["num_failed_tool_calls"], record["num_malformed_tool_calls"])
        if record["num_tool_calls"] is not None
        else None,
        record["rewards"],
        TokenRecord(tokens, trained, [*map(float, prompt), *sample.rollout_log_probs], 0.0, engine.turns)
        if engine.turns
        else None,
    )


async def play_slime(scene: Scene, stage: Stage) -> Played:
    """Play ``ors_clients.slime.generate`` as slime calls it."""
    slime_stand_in.install(stage.monkeypatch)
    engine = model(scene)
    args = make_arguments(
        stage.configuration(scene),
        engine,
        rollout_max_context_len=MAX_TOKENS,
        custom_generate_function_path="ors_clients.slime.generate",
    )
    metadata = row_of(scene.environment, {"number": TASK}, index=TASK)
    sample = slime_stand_in.Sample(index=0, prompt="[row]", metadata=metadata)
    await slime_stand_in.generate_and_rm(args, sample, dict(SAMPLING), False)
    if sample.response_length:
        slime_stand_in.convert_samples(args, [sample])
    return await _read_sample(slime, args, sample, engine)


def _miles_state(scene: Scene, stage: Stage, engine: ScriptedEngine, function: str, **more: Any) -> Any:
    miles_stand_in.install(stage.monkeypatch)
    file = stage.configuration(scene, **more.pop("options", {}))
    stage.monkeypatch.setenv("TRAIN_CONFIG", str(file))
    args = make_arguments(
        file,
        engine,
        rollout_max_context_len=MAX_TOKENS,
        custom_generate_function_path=f"ors_clients.miles.{function}",
        custom_rm_path="ors_clients.miles.reward_func",
        dynamic_sampling_filter_path="ors_clients.miles.keep_group",
        sglang_speculative_algorithm=None,
        **more,
    )
    return miles_stand_in.GenerateState(args, engine.tokenizer)


async def _play_miles(state: Any, scene: Scene, engine: ScriptedEngine, **reading: Any) -> Played:
    metadata = row_of(scene.environment, {"number": TASK}, index=TASK)
    sample = miles_stand_in.Sample(index=0, prompt="[row]", metadata=metadata)
    played = await miles_stand_in.generate_and_rm(state, sample, SAMPLING)
    read = await _read_sample(miles, state.args, played, engine, **reading)
    assert isinstance(played, miles_stand_in.Sample)
    played.validate()
    return read


async def play_miles(scene: Scene, stage: Stage) -> Played:
    """Play ``ors_clients.miles.generate`` as Miles calls it."""
    engine = model(scene)
    return await _play_miles(_miles_state(scene, stage, engine, "generate"), scene, engine)


async def play_agent(scene: Scene, stage: Stage, *, native: bool) -> Played:
    """Play Miles' agent function. ``native``: its session server lists the tools and parses the calls."""
    engine = model(scene, template="qwen2")
    failures = [500] if scene.engine_fails else []
    engine.failures = []
    async with miles_stand_in.SessionServer(engine, reads_calls=native, failures=failures).serve() as server:
        state = _miles_state(
            scene,
            stage,
            engine,
            "generate_with_agent",
            options={"system_prompt_template": None} if native else {},
            custom_agent_function_path="ors_clients.miles.run",
            session_server=server,
            tito_model=server.tito_model,
            max_seq_len=MAX_TOKENS,
        )
        # Miles makes the sample from the session, whose last turn is complete.
        return await _play_miles(state, scene, engine, cut_short="COMPLETED")


# --- ROLL ----------------------------------------------------------------------------------------


def _play_manager(env: RollEnvironment, scene: Scene) -> Played:
    """Play an episode in ROLL's manager with ours on top, in the thread that ROLL calls it from."""
    remaining = iter(scene.turns)

    def policy(messages: Any, tools: Any) -> str:
        return next(remaining)

    manager: Any = OrsStepEnvManager(env, policy, sequence_length=MAX_TOKENS)
    rolled = manager.play(TASK)  # closes the episode, or its session stays open
    info = rolled.meta_info
    assert rolled.dropped == (env.failure is not None)
    assert env.env_timeout == isinstance(env.failure, DeadlineExceeded)
    if rolled.dropped:
        assert (rolled.samples, info["metrics"], info["episode_score"]) == ([], {}, 0.0)
        assert env.env_reset_failed == (not manager.prompts)
        return Played(None, "infrastructure", str(env.failure), manager.prompts, repr(info))
    metrics = info["metrics"]
    reason: str = info["stop_reason"]
    # Each turn is trained with the rewards after it, so the first turn has the whole reward.
    assert rolled.returns == pytest.approx([info["episode_score"]] * len(rolled.samples))
    assert info["truncated"] == (reason != "finished")
    assert metrics["raw_reward"] == rolled.samples[-1]["step_score"] == info["episode_score"]
    names = ("num_tool_calls", "num_failed_tool_calls", "num_malformed_tool_calls")
    return Played(
        info["episode_score"],
        {"max_steps": "max_turns", "max_length": "max_tokens"}.get(reason, reason),
        "",
        manager.prompts,
        repr(info),
        (int(metrics[names[0]]), int(metrics[names[1]]), int(metrics[names[2]])) if names[0] in metrics else None,
    )


async def play_roll(scene: Scene, stage: Stage) -> Played:
    """Play ``OpenRewardEnv`` in ROLL's manager."""
    env = OpenRewardEnv(
        scene.environment,
        base_url=stage.url,
        max_steps=scene.max_turns,
        reward_reduction=scene.rule.reduction,
        nonterminal_reward=scene.rule.nonterminal_reward,
        min_reward=scene.rule.min_reward,
        max_reward=scene.rule.max_reward,
        max_tool_output_characters=scene.max_output,
        timeout_seconds=scene.max_seconds,
        secrets=dict.fromkeys(scene.secrets),
        retry_max_attempts=0,
    )
    return await asyncio.to_thread(_play_manager, env, scene)


async def play_roll_atropos(scene: Scene, stage: Stage) -> Played:
    """Play an Atropos environment in ROLL's manager; it runs the same tools by itself."""
    name = {"stepenvironment": "CallingEnv", "brokenenvironment": "UnopenedEnv"}.get(scene.environment, "NoEnv")
    tokenizer = atropos_stand_in.tokenizer_name(stage.folder)
    env = AtroposEnv(
        f"tests.clients.atropos_environments:{name}",
        max_steps=scene.max_turns,
        env_config={"tokenizer_name": tokenizer},
        reward_config=False,
        num_items=5,
        timeout_seconds=scene.max_seconds or 60.0,
        retry_max_attempts=0,
    )
    played = await asyncio.to_thread(_play_manager, env, scene)
    # The text of an environment's exception may contain a secret, so the adapter leaves it out.
    return replace(played, failure=None)


# --- Atropos -------------------------------------------------------------------------------------


async def play_atropos(scene: Scene, stage: Stage) -> Played:
    """Play ``OrsAtroposEnv`` with a group of one."""
    stage.monkeypatch.setattr(atropos_stand_in, "ByteTokenizer", tiny_tokenizer)
    _, servers = OrsAtroposEnv.config_init()
    config = OrsAtroposConfig(
        ors_url=stage.url,
        ors_environment=scene.environment,
        tokenizer_name=atropos_stand_in.tokenizer_name(stage.folder),
        group_size=1,
        max_token_length=MAX_TOKENS,
        max_turns=scene.max_turns,
        max_seconds=scene.max_seconds,
        max_tool_output_characters=scene.max_output,
        secrets=",".join(scene.secrets),
        reward_reduction=scene.rule.reduction,
        nonterminal_reward=scene.rule.nonterminal_reward,
        min_reward=scene.rule.min_reward,
        max_reward=scene.rule.max_reward,
        attempts=1,
        use_wandb=False,
        include_messages=True,
    )
    env: Any = OrsAtroposEnv(config, servers, testing=True)
    engine = ScriptedEngine(script(*scene.turns), env.tokenizer, by_character=True)

    async def complete(**request: Any) -> Any:
        await asyncio.sleep(0)
        if scene.engine_fails:
            raise OSError("the engine is gone")
        sampled, logprobs, _, finish = engine.generate(list(request["input_ids"]), request["max_tokens"])
        return request["input_ids"], [sampled], [logprobs], [{"type": finish}]

    env.server = SimpleNamespace(tokens_and_logprobs_completion=complete, servers=[])
    item = {"split": "train", "index": TASK, "returned": 0}
    try:
        await env.setup()
        group, backlog = await env.collect_trajectories(item)
    finally:
        await env.client.close()
    if group is None:
        assert backlog == [{**item, "returned": 1}]
        return Played(None, "infrastructure", None, _prompts(engine))
    assert (backlog, {len(group[name]) for name in group if name != "generation_params"}) == ([], {1})
    tokens, masks, messages = group["tokens"][0], group["masks"][0], group["messages"][0]
    assert all(mask in (-100, token) for token, mask in zip(tokens, masks, strict=True))
    # Atropos has no stop reason, but the conversation, which ends with the last turn or its result.
    taken = sum(message["role"] == "assistant" for message in messages)
    ended = messages[-1]["content"] in ("done", "guessed")
    reason = "finished" if ended else "max_turns" if taken == scene.max_turns else "too long"
    return Played(
        group["scores"][0],
        reason,
        "",
        _prompts(engine),
        repr(group),
        tokens=TokenRecord(tokens, [mask != -100 for mask in masks], group["inference_logprobs"][0], 1.0, engine.turns),
    )


# --- TRL -----------------------------------------------------------------------------------------


def _play_slot(scene: Scene, stage: Stage) -> Played:
    spec = EnvironmentSpec(scene.environment, reward=scene.rule, secrets=scene.secrets or None)
    with EnvironmentMixture([spec], url=stage.url, probed_tasks=0) as mixture:
        slot: Any = mixture.environment_factory[scene.environment]()
        start = str(slot.reset(split="train", task_index=TASK))
        prompts = [] if slot.failure else [start]
        for text in scene.turns[: scene.max_turns]:  # `max_tool_calling_iterations`
            said: list[str] = []
            for found in find_format("hermes").parse(text, []):
                assert isinstance(found, ToolCall)
                try:
                    method = getattr(slot, found.name)
                    inspect.signature(method).bind(**found.input)
                except (AttributeError, TypeError):
                    continue  # TRL answers such a call itself
                said.append(method(**found.input))
            if slot.finished or slot.failure:
                break
            assert said
            prompts.append("\n".join([prompts[-1], *said]))
        finished = slot.finished
        [reward] = environment_reward([slot])
        assert (reward is None) == (slot.failure is not None)
        reason = "infrastructure" if slot.failure else "finished" if finished else "max_turns"
        return Played(reward, reason, str(slot.failure or ""), prompts, repr(slot.__dict__))


async def play_trl(scene: Scene, stage: Stage) -> Played:
    """Play a slot of ``EnvironmentMixture``, called as TRL calls it."""
    return await asyncio.to_thread(_play_slot, scene, stage)


# --- the table -----------------------------------------------------------------------------------

_OWN_ENGINE = {"an engine that fails": Deviation("the trainer asks the engine and answers for it")}
_OWN_TOKENS = {"too many tokens": Deviation("the trainer counts the tokens")}
_OWN_THREAD = {"a cancellation": Deviation("the trainer calls it in a thread, which nothing cancels")}
_IN_PROCESS = {
    name: Deviation("there is no server between the adapter and the environment")
    for name in ("a server that goes away", "swallowed answers")
}
_TIMEOUT_IS_LOST = {
    "too much time": Deviation(
        "its only limit is that of a step (timeout_seconds), which an environment that works does not reach",
        Outcome(None, "infrastructure", [["wait", {"seconds": 30.0}]]),
    )
}
_TRL_PARSES = Deviation("TRL reads the calls, answers those it cannot read, and ends a rollout at a turn without one")
_AGENT = {
    "an empty turn": Deviation(
        "SGLang refuses a conversation with an empty message, and Miles' server wants it back as it came",
        Outcome(None, "infrastructure", []),
    )
}
_ATROPOS_SCORES = Deviation("the environment scores its episode itself, and one that was cut short is a failed answer")


def _cut_short(stop_reason: str, *trace: list[Any]) -> Deviation:
    return replace(_ATROPOS_SCORES, outcome=Outcome(0.0, stop_reason, list(trace)))


_EARNED: list[Any] = ["earn", {"reward": 0.25}]

CONTRACTS = {
    "rollout": TrainerContract(play_rollout),
    "local": TrainerContract(play_local, {**_IN_PROCESS, "a mistake": Deviation("the caller hands over the class")}),
    "turns": TrainerContract(
        play_turns,
        {**_OWN_ENGINE, **_OWN_TOKENS, "too much time": Deviation("the loop's owner has the clock")},
    ),
    "slime": TrainerContract(play_slime),
    "miles": TrainerContract(play_miles),
    "miles agent": TrainerContract(functools.partial(play_agent, native=False), _AGENT),
    "miles agent, native calls": TrainerContract(functools.partial(play_agent, native=True), _AGENT),
    "roll": TrainerContract(play_roll, {**_OWN_ENGINE, **_OWN_THREAD, **_TIMEOUT_IS_LOST}),
    "roll atropos": TrainerContract(
        play_roll_atropos,
        {
            **_OWN_ENGINE,
            **_OWN_THREAD,
            **_IN_PROCESS,
            **_TIMEOUT_IS_LOST,
            **dict.fromkeys(
                ("a long output", "secrets", "a mean", "a maximum", "the last step only", "a lower bound"),
                _ATROPOS_SCORES,
            ),
            "an upper bound": _ATROPOS_SCORES,
            "too many turns": _cut_short("max_turns", *[_EARNED] * MAX_TURNS),
            "nothing earned": _cut_short("max_turns"),
            "too many tokens": _cut_short("max_tokens", _EARNED, ["write", {"count": 9000, "letter": None}]),
        },
    ),
    "atropos": TrainerContract(
        play_atropos,
        {
            "too many tokens": Deviation(
                "Atropos has no stop reason",
                Outcome(-0.25, "too long", [_EARNED, ["write", {"count": 9000, "letter": None}]]),
            ),
            "too much time": Deviation(
                "Atropos has no stop reason", Outcome(-0.5, "too long", [["wait", {"seconds": 30.0}]])
            ),
        },
    ),
    "trl": TrainerContract(
        play_trl,
        {
            **_OWN_ENGINE,
            **_OWN_TOKENS,
            **_OWN_THREAD,
            **dict.fromkeys(
                (
                    "a tool that is not there",
                    "no call",
                    "a malformed call",
                    "a malformed call behind a good one",
                    "an empty turn",
                    "nothing earned",
                ),
                _TRL_PARSES,
            ),
            "too much time": Deviation("TRL has no limit of time"),
            "a long output": Deviation("TRL has a limit of tokens for the whole rollout"),
        },
    ),
}
