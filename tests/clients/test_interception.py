"""Inversion of control: code that queries a model is suspended at each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from ors_clients.errors import ServerUnavailable
from ors_clients.trainers.atropos.interception import EpisodeFailed, InterceptedEpisode, current_episode

Make = Callable[[Callable[[], Awaitable[Any]]], InterceptedEpisode[Any]]


@pytest_asyncio.fixture
async def make() -> AsyncGenerator[Make]:
    """Return a maker of episodes, which are closed at the end of the test."""
    made: list[InterceptedEpisode[Any]] = []

    def make_episode(play: Callable[[], Awaitable[Any]]) -> InterceptedEpisode[Any]:
        made.append(InterceptedEpisode(play))
        return made[-1]

    yield make_episode
    for episode in made:
        await episode.close()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1  # this task


async def ask(text: str) -> str:
    episode = current_episode()
    assert episode is not None
    return await episode.ask([{"role": "user", "content": text}])


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


async def test_each_turn_is_a_request_and_the_end_is_the_outcome(make: Make) -> None:
    ran: list[str] = []

    async def play() -> int:
        conversation: list[dict[str, Any]] = []
        for number in range(3):
            conversation.append({"role": "user", "content": f"question {number}"})
            ran.append(f"question {number}")
            episode = current_episode()
            assert episode is not None
            conversation.append({"role": "assistant", "content": await episode.ask(conversation)})
        return len(conversation)

    episode = make(play)
    turn = await episode.start()
    assert contents(turn.new_messages) == contents(turn.messages) == ["question 0"]
    turn = await episode.answer("a")
    assert contents(turn.messages) == ["question 0", "a", "question 1"]
    assert contents(turn.new_messages) == ["question 1"]
    turn = await episode.answer("b")
    turn = await episode.answer("c")
    assert turn.over
    assert turn.outcome == 6
    assert contents(turn.messages)[-2:] == ["question 2", "c"]
    assert ran == ["question 0", "question 1", "question 2"]  # each once: nothing was replayed


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=5), max_size=8), st.booleans())
async def test_any_number_of_turns_sees_every_answer_once(answers: list[str], nested: bool) -> None:
    async def play() -> list[str]:
        given_back: list[str] = []
        for number in range(len(answers)):
            asked = ask(str(number))
            given_back.append(await (asyncio.create_task(asked) if nested else asked))
        return given_back

    episode = InterceptedEpisode(play)
    turn = await episode.start()
    for number, answer in enumerate(answers):
        assert not turn.over
        assert contents(turn.new_messages) == [str(number)]
        turn = await episode.answer(answer)
    assert turn.over
    assert turn.outcome == answers


async def test_episodes_do_not_mix(make: Make) -> None:
    async def play() -> list[str]:
        return [await ask("first"), *await asyncio.gather(ask("left"), ask("right"))]

    async def run(name: str) -> list[str]:
        episode = make(play)
        turn = await episode.start()
        while not turn.over:
            await asyncio.sleep(0)
            turn = await episode.answer(f"{name} {turn.new_messages[0]['content']}")
        return turn.outcome or []

    outcomes = await asyncio.gather(*(run(str(number)) for number in range(20)))
    assert outcomes == [[f"{number} {text}" for text in ("first", "left", "right")] for number in range(20)]


async def test_texts_are_shown_by_what_was_added(make: Make) -> None:
    async def play() -> str:
        episode = current_episode()
        assert episode is not None
        text = "Once"
        for _ in range(2):
            text += await episode.ask(prompt=text) + " and"
        return await episode.ask(prompt="Another text")

    episode = make(play)
    assert contents((await episode.start()).new_messages) == ["Once"]
    turn = await episode.answer(" more")
    assert contents(turn.new_messages) == [" and"]
    assert contents(turn.messages) == ["Once", " more", " and"]
    turn = await episode.answer(" again")
    assert contents(turn.new_messages) == contents(turn.messages) == ["Another text"]


async def test_rewritten_histories_are_shown_whole(make: Make) -> None:
    async def play() -> None:
        await ask("one")
        await ask("two")

    episode = make(play)
    await episode.start()
    turn = await episode.answer("x")
    assert contents(turn.new_messages) == contents(turn.messages) == ["two"]


async def test_an_exception_fails_the_episode_and_its_text_is_not_sent(make: Make) -> None:
    async def play() -> None:
        await ask("one")
        raise ValueError("password hunter2")

    episode = make(play)
    await episode.start()
    with pytest.raises(EpisodeFailed, match="ValueError") as failed:
        await episode.answer("x")
    assert "hunter2" not in failed.value.text


async def test_failures_of_the_infrastructure_stay_what_they_are(make: Make) -> None:
    async def play() -> None:
        raise ServerUnavailable("nobody there")

    with pytest.raises(ServerUnavailable):
        await make(play).start()


async def test_code_that_cancels_itself_fails_the_episode(make: Make) -> None:
    async def play() -> None:
        await ask("one")
        raise asyncio.CancelledError

    episode = make(play)
    await episode.start()
    with pytest.raises(EpisodeFailed, match="cancelled"):
        await episode.answer("x")


async def test_closing_cancels_and_waits_for_the_cleaning_up(make: Make) -> None:
    cleaned: list[str] = []

    async def play() -> None:
        try:
            await ask("one")
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("up")

    episode = make(play)
    await episode.start()
    await episode.close()
    await episode.close()
    assert cleaned == ["up"]
    with pytest.raises(EpisodeFailed, match="no open request"):
        await episode.answer("late")


async def test_an_answer_to_an_abandoned_request_is_ignored(make: Make) -> None:
    async def play() -> str:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask("quick"), 0.01)
        return await ask("slow")

    episode = make(play)
    assert contents((await episode.start()).messages) == ["quick"]
    await asyncio.sleep(0.05)
    turn = await episode.answer("too late")
    assert contents(turn.new_messages) == ["slow"]
    assert (await episode.answer("in time")).outcome == "in time"


async def test_requests_cancelled_before_delivery_are_left_out(make: Make) -> None:
    async def play() -> str:
        first = asyncio.create_task(ask("first"))
        second = asyncio.create_task(ask("second"))
        await first
        second.cancel()
        return await ask("third")

    episode = make(play)
    await episode.start()
    turn = await episode.answer("x")
    assert contents(turn.messages) == ["third"]


async def test_a_cancelled_caller_leaves_the_episode_to_be_closed(make: Make) -> None:
    released = asyncio.Event()

    async def play() -> None:
        await ask("one")
        await released.wait()

    episode = make(play)
    await episode.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(episode.answer("x"), 0.01)
    await episode.close()


async def test_outside_of_an_episode_there_is_none() -> None:
    assert current_episode() is None
