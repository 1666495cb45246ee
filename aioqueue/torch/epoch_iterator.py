"""Iterates over an epoch: indices go from the sampler to the workers, batches come back in order.

All random draws and all calls of the sampler happen in the iterating thread, at the same moments as
in PyTorch's loader: a new iterator gives each worker its first tasks, and one more whenever a batch
has arrived. So generators end up in the same state.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

import torch

from aioqueue import DeadlineExceededError, InvalidArgumentError, OutOfRangeError
from aioqueue.base.tracebacks import shorten
from aioqueue.inputs import Quarantined
from aioqueue.pipeline.nodes.metrics import NodePart
from aioqueue.system.forks import PROCESS, inherited_error
from aioqueue.system.locks import call_with_lock
from aioqueue.telemetry import note_waits
from aioqueue.telemetry.explain.explanation import ExplainedWait, loop_wait
from aioqueue.torch.collate import BatchMemory
from aioqueue.torch.fetchers import (
    DatasetStart,
    DatasetState,
    Empty,
    Exhausted,
    Recipe,
    fetcher_of,
)
from aioqueue.torch.generator_states import States
from aioqueue.torch.loader_metrics import LoaderRecord
from aioqueue.torch.loader_state import LoaderKind, LoaderPosition, index_checksum
from aioqueue.torch.loader_workers import (
    Begin,
    Pin,
    ProcessWorker,
    SharedWorkerState,
    Task,
    TaskReply,
    ThreadWorker,
    pickled,
)
from aioqueue.torch.sampler_state import SamplerCounters, restore_samplers, states_of_samplers
from aioqueue.torch.worker_init import WorkerInit
from aioqueue.torch.worker_streams import Where, WorkerStreams
from aioqueue.worlds.waker import in_event_loop

_NOTHING: Final = object()

_Worker = Callable[[Begin | Task], TaskReply | None]


@dataclass(frozen=True)
class IteratorPlan:
    """The task of an iterator: the arguments of the loader at its creation."""

    recipe: Recipe
    index_sampler: Any
    workers: int
    where: Where
    prefetch: int
    timeout: float
    init_fn: Callable[[int], object] | None
    worker_init: WorkerInit
    generator: Any
    is_persistent: bool
    in_order: bool
    pin: Pin | None
    raise_single: bool
    record: LoaderRecord
    reported_length: int | None
    """The length of an iterable dataset when the loader's length was last requested."""

    @property
    def kind(self) -> LoaderKind:
        """How such a loader draws, if it did not resume another kind."""
        return LoaderKind(bool(self.workers), self.is_persistent and bool(self.workers))


@dataclass
class LoaderProgress:
    """The position of a loader, shared with its iterators."""

    position: LoaderPosition | None = None
    """Position in the latest epoch; ``None`` before the first."""
    resume: LoaderPosition | None = None
    """Where the next epoch resumes."""
    base_seed: int | None = None
    """Base of the next epoch's worker seeds, instead of a new draw: the saved loader's workers
    stayed alive."""
    process: int | None = None
    """Process of the latest epoch."""
    samplers: list[Any] | None = None
    """States to restore in the samplers before the next epoch; see `loader_state`."""
    counters: SamplerCounters = field(default_factory=SamplerCounters)
    """The samplers' counters."""
    generators: dict[int, States] = field(default_factory=dict)
    """The states from which the generators of the next epoch's workers go on, by worker."""
    kind: LoaderKind | None = None
    """The kind of the saved loader, if that was another one."""

    def draws_seed(self, *, is_first: bool) -> bool:
        """Whether a new epoch draws the base of its workers' seeds.

        Args:
            is_first: whether it is the first one of its workers.
        """
        if self.base_seed is not None:
            return False
        if self.kind is None:
            return is_first
        return not self.kind.is_persistent or self.position is None

    def kept_seed(self) -> int | None:
        """The base of the workers' seeds for an epoch that does not draw it."""
        if self.resume is not None:
            return self.resume.base_seed
        if self.base_seed is None and self.kind is not None and self.position is not None:
            return self.position.base_seed
        return self.base_seed


class _DrawnIndex(NamedTuple):
    """One index of the sampler."""

    number: int
    index: Any
    checksum: int


class _SamplerFailure(NamedTuple):
    """An exception of the sampler, in the place of an index."""

    error: Exception


class LoaderIterator(ABC, Iterator[Any]):
    """An iterator over the batches of one epoch; ``iter`` of a `DataLoader` returns it.

    Several threads may iterate at once; each batch goes to one of them. In a fork of the process it
    raises an error.

    When the loop is left, or the iterator is dropped, its workers are stopped at once. Idle ones
    end then, others after their current batch. `close` waits for that.
    """

    def __init__(self, plan: IteratorPlan, progress: LoaderProgress) -> None:
        self._plan = plan
        self._progress = progress
        self._iteration_lock = threading.RLock()  # several threads may iterate
        self._is_closed = False
        self._process = PROCESS.number
        self.reported_length: int | None = plan.reported_length
        self._position: LoaderPosition
        self._base_seed = 0
        self._current_wait: tuple[threading.Thread, float] | None = None
        """The thread that asks for a batch now, and since when, for explanations."""
        note_waits(self)
        with self._noting_wait():
            self._begin_epoch(is_first=True)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ", over" if self._position.is_over else ""
        dataset = type(self._plan.recipe.dataset).__name__
        return f"<aioqueue.torch.LoaderIterator of a {dataset}: handed out {self._yielded}{state}>"

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """Return how many indices, or lists of indices, the sampler yields."""
        return len(self._plan.index_sampler)

    def __next__(self) -> Any:
        self._check_process()
        name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        try:
            with torch.autograd.profiler.record_function(name):
                meters = self._plan.record.watch.steps
                if meters is None:
                    batch = call_with_lock(self._iteration_lock, self._advance)
                else:
                    with meters.step(self._iteration_lock):
                        batch = call_with_lock(self._iteration_lock, self._advance)
        except StopIteration:
            raise
        except BaseException as error:
            shorten(error)
            raise
        self._warn_if_longer()
        return batch

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: its workers run in this process"
        )

    def _advance(self) -> Any:
        if self._is_closed or self._position.is_over:
            raise StopIteration
        with self._noting_wait():
            batch = self._next_batch()
        self._yielded += 1
        return batch

    @contextmanager
    def _noting_wait(self) -> Iterator[None]:
        """Mark what the loop waits for: a batch, or the sampler's first indices."""
        self._current_wait = (threading.current_thread(), perf_counter())
        try:
            yield
        finally:
            self._current_wait = None

    # What explanations require of a place where callers wait.

    def waits(self, frames: Mapping[int, FrameType]) -> list[ExplainedWait]:
        """Return the wait of the loop. A wait for a worker counts as one at the worker's queue."""
        current_wait = self._current_wait
        if current_wait is None:
            return []
        what = "waits for the next batch of a DataLoader"
        return [loop_wait(current_wait[0], perf_counter() - current_wait[1], frames, what)]

    def waits_move(self) -> Hashable:
        """Return a value that changes with each batch."""
        return self._yielded, self._current_wait

    def longest_of_waits(self) -> float:
        """Return how long the loop has waited, in seconds."""
        current_wait = self._current_wait
        return 0.0 if current_wait is None else perf_counter() - current_wait[1]

    def waits_for(self, coordinator: object) -> bool:
        """Return false: no coordinator of the user watches it."""
        return False

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process is a fork of the one that created it."""
        return self._process != PROCESS.number

    def _check_process(self) -> None:
        if self.is_of_another_process:
            raise inherited_error("this iterator of a DataLoader")

    @property
    def is_closed(self) -> bool:
        """Whether it yields nothing more, in this epoch or another."""
        return self._is_closed

    def restart(self) -> None:
        """Begin another epoch with the same workers; the rest of the previous one is dropped.

        If a worker failed in that epoch, all workers are replaced.
        """
        with self._noting_wait():
            self._begin_epoch(is_first=False)

    @abstractmethod
    def close(self) -> None:
        """Stop the workers, and wait for up to 5 seconds until they have ended.

        It releases their batches, and closes generators of an iterable dataset. Failures in batches
        that you have not requested are not raised.
        """

    @abstractmethod
    def _next_batch(self) -> Any:
        """Return the next batch, or raise `StopIteration`."""

    def _begin_epoch(self, *, is_first: bool) -> None:
        """Draw the epoch's initial random numbers, in PyTorch's order."""
        plan, progress = self._plan, self._progress
        resume, kept_seed, kind = progress.resume, progress.kept_seed(), progress.kind or plan.kind
        draws_seed = progress.draws_seed(is_first=is_first) if resume is None else resume.is_first
        if kept_seed is not None:
            self._base_seed = kept_seed
        samplers = progress.samplers if resume is None else resume.samplers
        # Before anything is drawn: a sampler yields the saved order only from its saved state.
        if samplers:
            restore_samplers(plan.index_sampler, plan.generator, samplers)
        progress.counters.begin(plan.index_sampler, samplers or [])
        with _DrawingFromState(plan.generator, None if resume is None else resume.random):
            # The state from which the epoch draws, for `state_dict`: here nothing is drawn yet.
            random = _random_state(plan.generator)
            if resume is None:
                samplers = states_of_samplers(plan.index_sampler, plan.generator)
            indices = iter(plan.index_sampler)
            if draws_seed:
                self._base_seed = _drawn_seed(plan.generator)
            if draws_seed and kind.has_workers:
                # With workers, PyTorch iterates the sampler twice; a sampler that draws at once
                # then advances the generator by one more order.
                indices = iter(plan.index_sampler)
            if resume is None:
                # Counts only while another kind of loader is continued, whose workers would have
                # kept their generators: see `LoaderKind.seed_of_workers`.
                kind.epochs = 0 if draws_seed or kind is not progress.kind else kind.epochs + 1
                starts = [DatasetStart()] * max(1, plan.workers) if plan.recipe.is_iterable else []
                resume = LoaderPosition(random, self._base_seed, draws_seed, starts)
                resume.samplers = samplers or []
            elif not plan.recipe.is_iterable:
                indices = _indices_after(indices, resume, peeks=plan.generator is None)
        self._seed_of_workers = kind.seed_of_workers(self._base_seed)
        # Workers that live on keep their generators. New ones begin with those of a resumed loader.
        generators = progress.generators if is_first else self._position.generators
        resume.generators = dict(generators)
        self._restored_generators = dict(progress.generators) if is_first else {}
        self._indices = indices
        self._number = 0 if plan.recipe.is_iterable else resume.batches
        self._position = resume
        self._yielded = 0

    def _note_epoch_begun(self) -> None:
        """Note that a resumed epoch has begun; until then, the resumption can be retried."""
        progress = self._progress
        progress.position, progress.resume = self._position, None
        progress.base_seed = progress.samplers = None
        progress.generators = {}
        progress.process = self._process
        self._plan.record.epoch_begun()

    def load(self) -> tuple[int, int, int, int]:
        """Return how many batches wait, and are being made; the workers, and those that died."""
        return 0, 0, 0, 0

    def _note_received(self, drawn: _DrawnIndex, skipped: Iterable[Quarantined]) -> None:
        samples = len(drawn.index) if isinstance(drawn.index, Sized) else 1
        self._plan.record.batch_received(samples, skipped)

    def _draw(self) -> _DrawnIndex | None:
        """Return the sampler's next index; ``None`` if there are no more."""
        while True:
            index = next(self._indices, _NOTHING)
            if index is _NOTHING:
                self._progress.counters.find_changed(self._plan.index_sampler)
                return None
            number, self._number = self._number, self._number + 1
            # Without ordering, later batches may have been returned before the state was saved.
            if number >= self._position.batches and number not in self._position.out_of_order:
                return _DrawnIndex(number, index, self._checksum_of(index))

    def _checksum_of(self, index: Any) -> int:
        if self._plan.recipe.is_iterable:
            return 0
        return index_checksum(index)

    def _mark_returned(
        self, drawn: _DrawnIndex, worker: int, dataset_state: DatasetState | None
    ) -> None:
        if dataset_state is not None:
            self._position.mark_returned_by(worker, dataset_state)
        else:
            self._position.mark_returned(drawn.number, drawn.checksum)

    def _warn_if_longer(self) -> None:
        plan, reported = self._plan, self.reported_length
        if reported is None or self._yielded <= reported:
            return
        hint = ""
        if plan.workers:
            hint = " Its workers may not split it: see torch.utils.data.get_worker_info."
        warnings.warn(
            f"Length of IterableDataset {plan.recipe.dataset} was reported to be {reported} (when"
            f" len(dataloader) was asked for), but {self._yielded} have been fetched.{hint}",
            stacklevel=3,
        )


class _SerialIterator(LoaderIterator):
    """Makes each batch on demand in the calling thread: ``num_workers=0``."""

    def __init__(self, plan: IteratorPlan, progress: LoaderProgress) -> None:
        if plan.timeout:
            raise AssertionError(f"timeout: got {plan.timeout}; expected 0 with num_workers=0")
        super().__init__(plan, progress)
        starts = self._position.starts
        start = starts[0] if starts else DatasetStart()
        self._fetcher = fetcher_of(plan.recipe, start, BatchMemory())
        dataset = type(plan.recipe.dataset).__name__
        self._part = NodePart(
            self, "DataLoader", dataset, "dataset", ("make_batch",), is_sampled=False
        )
        plan.record.watch.add(self._part)
        self._note_epoch_begun()

    def make_batch(self, index: Any) -> Any:
        """Make a batch. Monitors measure it."""
        return self._fetcher.fetch(index)

    def calls_of(self, given: tuple[Any, ...], result: Any) -> int:
        """Return how many batches a call has made."""
        return 1

    def close(self) -> None:
        """Stop, and close the generator of the dataset.

        Raises:
            Exception: the generator failed when it was closed.
        """
        self._check_process()
        self._is_closed = True
        self._fetcher.close()

    def _next_batch(self) -> Any:
        while True:
            drawn = self._draw()
            try:
                if drawn is None:
                    raise Exhausted
                batch = self.make_batch(drawn.index)
            except Exhausted:
                self._position.is_over = True
                raise StopIteration from None
            except Empty:
                assert drawn is not None
                self._mark_returned(drawn, 0, self._fetcher.dataset_state())
                self._note_received(drawn, self._fetcher.take_skipped())
                continue
            if self._plan.pin is not None:
                batch = self._plan.pin(batch)
            self._mark_returned(drawn, 0, self._fetcher.dataset_state())
            self._note_received(drawn, self._fetcher.take_skipped())
            return batch


class _WorkersIterator(LoaderIterator):
    """Prepares batches ahead in workers."""

    def __init__(self, plan: IteratorPlan, progress: LoaderProgress) -> None:
        if plan.prefetch <= 0:
            raise AssertionError(
                f"prefetch_factor: got {plan.prefetch}; expected at least 1 with workers"
            )
        self._epoch = 0
        super().__init__(plan, progress)
        self._memory = BatchMemory(plan.workers)
        self._start_workers()
        with self._noting_wait():
            self._send_first_tasks()
        self._note_epoch_begun()

    def restart(self) -> None:
        try:
            # First the old replies: they would be taken for those of the new epoch. A worker that
            # has failed ends, so all are replaced.
            if not self._drain_previous_epoch():
                self._stop_workers()
                self._streams.join()
                self._start_workers()
                self._position.generators = {}
            super().restart()
            with self._noting_wait():
                self._send_first_tasks()
            self._note_epoch_begun()
        except BaseException as error:
            self._stop_on_interrupt(error)
            raise

    def close(self) -> None:
        self._check_process()
        self._is_closed = True
        self._streams.stop()
        self._streams.join()
        self._streams.release()

    def load(self) -> tuple[int, int, int, int]:
        waiting = self._streams.waiting()
        in_progress = max(0, sum(self._pending_counts) - waiting)
        is_over = self._is_closed or self._position.is_over
        return waiting, in_progress, 0 if is_over else self._plan.workers, self._streams.died()

    def _start_workers(self) -> None:
        workers = _workers_of(self._plan, self._seed_of_workers, self._memory)
        self._initialised_threads = [] if self._plan.init_fn is None else _threads_among(workers)
        self._streams = _streams_of(self._plan, workers)
        # Not `__del__`, which would also run on a half-constructed object.
        self._stop_workers = weakref.finalize(self, self._streams.stop)
        self._stop_workers.atexit = False

    def _drain_previous_epoch(self) -> bool:
        """Wait for the rest of the previous epoch, which workers finish before they begin another.

        Returns whether no worker failed.
        """
        try:
            # Without ordering, all workers share one queue, and any of them may reply.
            for worker in range(self._plan.workers):
                while self._pending_counts[worker]:
                    self._pending_counts[self._receive(worker).worker] -= 1
        except OutOfRangeError:
            return False
        return True

    def _send_first_tasks(self) -> None:
        plan, position = self._plan, self._position
        self._epoch += 1
        self._ended = set(position.ended)
        self._tasks: deque[tuple[int, _DrawnIndex]] = deque()
        self._pending_counts = [0] * plan.workers
        self._sampler_failure: Exception | None = None
        self._indices = _until_failure(self._indices)
        next_worker = (
            position.next_worker if plan.recipe.is_iterable else position.batches % plan.workers
        )
        self._worker_cycle: Iterator[int] = itertools.cycle(
            [*range(next_worker, plan.workers), *range(next_worker)]
        )
        for worker in range(plan.workers):
            if worker not in self._ended:
                start = position.starts[worker] if position.starts else DatasetStart()
                generators = self._restored_generators.pop(worker, None)
                self._streams.send(worker, Begin(self._epoch, start, generators))
        # PyTorch has forked its workers by now, before the sampler draws. So what the function
        # seeds on a thread must be undone before that.
        self._wait_for_init_fn()
        for _ in range(plan.prefetch * plan.workers):
            self._assign_next()

    def _wait_for_init_fn(self) -> None:
        """Wait for ``worker_init_fn``, which may use the program's generators before the sampler
        does."""
        for number, worker in enumerate(self._initialised_threads):
            if number not in self._ended:
                worker.wait_until_set_up()

    def _assign_next(self) -> None:
        """Give one more task to a worker, if there is a task and a worker with room.

        An exception of the sampler is kept until the batches before it have been returned.
        """
        if self._sampler_failure is not None:
            return
        drawn = self._draw()
        if drawn is not None and isinstance(drawn.index, _SamplerFailure):
            self._sampler_failure = drawn.index.error
            return
        # Drawn before a worker is found, as in PyTorch: the generator ends up in the same state.
        worker = None if drawn is None else self._worker_with_room()
        if drawn is not None and worker is not None:
            self._pending_counts[worker] += 1
            self._tasks.append((worker, drawn))
            self._streams.send(worker, Task(self._epoch, drawn.number, drawn.index))

    def _worker_with_room(self) -> int | None:
        """Return the worker whose turn it is, or without ordering, one with room."""
        plan = self._plan
        for _ in range(plan.workers):
            worker = next(self._worker_cycle)
            if worker in self._ended:
                continue
            # The workers that are left share the tasks that the ended ones would have had.
            share = plan.prefetch * plan.workers // (plan.workers - len(self._ended))
            if plan.in_order or self._pending_counts[worker] < share:
                return worker
        return None

    def _next_batch(self) -> Any:
        try:
            while self._tasks:
                worker, drawn = self._tasks[0]
                if worker in self._ended and self._plan.in_order:
                    # Its reply can only say once more that the part has ended. `_pending_counts`
                    # keeps it, so that the next epoch takes it from the queue.
                    self._tasks.popleft()
                    continue
                reply = self._receive(worker)
                drawn = self._record_reply(reply)
                if not reply.has_ended:
                    batch = None if reply.is_empty else self._streams.batch_of(reply)
                    self._mark_returned(drawn, reply.worker, reply.dataset_state)
                    # Without order, another worker may make the next batch of this one.
                    if reply.generators is not None and self._plan.in_order:
                        self._position.generators[reply.worker] = reply.generators
                    self._note_received(drawn, reply.skipped)
                    if not reply.is_empty:
                        return batch
        except OutOfRangeError:
            pass
        except BaseException as error:
            self._stop_on_interrupt(error)
            raise
        else:
            self._end()
            raise StopIteration
        self._fail(worker)  # outside `except`, so that the end of our queue is not its context
        raise StopIteration

    def _record_reply(self, reply: TaskReply) -> _DrawnIndex:
        """Record a reply, and request one more batch; return the task that it answers."""
        if self._plan.in_order:
            _, drawn = self._tasks.popleft()
        else:
            # A worker replies in the order of its tasks: this is the oldest of its own.
            at = [worker for worker, _ in self._tasks].index(reply.worker)
            _, drawn = self._tasks[at]
            del self._tasks[at]
        self._pending_counts[reply.worker] -= 1
        if reply.has_ended:
            self._ended.add(reply.worker)
            self._position.ended.add(reply.worker)
        # One task for each reply, in this thread: so the sampler is called when PyTorch calls it.
        self._assign_next()
        return drawn

    def _receive(self, worker: int) -> TaskReply:
        """Wait for the next reply of a worker.

        Raises:
            OutOfRangeError: the worker has ended.
            RuntimeError: the loader's timeout has passed, or an event loop runs in this thread.
        """
        timeout = self._plan.timeout or None
        began = monotonic()
        try:
            return self._streams.receive(worker, timeout)
        except DeadlineExceededError as error:
            if timeout is None or monotonic() - began < timeout:
                raise  # the deadline of an enclosing `CancelScope`
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds") from error
        except RuntimeError as error:
            if type(error) is not RuntimeError or not in_event_loop():
                raise  # such as in a fork, which has no workers
            raise RuntimeError(
                "the next batch of a DataLoader is not ready, and waiting for it would block this"
                " thread's running event loop: iterate over the loader in a thread, such as with"
                " `await asyncio.to_thread(train, loader)`; or use a Pipeline of aioqueue.inputs"
                " with `async for`"
            ) from None

    def _fail(self, worker: int) -> None:
        """Raise the failures after a worker has ended."""
        self._is_closed = True
        try:
            self._streams.fail(worker)
        finally:
            self._streams.release()

    def _stop_on_interrupt(self, error: BaseException) -> None:
        """Stop everything at once after Ctrl-C."""
        if not isinstance(error, Exception):
            self._stop()

    def _stop(self) -> None:
        self._is_closed = True
        self._streams.stop()

    def _end(self) -> None:
        if self._sampler_failure is not None:
            self._stop()
            raise self._sampler_failure
        self._position.is_over = True
        self._memory.release_spare()
        if not self._plan.is_persistent:
            self._is_closed = True
            self._streams.end()


def iterator_of(plan: IteratorPlan, progress: LoaderProgress) -> LoaderIterator:
    return _WorkersIterator(plan, progress) if plan.workers else _SerialIterator(plan, progress)


def _workers_of(plan: IteratorPlan, base_seed: int, memory: BatchMemory) -> list[_Worker]:
    shared = SharedWorkerState(plan.recipe, plan.init_fn, plan.workers, base_seed)
    if plan.where == "process":
        payload = pickled(shared)
        return [ProcessWorker(number, payload) for number in range(plan.workers)]
    return [
        ThreadWorker(number, shared, plan.pin, memory, plan.worker_init)
        for number in range(plan.workers)
    ]


def _threads_among(workers: list[_Worker]) -> list[ThreadWorker]:
    return [worker for worker in workers if isinstance(worker, ThreadWorker)]


def _streams_of(plan: IteratorPlan, workers: list[_Worker]) -> WorkerStreams:
    return WorkerStreams(
        workers,
        plan.where,
        in_order=plan.in_order,
        ahead=plan.prefetch * plan.workers,
        pin=plan.pin if plan.where == "process" else None,
        raise_single=plan.raise_single,
        watch=plan.record.watch,
        dataset=type(plan.recipe.dataset).__name__,
    )


def _drawn_seed(generator: Any) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _random_state(generator: Any) -> Any:
    return torch.get_rng_state() if generator is None else generator.get_state()


class _DrawingFromState:
    """Draws from a saved state of the generator.

    The loader's own generator continues from that state, unless the block fails. The global one is
    restored: a loader must not change the state of the rest of the program.

    This is not a `contextlib.contextmanager`, which modifies exceptions that pass through it; some
    exceptions of samplers do not allow that.

    Args:
        generator: the loader's own; ``None`` for the global one.
        state: the saved state; ``None`` for the current one.
    """

    def __init__(self, generator: Any, state: Any) -> None:
        self._generator = generator
        self._state = state

    def __enter__(self) -> None:
        if self._state is not None:
            self._before = _random_state(self._generator)
            self._set(self._state)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state is not None and (self._generator is None or error is not None):
            self._set(self._before)

    def _set(self, state: Any) -> None:
        if self._generator is None:
            torch.set_rng_state(state)
        else:
            self._generator.set_state(state)


def _indices_after(
    indices: Iterator[Any], position: LoaderPosition, *, peeks: bool
) -> Iterator[Any]:
    """Yield the indices after those that were returned.

    Args:
        indices: all indices of the epoch.
        position: the saved position.
        peeks: draw one more index at once, since a sampler draws its order on the first request.

    Raises:
        InvalidArgumentError: the sampler yields different indices now.
    """
    replayed = LoaderPosition(None, 0, False, [])
    for number, index in enumerate(itertools.islice(indices, position.batches)):
        replayed.mark_returned(number, index_checksum(index))
    if (replayed.batches, replayed.order) != (position.batches, position.order):
        raise InvalidArgumentError(
            f"state: the sampler yields other indices than in the first {position.batches} batches"
            f" of the saved epoch (it now yields {replayed.batches} batches); expected a sampler"
            " that depends only on the generator, the dataset and its settings (such as"
            " DistributedSampler.set_epoch), or one with state_dict() and load_state_dict(state)"
        )
    return _peek(indices) if peeks else indices


def _until_failure(indices: Iterator[Any]) -> Iterator[Any]:
    """Yield from the sampler; after its failure, raise that failure every time.

    It is a generator because its frame refers to nothing else. A failure that passed through a
    method of the iterator would refer to the iterator, and so would keep the workers running after
    the loop is left.
    """
    try:
        while True:
            yield next(indices, _NOTHING)
    except Exception as error:
        failed = _SamplerFailure(error)
    while True:
        yield failed


def _peek(indices: Iterator[Any]) -> Iterator[Any]:
    first = next(indices, _NOTHING)
    return indices if first is _NOTHING else itertools.chain([first], indices)
