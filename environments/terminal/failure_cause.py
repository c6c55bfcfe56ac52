"""The cause of a grading that reached no verdict: the agent, or the task and the machine.

A failure that an agent can cause earns 0: as an infrastructure failure it would take an episode out of training that
was about to be lost. Which failures these are is not listed. The tests run once more on the task's start state, which
no agent has touched:

- If they reach a verdict there, the agent's state is the cause: the reward is 0.
- If they reach none, the task or the machine is: the failure stays one.

A failure that may be the machine's (the examination could not be made, or reported nothing) counts against the agent
only if the start state can be examined at this time and the agent's state fails again after that. What the tests
themselves report is the same each time, so this answer is found once a task.

Invariant: what the agent left has no influence on the answer of the start state.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict

from ors_containers import ExaminationFailed, Sandbox, SandboxError

from ors_server import OrsError

from .grading import GradingFailed, GradingLate, TestsUnfit, Verdict, run_tests
from .preparation import Service, episode_sandbox
from .settings import TerminalSettings
from .task import TerminalTask

__all__ = ["grade_episode", "grade_final"]

logger = logging.getLogger("ors_server.terminal")

#: Tasks whose start state was examined: whether their tests reach a verdict there.
_known: OrderedDict[str, bool] = OrderedDict()
_MOST_KNOWN = 4096
_asking: dict[str, asyncio.Task[bool]] = {}


async def grade_episode(service: Service, task: TerminalTask, sandbox: Sandbox, settings: TerminalSettings) -> Verdict:
    """Grade the state that an agent left in the sandbox, which may be stopped afterwards.

    Raises ``GradingFailed`` and what ``Sandbox.examine`` raises, where the agent is not the cause.
    """
    try:
        return await grade_final(service, task, sandbox, settings)
    except GradingLate:
        raise
    except TestsUnfit as error:
        # Before another sandbox is opened: where all places are taken, it would wait for this sandbox.
        await sandbox.stop()
        if not await _judges_without_agent(service, task, settings):
            raise
        return Verdict(False, "failed", f"Only on the agent's state: {error.cause}")
    except (GradingFailed, ExaminationFailed) as error:
        logger.warning("grading failed", extra={"task": task.name, "cause": error.cause})
        if not await _examine_start(service, task, settings):
            raise
        try:
            return await grade_final(service, task, sandbox, settings)
        except (GradingFailed, ExaminationFailed) as again:
            return Verdict(False, "failed", f"Only on the agent's state: {again.cause}")


async def grade_final(
    service: Service, task: TerminalTask, sandbox: Sandbox, settings: TerminalSettings, *, record: bool = False
) -> Verdict:
    """Run a task's final tests on the state of a sandbox. Raises what ``run_tests`` raises."""
    return await run_tests(
        sandbox,
        await service.toolset(),
        task.final_tests,
        live=task.grading == "live",
        timeout=settings.grading_timeout,
        import_code=task.tests_import_code == "flag",
        record=record,
    )


async def _judges_without_agent(service: Service, task: TerminalTask, settings: TerminalSettings) -> bool:
    """Return whether the final tests reach a verdict on the start state. All who ask meanwhile wait for one try."""
    key = _key(task)
    if key in _known:
        _known.move_to_end(key)
        return _known[key]
    asking = _asking.get(key)
    if asking is None or asking.get_loop() is not asyncio.get_running_loop():
        asking = _asking[key] = asyncio.create_task(_examine_start(service, task, settings))
        asking.add_done_callback(lambda _: _asking.pop(key, None))
    return await asyncio.shield(asking)


async def _examine_start(service: Service, task: TerminalTask, settings: TerminalSettings) -> bool:
    """Run the final tests on the start state. Return whether they reach a verdict, and remember it."""
    try:
        sandbox = await episode_sandbox(service, task, settings)
        try:
            await grade_final(service, task, sandbox, settings)
            judges = True
        except TestsUnfit as error:
            logger.error("a task's tests cannot judge", extra={"task": task.name, "cause": error.cause})
            judges = False
        finally:
            await sandbox.stop()
    except (SandboxError, OrsError) as error:
        # The machine fails as well: nothing is known of the task, and the agent's failure stays one.
        logger.warning("the start state could not be examined", extra={"task": task.name, "cause": str(error)})
        return False
    _known[_key(task)] = judges
    while len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    return judges


def _key(task: TerminalTask) -> str:
    parts = (task.name, task.origin, task.start, task.grading, task.tests_import_code, task.final_tests)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
