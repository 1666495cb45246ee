"""The workers of a batcher: they collect a batch, call the function, and return the results.

Only one worker collects at a time; the others wait for the lock. So requests that arrive together
form one batch, rather than one small batch per idle worker. A worker waits until a request is
there. If there are fewer than a full batch, it waits for more, at most ``max_wait`` seconds from
then on. Meanwhile they stay in the queue, where they count (`Machine.disable_claims`).

The list ``batch`` of a worker holds every request that it has taken out of the queue and not yet
answered. Whatever ends the worker, it passes that list to the core, so that no caller waits for
ever.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TypeVar

import anyio

from aioqueue.batcher.function_calls import CallsHere, FailedBatch, FunctionCaller, call_async
from aioqueue.batcher.rules import BatcherCore, Request
from aioqueue.coordination.cancellations import is_cancellation
from aioqueue.coordination.tasks import Tasks
from aioqueue.coordination.workers import as_worker, when_all_ended
from aioqueue.core.attempts import Take
from aioqueue.errors import DeadlineExceededError, OutOfRangeError, QueueEmpty
from aioqueue.worlds.scopes import Gate
from aioqueue.worlds.waker import current_worker, in_trio

T = TypeVar("T")

Batch = list[Request]


def start_threads(core: BatcherCore) -> list[threading.Thread]:
    """Start the workers as threads.

    Raises:
        RuntimeError: a thread cannot be started. Those that were started will end.
    """
    collecting = threading.Lock()
    threads = []
    for number in range(core.workers):
        name = f"aioqueue-{core.name}-{number}"
        work = partial(_work, core, collecting, name, _caller(core, number))
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name=name, daemon=True
        )
        _start(core, thread.start, core.workers - number)
        core.started.append(as_worker(thread))
        threads.append(thread)
    return threads


def _caller(core: BatcherCore, number: int) -> FunctionCaller:
    """Make the object that calls the function for a worker on a thread."""
    if core.where == "process":
        from aioqueue.batcher.processes import ProcessCaller

        return ProcessCaller(core, f"aioqueue-{core.name}-{number}")
    return CallsHere(core.function)


def start_tasks(core: BatcherCore, tasks: Tasks) -> None:
    """Start the workers as tasks, all of one event loop."""
    collecting = anyio.Lock()
    for number in range(core.workers):
        name = f"aioqueue-{core.name}-{number}"
        when_never_begun = partial(
            core.worker_ended, name, RuntimeError("the task was cancelled before its first step")
        )
        start = partial(
            tasks.start, name, partial(_work_async, core, collecting, name), when_never_begun
        )
        core.started.append(_start(core, start, core.workers - number)[0])


def _start(core: BatcherCore, start: Callable[[], T], left: int) -> T:
    try:
        return start()
    except BaseException as error:
        # Those that run end by the stop. The others must be counted as ended, too: the last worker
        # opens `core.ended`, on which the block waits.
        core.stop(error)
        for _ in range(left):
            core.worker_ended("that was not started")
        raise


def end_lost_workers(core: BatcherCore) -> None:
    """End workers whose event loop no longer runs: they can never end themselves."""
    batches = [batch for _, batch, _ in list(core._in_work.values())]
    core._in_work.clear()  # it keeps the tasks alive
    for _ in range(core._running):
        core.worker_ended("whose event loop is gone", None, batches.pop() if batches else ())


def all_ended(core: BatcherCore, threads: list[threading.Thread]) -> Gate:
    """Return a gate that opens when all workers have ended, and their threads, too."""
    ended = Gate()
    try:
        when_all_ended(map(as_worker, threads), ended.open)
    except RuntimeError:  # no thread is available to join them
        return core.ended
    return ended if threads else core.ended


def _work(core: BatcherCore, collecting: threading.Lock, name: str, caller: FunctionCaller) -> None:
    current_worker.set(None)  # a worker may have started it, but its stop is not this one's
    batch: Batch = []  # one list for all batches: whatever ends the worker finds its requests here
    error: BaseException | None = None
    try:
        with caller:
            while not core.is_stopped:
                batch.clear()
                # Before a batch is taken: while a process starts, other workers take the requests.
                caller.make_ready()
                with collecting:
                    _collect(core, batch)
                # A stop may have come during the wait. `worker_ended` then refuses the batch.
                if not core.is_stopped:
                    batch[:] = core.begin(batch)
                    _answer(core, batch, caller)
    except OutOfRangeError:
        pass  # the queue is closed and empty
    except BaseException as raised:
        error = raised
    core.worker_ended(name, error, batch)


def _answer(core: BatcherCore, batch: Batch, caller: FunctionCaller) -> None:
    if batch:
        began = perf_counter()
        try:
            with core.calling():
                values = [request.value for request in batch]
                outcomes = caller(values, **core.context_arguments(batch))
                seconds = perf_counter() - began
                if _is_tried_again(core, batch, outcomes):
                    _answer_one_by_one(core, batch, caller)
            core.finish(batch, outcomes, seconds)
        finally:
            # Break a cycle: outcomes -> failure -> traceback -> this frame -> outcomes.
            outcomes = []


def _is_tried_again(core: BatcherCore, batch: Batch, outcomes: list[object]) -> bool:
    # A single request has failed by itself already. (The death of a process is no `FailedBatch`:
    # the batch may have killed it, and would kill the next one.)
    return core.tries_one_by_one and len(batch) > 1 and isinstance(outcomes, FailedBatch)


def _answer_one_by_one(core: BatcherCore, batch: Batch, caller: FunctionCaller) -> None:
    """Call the function with each request of a failed batch by itself, and answer it at once.

    Requests that a stop leaves untried keep the failure of the batch.
    """
    for request in batch:
        if core.begin_retry(request):
            began = perf_counter()
            (outcome,) = caller([request.value], **core.context_arguments([request]))
            core.finish_one(request, outcome, perf_counter() - began)
            del outcome  # perhaps a failure, whose traceback contains this frame


def _collect(core: BatcherCore, batch: Batch) -> None:
    """Wait for a batch and add its requests; the result is empty if all of its callers have left.

    Raises:
        OutOfRangeError: the queue is closed and empty.
    """
    face, limit = core.sync, core.batch_limit()
    if core.max_batch_weight is not None:
        face._complete(Take(1, peeks=True), "dequeue_up_to", None)
        filling = core.begin_filling(limit) if core.max_wait else None
        if filling is not None:
            try:
                face._complete(filling, "dequeue_up_to", None, core.max_wait)
            finally:
                core.end_filling()
        _take_by_weight(core, batch)
        return
    if core.max_wait and face.size() < limit:
        if not face.size():
            # Wait for the first request without taking it: `max_wait` begins with it, and it keeps
            # its place in the bounds of the queue until the batch is complete.
            face._complete(Take(1, peeks=True), "dequeue_up_to", None)
        # A timeout takes nothing out, so `_take_waiting` finds what is there.
        with suppress(DeadlineExceededError):
            batch += core.requests_of(face.dequeue_up_to(limit, timeout=core.max_wait))
    else:
        batch += core.requests_of(face.dequeue_up_to(limit, max_wait=0))
    _take_waiting(core, batch)


def _take_waiting(core: BatcherCore, batch: Batch) -> None:
    """Fill a batch from the queue without waiting.

    There may be room after a timeout, and after a full dequeue: callers that have left are not in
    the batch, so others take their places.
    """
    batch[:] = core.pending(batch)
    while len(batch) < core.max_batch:
        try:
            batch += core.requests_of([core.aio.dequeue_nowait()])
        except (QueueEmpty, OutOfRangeError):
            return


def _take_by_weight(core: BatcherCore, batch: Batch) -> None:
    """Fill a batch from the queue, as far as its number and its weight allow, without waiting."""
    weight: float = 0
    while len(batch) < core.max_batch:
        request = core.take_next(weight)
        if request is None:
            return
        batch.append(request)
        weight += request.weight


async def _work_async(core: BatcherCore, collecting: anyio.Lock, name: str) -> None:
    batch: Batch = []
    error: BaseException | None = None
    try:
        while not core.is_stopped:
            batch.clear()
            async with collecting:
                await _collect_async(core, batch)
            if not core.is_stopped:
                batch[:] = core.begin(batch)
                await _answer_async(core, batch)
    except OutOfRangeError:
        pass  # the queue is closed and empty
    except BaseException as raised:
        error = raised
        # asyncio can cancel one task alone, which is the failure of a worker. In trio, only a scope
        # around the whole block can have cancelled this one. That stops the batcher: no failure.
        # The loop tells, not the class: in trio, too, a cancelled function may raise asyncio's.
        if is_cancellation(error) and in_trio():
            core.stop()
    try:
        core.worker_ended(name, error, batch)
        if error is not None and (is_cancellation(error) or isinstance(error, GeneratorExit)):
            raise error
    finally:
        del error  # its traceback contains this frame


async def _answer_async(core: BatcherCore, batch: Batch) -> None:
    if batch:
        began = perf_counter()
        try:
            with core.calling():
                values, more = [request.value for request in batch], core.context_arguments(batch)
                outcomes = await call_async(core.function, values, **more)
                seconds = perf_counter() - began
                if _is_tried_again(core, batch, outcomes):
                    await _answer_one_by_one_async(core, batch)
            core.finish(batch, outcomes, seconds)
        finally:
            outcomes = []  # breaks the same cycle as in `_answer`


async def _answer_one_by_one_async(core: BatcherCore, batch: Batch) -> None:
    """Do in a task what `_answer_one_by_one` does on a thread."""
    for request in batch:
        if core.begin_retry(request):
            began = perf_counter()
            more = core.context_arguments([request])
            (outcome,) = await call_async(core.function, [request.value], **more)
            core.finish_one(request, outcome, perf_counter() - began)
            del outcome


async def _collect_async(core: BatcherCore, batch: Batch) -> None:
    """Do in a task what `_collect` does on a thread, for the same reasons.

    A change of one is a change of both.
    """
    face, limit = core.aio, core.batch_limit()
    if core.max_batch_weight is not None:
        # The calls below count for no turn: without this one, a function that never waits would
        # block the event loop.
        await face._yield_if_due(limit)
        await face._complete(Take(1, peeks=True))
        filling = core.begin_filling(limit) if core.max_wait else None
        if filling is not None:
            try:
                await face._complete(filling, core.max_wait)
            finally:
                core.end_filling()
        _take_by_weight(core, batch)
        return
    if core.max_wait and face.size() < limit:
        if not face.size():
            await face._complete(Take(1, peeks=True))
        # A cancelled dequeue has taken nothing either: `_take_waiting` finds what is there.
        with anyio.move_on_after(core.max_wait):
            batch += core.requests_of(await face.dequeue_up_to(limit))
    else:
        batch += core.requests_of(await face.dequeue_up_to(limit, max_wait=0))
    _take_waiting(core, batch)
