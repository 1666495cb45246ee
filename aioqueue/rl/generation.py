"""The generation of a `RolloutQueue`: what a coordinator starts, and what an evaluation needs."""

from __future__ import annotations

import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aioqueue.base.arguments import (
    checked_count,
    checked_period,
    function_name,
    is_coroutine_function,
)
from aioqueue.coordination.cancellations import Call as TaskCall
from aioqueue.coordination.classify import Classification, classify
from aioqueue.coordination.misuse import refuse_generators
from aioqueue.coordination.no_queue import NoQueue
from aioqueue.coordination.tasks import new_loop_runner, new_tasks, wait_shielded
from aioqueue.coordination.workers import LoopThread
from aioqueue.errors import InvalidArgumentError, WorkerDiedError, describe_exception
from aioqueue.inputs import Retry
from aioqueue.processes.function_pickles import pickled
from aioqueue.processes.worker_process import check_may_start
from aioqueue.rl.child import Function
from aioqueue.rl.core import RolloutCore
from aioqueue.rl.hosts import Work, new_host
from aioqueue.rl.metrics import GenerationStage
from aioqueue.rl.processes import ProcessCalls
from aioqueue.workers.retries import FailurePolicy
from aioqueue.worlds.scopes import Gate

if TYPE_CHECKING:
    from aioqueue.coordination.aio import AsyncCoordinator
    from aioqueue.coordination.blocking import ThreadCoordinator
    from aioqueue.coordination.coordinator_core import CoordinatorCore

_MOST_THREADS: Final = 32


def checked_work(
    function: Any,
    *,
    retry: Retry | None,
    timeout: float | None,
    where: str | None,
    workers: int | None,
    argument: str = "generate",
) -> Work:
    """Check a function that generates, and its options.

    Raises:
        InvalidArgumentError: any of them is wrong.
    """
    if not callable(function):
        raise InvalidArgumentError(
            f"{argument}: got {function!r}; expected a function of a prompt and a rollout"
        )
    refuse_generators(function)
    is_async = is_coroutine_function(function)
    if where not in (None, "task", "thread", "process"):
        raise InvalidArgumentError(
            f"where: got {where!r}; expected 'task', 'thread', 'process' or None"
        )
    if where == "task" and not is_async:
        raise InvalidArgumentError(
            f"where: got 'task' for {function_name(function)}, a plain function; expected"
            " 'thread', or a coroutine function"
        )
    if where == "thread" and is_async:
        raise InvalidArgumentError(
            f"where: got 'thread' for {function_name(function)}, a coroutine function; expected"
            " 'task', or a plain function"
        )
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidArgumentError(
            f"retry: got {retry!r}; expected an aioqueue.inputs.Retry or None"
        )
    if retry is not None and retry.then != "stop":
        raise InvalidArgumentError(
            f"retry: got then={retry.then!r}; expected then='stop': what happens to a rollout that"
            " fails for good is on_error of the RolloutQueue"
        )
    if timeout is not None:
        timeout = checked_period(timeout, "timeout", otherwise=", or None")
    if workers is not None:
        workers = checked_count(workers, "workers", least=1)
        if is_async:
            raise InvalidArgumentError(
                f"workers: got {workers} for a coroutine function, whose calls are tasks; expected"
                " max_in_flight of the RolloutQueue"
            )
    threads = workers or _MOST_THREADS
    policy = FailurePolicy(retry or "stop", None, has_quarantine=False)
    payload: bytes | None = None
    if where == "process":
        check_may_start()
        child = Function(function, is_async, timeout, threads)
        payload = pickled(child, function)
    return Work(
        function,
        is_async=is_async,
        policy=policy,
        timeout=timeout,
        threads=threads,
        payload=payload,
        new_child=None if payload is None else ProcessCalls,
    )


class Generation:
    """Generates the rollouts of a queue: pass it to ``start`` of a coordinator of either face."""

    def __init__(self, core: RolloutCore, work: Work) -> None:
        self._core = core
        self._work = work
        self.name: Final = f"aioqueue-{core.name}"
        self.filled: NoQueue = NoQueue(core.name)

    def __repr__(self) -> str:
        return f"<generation of {self._core} by {function_name(self._work.function)}>"

    def _begin(self, coordinator: CoordinatorCore) -> None:
        core = self._core
        if core.has_started:
            raise RuntimeError(
                f"{core} is generated already, or was: make another RolloutQueue, and continue with"
                " load_state_dict()"
            )
        core.has_started = True
        core.stage = GenerationStage(core, self._where)
        coordinator.watch.add(core.stage)
        coordinator.draining.add_run(self)
        core.coordinator = coordinator

    @property
    def _where(self) -> str:
        if self._work.payload is not None:
            return "process"
        return "task" if self._work.is_async else "thread"

    # What a drain of the coordinator requires.

    def drain(self) -> None:
        """Ask for no more prompts: what exists is trained."""
        self._core.apply(self._core.machine.close)

    def in_flight(self) -> int:
        return len(self._core.machine.groups)

    def unfinished_workers(self) -> tuple[str, ...]:
        return () if self._core.over.is_open else (self.name,)

    def _start(self, coordinator: AsyncCoordinator) -> None:
        """Start in the event loop of a coordinator."""
        core = coordinator._core
        self._begin(core)
        coordinator._spawn(
            self.name,
            partial(self._run, core),
            cancel_at_stop=True,
            never_ran=partial(self._stopped, core),
        )

    def _start_on_thread(self, coordinator: ThreadCoordinator) -> list[threading.Thread]:
        """Start an event loop on a thread of its own."""
        run = new_loop_runner(self._run_in_loop)
        self._begin(coordinator._core)
        context = copy_context()
        thread = LoopThread(
            partial(context.run, partial(run, coordinator._core)),
            f"{self.name}-event-loop",
            daemon=True,
        )
        coordinator.register(thread)  # before it starts: a stop must find it
        thread.start()
        return [thread]

    async def _run_in_loop(self, coordinator: CoordinatorCore) -> None:
        """The main function of the thread with the event loop."""
        tasks = new_tasks(lambda error: coordinator.report(error, self.name))
        await tasks.begin()
        ended = Gate()
        task, _ = tasks.start(
            self.name, partial(self._run, coordinator), partial(self._stopped, coordinator)
        )
        task.when_ended(ended.open)
        thread = threading.current_thread()
        if isinstance(thread, LoopThread):
            thread.tasks.append(task)
            thread.cancel_tasks_again = partial(tasks.call_soon, tasks.cancel_again)
        coordinator.call_on_stop(partial(tasks.call_soon, tasks.cancel))
        await wait_shielded(ended)
        if isinstance(thread, LoopThread):
            thread.cancel_tasks_again = None
        await tasks.end()

    async def _run(self, coordinator: CoordinatorCore) -> None:
        """Generate until nothing is left, or the stop."""
        core = self._core
        call = TaskCall()
        try:
            async with new_host(core, self._work, coordinator.register) as host:
                core.host = host
                host.closes_prompts = True
                try:
                    limit = None if self._work.is_async else self._work.threads
                    core.machine.grants_ahead = self._work.payload is not None
                    core.begin(limit)
                    core.begun.open()
                    await core.wait_until_over()
                except BaseException as error:
                    self._stopped(coordinator, error)
                    raise
        except GeneratorExit:
            raise  # the event loop has gone: nothing can be awaited
        except BaseException as error:
            if classify(error, owner=call) is Classification.STOP:
                raise
            coordinator.report(error, self.name)
        else:
            if core.machine.error is not None:
                coordinator.report(core.machine.error, self.name)
        finally:
            core.host = None
            core.forget_backoffs()
            core.begun.open()
            coordinator.draining.remove_run(self)

    def _stopped(self, coordinator: CoordinatorCore, error: BaseException | None = None) -> None:
        """End the queue, since nothing generates any more."""
        core = self._core
        machine = core.machine
        cause: BaseException | None = None
        if not coordinator.should_stop() and not machine.is_stopped:
            how = "was cancelled" if error is None else f"ended with {describe_exception(error)}"
            cause = WorkerDiedError(
                f"the generation of {core} {how}, and nobody had asked it to stop"
            )
            cause.__cause__ = error
        core.begun.open()
        core.apply(machine.stop, cause)
