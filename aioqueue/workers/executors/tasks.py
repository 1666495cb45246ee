"""`TaskExecutor`: tasks of one event loop take items, await the function and enqueue examples."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from time import perf_counter
from types import AsyncGeneratorType
from typing import Any, ClassVar, Final

import anyio
import anyio.lowlevel

from aioqueue.base.arguments import EnqueueOp
from aioqueue.coordination.cancellations import (
    Call,
    WorkerScope,
    is_cancellation,
    running_task,
    stop_workers,
)
from aioqueue.coordination.classify import Classification, classify
from aioqueue.coordination.tasks import mark_ending, threadsafe_caller
from aioqueue.errors import QueueFull, add_note
from aioqueue.items.item import EpochEnd, Item, Prepared
from aioqueue.sources.source_reader import (
    close_items,
    combine_errors,
    next_of,
    next_without_waiting,
)
from aioqueue.telemetry.explain.stacks import Stack, stack_of_traceback
from aioqueue.workers.executor import Executor
from aioqueue.workers.executors.worker_threads import never_enqueue
from aioqueue.workers.flow_control import NOTE_OF_KEY, Pending, RoundPace
from aioqueue.workers.job import Dismissed, Job
from aioqueue.workers.key_limits import Inbox
from aioqueue.workers.timing import Clocked, InProgress, WorkerGauge
from aioqueue.worlds.events import TaskEvent, task_event
from aioqueue.worlds.waker import current_worker, in_trio

_MOST_AT_ONCE: Final = 64
"""The most items that a worker enqueues in order before it pauses."""


class TaskExecutor(Executor):
    """Awaits the function in the workers themselves, which are tasks of one event loop.

    Args:
        job: the job.
    """

    where = "task"
    worker_name = "task"
    worker_plural = "tasks"
    per_worker = 16
    limit_bytes: ClassVar[int | None] = None
    most_workers: ClassVar[int | None] = 64
    is_async = True
    is_timed: ClassVar[bool | None] = None
    takes_ray = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._source = _TaskSource(job)
        self._delivery = _TaskDelivery(job)
        self._inbox: _TaskInbox | None = None
        if job.key_limit is not None:
            self._inbox = _TaskInbox(job, self._source, self._delivery)
        # The scopes of the workers and helpers.
        self._scopes: dict[WorkerScope, None] = {}
        self._call_soon: Callable[[Callable[[], object]], None] | None = None  # calls in their loop

    def enqueue_ops(self) -> list[EnqueueOp]:
        ops: list[EnqueueOp] = [self.prepare_items] * self._job.count
        return ops if self._inbox is None else [*ops, self.take_items]

    async def prepare_items(self) -> None:
        job, whole = self._job, Call()
        job.enter()
        worker = job.gauge.worker(anyio.get_current_task().name or "task")
        job.in_progress.add(whole.task, worker.in_progress)
        work = partial(self._work if self._inbox is None else self._work_by_key, worker)
        ended = await self._till_stopped(work, whole)
        job.in_progress.remove(whole.task)
        job.gauge.worker_ended(worker)
        closing = None
        is_dismissed = isinstance(ended, Dismissed)
        # The last worker closes the source. After a dismissal others continue, and with a key limit
        # the helper that reads the source closes it. If the loop was closed, this code runs outside
        # of the task, where nothing can be awaited.
        is_last = job.is_last_inside and self._inbox is None and not is_dismissed
        if whole.task is running_task() and is_last:
            closing = await self._source.close()
        try:
            raise job.leave(ended, closing, owner=whole)
        finally:
            del ended, closing  # their tracebacks contain this frame

    async def take_items(self) -> None:
        assert self._inbox is not None
        job, whole = self._job, Call()
        job.gauge.helper(anyio.get_current_task().name or "task")
        ended = await self._till_stopped(self._inbox.take_items, whole)
        if not isinstance(ended, Exception):
            job.stop()  # it was cancelled, so nothing would wake those that wait for items
        closing = await self._source.close() if whole.task is running_task() else None
        try:
            raise ended if closing is None else combine_errors([ended, closing], whole)
        finally:
            del ended, closing  # as above

    async def _till_stopped(
        self, work: Callable[[Call], Awaitable[object]], whole: Call
    ) -> BaseException:
        """Work until there is nothing more to do, or the stop; return what has ended it."""
        if self._call_soon is None:
            self._call_soon = self._job.call_soon = threadsafe_caller()
        scope: WorkerScope = current_worker.get()
        self._scopes[scope] = None
        if self._job.is_halted:
            scope.cancel()  # the stop has already cancelled the others: end at the next wait
        try:
            await work(Call())
        except BaseException as error:
            # Our stop cancels the scope. But the user may have cancelled the task as well, or the
            # whole program: then the cancellation must leave the worker as it is.
            is_stop = self._job.is_halted and is_cancellation(error)
            if not is_stop or classify(error, owner=whole) is not Classification.STOP:
                return error
        finally:
            del self._scopes[scope]
        return self._job.nothing_more()

    def stop(self) -> None:
        if self._call_soon is not None:
            self._call_soon(self._cancel)

    def _cancel(self) -> None:
        # A copy: a cancelled worker removes its scope.
        scopes = list(self._scopes)
        for scope in scopes:
            mark_ending(scope.task)
        assert self._call_soon is not None
        stop_workers(scopes, self._call_soon)

    def notify_room(self) -> None:
        self._source.notify_room()
        if self._inbox is not None:
            self._inbox.notify_room()

    def notify_resize(self) -> None:
        if self._call_soon is not None:
            self._call_soon(self._notify_resize)

    def _notify_resize(self) -> None:
        self._source.notify_resize()
        if self._inbox is not None:
            self._inbox.notify_resize()

    def end(self) -> BaseException | None:
        return None

    async def _work(self, worker: WorkerGauge, owner: Call) -> None:
        gauge, in_progress = self._job.gauge, worker.in_progress
        turn = self._turn_untimed if self._job.item_timeout is None else self._turn
        while True:
            while not gauge.is_on:
                await turn(in_progress, owner)
            worker.start_measuring()
            while gauge.is_on:
                skipped = 0
                for skipped in worker.skipped_turns():  # noqa: B007  # the last value is used
                    await turn(in_progress, owner)
                await self._work_measured(worker, owner, skipped)

    async def _turn(self, in_progress: InProgress, owner: Call) -> None:
        """Take, prepare and deliver an item. What needs no wait is done without a coroutine."""
        source = self._source
        item = source.take_nowait(owner)
        if item is None:
            item = await source.take_waiting(owner)
        prepared = await self._prepare(item, in_progress, owner)
        rest = self._delivery.deliver_nowait(prepared, owner)
        if rest is not None:
            del item, prepared  # keep nothing that is in the queue
            await rest
            in_progress.clear()  # if a generator was still making it

    async def _turn_untimed(self, in_progress: InProgress, owner: Call) -> None:
        """Do the same without a time limit, at a tenth less of all instructions.

        It repeats the code of `_prepare` and `_make_untimed`: a coroutine in another one costs
        when it is made, and at each of its steps.
        """
        source, job = self._source, self._job
        item = source.take_nowait(owner)
        if item is None:
            item = await source.take_waiting(owner)
        value = item[1]
        if type(value) is EpochEnd:
            prepared = Prepared(item, (value,))
        else:
            if owner.requests() != owner.known:
                owner.renew()  # see `_prepare`
            call = job.call
            # As `InProgress.begin`.
            in_progress.failures, in_progress.began = 0, perf_counter()
            in_progress.item = item
            try:
                made = call.begin_async(item) if call.takes_rng else call.call(value)
                if type(made) is AsyncGeneratorType and not call.takes_rng:
                    made = call.examples_of_async(made)
                if type(made) is not AsyncGeneratorType:
                    prepared = Prepared(item, call.single_example(await made, item))
                    in_progress.item = None
                elif job.streams:
                    prepared = Prepared(item, made)  # in progress until the generator has ended
                else:
                    prepared = Prepared(item, await self._examples_of(made))
                    in_progress.item = None
                del made
            except BaseException as raised:
                in_progress.item = None
                # Give the exception's result no name here: its traceback refers to this frame.
                delay = job.item_failed(item, raised, 1, owner)
                prepared = await self._prepare_again(item, in_progress, owner, delay)
        rest = self._delivery.deliver_nowait(prepared, owner)
        if rest is not None:
            del item, value, prepared  # keep nothing that is in the queue
            await rest
            in_progress.clear()  # if a generator was still making it

    async def _prepare_again(
        self, item: Item, in_progress: InProgress, owner: Call, delay: float | None
    ) -> Prepared:
        """Prepare an item that has failed once, after some seconds; ``None``: it is skipped."""
        if delay is None:
            return Prepared(item, is_skipped=True)
        await anyio.sleep(delay)
        return await self._prepare(item, in_progress, owner, 1)

    async def _work_measured(self, worker: WorkerGauge, owner: Call, skipped: int) -> None:
        gauge = self._job.gauge
        worker.item_wait_started(skipped, gauge.seconds_full)
        item = await self._source.take(owner, worker)
        worker.item_received(item, gauge.seconds_full)
        clocked = Clocked(self._prepare(item, worker.in_progress, owner))
        prepared = await clocked
        as_made = type(prepared.examples) is AsyncGeneratorType
        worker.call_finished(None if as_made else clocked.cpu)
        worker.item = None
        began, blocked = perf_counter(), worker.waits.enqueues
        rest = self._delivery.deliver_nowait(prepared, owner)
        del item, prepared, clocked
        if rest is not None:
            await rest
        worker.in_progress.clear()
        worker.delivery_finished(as_made=as_made, began=began, blocked=blocked)

    async def _prepare(
        self, item: Item, in_progress: InProgress, owner: Call, failures: int = 0
    ) -> Prepared:
        """Prepare an item, with all its retries, after this many earlier failures."""
        job = self._job
        make = self._make_untimed if job.item_timeout is None else self._make_in_time
        while True:
            # If the function has swallowed a cancellation in an earlier item, that one must not
            # count for this item: its failure would be taken for the stop.
            if owner.requests() != owner.known:
                owner.renew()
            try:
                examples = await make(item, in_progress, failures)
                return Prepared(item, examples, failures)
            except BaseException as raised:
                failures += 1
                # Give the exception's result no name here: its traceback refers to this frame.
                delay = job.item_failed(item, raised, failures, owner)
            if delay is None:
                return Prepared(item, failures=failures - 1, is_skipped=True)
            await anyio.sleep(delay)

    async def _make_in_time(self, item: Item, in_progress: InProgress, failures: int) -> Any:
        """Do the same as `_make_untimed` with the time limit.

        Raises:
            ItemTimeoutError: it has taken too long.
        """
        # The stack must be read inside the scope, which takes the cancellation and its traceback.
        # If the function turns the cancellation into an exception of its own, that one leaves the
        # scope, and fails the item instead.
        stack: Stack = ()
        with anyio.move_on_after(self._job.item_timeout) as scope:
            try:
                return await self._make_untimed(item, in_progress, failures)
            except BaseException as error:
                if scope.cancel_called:
                    stack = stack_of_traceback(error.__traceback__)
                raise
        self._job.progress.timed_out()
        raise self._job.timeout_error(item, stack)

    async def _make_untimed(self, item: Item, in_progress: InProgress, failures: int) -> Any:
        """Return the examples of an item, or their generator if it may run while they are
        enqueued."""
        if type(item.value) is EpochEnd:
            return (item.value,)
        in_progress.begin(item, failures)
        try:
            call = self._job.call
            made = call.begin_async(item)
            if type(made) is not AsyncGeneratorType:
                examples = call.single_example(await made, item)
            elif self._job.streams:
                return made  # the item stays in progress until the generator has ended
            else:
                examples = await self._examples_of(made)
        except BaseException:
            in_progress.clear()
            raise
        in_progress.item = None  # `clear`, inlined for speed
        return examples

    @staticmethod
    async def _examples_of(made: AsyncGenerator[Any, None]) -> tuple[Any, ...]:
        async with aclosing(made):
            return tuple([example async for example in made])

    async def _work_by_key(self, worker: WorkerGauge, owner: Call) -> None:
        """Do the same with a key limit: each attempt takes a place, and retries come back later."""
        assert self._inbox is not None
        worker.measures_all = True
        while True:
            worker.item_wait_started()
            pending = await self._inbox.take(owner)
            worker.item_received(pending.item)
            began, blocked = perf_counter(), worker.waits.enqueues
            as_made = await self._attempt(pending, self._inbox, worker, owner)
            worker.delivery_finished(as_made=as_made, began=began, blocked=blocked)

    async def _attempt(
        self, pending: Pending, inbox: _TaskInbox, worker: WorkerGauge, owner: Call
    ) -> bool:
        """Prepare an item that has a place, and keep the place meanwhile.

        Returns:
            Whether a generator ran while the examples were delivered.
        """
        in_progress = worker.in_progress
        owner.renew()
        make = self._make_untimed if self._job.item_timeout is None else self._make_in_time
        clocked = Clocked(make(pending.item, in_progress, pending.failures))
        try:
            examples = await clocked
        except BaseException as raised:
            worker.call_finished()
            worker.item = None
            await inbox.failed(pending, self._job.failure_of_item(raised, owner), owner)
            return False
        as_made = type(examples) is AsyncGeneratorType
        worker.call_finished(None if as_made else clocked.cpu)
        worker.item = None
        # As for threads: a generator keeps its place until its last example is in the queue.
        if not as_made:
            inbox.release_place(pending)
        prepared = Prepared(pending.item, examples, failures=pending.failures)
        await self._delivery.deliver(prepared, owner)
        in_progress.clear()  # if a generator was still making it
        inbox.release_place(pending)
        return as_made


class _Waiter:
    """A worker that waits while another one reads the source.

    Attributes:
        woken: set when it has an item, or when it is to try again.
        item: its item; ``None`` without one.
        seconds: how long the source took for the item, if that is measured.
    """

    __slots__ = ("item", "owner", "seconds", "woken")

    def __init__(self, owner: Call) -> None:
        self.owner = owner
        self.woken: TaskEvent = task_event()
        self.item: Item | None = None
        self.seconds = 0.0


class _TaskSource:
    """The source of a job, which one task reads at a time.

    A worker that needs an item reads it itself. If the source has no item ready, or no more may be
    in flight, that worker is the reader from then on, and others wait. The reader deals: as items
    come, it gives them to the workers that wait, and it takes one for itself when none waits. So
    items that are ready reach any number of workers in one round of the event loop, and no item
    waits for a worker that waits for the source.

    **Pauses.** If neither the source, the function nor the queue ever waits, a worker comes back
    for its next item in the same round, and the program's other tasks do not run. So after some
    items (`RoundPace`), it lets a round pass as the reader: the other workers have to wait, too,
    and cannot use up a round one after another. Then it continues by itself, because other workers
    are of no use to a function that never waits. But perhaps its function waits now, and nobody
    reads for them. So it wakes one of them as its successor for the next round, who reads then if
    nobody else does.

    **Order.** Functions begin in the order of their items: a reader that has dealt some begins its
    own only when the others have begun theirs. (trio runs the tasks of a round in any order.)
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.is_for_workers = True  # workers read it themselves, and may be dismissed
        self._has_reader = False
        # If any wait, there is a reader, or one of them was woken as the successor.
        self._waiters: deque[_Waiter] = deque()
        self._successor: _Waiter | None = None
        self._seconds_of_item = 0.0  # how long the source took for the last one, if measured
        self._unbegun = 0  # workers that were given an item, and have not run since
        self._room: anyio.Event | None = None
        self._pace = RoundPace(in_order=not in_trio())
        self._without_waiting = job.feed.items_without_waiting()
        self._waited_for = None if self._without_waiting is not None else job.feed.items_async()

    def take_nowait(self, owner: Call, has_asked: bool = False) -> Item | None:
        """Return the next item, if no wait and no pause comes before it; otherwise ``None``.

        It counts as in flight from now on. Without one, the caller awaits `take_waiting`.

        Args:
            owner: the call of the worker.
            has_asked: whether it has asked for this item before.

        Raises:
            BaseException: as for `take`.
        """
        job, pace = self._job, self._pace
        if not has_asked:
            pace.asked(owner, job.count)
        if (
            self._without_waiting is None
            or pace.is_pause_due
            # The reader waits for room, or pauses: it was first, so nobody may overtake it.
            or self._has_reader
            or job.source_ended
            or job.roster.surplus
            or not job.window.try_enter()
        ):
            return None
        try:
            return next_without_waiting(self._without_waiting)
        except BaseException as error:
            raise job.source_raised(error, owner)  # noqa: B904  # as for threads

    async def take(self, owner: Call, worker: WorkerGauge | None = None) -> Item:
        """Return the next item, which counts as in flight from now on.

        Args:
            owner: the call of the worker.
            worker: its gauge, if it measures this turn.

        Raises:
            NothingMore: no item is left, or the run wants no more.
            BaseException: the failure of the source, or the cancellation of the task.
        """
        item = None
        if worker is None:
            item = self.take_nowait(owner)
        else:
            self._pace.asked(owner, self._job.count)
        return await self.take_waiting(owner, worker) if item is None else item

    async def take_waiting(self, owner: Call, worker: WorkerGauge | None = None) -> Item:
        """Do the same, after `take_nowait` has returned ``None``."""
        job, waiters = self._job, self._waiters
        has_waited = was_successor = False
        while self._has_reader:
            has_waited = True
            if job.source_ended:
                raise job.nothing_more()
            # Before it waits: a worker that leaves must hold no item.
            if job.roster.surplus and self.is_for_workers:
                job.dismiss()
            waiter = _Waiter(owner)
            if was_successor:
                waiters.appendleft(waiter)  # it was first, and got nothing
            else:
                waiters.append(waiter)
            # A cancelled worker ends the job in this very step (`Job.leave`), and the others with
            # it. So nothing has to be put right here, even if it has an item.
            await waiter.woken.wait()
            was_successor = waiter is self._successor
            if was_successor:
                self._successor = None
            if waiter.item is not None:
                self._unbegun -= 1
                if worker is not None:
                    job.gauge.source_waits.add(waiter.seconds, worker.weight)
                return waiter.item
        if has_waited and not was_successor and worker is None and not waiters:
            # One of many that were woken because their functions wait: see `_resign`.
            item = self.take_nowait(owner, True)
            if item is not None:
                return item
        return await self._read(owner, worker, own_first=not has_waited)

    async def _read(self, owner: Call, worker: WorkerGauge | None, *, own_first: bool) -> Item:
        """Read items for the workers that wait, and then one for the caller.

        Args:
            owner: the call of the caller.
            worker: its gauge, if it measures this turn.
            own_first: whether the first item is the caller's. It has not waited: perhaps because
                its function never does.
        """
        job, pace = self._job, self._pace
        self._has_reader = True
        try:
            while True:
                if pace.is_pause_due:
                    await anyio.lowlevel.checkpoint()
                    pace.paused()
                item = await self._next(owner)
                if own_first or not self._waiters:
                    break
                waiter = self._waiters.popleft()
                waiter.item, waiter.seconds = item, self._seconds_of_item
                self._unbegun += 1
                waiter.woken.set()
                pace.dealt(job.count, waiter.owner)
            while self._unbegun:
                await anyio.lowlevel.checkpoint()  # their items come first
                pace.paused()
        finally:
            self._resign()
        if worker is not None:
            job.gauge.source_waits.add(self._seconds_of_item, worker.weight)
        return item

    async def _next(self, owner: Call) -> Item:
        """Return the next item, as the reader."""
        job = self._job
        await self._wait_for_room()
        # Room is not the only end of that wait: the stop, a drain and a resize end it, too.
        if job.source_ended:
            raise job.nothing_more()
        if job.roster.surplus and self.is_for_workers:
            job.dismiss()
        job.window.enter()
        if not self.is_for_workers:
            job.window.asked = 1
        began = perf_counter() if job.gauge.is_on else 0.0
        try:
            if self._waited_for is not None:
                item = await next_of(self._waited_for, owner)
            else:
                assert self._without_waiting is not None
                item = next_without_waiting(self._without_waiting)
        except BaseException as error:
            raise job.source_raised(error, owner)  # noqa: B904  # as for threads
        self._seconds_of_item = perf_counter() - began if began else 0.0
        return item

    def _resign(self) -> None:
        """Let another worker read; if no item is left, let all end."""
        self._has_reader = False
        if self._job.source_ended or self._pace.do_all_wait:
            self._wake_all()
        elif self._waiters and self._successor is None:  # otherwise one was woken already
            self._successor = self._waiters.popleft()
            self._successor.woken.set()

    def _wake_all(self) -> None:
        """Wake all workers that wait, so that each finds out what to do."""
        waiters = self._waiters
        while waiters:
            waiters.popleft().woken.set()

    async def _wait_for_room(self) -> None:
        """Wait until another item may come in, or none will."""
        job = self._job
        if job.source_ended or job.window.has_room():
            return
        job.gauge.is_full(by_bytes=job.window.is_full_of_bytes)
        try:
            while not (job.source_ended or job.window.has_room() or self._is_to_dismiss()):
                # No await between the check for room and the wait, and all that gives room runs in
                # this loop (see `Job.call_soon`). So no notification is lost. Only the reader waits
                # here.
                self._room = anyio.Event()
                job.is_room_awaited = True
                await self._room.wait()
        finally:
            job.gauge.has_room()
            job.is_room_awaited = False

    def _is_to_dismiss(self) -> bool:
        return self.is_for_workers and self._job.is_to_dismiss

    def notify_resize(self) -> None:
        """See `Executor.notify_resize`. Called in the loop."""
        if self._room is not None:
            self._room.set()
        if self.is_for_workers:
            # Those that came last: if they are not to leave after all, they wait again.
            for _ in range(min(self._job.roster.surplus, len(self._waiters))):
                self._waiters.pop().woken.set()

    def notify_room(self) -> None:
        if self._room is not None:
            self._room.set()
            # Until the reader has looked: not every item that leaves meanwhile has to call this.
            self._job.is_room_awaited = False
        if self._job.source_ended:
            self._wake_all()  # the reader may be inside the source for any time

    async def close(self) -> BaseException | None:
        """Close the source; return what fails in that."""
        return await close_items(self._without_waiting or self._waited_for)


class _TaskDelivery:
    """Enqueues examples from tasks, waiting if the queue is full."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._enqueue = job.into.aio.enqueue
        self._enqueue_nowait = job.into.aio.enqueue_nowait
        # For whole items, which are rows as they are.
        self._try_enqueue = (job.into.sync._steps_of_enqueue() or (None, never_enqueue))[1]
        self._records_prepared = job.records_prepared
        self._delivers_at_once = job.delivers_at_once
        # Items of a pipeline without order, which others have left to a worker that waits for room
        # in the queue. As with an order, they are bounded by what may be in flight. One attempt to
        # enqueue that waits costs more than all else that is done for an item.
        is_shared = job.delivers_at_once and not job.is_ordered
        self._left: deque[Prepared] | None = deque() if is_shared else None
        self._blocked = 0  # workers that are in an enqueue, which nobody may overtake
        self._is_pause_due = False  # whether the worker has enqueued many items without a wait

    async def deliver(self, prepared: Prepared, owner: Call) -> None:
        """Enqueue the examples of an item: now, or later if the order or a buffer requires it.

        Raises:
            BaseException: what ends the worker.
        """
        rest = self.deliver_nowait(prepared, owner)
        del prepared  # keep nothing that is in the queue
        if rest is not None:
            await rest

    def deliver_nowait(self, prepared: Prepared, owner: Call) -> Awaitable[None] | None:
        """Do the same as far as no wait is needed.

        Returns:
            What the caller awaits for the rest; ``None``: all is done.
        """
        job = self._job
        is_full = self._blocked > 0
        if (
            self._delivers_at_once
            and not is_full
            and type(prepared.examples) is tuple
            and job.deliver_at_once(prepared, self._try_enqueue)
        ):
            return None
        due: Prepared | None = prepared
        if self._left is not None:
            job.pack_whole(prepared)  # all that `Job.item_prepared` does without an order
        elif self._records_prepared:
            due = job.item_prepared(prepared)
        if due is not None and is_full and self._left is not None:
            self._left.append(due)
            return None
        if due is not None and not is_full:
            due = self._deliver_due(due, owner)
        return None if due is None else self._deliver_waiting(due, owner)

    def _deliver_due(self, due: Prepared | None, owner: Call) -> Prepared | None:
        """Deliver an item, and with a kept order those that follow, as far as no wait is needed.

        Meanwhile other workers leave theirs to this one (see `ThreadDelivery`).

        Returns:
            The item that has to be delivered next.
        """
        job, enqueue_nowait, try_enqueue = self._job, self._enqueue_nowait, self._try_enqueue
        for _ in range(_MOST_AT_ONCE):
            if due is None or type(due.examples) is not tuple:
                return due
            try:
                for example in due.examples[due.entered :] if due.entered else due.examples:
                    if not (self._delivers_at_once and try_enqueue(example)):
                        enqueue_nowait(example)
                    due.entered += 1
            except QueueFull:
                return due
            except BaseException as error:
                self._refuse(due, error, owner)
            due = job.item_delivered(due) or (self._left.popleft() if self._left else None)
        self._is_pause_due = due is not None
        return due

    async def _deliver_waiting(self, prepared: Prepared, owner: Call) -> None:
        due: Prepared | None = prepared
        del prepared  # keep nothing that is in the queue
        while due is not None:
            if self._is_pause_due:
                # Items that follow each other could keep the loop busy as long as the queue has
                # room. It is noted in this step, so no other worker's items are meant.
                self._is_pause_due = False
                await anyio.lowlevel.checkpoint()
            else:
                due = await self._put(due, owner)
                if self._left:
                    due = self._left.popleft()  # there is no order, so nothing followed
            due = self._deliver_due(due, owner)

    async def _put(self, prepared: Prepared, owner: Call) -> Prepared | None:
        """Enqueue the examples of an item that are not in the queue; return the item to enqueue
        next."""
        try:
            examples = prepared.examples
            if type(examples) is AsyncGeneratorType:
                async with aclosing(examples):
                    await self._put_as_made(prepared, examples, owner)
            else:
                await self._put_each(prepared, owner)
        except BaseException:
            self._job.progress.entered(prepared.entered)
            raise
        return self._job.item_delivered(prepared)

    def _refuse(self, prepared: Prepared, error: BaseException, owner: Call) -> None:
        """Handle an example that was not enqueued; raise what ends the worker, if it ends."""
        try:
            self._job.not_enqueued(prepared, error, owner)
        except BaseException:
            self._job.progress.entered(prepared.entered)
            raise
        finally:
            del error  # its traceback contains the caller's frame

    async def _put_each(self, prepared: Prepared, owner: Call) -> None:
        enqueue = self._enqueue
        for example in prepared.examples[prepared.entered :]:
            self._blocked += 1
            try:
                await enqueue(example)
            except BaseException as error:
                self._job.not_enqueued(prepared, error, owner)
                return
            finally:
                self._blocked -= 1
            prepared.entered += 1

    async def _put_as_made(
        self, prepared: Prepared, examples: AsyncGenerator[Any, None], owner: Call
    ) -> None:
        job = self._job
        while True:
            try:
                example = await anext(examples)
            except StopAsyncIteration:
                return
            except BaseException as error:
                job.refused(prepared, job.failure_of_item(error, owner))
                return
            try:
                await self._enqueue(example)
            except BaseException as error:
                job.not_enqueued(prepared, error, owner)
                return
            prepared.entered += 1


class _TaskInbox:
    """Items that a separate task takes from the source for workers that are tasks.

    It is the counterpart of `ThreadInbox`, within one event loop.
    """

    def __init__(self, job: Job, source: _TaskSource, delivery: _TaskDelivery) -> None:
        self._job = job
        self._source = source
        source.is_for_workers = False
        self._delivery = delivery
        self._inbox = Inbox(job.key_limit)
        self._work_came: anyio.Event | None = None

    async def take_items(self, owner: Call) -> None:
        self._inbox.set_clock(anyio.current_time)  # no worker has an item before that
        while True:
            item = await self._source.take(owner)
            self._job.window.asked = 0
            self._inbox.put(Pending(item))
            self._wake()

    async def take(self, owner: Call) -> Pending:
        """Return the next item to prepare, which has its place.

        Raises:
            NothingMore: everything has been prepared.
            BaseException: the failure of the key function, if that ends everything.
        """
        while True:
            if self._job.roster.surplus:
                self._job.dismiss()
            taken = self._inbox.take(1)
            if self._inbox.is_newly_due():
                self._wake()
            for pending in taken:
                if await self._is_admitted(pending, owner):
                    return pending
                break  # it was put aside, or has failed: try the next one
            else:
                await self._wait()

    async def _wait(self) -> None:
        if self._job.source_ended and self._job.window.items == 0:
            raise self._job.nothing_more()
        # All idle workers wait for one event. An event cannot be reset, so the first one that
        # waits after it was set makes the next.
        if self._work_came is None or self._work_came.is_set():
            self._work_came = anyio.Event()
        keys = self._job.key_limit
        assert keys is not None
        keys.count_idle(1)
        try:
            with anyio.move_on_after(self._inbox.seconds()):
                await self._work_came.wait()
        finally:
            keys.count_idle(-1)

    async def _is_admitted(self, pending: Pending, owner: Call) -> bool:
        """Return whether an item may be prepared now; otherwise it is put aside, or has failed."""
        assert self._job.key_limit is not None
        try:
            self._job.key_limit.note_key(pending)
        except BaseException as error:
            add_note(error, NOTE_OF_KEY)
            await self.failed(pending, self._job.failure_of_item(error, owner), owner)
            return False
        is_admitted = self._inbox.admit(pending)
        if self._inbox.is_newly_due():
            self._wake()
        return is_admitted

    def release_place(self, pending: Pending) -> None:
        """Free the place of an item that has ended or is to be retried."""
        if self._inbox.release_place(pending) or self._inbox.is_newly_due():
            self._wake()

    async def failed(self, pending: Pending, error: BaseException, owner: Call) -> None:
        """Retry or skip an item whose preparation has failed.

        Raises:
            BaseException: the failure, if it ends everything; or what else ends the worker.
        """
        pending.failures += 1
        try:
            delay = self._job.progress.failed(pending.item, error, pending.failures)
            keys = self._job.key_limit
            if keys is not None and keys.is_refusal(error):
                self._job.progress.note_refusal()
                keys.call_refused(pending, delay)
        finally:
            # Behind the rate, and in any case, as for threads.
            self.release_place(pending)
        if delay is None:
            skipped = Prepared(pending.item, failures=pending.failures - 1, is_skipped=True)
            await self._delivery.deliver(skipped, owner)
            return
        self._inbox.put_off(pending, delay)
        self._wake()

    def notify_resize(self) -> None:
        """See `Executor.notify_resize`. Called in the loop."""
        self._wake()

    def notify_room(self) -> None:
        """Wake the workers, because the job may be over."""
        if self._job.source_ended:
            self._wake()

    def _wake(self) -> None:
        if self._work_came is not None:
            self._work_came.set()
