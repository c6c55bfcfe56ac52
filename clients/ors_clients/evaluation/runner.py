"""The schedule of a run: every sample of every task, several at once, until each is scored or its retries are used up.

Samples are played in rounds over the tasks, so that a run that stops early has as many samples of each task as of any
other. An attempt that the infrastructure lost is played again after a pause, at most ``retries`` times; it says nothing
about the model, and so never becomes a score.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from ors_clients.client.environments import AsyncEnvironment
from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import InfrastructureFailure
from ors_clients.evaluation.attempts import Attempt, Loss
from ors_clients.evaluation.journal import Journal
from ors_clients.evaluation.players import Played, Player, seed_of
from ors_clients.evaluation.redaction import Redaction
from ors_clients.models import Task
from ors_clients.rollouts.sessions_ahead import SessionsAhead

__all__ = ["Runner"]

#: Makes the ids of rollouts.
_ROLLOUTS = uuid.UUID("0c9b6a1e-4f6d-5c57-9a53-6d2f1e8b7d44")
#: Seconds before a lost sample is played again: at first, and at most.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
#: Attempts in a row that may be lost before the run stops; more where more are played at once.
_LOST_IN_ROW = 20


class _Slot(NamedTuple):
    task: int
    sample: int


class Runner:
    """Plays what is missing in a journal. ``on_end`` gets each attempt with its trajectory, before it is noted; it is
    called on a thread. ``prefetch`` sessions are opened ahead, at most."""

    def __init__(
        self,
        journal: Journal,
        environment: AsyncEnvironment,
        tasks: list[Task],
        player: Player,
        *,
        concurrency: int,
        prefetch: int,
        retries: int,
        secrets: dict[str, str],
        on_end: Callable[[Attempt, Played], None],
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        self._journal = journal
        self._settings = journal.record.settings
        self._environment = environment
        self._tasks = tasks
        self._player = player
        self._concurrency = concurrency
        self._ahead = SessionsAhead(prefetch)
        self._retries = retries
        self._secrets = secrets
        self._redaction = Redaction(secrets.values())
        self._on_end = on_end
        self._first_pause = first_pause
        self._queue: asyncio.Queue[_Slot | None] = asyncio.Queue()
        #: Attempts that have ended and are not noted yet; None after the last.
        self._ended: asyncio.Queue[tuple[Attempt, Played] | None] = asyncio.Queue()
        self._left = 0
        #: Attempts of this process that were lost, by slot, and in a row over all slots.
        self._lost: Counter[_Slot] = Counter()
        self._lost_in_row = 0
        self._attempts = Counter(_Slot(attempt.task, attempt.sample) for attempt in journal.record.attempts)

    async def run(self) -> None:
        """Play until every sample is scored or has used up its retries.

        Raises ``InfrastructureFailure`` if nothing but losses came for a while, ``ConfigurationError`` and
        ``RequestRefused`` for what would fail every episode alike. What was noted until then stays.
        """
        scored = self._journal.record.scored
        slots = [
            _Slot(task, sample)
            for sample in range(self._settings.samples)
            for task in range(len(self._tasks))
            if (task, sample) not in scored
        ]
        self._left = len(slots)
        for slot in slots:
            self._queue.put_nowait(slot)
        if not slots:
            return
        self._ahead.expect((slot, self._maker(slot)) for slot in slots)
        async with self._ahead:
            players = [asyncio.create_task(self._work()) for _ in range(min(self._concurrency, len(slots)))]
            writer = asyncio.create_task(self._write())
            try:
                done, _ = await asyncio.wait([*players, writer], return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for player in players:
                    player.cancel()
                await asyncio.gather(*players, return_exceptions=True)
                self._ended.put_nowait(None)
                await asyncio.gather(writer, return_exceptions=True)
        for task in (*done, writer):
            task.result()

    def _maker(self, slot: _Slot) -> Callable[[], AsyncSession]:
        task, secrets = self._tasks[slot.task], self._secrets or None
        return lambda: self._environment.session(task=task, secrets=secrets)

    async def _work(self) -> None:
        while (slot := await self._queue.get()) is not None:
            if await self._play(slot):
                self._left -= 1
            if not self._left:
                self._ended.put_nowait(None)
                for _ in range(self._concurrency):
                    self._queue.put_nowait(None)

    async def _write(self) -> None:
        """Note the ends of attempts in their order, on a thread: no episode waits for the disk."""
        while (ended := await self._ended.get()) is not None:
            await asyncio.to_thread(self._note, *ended)

    def _note(self, attempt: Attempt, played: Played) -> None:
        self._on_end(attempt, played)
        self._journal.add(attempt)

    async def _play(self, slot: _Slot) -> bool:
        """Play one attempt of a sample; return whether that was the last one."""
        described = self._journal.record.tasks[slot.task]
        interrupted = self._journal.record.started[slot] - self._attempts[slot]
        self._journal.begin(*slot)
        # The same for an attempt that is played twice because a kill cut it off: a store keeps one of them.
        place = f"{self._journal.record.id}/{slot.task}/{slot.sample}/{self._attempts[slot]}"
        rollout_id = uuid.uuid5(_ROLLOUTS, place).hex
        seed = seed_of(self._settings.seed, f"{described['split']}:{described['index']}", slot.sample)
        session = self._ahead.take(slot, self._maker(slot))
        played = await self._player.play(session, rollout_id, seed)
        attempt = self._attempt(slot, played, interrupted)
        self._ended.put_nowait((attempt, played))
        self._attempts[slot] += 1
        if attempt.lost is None:
            self._lost_in_row = 0
            return True
        self._lost[slot] += 1
        self._lost_in_row += 1
        if self._lost_in_row >= max(_LOST_IN_ROW, 3 * self._concurrency):
            raise InfrastructureFailure(
                f"The last {self._lost_in_row} attempts were all lost, the last one by the {attempt.lost.side}: "
                f"{attempt.lost.text}",
                f"Look at it, then go on: --resume {self._journal.record.name}",
            )
        if self._lost[slot] > self._retries:
            return True
        pause = min(_LAST_PAUSE, self._first_pause * 2 ** (self._lost[slot] - 1))
        asyncio.get_running_loop().call_later(pause, self._queue.put_nowait, slot)
        return False

    def _attempt(self, slot: _Slot, played: Played, interrupted: int) -> Attempt:
        trajectory, usage = played.trajectory, played.usage
        return Attempt(
            task=slot.task,
            sample=slot.sample,
            attempt=self._attempts[slot],
            rollout_id=trajectory.rollout_id,
            stop=played.stop,
            reward=played.reward,
            lost=Loss.of(trajectory.failure, self._redaction.text) if played.reward is None else None,
            turns=trajectory.turns,
            tool_calls=trajectory.tool_calls,
            mistakes=played.mistakes,
            requests=usage.requests,
            retried=dict(usage.retried),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            uncounted=usage.uncounted,
            seconds=round(trajectory.seconds, 4),
            generation_seconds=round(trajectory.generation_seconds, 4),
            tool_seconds=round(trajectory.tool_seconds, 4),
            ended=datetime.now(UTC).isoformat(timespec="milliseconds"),
            interrupted=interrupted,
            mark=self._redaction.text(trajectory.verdict_mark),
        )
